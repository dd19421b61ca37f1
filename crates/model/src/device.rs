//! A model's GPU side: the queue, the compiled kernels, the memory that steps work in, and the captured graphs.
//!
//! A step (`run.rs`) uploads its small inputs once (`input.rs`), enqueues everything, and reads the wanted rows back
//! once. Steps that only decode are captured when their shape occurs for the second time, and replayed from then on:
//! what changes between them is in the inputs, at fixed addresses.

mod copies;
mod input;
mod limits;
mod run;

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::time::Duration;

use gpu::{Buffer, DebugSync, Graph, Launcher, Number, Pinned, ProductTypes, Profiling, Queue};
use ops::{Arena, Gpu, Kernels, Numerics, Workspace};

use self::copies::CopyMemory;
pub use self::copies::CopyOut;
use self::input::StepPlans;
pub use self::run::SubmittedStep;
use self::run::{Outputs, PinnedSet};
use crate::kv_cache::KvBlocks;
use crate::model::BlasUse;
use crate::scratch::MaxRows;
use crate::watch::{Profiler, Watch};
use crate::{Adjustment, Config, Error};

/// Sequences up to which a decode step is captured; more of them hide the cost of launching by themselves.
const MAX_CAPTURED: usize = 128;
/// Contexts are rounded up to powers of two from here on, so that one capture serves many lengths.
const MIN_CONTEXT: usize = 256;
const BLAS_BYTES: usize = 64 << 20;
/// An op that takes longer than this counts as stalled where each is waited for.
const STALL: Duration = Duration::from_secs(30);
/// Decoded weights of a product through the vendor's library: a feed-forward matrix of an 8B model as f16.
const DECODED_BYTES: usize = 128 << 20;

pub struct Device {
    pub queue: Queue,
    pub kernels: Kernels,
    blas: Option<gpu::Blas>,
    memory: StepMemory,
    copies: CopyMemory,
    is_watched: bool,
    profiler: Option<Profiler>,
}

/// What the steps of one model work in besides its activations, and their graphs.
pub struct StepMemory {
    workspace: RefCell<Workspace>,
    inputs: Buffer<u32>,
    adjustments: Buffer<u32>,
    /// The longest context that a step may have.
    n_ctx: usize,
    /// Host side of the inputs, and of what steps give.
    staged: PinnedSet<u32>,
    staged_adjustments: PinnedSet<u32>,
    logits: PinnedSet<f32>,
    chosen: PinnedSet<f32>,
    described: PinnedSet<f32>,
    hidden: PinnedSet<f32>,
    /// What the step that was waited for last gave.
    read: Outputs<Pinned<f32>>,
    graphs: HashMap<GraphKey, Option<Graph>>,
}

/// What a captured decode step depends on.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
struct GraphKey {
    n_seqs: usize,
    plans: StepPlans,
    n_chosen: usize,
    is_adjusted: bool,
    is_described: bool,
    has_adapters: bool,
    /// Whether indexers choose what is attended to.
    chooses: bool,
    chooses_later: bool,
}

/// Sizes of what the device works in, besides activations.
#[derive(Copy, Clone)]
pub struct DeviceSizes {
    n_input_words: usize,
    n_adjustment_words: usize,
    workspace: [usize; 3],
    max_logits_rows: usize,
}

impl DeviceSizes {
    pub fn new(config: &Config, rows: MaxRows, blocks: KvBlocks) -> Self {
        let widest = config.n_embd.max(config.n_ff).max(config.q_dim()).max(config.n_hidden_in());
        // Only the vendor's library reads decoded weights.
        let n_decoded = if config.assistant.is_some() { 0 } else { DECODED_BYTES };
        let mut workspace = Workspace::plan(rows.batch, widest, n_decoded);
        if let Some(experts) = &config.experts {
            // A row for each expert that a row goes to.
            let n_pairs = rows.batch * experts.routing.n_used;
            let [activations, ..] = Workspace::plan(n_pairs, experts.n_ff, DECODED_BYTES);
            workspace[0] = workspace[0].max(activations);
        }
        let n_adjusted = rows.logits.min(Adjustment::MAX_ROWS);
        let (max_bias, max_counts) = (Adjustment::MAX_BIAS, Adjustment::MAX_COUNTS);
        Self {
            n_input_words: n_input_words(config, rows, blocks),
            // A word for every row, and the lists of those that are adjusted.
            n_adjustment_words: rows.logits
                + ops::Adjustments::max_words(n_adjusted, config.n_vocab, max_bias, max_counts),
            workspace,
            max_logits_rows: rows.logits,
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes_without_library() + BLAS_BYTES
    }

    /// For a model that does without the vendor's library.
    pub fn bytes_without_library(&self) -> usize {
        let workspace: usize = self.workspace.map(Arena::padded_on_device).iter().sum();
        let words = [self.n_input_words, self.n_adjustment_words];
        workspace + words.map(|n| Arena::padded_on_device(n * size_of::<u32>())).iter().sum::<usize>()
    }
}

/// Words that the inputs of the largest step take.
fn n_input_words(config: &Config, rows: MaxRows, blocks: KvBlocks) -> usize {
    /// Token and where it comes from, adapter (of all rows and of those kept), slot, kept, pooled, logits, learned position,
    /// type, scale of queries, and where a sequence has its state.
    const INDICES: usize = 16;
    /// What attention's plan keeps of a row, besides two words for each head of a group.
    const SPAN_WORDS: usize = 8;
    const PLAN_WORDS: usize = 64;
    /// Sequences that may all hold the whole pool: a block of a common prefix stands in the table of each.
    const WHOLE_TABLES: usize = 64;
    let angles = config.n_rot + config.local_heads.map_or(config.n_rot, |local| local.n_rot);
    let has_windows = blocks.n_window_blocks > 0;
    let group = config.n_heads / config.n_kv_heads;
    let local_group =
        config.local_heads.map_or(if has_windows { group } else { 0 }, |local| config.n_heads / local.n_kv_heads);
    // Windows have spans and tables of their own, and the slots of their rows.
    let n_tables = 1 + usize::from(has_windows);
    let window_words = if has_windows { SPAN_WORDS + 1 } else { 0 };
    let spans = SPAN_WORDS + window_words + 2 * group + 2 * local_group;
    let tables = blocks.n_blocks.saturating_mul(rows.batch.min(WHOLE_TABLES)).saturating_mul(n_tables);
    let slopes = if config.alibi.is_some() { config.n_heads } else { 0 };
    rows.batch * (INDICES + angles + spans)
        + slopes
        + rows.batch * config.n_hidden_in()
        + PLAN_WORDS
        + tables
        + rows.logits * (ops::SampleParams::WORDS + 1)
}

impl StepMemory {
    fn new(
        queue: &Queue,
        config: &Config,
        sizes: DeviceSizes,
        n_ctx: usize,
        scratch: &mut Arena,
    ) -> Result<Self, Error> {
        let [activations, weights, parts] = sizes.workspace.map(|len| scratch.carve_bytes(len));
        Ok(Self {
            workspace: RefCell::new(Workspace { activations, weights, parts }),
            inputs: scratch.carve_words(sizes.n_input_words),
            adjustments: scratch.carve_words(sizes.n_adjustment_words),
            n_ctx,
            staged: PinnedSet::new(queue, sizes.n_input_words)?,
            staged_adjustments: PinnedSet::empty(sizes.n_adjustment_words),
            logits: PinnedSet::new(queue, sizes.max_logits_rows * config.n_vocab)?,
            chosen: PinnedSet::new(queue, sizes.max_logits_rows)?,
            described: PinnedSet::empty(sizes.max_logits_rows * ops::DESCRIBED_WORDS),
            hidden: PinnedSet::new(queue, sizes.max_logits_rows * config.n_hidden_out())?,
            read: Outputs::default(),
            graphs: HashMap::new(),
        })
    }
}

impl Device {
    /// `scratch` is the rest of the scratch arena, [`DeviceSizes::bytes`] of it.
    pub fn new(
        queue: Queue,
        config: &Config,
        sizes: DeviceSizes,
        numerics: Numerics,
        blas: BlasUse,
        n_ctx: usize,
        scratch: &mut Arena,
    ) -> Result<Self, Error> {
        let kernels = Kernels::new(queue.device(), gpu::Cache::of_user()).with_numerics(numerics);
        let memory = StepMemory::new(&queue, config, sizes, n_ctx, scratch)?;
        let wanted = [ProductTypes::new(Number::F16, Number::F32), ProductTypes::new(Number::F32, Number::F32)];
        // Never required: without it the kernels of this program do all the work, and say so.
        let blas_space = scratch.carve_bytes(BLAS_BYTES);
        let blas = match blas {
            BlasUse::Off => None,
            BlasUse::Auto => match queue.blas(blas_space, &wanted) {
                Ok(blas) => Some(blas),
                Err(error @ gpu::Error::NoBlas { .. }) => {
                    kernels.refuse(error.to_string());
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let copies = CopyMemory::default();
        Ok(Self { memory, copies, is_watched: false, profiler: None, queue, kernels, blas })
    }

    /// Memory for another model's steps on this device. They do without the vendor's library.
    pub fn more_memory(
        &self,
        config: &Config,
        sizes: DeviceSizes,
        n_ctx: usize,
        scratch: &mut Arena,
    ) -> Result<StepMemory, Error> {
        StepMemory::new(&self.queue, config, sizes, n_ctx, scratch)
    }

    /// Does something with another model's memory in place of the own.
    pub fn with_memory<T>(&mut self, memory: &mut StepMemory, body: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.memory, memory);
        let blas = self.blas.take();
        let result = body(self);
        self.blas = blas;
        std::mem::swap(&mut self.memory, memory);
        result
    }

    /// Captured steps depend on which matrices adapters change.
    pub fn forget_graphs(&mut self) {
        self.memory.graphs.clear();
    }

    /// What ops run on while a model is loaded.
    pub fn with_exec<T>(&self, body: impl FnOnce(&Gpu) -> T) -> T {
        let launcher = self.queue.launcher();
        body(&exec(&launcher, &self.kernels, self.blas.as_ref(), &self.memory.workspace))
    }

    /// Scratch memory that weights pass through on their way in, before any step uses it.
    pub fn staging(&self) -> RefMut<'_, Buffer<u8>> {
        RefMut::map(self.memory.workspace.borrow_mut(), |workspace| &mut workspace.weights)
    }

    /// Watches every step from now on.
    pub fn watch(&mut self, watch: Watch) -> Result<(), Error> {
        self.is_watched = watch != Watch::Off;
        match watch {
            // A tool that is attached sees what it can; asked for, every op is shown.
            Watch::Off if gpu::is_tool_attached(self.queue.device().vendor()) => {
                if let Err(error) = self.queue.show_ranges() {
                    self.kernels.refuse(format!("ranges for the profiler: {error}"));
                }
            }
            Watch::Off => {}
            Watch::Ranges => self.queue.show_ranges()?,
            Watch::DebugSync => {
                self.queue.set_debug_sync(DebugSync::EachOp);
                self.queue.set_deadline(STALL);
            }
            Watch::Profile => {
                self.profiler = Some(Profiler::new(self.measure_limits()?));
                self.queue.set_profiling(Profiling::EachOp);
            }
        }
        Ok(())
    }

    /// Whether steps run op by op, one at a time.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub fn profiler(&self) -> Option<Profiler> {
        self.profiler.clone()
    }

    /// The vendor's library for products, if one is used.
    pub fn blas(&self) -> Option<String> {
        self.blas.as_ref().map(gpu::Blas::library)
    }
}

fn exec<'a>(
    launcher: &'a Launcher<'a>,
    kernels: &'a Kernels,
    blas: Option<&'a gpu::Blas>,
    workspace: &'a RefCell<Workspace>,
) -> Gpu<'a> {
    Gpu { launcher, kernels, blas, workspace }
}
