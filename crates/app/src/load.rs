//! From a model file to a model in memory: plans first (weights, keys and values, scratch against what
//! the machine has), then loads. A context that was not asked for shrinks until it fits; one that was
//! is an error with the numbers.

use crate::memory_plan::{self, Context, Fit, Room};
use crate::model_file;
use crate::options::{KvType, LoadArgs};
use crate::quantize::{Mix, convert};
use crate::report::{HintExt, human_bytes};
use anyhow::{Context as _, Result};
use model::{BLOCK_TOKENS, Config, LoadOptions, MemoryPlan, Model};
use std::path::Path;
use weights::Checkpoint;

/// A context that nobody asked for is at most this.
const DEFAULT_CONTEXT: usize = 8192;
/// Tokens of a prompt that go through the model in one step.
pub const PROMPT_STEP: usize = 512;

/// What the caller will do with the model.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Sequences that hold a full context at once.
    pub n_sequences: usize,
    pub max_batch_tokens: usize,
    pub max_logits_rows: usize,
}

impl Use {
    /// `roci run`: one conversation, its prompt in steps of [`PROMPT_STEP`].
    pub const ONE_SEQUENCE: Self = Self { n_sequences: 1, max_batch_tokens: PROMPT_STEP, max_logits_rows: 1 };
}

/// A plan that fits this machine.
#[derive(Debug)]
pub struct Plan {
    pub options: LoadOptions,
    pub memory: MemoryPlan,
    /// Tokens each sequence can hold.
    pub n_ctx: usize,
    pub n_ctx_train: usize,
    pub fit: Fit,
    n_sequences: usize,
}

impl Plan {
    /// The memory plan, a line for each part.
    pub fn lines(&self) -> String {
        self.fit.lines(self.n_sequences, &format!("{:?}", self.options.kv_type).to_lowercase())
    }
}

/// Opens a model's files, and makes its weights smaller where that was asked for.
pub fn open(path: &Path, args: &LoadArgs) -> Result<Checkpoint> {
    let checkpoint = model_file::open(path)?;
    for note in checkpoint.notes() {
        eprintln!("note: {note}");
    }
    let Some(mix) = args.quantize.and_then(Mix::find) else { return Ok(checkpoint) };
    let plan = mix.plan(&checkpoint, false);
    let start = std::time::Instant::now();
    let smaller = convert::checkpoint(&checkpoint, &plan, args.n_threads())?;
    let (from, to) = (human_bytes(checkpoint.file_bytes()), human_bytes(smaller.file_bytes()));
    eprintln!("note: weights as {}: {from} -> {to} in {:.1} s", mix.name, start.elapsed().as_secs_f64());
    Ok(smaller)
}

/// Decides the context and checks the memory; touches no weights.
pub fn plan(checkpoint: &Checkpoint, args: &LoadArgs, mut purpose: Use) -> Result<Plan> {
    let config = Config::from_checkpoint(checkpoint).hint("`roci inspect` shows what the file says")?;
    let context = match args.context {
        Some(n_ctx) => Context::Asked(n_ctx as usize),
        None => Context::AtMost(config.n_ctx_train.clamp(1, DEFAULT_CONTEXT)),
    };
    if config.is_encoder() {
        // It reads a text as a whole, and any of its tokens may be wanted.
        let n_ctx = args.context.map_or(config.n_ctx_train.clamp(1, DEFAULT_CONTEXT), |n_ctx| n_ctx as usize);
        purpose.max_batch_tokens = purpose.max_batch_tokens.max(n_ctx);
        purpose.max_logits_rows = purpose.max_batch_tokens;
    }
    let device = args.choose_device();
    let options_for = |n_ctx| LoadOptions { device, ..options(args, purpose, n_ctx) };
    let fit = memory_plan::decide(Room::read(device)?, context, &|n_ctx| {
        model::plan(checkpoint, &config, &options_for(n_ctx))
            .hint("`roci inspect MODEL --tensors` shows what the file holds")
    })?;
    Ok(Plan {
        options: options_for(fit.n_ctx),
        memory: fit.memory,
        n_ctx: fit.n_ctx,
        n_ctx_train: config.n_ctx_train,
        n_sequences: purpose.n_sequences,
        fit,
    })
}

fn options(args: &LoadArgs, purpose: Use, n_ctx: usize) -> LoadOptions {
    let n_blocks = n_ctx.div_ceil(BLOCK_TOKENS).saturating_mul(purpose.n_sequences);
    LoadOptions {
        kv_type: match args.kv_type {
            KvType::F16 => model::KvType::F16,
            KvType::F32 => model::KvType::F32,
        },
        n_blocks,
        max_batch_tokens: purpose.max_batch_tokens,
        max_logits_rows: purpose.max_logits_rows,
        n_threads: args.n_threads(),
        n_ctx,
        watch: args.watch(),
        step_deadline: std::time::Duration::from_secs(args.step_deadline.into()),
        ..LoadOptions::default()
    }
}

pub fn load(checkpoint: &Checkpoint, plan: &Plan) -> Result<Model> {
    let name = checkpoint.path().map_or_else(|| "the model".to_owned(), |path| format!("`{}`", path.display()));
    let loaded = Model::load(checkpoint, plan.options);
    let hint = match &loaded {
        Err(model::Error::Gpu(_)) => "`roci devices` shows the device; --device cpu does without it",
        _ => "`roci inspect MODEL --tensors` shows what the file holds",
    };
    loaded.with_context(|| format!("cannot load {name}")).hint(hint)
}

/// How copying the weights to a GPU went, against what its bus does; `None` on a CPU. Measures, so for `-v` only.
pub fn describe_loading(model: &Model) -> Result<Option<String>> {
    let (Some(loaded), Some(bus)) = (model.loaded(), model.measure_bus()?) else { return Ok(None) };
    let rate = loaded.n_bytes as f64 / loaded.time.as_secs_f64().max(1e-9);
    Ok(Some(format!(
        "weights of {} loaded in {:.2} s: {}/s, {:.0} % of the {}/s that the bus takes from pinned memory",
        human_bytes(loaded.n_bytes as u64),
        loaded.time.as_secs_f64(),
        human_bytes(rate as u64),
        100.0 * rate / bus,
        human_bytes(bus as u64),
    )))
}
