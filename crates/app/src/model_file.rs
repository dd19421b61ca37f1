//! Models for commands: opened, planned and loaded by `rocinante`, with hints in the errors. The one
//! place that turns the runtime's errors into what a person should do next.

use std::path::Path;

use anyhow::{Result, anyhow};
use rocinante::{Error, FailureKind, Model, ModelFiles, Options};
use text::Tokenizer;

use crate::progress;
use crate::report::{self, HintExt};

/// Maps a model's files and reads their headers.
pub fn open(path: &Path) -> Result<ModelFiles> {
    ModelFiles::open(path).map_err(|error| hinted(path, error))
}

/// As [`open`], with what the options ask for, and says what was converted.
pub fn open_with(path: &Path, options: &Options) -> Result<ModelFiles> {
    let files = ModelFiles::open_with(path, options).map_err(|error| hinted(path, error))?;
    files.notes().iter().for_each(|note| report::note(note));
    Ok(files)
}

/// The tokenizer that the files describe.
pub fn tokenizer(files: &ModelFiles) -> Result<Tokenizer> {
    files.tokenizer().map_err(|error| hinted(files.path(), error))
}

/// A model that is ready to answer. What a person should know about how it was loaded goes to standard error.
pub fn load(path: &Path, options: &Options) -> Result<Model> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let spinner = progress::spinner(format!("loading {name} ({})", report::human_bytes(rocinante::stored_bytes(path))));
    let model = Model::open_with(path, options).map_err(|error| hinted(path, error));
    spinner.finish_and_clear();
    let model = model?;
    model.notes().iter().for_each(|note| report::note(note));
    Ok(model)
}

/// The error with what to do next, and the file it is about where it does not say so itself.
pub fn hinted(path: &Path, error: Error) -> anyhow::Error {
    let hint = hint(&error);
    let is_about_file = matches!(
        error,
        Error::NoVocabulary(_) | Error::Text(_) | Error::Template(_) | Error::Model(_) | Error::DoesNotFit(_)
    );
    let error = match error {
        Error::Model(model::Error::Gpu(error)) => {
            anyhow::Error::new(error).context(format!("cannot load `{}`", path.display()))
        }
        Error::Load(why) => anyhow!(why).context(format!("cannot load `{}`", path.display())),
        Error::ContextTooLong { n_ctx, n_ctx_train } => {
            anyhow!("--context {n_ctx} is more than the {n_ctx_train} tokens the model was trained for")
        }
        error => error.into(),
    };
    let error = if is_about_file { report::about(path)(error) } else { error };
    match hint {
        Some(hint) => Err::<(), _>(error).hint(hint).expect_err("an error stays one"),
        None => error,
    }
}

/// What to do about it.
fn hint(error: &Error) -> Option<String> {
    let hint = match error {
        Error::File(error) => return Some(file_hint(error)),
        Error::NoVocabulary(_) => {
            "it may be a part of a model, or made for tests; use a file that carries its tokenizer"
        }
        Error::Text(_) => "`roci inspect MODEL` shows what the file says; please report the kind that is missing",
        Error::Template(_) | Error::Conversation(_) => "--raw sends the prompt as is, without a template",
        Error::Gpu(_) | Error::Model(model::Error::Gpu(_)) | Error::Load(_) => {
            "`roci devices` shows the device, and `roci doctor` what may be wrong with it; `--device cpu` runs without a GPU"
        }
        Error::Model(model::Error::NotOnDevice { .. }) => "use `--device cpu`; `--device auto` would have picked it",
        Error::Model(model::Error::Architecture { .. } | model::Error::NoArchitecture(..)) => {
            "`roci inspect` shows what the file says"
        }
        Error::Model(_) => "`roci inspect MODEL --tensors` shows what the file holds",
        Error::DoesNotFit(_) => {
            "use a smaller --context, a file with smaller weights, another --device, or close other programs"
        }
        Error::ContextTooLong { n_ctx_train, .. } => return Some(format!("use --context {n_ctx_train} or less")),
        Error::EmptyPrompt => "give some text to start from",
        Error::PromptTooLong { n_prompt, n_ctx_train, .. } => {
            return Some(match n_prompt < n_ctx_train {
                true => format!("shorten it, or use --context up to {n_ctx_train} (what the model was trained for)"),
                false => format!("shorten it: the model was trained for {n_ctx_train} tokens"),
            });
        }
        Error::Constraint(_) => "check --json-schema, --grammar or --regex; see `roci run --help`",
        Error::Failed { kind: FailureKind::Forward, .. } | Error::Stopped(_) => {
            "`roci doctor` tests the GPU; `--device cpu` runs without it"
        }
        Error::NoProfile => "`roci devices` shows what can compute here; --device chooses",
        Error::NoScores => "use a reranker, for example bge-reranker; `roci embed` computes embeddings with any model",
        Error::Encoder => "`roci embed` computes embeddings, `roci rerank` ranks texts",
        Error::Importance { .. } => "an importance matrix is made by `roci imatrix` or llama.cpp's llama-imatrix",
        Error::Engine(engine::Error::ContextTooSmall { .. } | engine::Error::StepTooSmall { .. }) => {
            "use a larger --context for longer texts"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// What to do about a file that cannot be read as a model.
fn file_hint(error: &weights::Error) -> String {
    use std::io::ErrorKind;
    use weights::Error;
    let hint = match error.cause() {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            "check the path; `roci list` shows the models that are here"
        }
        Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "this user may not read it; `ls -l` shows who may, and `chmod` changes it"
        }
        Error::Io { .. } => "the disk may be failing: `dmesg` shows I/O errors",
        Error::Incomplete { has, needs } => {
            let (has, needs) = (report::human_bytes(*has), report::human_bytes(*needs));
            return format!("{has} of {needs} are here: download the file again");
        }
        Error::Truncated { at: 0, left: 0, .. } => "the file is empty: download it again",
        Error::Truncated { .. } | Error::Count { .. } => {
            "the file ends inside its header, so it is incomplete or damaged: download it again"
        }
        Error::Magic { found } => foreign_hint(*found),
        Error::Folder { .. } => "name a folder that holds a model (.gguf or .safetensors), or the file itself",
        Error::MissingPart { .. } => "all parts of a split model belong in one folder",
        Error::Version { .. } | Error::BigEndian { .. } => {
            "llama.cpp's conversion scripts write files that roci reads: convert the model again"
        }
        _ => {
            "the file is damaged, or of a kind that roci does not know; if a new download does not help, please report it"
        }
    };
    hint.to_owned()
}

/// What a file that is no model may be, by its first bytes.
fn foreign_hint(first: [u8; 4]) -> &'static str {
    match &first {
        b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => {
            "it is a web page: the download got a page (a login, an error) instead of the file"
        }
        b"vers" => "it looks like a Git LFS pointer: `git lfs pull` fetches the file it stands for",
        b"PK\x03\x04" | [0x80, ..] => "it looks like a PyTorch file: convert it to safetensors or GGUF first",
        b"ggml" | b"tjgg" | b"fmgg" | b"lmgg" => "it is in a format from before GGUF: get the model as GGUF",
        _ => "roci reads GGUF and safetensors files: is it the right file?",
    }
}
