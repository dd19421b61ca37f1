//! From a model file to a model in memory: plans first (weights, keys and values, scratch against what
//! the machine has), then loads. A context that was not asked for shrinks until it fits; one that was
//! is an error with the numbers.

use crate::machine::Memory;
use crate::options::{KvType, LoadArgs};
use crate::report::{HintExt, human_bytes};
use anyhow::{Context, Result, anyhow};
use model::{BLOCK_TOKENS, Config, DeviceChoice, LoadOptions, MemoryPlan, Model};
use weights::Checkpoint;

/// A context that nobody asked for is at most this.
const DEFAULT_CONTEXT: usize = 8192;
/// One that had to shrink is at least this.
const MIN_CONTEXT: usize = 512;
/// Left to the system and to this program's own small things.
const RESERVE_BYTES: u64 = 200 << 20;

/// What the caller will do with the model.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Sequences that hold a full context at once.
    pub n_sequences: usize,
    pub max_batch_tokens: usize,
    pub max_logits_rows: usize,
}

/// A plan that fits this machine.
#[derive(Debug)]
pub struct Plan {
    pub options: LoadOptions,
    pub memory: MemoryPlan,
    /// Tokens each sequence can hold.
    pub n_ctx: usize,
    pub n_ctx_train: usize,
}

/// Decides the context and checks the memory; touches no weights.
pub fn plan(checkpoint: &Checkpoint, args: &LoadArgs, purpose: Use) -> Result<Plan> {
    let config = Config::from_checkpoint(checkpoint).hint("`roci inspect` shows what the file says")?;
    let asked = args.context.map(|n_ctx| n_ctx as usize);
    let mut n_ctx = asked.unwrap_or_else(|| config.n_ctx_train.clamp(1, DEFAULT_CONTEXT));
    let device = args.choose_device();
    let available = available_bytes(device)?.map(|bytes| bytes.saturating_sub(RESERVE_BYTES));
    loop {
        let options = LoadOptions { device, ..options(args, purpose, n_ctx) };
        let memory = model::plan(checkpoint, &config, &options)
            .hint("`roci inspect MODEL --tensors` shows what the file holds")?;
        let need = memory.total_bytes() as u64;
        let Some(available) = available.filter(|available| need > *available) else {
            return Ok(Plan { options, memory, n_ctx, n_ctx_train: config.n_ctx_train });
        };
        if asked.is_none() && n_ctx / 2 >= MIN_CONTEXT {
            n_ctx /= 2;
            continue;
        }
        let error = anyhow!(
            "the model does not fit: weights {} + keys and values {} (context of {n_ctx}) + scratch {} of {} available",
            human_bytes(memory.weights_bytes as u64),
            human_bytes(memory.kv_bytes as u64),
            human_bytes(memory.scratch_bytes as u64),
            human_bytes(available),
        );
        return Err(error).hint("use a smaller --context, a file with smaller weights, or close other programs");
    }
}

/// Memory that a model may take where it will live.
fn available_bytes(device: DeviceChoice) -> Result<Option<u64>> {
    let DeviceChoice::Gpu { vendor, ordinal } = device else {
        return Ok(Memory::read().map(|memory| memory.available_bytes));
    };
    let device = gpu::Device::open(vendor, ordinal).hint("`roci devices` shows what can compute here")?;
    Ok(Some(gpu::Budget::read(&device)?.usable_bytes as u64))
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
        step_deadline: std::time::Duration::from_secs(args.step_deadline.into()),
        ..LoadOptions::default()
    }
}

pub fn load(checkpoint: &Checkpoint, plan: &Plan) -> Result<Model> {
    let name = checkpoint.path().map_or_else(|| "the model".to_owned(), |path| format!("`{}`", path.display()));
    Model::load(checkpoint, plan.options)
        .with_context(|| format!("cannot load {name}"))
        .hint("`roci inspect MODEL --tensors` shows what the file holds")
}
