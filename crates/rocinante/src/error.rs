//! What can go wrong, grouped by what a caller can do about it. No error has to be recognised by its text.

use std::path::PathBuf;

use crate::memory_plan::NoRoom;

/// Why a model could not be opened, planned or loaded, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that is missing, cut or not a model.
    #[error(transparent)]
    File(#[from] weights::Error),
    /// A tokenizer that cannot be built.
    #[error(transparent)]
    Text(text::Error),
    /// A model that cannot be run or loaded.
    #[error(transparent)]
    Model(#[from] ::model::Error),
    /// A GPU that cannot be used.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// A request that the engine refused.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The model has no vocabulary.
    #[error("the model has no vocabulary: {0}")]
    NoVocabulary(&'static str),
    /// A device's name that is none.
    #[error("unknown device `{0}`: expected {names}", names = crate::device_names())]
    Device(String),
    /// A way to speculate that is none.
    #[error("unknown way to speculate `{0}`: expected auto, ngram, mtp, draft=MODEL or off")]
    Speculate(String),
    /// The model has no layers that predict several tokens, or they are not read yet.
    #[error(
        "--speculate mtp needs a layer that guesses the token after the next, and this `{architecture}` checkpoint has none \
         ({hint})",
        hint = mtp_hint(architecture)
    )]
    NoMtp {
        /// The model's family.
        architecture: String,
    },
    /// A draft model whose tokens are not the model's.
    #[error("the draft model `{draft}` has a different vocabulary: {why}", draft = draft.display())]
    DraftVocabulary {
        /// Its file.
        draft: PathBuf,
        /// Where they differ.
        why: String,
    },
    /// A drafter that reads the keys and values of another model than this one.
    #[error("the drafter `{draft}` was made for another model: {why}", draft = draft.display())]
    DraftModel {
        /// Its files.
        draft: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// Weights, keys and values and scratch are more than the device has.
    #[error(transparent)]
    DoesNotFit(Box<NoRoom>),
    /// A context that was asked for and that the model was not trained for.
    #[error("a context of {n_ctx} is more than the {n_ctx_train} tokens the model was trained for")]
    ContextTooLong {
        /// Tokens that were asked for.
        n_ctx: usize,
        /// Tokens the model was trained for.
        n_ctx_train: usize,
    },
    /// The model's chat template is not a template.
    #[error("the model's chat template cannot be read: {0}")]
    Template(text::Error),
    /// The template refused a conversation, or failed on it.
    #[error("the model's chat template refused the conversation: {0}")]
    Conversation(text::Error),
    /// Nothing to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt fills the context by itself.
    #[error("the prompt has {n_prompt} tokens, the context holds {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens of the context.
        n_ctx: usize,
        /// Tokens the model was trained for.
        n_ctx_train: usize,
    },
    /// A schema, a grammar or an expression that answers cannot be held to.
    #[error("{0}")]
    Constraint(String),
    /// The same, where nothing is known against it: it may work later.
    #[error("{0}")]
    ConstraintBusy(String),
    /// The model computes embeddings and scores only.
    #[error("this model is an encoder: it computes embeddings and scores, and cannot generate text")]
    Encoder,
    /// The model has no head that scores texts.
    #[error("this model is not a reranker: it has no scoring head")]
    NoScores,
    /// A prompt that the model's files do not name.
    #[error("this model has no prompt named `{name}`; it has {known}", known = if known.is_empty() { "none" } else { known })]
    NoPrompt {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// An importance matrix that cannot be read or written.
    #[error("`{path}`: {why}", path = path.display())]
    Importance {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The process that was to load the model says why it could not.
    #[error("{0}")]
    Load(String),
    /// Times of single ops are taken on GPUs only.
    #[error("--profile needs a GPU, and this model runs on the CPU")]
    NoProfile,
    /// The engine gave up on this request; others may work.
    #[error("generation failed: {error}")]
    Failed {
        /// What a caller can branch on.
        kind: engine::FailureKind,
        /// The engine's words.
        error: String,
    },
    /// The engine ended: no request will work any more.
    #[error("the engine stopped: {0}")]
    Stopped(String),
    /// A session file could not be written.
    #[error("the session was not saved: {0}")]
    Session(String),
}

/// What this crate's fallible functions return.
pub type Result<T> = std::result::Result<T, Error>;

impl From<text::Error> for Error {
    fn from(error: text::Error) -> Self {
        match error {
            text::Error::TemplateSyntax(_) => Self::Template(error),
            text::Error::TemplateRefused(_) | text::Error::TemplateRender(_) => Self::Conversation(error),
            text::Error::Constraint(_) => Self::Constraint(error.to_string()),
            text::Error::ConstraintBusy(_) => Self::ConstraintBusy(error.to_string()),
            error => Self::Text(error),
        }
    }
}

/// Who has such layers, for a file that has none.
fn mtp_hint(architecture: &str) -> &'static str {
    match architecture {
        "gemma4" => {
            "Gemma 4's drafters, gemma-4-...-assistant, are files of their own: use --speculate draft=PATH_OF_ASSISTANT"
        }
        _ => "files of qwen35, qwen3next, glm4moe and deepseek models may have one",
    }
}
