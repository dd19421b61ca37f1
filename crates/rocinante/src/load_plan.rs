//! The plan for loading a model: the device, the context, the steps and the pool of keys and values, given the
//! available memory. Touches no weights.
//!
//! A CPU reads prompts at full speed in steps of 512 tokens. A GPU needs thousands of rows to be busy, so its steps are
//! as large as a fair share of its memory allows, and a served model's pool takes the rest.

mod windows;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::fmt;

use ::model::{BLOCK_TOKENS, BlasUse, Config, DeviceChoice, LoadOptions, MemoryPlan, ModelPart, Numerics};
use weights::Checkpoint;

use crate::device::{self, ChosenDevice};
use crate::memory_plan::{self, DeviceMemory, MemoryFit, MemoryKind, WantedContext};
use crate::options::{Options, Scheduling, StepSizes, WindowUse, Workload};
use crate::speculate::{self, Speculate};
use crate::{Error, Result, counted};

/// A context that nobody asked for is at most this.
pub(crate) const DEFAULT_CONTEXT: usize = 8192;

/// Rows of one step on a CPU, and prompt rows in a step of a server that also generates: larger steps are no faster
/// there, and streams would stutter.
const CPU_STEP: usize = 512;
const CPU_PREFILL_CHUNK: usize = 128;
const CPU_RUNNING: usize = 64;
/// Full contexts in a served model's pool on a CPU: requests rarely use all of theirs, and blocks are shared.
const CPU_POOL_CONTEXTS: usize = 8;

/// Prompt rows of one step on a GPU, best first. H200, 8B Q4_K_M, 32 prompts of 2,048 tokens: the last first token
/// after 2.2 s with steps of 8,192 and after 15.1 s with the CPU's sizes.
const GPU_PREFILL_CHUNKS: [usize; 5] = [8192, 4096, 2048, 1024, 512];
/// H200, 8B Q4_K_M: 9,491 tokens/s with 256 streams, 8,596 with 128.
const GPU_RUNNING: usize = 256;
/// Of a model with recurrent layers: sequences that run at once, each of which has a state of some megabytes, and states
/// that are kept for prompts that go on.
const RECURRENT_RUNNING: usize = 16;
const CHECKPOINTS: usize = 8;
/// Scratch may take one part in this many of a GPU's memory, or the steps get smaller.
const GPU_SCRATCH_SHARE: u64 = 16;

/// What an engine will do in one step.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// Maximum number of requests generating at once.
    pub max_running: usize,
    /// Requests that may wait.
    pub max_queue: usize,
    /// Tokens in one step.
    pub max_batch_tokens: usize,
    /// Prompt tokens in a step that also generates.
    pub prefill_chunk: usize,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_running, max_batch_tokens, prefill_chunk, .. } = self;
        let (requests, tokens) = (counted(*max_running, "request"), counted(*max_batch_tokens, "token"));
        write!(f, "{requests} at once, steps of {tokens}, {prefill_chunk} of them prompts")
    }
}

/// A plan that fits this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadPlan {
    /// What the model will be loaded with.
    pub options: LoadOptions,
    /// How the engine will share out its steps.
    pub schedule: Schedule,
    /// The memory it takes and what there is.
    pub fit: MemoryFit,
    /// Tokens the model was trained for.
    pub n_ctx_train: usize,
    /// Tokens that some layers look back at most, if they could keep no more than that.
    pub window: Option<usize>,
    /// The device, and those that were refused.
    pub device: ChosenDevice,
    /// What is kept outside the pool, in words.
    pub keep: Option<String>,
    /// Why the vendor's library for products is left alone.
    pub blas_refused: Option<String>,
}

impl LoadPlan {
    /// Tokens each sequence can hold.
    pub fn n_ctx(&self) -> usize {
        self.fit.n_ctx
    }

    /// Bytes of weights, KV pool and scratch.
    pub fn memory(&self) -> MemoryPlan {
        self.fit.memory
    }

    /// Tokens that the KV pool holds, for all sequences together.
    pub fn n_pool_tokens(&self) -> usize {
        self.options.n_blocks * BLOCK_TOKENS
    }

    /// Tokens that the pool for layers with a window holds, where these keep no more than they see: the window, and the
    /// pool.
    pub fn windows(&self) -> Option<(usize, usize)> {
        let n_blocks = self.options.n_window_blocks;
        self.window.filter(|_| n_blocks > 0).map(|window| (window, n_blocks * BLOCK_TOKENS))
    }

    /// The memory plan for programs.
    pub fn json(&self) -> Json {
        let mut plan = self.fit.json();
        if let Some((window, n_pool_tokens)) = self.windows() {
            plan["windows"] = json!({"window": window, "pool_tokens": n_pool_tokens});
        }
        plan
    }

    /// The memory plan, a line for each part.
    pub fn lines(&self) -> String {
        let windows = match self.windows() {
            Some((window, n_tokens)) => format!("; windows of {window} in a pool of {n_tokens}"),
            None => String::new(),
        };
        let lines =
            self.fit.lines(self.n_pool_tokens(), &format!("{:?}{windows}", self.options.kv_type).to_lowercase());
        match &self.keep {
            Some(keep) => format!("{}\n{keep}", lines.trim_end_matches('\n')),
            None => lines,
        }
    }
}

/// Decides everything that loading needs to know, beside something that will take `beside_bytes` of what is free.
pub fn plan(checkpoint: &Checkpoint, options: &Options, device: ChosenDevice, beside_bytes: u64) -> Result<LoadPlan> {
    let config = Config::from_checkpoint(checkpoint)?;
    let n_ctx_train = config.n_ctx_train;
    let has_engine = !matches!(options.workload, Workload::Steps(_));
    if let Some(n_ctx) = options.context.filter(|&n_ctx| has_engine && n_ctx > n_ctx_train) {
        return Err(Error::ContextTooLong { n_ctx, n_ctx_train });
    }
    let mut room = DeviceMemory::read(device.choice)?.map(|room| room.beside(beside_bytes));
    if let Some(room) = room.as_mut().filter(|room| room.kind != MemoryKind::Card) {
        // What is kept in host memory is taken from the same.
        room.usable_bytes = room.usable_bytes.saturating_sub(options.keep.host_bytes);
    }
    let blas_refused = device::blas_refused(device.choice, options.blas);
    let mut plan = Planner { checkpoint, config, options, device, room }.plan()?;
    if blas_refused.is_some() {
        (plan.options.blas, plan.blas_refused) = (BlasUse::Off, blas_refused);
    }
    Ok(plan)
}

struct Planner<'a> {
    checkpoint: &'a Checkpoint,
    config: Config,
    options: &'a Options,
    device: ChosenDevice,
    room: Option<DeviceMemory>,
}

/// Rows and blocks: what a memory plan depends on.
#[derive(Copy, Clone)]
struct PlanSizes {
    max_batch_tokens: usize,
    max_logits_rows: usize,
    n_blocks: usize,
    n_ctx: usize,
    /// That run at once, where each needs a state of its own.
    n_sequences: usize,
}

impl Planner<'_> {
    fn plan(self) -> Result<LoadPlan> {
        let schedule = self.schedule()?;
        let sizes = |n_ctx| self.sizes(&schedule, n_ctx);
        let fit = memory_plan::decide(self.room.clone(), self.context(), &|n_ctx| self.memory(sizes(n_ctx)))?;
        let one = sizes(fit.n_ctx);
        let (n_blocks, memory) = match self.options.workload {
            Workload::Server(scheduling) => self.pool(&scheduling, &schedule, one, &fit)?,
            Workload::Conversation | Workload::Steps(_) => (one.n_blocks, fit.memory),
        };
        Ok(LoadPlan {
            options: self.load_options(PlanSizes { n_blocks, ..one }),
            schedule,
            fit: MemoryFit { memory, ..fit },
            n_ctx_train: self.config.n_ctx_train,
            window: self.config.window_pool(),
            device: self.device,
            keep: self.options.keep.line(),
            blas_refused: None,
        })
    }

    fn context(&self) -> WantedContext {
        match self.options.context {
            Some(n_ctx) => WantedContext::Asked(n_ctx),
            None => WantedContext::AtMost(self.default_context()),
        }
    }

    fn default_context(&self) -> usize {
        self.config.n_ctx_train.clamp(1, DEFAULT_CONTEXT)
    }

    fn is_on_gpu(&self) -> bool {
        self.device.choice != DeviceChoice::Cpu
    }

    /// The engine's steps, where the caller leaves them open.
    fn schedule(&self) -> Result<Schedule> {
        let scheduling = match self.options.workload {
            Workload::Steps(StepSizes { max_batch_tokens, max_logits_rows, .. }) => {
                let max_running = max_logits_rows;
                return Ok(Schedule { max_running, max_queue: 1, max_batch_tokens, prefill_chunk: max_batch_tokens });
            }
            Workload::Conversation => Scheduling { max_running: Some(1), ..Scheduling::default() },
            Workload::Server(scheduling) => scheduling,
        };
        let max_queue = scheduling.max_queue;
        let mut max_running =
            scheduling.max_running.unwrap_or(if self.is_on_gpu() { GPU_RUNNING } else { CPU_RUNNING });
        if self.config.recurrent.is_some() {
            max_running = max_running.min(RECURRENT_RUNNING);
        }
        let (chunk, batch) = if self.is_on_gpu() {
            let chunk = match (scheduling.prefill_chunk, scheduling.max_batch_tokens) {
                (Some(chunk), _) => chunk,
                (None, Some(batch)) => batch.saturating_sub(max_running).max(1),
                (None, None) => self.gpu_prefill_chunk(max_running)?,
            };
            (chunk, chunk + max_running)
        } else if matches!(self.options.workload, Workload::Conversation) {
            // Nobody else waits for the step.
            (CPU_STEP, CPU_STEP)
        } else {
            (CPU_PREFILL_CHUNK, CPU_STEP)
        };
        Ok(Schedule {
            max_running,
            max_queue,
            max_batch_tokens: scheduling.max_batch_tokens.unwrap_or(batch).max(max_running),
            prefill_chunk: scheduling.prefill_chunk.unwrap_or(chunk),
        })
    }

    /// The largest steps whose scratch leaves most of the memory to weights, keys and values.
    fn gpu_prefill_chunk(&self, max_running: usize) -> Result<usize> {
        let (WantedContext::Asked(n_ctx) | WantedContext::AtMost(n_ctx)) = self.context();
        let n_usable = self.room.as_ref().map_or(u64::MAX, |room| room.usable_bytes);
        for chunk in GPU_PREFILL_CHUNKS {
            // One conversation never has a longer prompt than its context.
            let is_useful = max_running > 1 || chunk < 2 * n_ctx;
            let max_batch_tokens = chunk + max_running;
            let sizes =
                PlanSizes { max_batch_tokens, max_logits_rows: max_running, n_blocks: 1, n_ctx, n_sequences: 1 };
            if is_useful && self.memory(sizes)?.scratch_bytes as u64 <= n_usable / GPU_SCRATCH_SHARE {
                return Ok(chunk);
            }
        }
        Ok(GPU_PREFILL_CHUNKS[GPU_PREFILL_CHUNKS.len() - 1])
    }

    /// With a pool for the sequences of [`Workload::Steps`], or for one.
    fn sizes(&self, schedule: &Schedule, n_ctx: usize) -> PlanSizes {
        let n_sequences = match self.options.workload {
            Workload::Steps(steps) => steps.n_sequences,
            Workload::Conversation | Workload::Server(_) => 1,
        };
        let n_blocks = n_ctx.div_ceil(BLOCK_TOKENS).saturating_mul(n_sequences);
        let n_draft_rows = self.n_draft_rows();
        let mut max_batch_tokens = schedule.max_batch_tokens;
        let mut max_logits_rows = (schedule.max_running + n_draft_rows).min(max_batch_tokens);
        if self.config.is_encoder() {
            // It reads a text as a whole, and any of its tokens may be wanted.
            let n_longest = self.options.context.unwrap_or(self.default_context());
            max_batch_tokens = max_batch_tokens.max(n_longest);
            max_logits_rows = max_batch_tokens;
        }
        let n_sequences = n_sequences.max(schedule.max_running.min(RECURRENT_RUNNING));
        PlanSizes { max_batch_tokens, max_logits_rows, n_blocks, n_ctx, n_sequences }
    }

    /// Blocks of a served model's pool, from one full context up.
    fn pool(
        &self,
        scheduling: &Scheduling,
        schedule: &Schedule,
        one: PlanSizes,
        fit: &MemoryFit,
    ) -> Result<(usize, MemoryPlan)> {
        let with_blocks = |n_blocks| self.memory(PlanSizes { n_blocks, ..one });
        // The other models are taken to be as large, and get as much of what is left.
        let (n_bytes, n_models) = (fit.memory.total_bytes() as u64, scheduling.n_models.max(1) as u64);
        let left = |free: u64| free.saturating_sub(n_bytes.saturating_mul(n_models - 1)) / n_models;
        let n_most_bytes = n_bytes.saturating_add(fit.free_bytes().map_or(u64::MAX, left));
        let fits = |memory: &MemoryPlan| memory.total_bytes() as u64 <= n_most_bytes;
        if let Some(n_tokens) = scheduling.kv_tokens {
            let n_blocks = n_tokens.div_ceil(BLOCK_TOKENS).max(one.n_blocks);
            let memory = with_blocks(n_blocks)?;
            let (room, reserve_bytes, n_ctx) = (fit.room.clone(), fit.reserve_bytes, fit.n_ctx);
            let has_room =
                (memory.total_bytes() - fit.memory.total_bytes()) as u64 <= fit.free_bytes().unwrap_or(u64::MAX);
            let no_room = memory_plan::NoRoom { room, memory, reserve_bytes, n_ctx };
            return if has_room { Ok((n_blocks, memory)) } else { Err(Error::DoesNotFit(Box::new(no_room))) };
        }
        let is_card = fit.room.as_ref().is_some_and(|room| room.kind == MemoryKind::Card);
        let n_contexts = if is_card { schedule.max_running } else { schedule.max_running.min(CPU_POOL_CONTEXTS) };
        // In blocks: `low` fits, and `high` may.
        let (mut low, mut high) = (one.n_blocks, one.n_blocks.saturating_mul(n_contexts.max(1)));
        let memory = with_blocks(high)?;
        if fits(&memory) {
            return Ok((high, memory));
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(&with_blocks(middle)?) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok((low, with_blocks(low)?))
    }

    /// Rows of logits that drafts take.
    fn n_draft_rows(&self) -> usize {
        match self.options.speculate {
            Speculate::Auto if self.is_on_gpu() => 0,
            _ if matches!(self.options.workload, Workload::Steps(_)) => 0,
            _ => self.options.speculate.n_draft_rows(),
        }
    }

    /// Slots that steps with drafts write beside those of their sequences.
    fn n_draft_states(&self, n_sequences: usize) -> usize {
        if self.n_draft_rows() == 0 { 0 } else { n_sequences.min(speculate::FEW) }
    }

    /// Blocks of a pool of its own for layers with a window; 0 where they keep as much as the others.
    fn n_window_blocks(&self, sizes: PlanSizes) -> usize {
        let is_driven = matches!(self.options.workload, Workload::Steps(_));
        let is_apart = !is_driven && self.options.windows == WindowUse::Auto;
        let Some(window) = self.config.window_pool().filter(|_| is_apart) else { return 0 };
        let n_in_flight = if self.is_on_gpu() { 2 } else { 1 };
        windows::window_blocks(window, sizes, n_in_flight)
    }

    fn memory(&self, sizes: PlanSizes) -> Result<MemoryPlan> {
        Ok(::model::plan(self.checkpoint, &self.config, &self.load_options(sizes))?)
    }

    fn load_options(&self, sizes: PlanSizes) -> LoadOptions {
        let PlanSizes { max_batch_tokens, max_logits_rows, n_blocks, n_ctx, n_sequences } = sizes;
        LoadOptions {
            n_states: n_sequences + self.n_draft_states(n_sequences) + CHECKPOINTS,
            device: self.device.choice,
            kv_type: self.options.kv_type,
            n_blocks,
            n_window_blocks: self.n_window_blocks(sizes),
            max_batch_tokens,
            max_logits_rows,
            n_threads: self.options.threads(),
            n_ctx,
            numerics: if self.options.deterministic { Numerics::RowInvariant } else { Numerics::Fastest },
            part: ModelPart::Whole,
            blas: self.options.blas,
            adapters: self.options.adapters,
            watch: self.options.watch,
            step_deadline: self.options.step_deadline,
            on_compile: self.options.on_compile,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::model::{Recipe, Synthetic, synthetic};
    use weights::Dtype;

    const GB: u64 = 1 << 30;

    /// The plan for a GPU with this much memory free: nothing of it is touched.
    fn plan_for(usable_bytes: u64, options: &Options) -> LoadPlan {
        let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(Dtype::F32), 1).unwrap();
        let choice = DeviceChoice::Gpu { vendor: gpu::Vendor::ALL[0], ordinal: 0 };
        let room = DeviceMemory {
            device: "card".to_owned(),
            kind: MemoryKind::Card,
            total_bytes: usable_bytes,
            usable_bytes,
            bound: "free on the device".into(),
            limits: Vec::new(),
        };
        let config = Config::from_checkpoint(&checkpoint).unwrap();
        let device = ChosenDevice { choice, ..ChosenDevice::default() };
        Planner { checkpoint: &checkpoint, config, options, device, room: Some(room) }.plan().unwrap()
    }

    fn server(scheduling: Scheduling) -> Options {
        Options { workload: Workload::Server(scheduling), ..Options::default() }
    }

    #[test]
    fn a_large_gpu_gets_large_steps_and_a_pool_for_all_requests() {
        let plan = plan_for(140 * GB, &server(Scheduling::default()));
        let Schedule { max_running, max_batch_tokens, prefill_chunk, .. } = plan.schedule;
        assert_eq!((max_running, max_batch_tokens, prefill_chunk), (256, 8448, 8192));
        assert_eq!(plan.n_pool_tokens(), 256 * plan.n_ctx());
        let one = plan_for(140 * GB, &Options::default());
        assert_eq!((one.schedule.max_running, one.n_pool_tokens()), (1, one.n_ctx()));
        assert_eq!(one.schedule.prefill_chunk, one.n_ctx(), "a conversation's prompt is one step");
    }

    #[test]
    fn steps_grow_with_the_memory() {
        let chunks = [1, 4, 5, 6, 16, 140].map(|n_gb| {
            let plan = plan_for(n_gb * GB, &server(Scheduling::default()));
            let chunk = plan.schedule.prefill_chunk;
            // Block tables, which grow with the pool, come on top.
            let is_fair = plan.memory().scratch_bytes as u64 <= n_gb * GB / GPU_SCRATCH_SHARE + (4 << 20);
            assert!(is_fair || chunk == 512, "{n_gb} GB: {}, {:?}", plan.schedule, plan.memory());
            chunk
        });
        assert!(chunks.is_sorted() && chunks[0] == 512 && chunks[5] == 8192, "{chunks:?}");
    }

    #[test]
    fn the_pool_takes_what_is_free() {
        let plan = plan_for(600 << 20, &server(Scheduling::default()));
        assert!(plan.n_pool_tokens() > plan.n_ctx() && plan.n_pool_tokens() < 256 * plan.n_ctx(), "{:?}", plan.fit);
        assert!(plan.fit.free_bytes().unwrap() < 1 << 20, "{:?}", plan.fit);
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let asked = Scheduling {
            max_running: Some(8),
            max_batch_tokens: Some(1000),
            prefill_chunk: Some(300),
            kv_tokens: Some(20_000),
            ..Scheduling::default()
        };
        let plan = plan_for(140 * GB, &server(asked));
        let Schedule { max_running, max_batch_tokens, prefill_chunk, .. } = plan.schedule;
        assert_eq!((max_running, max_batch_tokens, prefill_chunk), (8, 1000, 300));
        assert_eq!(plan.n_pool_tokens(), 20_000);
    }

    #[test]
    fn models_that_share_a_gpu_leave_room_for_each_other() {
        let plan = |n_models| plan_for(GB, &server(Scheduling { n_models, ..Scheduling::default() }));
        let (alone, shared) = (plan(1), plan(2));
        assert!(shared.n_pool_tokens() < alone.n_pool_tokens());
        let needed = shared.memory().weights_bytes as u64 + shared.memory().scratch_bytes as u64;
        assert!(shared.fit.free_bytes().unwrap() > needed, "the second fits beside the first");
    }
}
