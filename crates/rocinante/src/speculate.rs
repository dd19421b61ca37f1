//! Speculation as a caller asks for it, and the drafter that the engine gets.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use engine::{AssistantDrafter, DraftModel, Drafter, Drafting, Lookup, MAX_DRAFT, NextToken};
use serde::{Deserialize, Serialize};

use ::model::{
    AssistantOptions, BLOCK_TOKENS, Config, DeviceChoice, LoadOptions, MemoryPlan, Model as LoadedModel, ModelPart,
    Numerics,
};

use crate::device::{ChosenDevice, Device};
use crate::model_files::ModelFiles;
use crate::options::{Options, Scheduling, WindowUse, Workload};
use crate::{Error, Result, files};

/// More requests than this at once fill a CPU's steps by themselves.
pub(crate) const FEW: usize = 8;
/// Full contexts in a draft model's pool, where many requests share the model.
const DRAFT_CONTEXTS: usize = 8;
/// Rows of one step of a layer that guesses ahead.
const NEXT_ROWS: usize = 64;
/// Rows of one step of a drafter inside of the model.
const ASSISTANT_ROWS: usize = 16;
/// Hidden states of a step that such a layer reads, beyond those of guessed tokens: the end of a prompt.
const HEARD_ROWS: usize = 64;

/// Who guesses tokens ahead, so that one step checks several. Answers are the same with and without it. Reads and writes
/// as `auto`, `ngram`, `mtp`, `draft=PATH`, `off`.
///
/// ```
/// use rocinante::Speculate;
/// assert_eq!("ngram".parse::<Speculate>()?, Speculate::Ngram);
/// assert_eq!("draft=small.gguf".parse::<Speculate>()?.to_string(), "draft=small.gguf");
/// assert!("guess".parse::<Speculate>().is_err());
/// # Ok::<(), rocinante::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculate {
    /// Like `ngram` on a CPU that has few requests at once; off on a GPU.
    Auto,
    /// What followed the last few tokens earlier in the text.
    Ngram,
    /// The model's own layer for the token after the next.
    Mtp,
    /// A smaller model of the same vocabulary, on the same device; or a drafter that was made for the model and reads its keys
    /// and values (Gemma 4's `assistant`).
    Draft(PathBuf),
    /// Nobody.
    #[default]
    Off,
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Ngram => f.write_str("ngram"),
            Self::Mtp => f.write_str("mtp"),
            Self::Draft(path) => write!(f, "draft={}", path.display()),
            Self::Off => f.write_str("off"),
        }
    }
}

impl FromStr for Speculate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match (text, text.split_once('=')) {
            ("auto", _) => Ok(Self::Auto),
            ("ngram", _) => Ok(Self::Ngram),
            ("mtp", _) => Ok(Self::Mtp),
            ("off", _) => Ok(Self::Off),
            (_, Some(("draft", path))) if !path.is_empty() => Ok(Self::Draft(path.into())),
            _ => Err(Error::Speculate(text.to_owned())),
        }
    }
}

impl Speculate {
    /// Rows of logits that drafts take beyond one for each sequence.
    pub(crate) fn n_draft_rows(&self) -> usize {
        match self {
            Self::Off => 0,
            Self::Mtp => MAX_DRAFT + HEARD_ROWS,
            Self::Auto | Self::Ngram | Self::Draft(_) => MAX_DRAFT,
        }
    }

    /// The same, with a path that means the same in another folder.
    pub(crate) fn absolute(&self) -> Self {
        match self {
            Self::Draft(path) => Self::Draft(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            other => other.clone(),
        }
    }
}

/// What an engine needs to speculate: a drafter, if there is to be one, and when it is asked.
pub(crate) struct Speculation {
    pub drafter: Option<Box<dyn Drafter>>,
    pub drafting: Drafting,
    /// Memory that the drafter will take and that the system still counts as available. Of a draft model, that is main memory:
    /// its weights are there by now, but what it works in and its keys and values are taken when they are first used. A
    /// drafter that becomes part of the model has not taken anything yet, on any device.
    pub beside_bytes: u64,
    /// A drafter that becomes part of the model, once that is loaded.
    assistant: Option<Assistant>,
    /// Why there is no drafter, where one was asked for.
    refusal: Option<String>,
}

/// A drafter that reads the model's keys and values, planned and not loaded yet.
struct Assistant {
    files: ModelFiles,
    options: AssistantOptions,
}

impl Speculation {
    /// Loads the draft model, if there is one. Before the model itself is planned, so that it gets what is left of the
    /// memory.
    pub fn load(files: &ModelFiles, options: &Options, device: &ChosenDevice) -> Result<Self> {
        let drafting = Drafting::default();
        let without = |refusal| Ok(Self { drafter: None, drafting, beside_bytes: 0, assistant: None, refusal });
        let config = files.config()?;
        if config.is_encoder() {
            return without(None);
        }
        let (mut beside_bytes, mut assistant) = (0, None);
        let few = Drafting { max_running: FEW, ..Drafting::default() };
        let (drafter, drafting): (Option<Box<dyn Drafter>>, _) = match &options.speculate {
            Speculate::Off => return without(None),
            Speculate::Mtp => match load_next_token(files, options, device) {
                Ok((layer, n_bytes)) => {
                    beside_bytes = n_bytes;
                    (Some(Box::new(layer)), Drafting::default())
                }
                // Another of the server's models may have one.
                Err(error @ Error::NoMtp { .. }) if is_one_of_several(options) => {
                    return without(Some(error.to_string()));
                }
                Err(error) => return Err(error),
            },
            Speculate::Auto if device.choice != DeviceChoice::Cpu => (None, Drafting::default()),
            Speculate::Auto => (Some(Box::<Lookup>::default()), few),
            Speculate::Ngram => (Some(Box::<Lookup>::default()), Drafting::default()),
            Speculate::Draft(path) => match LoadedDraft::load(files, path, options, device) {
                Ok(LoadedDraft { drafter, n_bytes, inside }) => {
                    (beside_bytes, assistant) = (n_bytes, inside);
                    (Some(drafter), Drafting::default())
                }
                // It may fit another of the server's models.
                Err(error @ (Error::DraftVocabulary { .. } | Error::DraftModel { .. }))
                    if is_one_of_several(options) =>
                {
                    return without(Some(error.to_string()));
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Self { drafter, drafting, beside_bytes, assistant, refusal: None })
    }

    /// Gives the model what becomes a part of it.
    pub fn attach_to(&mut self, model: &mut LoadedModel) -> Result<()> {
        match self.assistant.take() {
            Some(Assistant { files, options }) => Ok(model.attach(files.checkpoint(), options)?),
            None => Ok(()),
        }
    }

    /// What a person should know, where there is no drafter although one was asked for.
    pub fn note(&self) -> Option<String> {
        let refusal = self.refusal.as_ref()?;
        Some(format!("--speculate has no effect: {refusal}"))
    }
}

fn is_one_of_several(options: &Options) -> bool {
    matches!(options.workload, Workload::Server(Scheduling { n_models: 2.., .. }))
}

/// Something that drafts, from a path.
struct LoadedDraft {
    drafter: Box<dyn Drafter>,
    /// See [`Speculation::beside_bytes`].
    n_bytes: u64,
    inside: Option<Assistant>,
}

impl LoadedDraft {
    fn load(files: &ModelFiles, path: &Path, options: &Options, device: &ChosenDevice) -> Result<Self> {
        let draft = ModelFiles::open(path)?;
        if draft.config()?.assistant.is_some() {
            return Self::inside(files, draft, options, device);
        }
        check_vocabulary(files, &draft)?;
        let (model, n_bytes) = load_draft(&draft, options, device)?;
        Ok(Self { drafter: Box::new(model), n_bytes, inside: None })
    }

    /// One that reads the model's keys and values.
    fn inside(files: &ModelFiles, draft: ModelFiles, options: &Options, device: &ChosenDevice) -> Result<Self> {
        let config = files.config()?;
        let fitting = |error: ::model::Error| match error {
            ::model::Error::OtherDrafter(why) => Error::DraftModel { draft: draft.path().to_owned(), why },
            error => error.into(),
        };
        let inside =
            AssistantOptions { max_rows: n_running(options).min(ASSISTANT_ROWS), n_ctx: n_ctx(&config, options) };
        let memory = ::model::plan_assistant(draft.checkpoint(), &config, device.choice, inside).map_err(fitting)?;
        // Some come without a tokenizer: their tokens are the model's.
        if files::has_tokenizer(draft.checkpoint()) {
            check_vocabulary(files, &draft)?;
        }
        let drafter = Box::new(AssistantDrafter::new(config.n_vocab, config.n_embd));
        let n_bytes = memory.total_bytes() as u64;
        Ok(Self { drafter, n_bytes, inside: Some(Assistant { files: draft, options: inside }) })
    }
}

/// Requests that may run at once.
fn n_running(options: &Options) -> usize {
    match options.workload {
        Workload::Server(scheduling) => scheduling.max_running.unwrap_or(DRAFT_CONTEXTS),
        Workload::Conversation | Workload::Steps(_) => 1,
    }
}

/// Tokens that a sequence may hold, before memory is planned.
fn n_ctx(config: &Config, options: &Options) -> usize {
    options.context.unwrap_or(crate::load_plan::DEFAULT_CONTEXT).min(config.n_ctx_train)
}

fn load_draft(draft: &ModelFiles, options: &Options, device: &ChosenDevice) -> Result<(DraftModel, u64)> {
    let n_ctx_train = draft.config()?.n_ctx_train;
    let n_ctx =
        options.context.map_or(n_ctx_train, |n_ctx| n_ctx.min(n_ctx_train)).min(crate::load_plan::DEFAULT_CONTEXT);
    let device = Device::of(device.choice);
    let own = |workload: Workload| Options {
        speculate: Speculate::Off,
        quantize: None,
        adapters: ::model::AdapterLimits::default(),
        context: Some(n_ctx),
        // It moves in its contexts by itself.
        windows: WindowUse::Whole,
        device,
        workload,
        ..options.clone()
    };
    let plan = match options.workload {
        // Fewer contexts, where there is not the room for many.
        Workload::Server(scheduling) => {
            let with_contexts = |n: usize| {
                let kv_tokens = Some(n_ctx.saturating_mul(n));
                draft.plan(&own(Workload::Server(Scheduling { kv_tokens, max_batch_tokens: None, ..scheduling })))
            };
            let mut plan = with_contexts(DRAFT_CONTEXTS);
            for n_contexts in [DRAFT_CONTEXTS / 2, DRAFT_CONTEXTS / 4, 1] {
                if matches!(plan, Err(Error::DoesNotFit(_))) {
                    plan = with_contexts(n_contexts);
                }
            }
            plan?
        }
        other => draft.plan(&own(other))?,
    };
    Ok((DraftModel::new(draft.load(&plan)?), untouched_bytes(plan.options.device, &plan.memory())))
}

/// What a model has taken of main memory without touching it.
fn untouched_bytes(device: DeviceChoice, memory: &MemoryPlan) -> u64 {
    match device {
        DeviceChoice::Cpu => (memory.total_bytes() - memory.weights_bytes) as u64,
        // Memory of a device is taken at once.
        DeviceChoice::Gpu { .. } => 0,
    }
}

/// The model's own layer for the token after the next, and what it takes.
fn load_next_token(files: &ModelFiles, options: &Options, device: &ChosenDevice) -> Result<(NextToken, u64)> {
    let config = files.config()?;
    let Some(layer) = config.next_token() else {
        return Err(Error::NoMtp { architecture: config.family.name.to_owned() });
    };
    let (n_running, n_ctx) = (n_running(options), n_ctx(&config, options));
    let load = LoadOptions {
        device: device.choice,
        part: ModelPart::NextToken,
        kv_type: options.kv_type,
        n_blocks: n_ctx.div_ceil(BLOCK_TOKENS) * n_running.min(DRAFT_CONTEXTS) + 1,
        max_batch_tokens: NEXT_ROWS.max(n_running),
        max_logits_rows: n_running,
        n_threads: options.threads(),
        n_ctx,
        numerics: if options.deterministic { Numerics::RowInvariant } else { Numerics::Fastest },
        step_deadline: options.step_deadline,
        on_compile: options.on_compile,
        ..LoadOptions::default()
    };
    let memory = ::model::plan(files.checkpoint(), &layer, &load)?;
    let model = LoadedModel::load(files.checkpoint(), load)?;
    Ok((NextToken::new(model, config.n_embd), untouched_bytes(load.device, &memory)))
}

/// Tokens of one model must mean the same to the other. Entries that only fill up the table do not matter.
fn check_vocabulary(files: &ModelFiles, draft: &ModelFiles) -> Result<()> {
    let (own, other) = (files.tokenizer()?, draft.tokenizer()?);
    let differs = |why: String| Err(Error::DraftVocabulary { draft: draft.path().to_owned(), why });
    if own.n_vocab() != other.n_vocab() {
        return differs(format!("it has {} tokens, the model {}", other.n_vocab(), own.n_vocab()));
    }
    let differing = (0..own.n_vocab() as u32).find(|&id| own.token_bytes(id) != other.token_bytes(id));
    match differing {
        Some(id) => {
            let (own, other) = (own.token_text(id), other.token_text(id));
            differs(format!("its token {id} is {other:?}, the model's {own:?}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in ["auto", "ngram", "mtp", "off", "draft=a/b.gguf"] {
            assert_eq!(name.parse::<Speculate>().unwrap().to_string(), name);
        }
        for bad in ["", "draft", "draft=", "on", "ngram=3"] {
            assert!(matches!(bad.parse::<Speculate>(), Err(Error::Speculate(name)) if name == bad), "{bad}");
        }
    }
}
