//! A loaded model: its configuration, its weights in memory, its KV pool, and the step that turns a batch into
//! logits.

mod attached;
mod warm_up;

pub(crate) use attached::Attached;
pub use attached::{AssistantOptions, plan_assistant};

use serde::{Deserialize, Serialize};
use std::time::Duration;

use gpu::{Queue, Vendor};
use ops::{Arena, Exec, Numerics, Pool};
use weights::Checkpoint;

use crate::adapter::{AdapterLimits, Adapters, Fitting};
use crate::cache_copy::Copies;
use crate::decoder::Decoder;
use crate::device::{Device, DeviceSizes};
use crate::forward::Steps;
use crate::head::{Head, Projection};
use crate::kv_cache::{KvBlocks, KvCache, KvType};
use crate::names::Names;
use crate::resident::Resident;
use crate::rope_table::RopeTable;
use crate::scratch::{MaxRows, Scratch};
use crate::state_pool::StatePool;
use crate::step::Step;
use crate::upload::UploadReport;
use crate::watch::{DeviceLimits, Profiler, StepProfile, Watch};
use crate::{BLOCK_TOKENS, Batch, Config, Error, StepLimits};

/// How far the compilation of kernels is.
pub type CompileProgress = gpu::BuildProgress;

pub struct Model {
    pub(crate) runs_on: RunsOn,
    pub(crate) decoder: Decoder,
    pub(crate) limits: StepLimits,
    /// Slots of the pool of recurrent states; 0 without recurrent layers.
    pub(crate) n_states: usize,
    pub(crate) head: Option<Head>,
    /// What makes the vector of a text from its pooled hidden states, where that is more than a norm.
    pub(crate) projection: Option<Projection>,
    pub(crate) steps: Steps,
    pub(crate) copies: Copies,
    /// A drafter that reads this model's keys and values.
    pub(crate) attached: Option<Box<Attached>>,
    memory: MemoryPlan,
    loaded: Option<UploadReport>,
}

pub(crate) enum RunsOn {
    Cpu(Pool),
    Gpu(Box<Device>),
}

/// Where a model is to live. It never moves by itself.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum DeviceChoice {
    #[default]
    Cpu,
    Gpu {
        vendor: Vendor,
        ordinal: u32,
    },
}

/// What is loaded of a checkpoint.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum ModelPart {
    #[default]
    Whole,
    /// The layer that guesses the token after the next, as a model of its own: its batches have
    /// [hidden states](crate::Batch::hidden).
    NextToken,
}

/// The vendor's library for products: rocBLAS, hipBLAS, cuBLAS. It is never required.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum BlasUse {
    /// Where it is there and works.
    #[default]
    Auto,
    /// Never touched.
    Off,
}

#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub struct LoadOptions {
    pub device: DeviceChoice,
    pub kv_type: KvType,
    /// Blocks of the KV pool.
    pub n_blocks: usize,
    /// Blocks of a pool of its own for layers with a window, which then keep no more than they see; 0: they keep as much as
    /// the others. Models [without one](Config::window_pool) have none.
    pub n_window_blocks: usize,
    /// Slots for the states of sequences and checkpoints, for models with recurrent layers.
    pub n_states: usize,
    /// Rows of the largest batch.
    pub max_batch_tokens: usize,
    /// Rows of a batch that may ask for logits, and as many for pooling.
    pub max_logits_rows: usize,
    /// 0 means as many as the machine has cores.
    pub n_threads: usize,
    /// Tokens that a sequence may hold, as far as is known: some models turn otherwise in a long context. 0 means what
    /// the model was trained for.
    pub n_ctx: usize,
    /// Whether the bits of a row may depend on the other rows of its steps.
    pub numerics: Numerics,
    /// Which part of the checkpoint is the model.
    pub part: ModelPart,
    /// Whether a GPU's products of many rows may go through the vendor's library.
    pub blas: BlasUse,
    /// Room for adapters.
    pub adapters: AdapterLimits,
    /// A GPU that takes longer for a step counts as hung.
    pub step_deadline: Duration,
    /// On a GPU only.
    pub watch: Watch,
    /// Hears how far the compilation of GPU kernels is, where the cache does not have them. A function of this process.
    #[serde(skip)]
    pub on_compile: Option<fn(CompileProgress)>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Cpu,
            kv_type: KvType::F16,
            n_blocks: 256,
            n_window_blocks: 0,
            n_states: 8,
            max_batch_tokens: 512,
            max_logits_rows: 64,
            n_threads: 0,
            n_ctx: 0,
            numerics: Numerics::default(),
            part: ModelPart::Whole,
            blas: BlasUse::default(),
            adapters: AdapterLimits::default(),
            step_deadline: Duration::from_secs(120),
            watch: Watch::Off,
            on_compile: None,
        }
    }
}

impl LoadOptions {
    fn kv_blocks(&self, config: &Config) -> KvBlocks {
        let n_window_blocks = config.window_pool().map_or(0, |_| self.n_window_blocks);
        KvBlocks { n_blocks: self.n_blocks, n_window_blocks }
    }

    fn max_rows(&self, config: &Config) -> MaxRows {
        let context = self.n_blocks.saturating_mul(BLOCK_TOKENS).min(config.n_ctx_train.max(self.n_ctx));
        MaxRows { batch: self.max_batch_tokens, logits: self.max_logits_rows, context }
    }
}

/// Bytes a model takes, known before anything is taken.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemoryPlan {
    pub weights_bytes: usize,
    /// What the same weights take in the checkpoint.
    pub stored_bytes: usize,
    pub kv_bytes: usize,
    /// The states of recurrent layers.
    pub state_bytes: usize,
    pub scratch_bytes: usize,
    /// Slots for adapters.
    pub adapter_bytes: usize,
}

impl MemoryPlan {
    pub fn total_bytes(&self) -> usize {
        let Self { weights_bytes, kv_bytes, state_bytes, scratch_bytes, adapter_bytes, .. } = *self;
        let pools = [kv_bytes, state_bytes, scratch_bytes, adapter_bytes];
        pools.into_iter().fold(weights_bytes, usize::saturating_add)
    }
}

/// Bytes of keys and values alone.
pub fn kv_bytes(config: &Config, options: &LoadOptions) -> usize {
    let blocks = options.kv_blocks(config);
    match options.device {
        DeviceChoice::Cpu => KvCache::bytes(config, options.kv_type, blocks),
        DeviceChoice::Gpu { .. } => KvCache::bytes_on_device(config, options.kv_type, blocks),
    }
}

/// What loading would take; touches no weight.
pub fn plan(checkpoint: &Checkpoint, config: &Config, options: &LoadOptions) -> Result<MemoryPlan, Error> {
    if config.assistant.is_some() {
        return Err(Error::OnlyDrafts { architecture: config.family.name });
    }
    options.kv_type.check(config)?;
    let names = names(checkpoint, config);
    let adapter_bytes = |padded: fn(usize) -> usize| match options.adapters.max_loaded {
        0 => Ok(0),
        _ => Fitting::of(checkpoint, config).and_then(|fitting| {
            Adapters::check_size(&fitting, options.adapters)?;
            Ok(Adapters::bytes(&fitting, options.adapters, options.max_batch_tokens, padded))
        }),
    };
    let stored_bytes = checkpoint.tensors().iter().map(|tensor| tensor.bytes.len()).sum();
    if let DeviceChoice::Gpu { .. } = options.device {
        let (kv_type, blocks) = (options.kv_type, options.kv_blocks(config));
        let sizes = DeviceSizes::new(config, options.max_rows(config), blocks);
        return Ok(MemoryPlan {
            weights_bytes: Resident::plan_bytes_on_device(names, config)?,
            stored_bytes,
            kv_bytes: KvCache::bytes_on_device(config, kv_type, blocks),
            state_bytes: StatePool::bytes_on_device(config, options.n_states),
            scratch_bytes: Scratch::bytes_on_device(config, options.max_rows(config)) + sizes.bytes(),
            adapter_bytes: adapter_bytes(Arena::padded_on_device)?,
        });
    }
    // The layout depends on the instruction set, not on the number of threads.
    let pool = Pool::new(1);
    Ok(MemoryPlan {
        weights_bytes: Resident::plan_bytes(Exec::Cpu(&pool), names, config)?,
        stored_bytes,
        kv_bytes: KvCache::bytes(config, options.kv_type, options.kv_blocks(config)),
        state_bytes: StatePool::bytes(config, options.n_states),
        scratch_bytes: Scratch::bytes(config, options.max_rows(config)),
        adapter_bytes: adapter_bytes(Arena::padded)?,
    })
}

/// The context that decides how the positions of long sequences are scaled.
fn limits_context(config: &Config, options: &LoadOptions) -> usize {
    if options.n_ctx == 0 { config.n_ctx_train } else { options.n_ctx }
}

fn names<'a>(checkpoint: &'a Checkpoint, config: &'a Config) -> Names<'a> {
    Names { checkpoint, format: config.format, family: &config.family, next_from: config.next_from }
}

/// What keeps this model from a GPU, if anything does; touches no weight.
pub fn missing_on_device(checkpoint: &Checkpoint, config: &Config) -> Result<Option<&'static str>, Error> {
    match Resident::plan_bytes_on_device(names(checkpoint, config), config) {
        Ok(_) => Ok(None),
        Err(Error::NotOnDevice { what }) => Ok(Some(what)),
        Err(error) => Err(error),
    }
}

impl Model {
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, Error> {
        let n_threads = match options.n_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        match options.device {
            DeviceChoice::Cpu => Self::load_on(Pool::new(n_threads), checkpoint, options),
            DeviceChoice::Gpu { vendor, ordinal } => {
                let device = gpu::Device::open(vendor, ordinal)?;
                let queue = Queue::new(&device)?;
                queue.set_deadline(options.step_deadline);
                Self::load_on_gpu(queue, checkpoint, options, n_threads)
            }
        }
    }

    fn load_on_gpu(
        queue: Queue,
        checkpoint: &Checkpoint,
        options: LoadOptions,
        n_threads: usize,
    ) -> Result<Self, Error> {
        let (config, limits) = Self::check(checkpoint, &options)?;
        let memory = plan(checkpoint, &config, &options)?;
        let (kv_type, blocks) = (options.kv_type, options.kv_blocks(&config));
        // Three allocations, one more for recurrent states where the model has any, and one for adapters where there is room
        // for some; no others for the model's life.
        let mut weights_arena = Arena::on_device(queue.pool(memory.weights_bytes)?);
        let mut kv_arena = Arena::on_device(queue.pool(memory.kv_bytes)?);
        let mut scratch_arena = Arena::on_device(queue.pool(memory.scratch_bytes)?);
        let scratch = Scratch::carve(&config, options.max_rows(&config), &mut scratch_arena);
        let sizes = DeviceSizes::new(&config, options.max_rows(&config), blocks);
        // The pool bounds what a sequence may hold; a model that was trained for less keeps the parts it has with any pool.
        let n_ctx = config.n_ctx_train.max(options.n_ctx);
        let mut device = Device::new(queue, &config, sizes, options.numerics, options.blas, n_ctx, &mut scratch_arena)?;
        if options.watch != Watch::Profile {
            device.watch(options.watch)?;
        }
        let names = names(checkpoint, &config);
        let (weights, loaded) = Resident::load_on_device(&device, n_threads, &mut weights_arena, names, &config)?;
        let rope = RopeTable::new(&config, &names, limits_context(&config, &options))?;
        let head = Head::open(&config, &names)?;
        let projection = Projection::open(&config, &names)?;
        let kv = KvCache::carve(&config, kv_type, blocks, &mut kv_arena);
        let states = match memory.state_bytes {
            0 => StatePool::empty(),
            n_bytes => StatePool::carve(&config, options.n_states, &mut Arena::on_device(device.queue.pool(n_bytes)?)),
        };
        let n_states = if config.recurrent.is_some() { options.n_states } else { 0 };
        let mut decoder = Decoder::new(config.clone(), weights, rope, kv, states, scratch);
        if options.adapters.max_loaded > 0 {
            let fitting = Fitting::of(checkpoint, &config)?;
            let all = Adapters::on_device(&device.queue, fitting, options.adapters, options.max_batch_tokens)?;
            decoder.adapters = Some(all);
        }
        let runs_on = RunsOn::Gpu(Box::new(device));
        let (steps, copies) = (Steps::default(), Copies::default());
        let loaded = Some(loaded);
        let mut model = Self {
            runs_on,
            decoder,
            limits,
            n_states,
            memory,
            loaded,
            head,
            projection,
            steps,
            copies,
            attached: None,
        };
        model.rehearse(options.on_compile)?;
        model.warm_up()?;
        // Loading is not part of a profile.
        if let (Watch::Profile, RunsOn::Gpu(device)) = (options.watch, &mut model.runs_on) {
            device.watch(options.watch)?;
        }
        Ok(model)
    }

    fn check(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<(Config, StepLimits), Error> {
        let mut config = Config::from_checkpoint(checkpoint)?;
        if options.part == ModelPart::NextToken {
            let architecture = config.family.name;
            config = config.next_token().ok_or(Error::NoNextToken { architecture })?;
        }
        if options.adapters.max_loaded > 0 && options.numerics == Numerics::RowInvariant {
            // Rows with adapters change how norms and gates of the others are computed, in the last bit.
            return Err(Error::Adapter("--deterministic cannot be combined with adapters".into()));
        }
        let limits = StepLimits {
            n_vocab: config.n_vocab,
            n_blocks: options.n_blocks,
            n_window_blocks: options.kv_blocks(&config).n_window_blocks,
            max_batch_tokens: options.max_batch_tokens,
            max_logits_rows: options.max_logits_rows,
        };
        Ok((config, limits))
    }

    /// As [`Model::load`], on a pool of the caller's choice (tests pick the instruction set).
    pub fn load_on(pool: Pool, checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, Error> {
        let options = LoadOptions { device: DeviceChoice::Cpu, ..options };
        let pool = pool.with_numerics(options.numerics);
        let (config, limits) = Self::check(checkpoint, &options)?;
        let memory = plan(checkpoint, &config, &options)?;
        let names = names(checkpoint, &config);
        let weights = Resident::load(Exec::Cpu(&pool), names, &config)?;
        let rope = RopeTable::new(&config, &names, limits_context(&config, &options))?;
        let head = Head::open(&config, &names)?;
        let projection = Projection::open(&config, &names)?;
        let kv = KvCache::new(&config, options.kv_type, options.kv_blocks(&config))?;
        let scratch = Scratch::new(&config, options.max_rows(&config))?;
        let states = StatePool::new(&config, options.n_states)?;
        let n_states = if config.recurrent.is_some() { options.n_states } else { 0 };
        let mut decoder = Decoder::new(config.clone(), weights, rope, kv, states, scratch);
        if options.adapters.max_loaded > 0 {
            let fitting = Fitting::of(checkpoint, &config)?;
            decoder.adapters = Some(Adapters::new(fitting, options.adapters, options.max_batch_tokens)?);
        }
        let (runs_on, steps, copies) = (RunsOn::Cpu(pool), Steps::default(), Copies::default());
        let (loaded, attached) = (None, None);
        Ok(Self { runs_on, decoder, limits, n_states, memory, loaded, head, projection, steps, copies, attached })
    }

    /// Where each weight lies on the host, and which matrix of which of the checkpoint's tensors it is; empty on a device.
    pub fn addresses(&self) -> Vec<(usize, &str, usize)> {
        self.decoder.weights.addresses()
    }

    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    pub fn n_blocks(&self) -> usize {
        self.limits.n_blocks
    }

    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// Whether the bits of a row may depend on the other rows of its steps.
    pub fn numerics(&self) -> Numerics {
        match &self.runs_on {
            RunsOn::Cpu(pool) => pool.numerics(),
            RunsOn::Gpu(device) => device.kernels.numerics(),
        }
    }

    /// Threads that compute and the instructions they use, or the GPU.
    pub fn device(&self) -> String {
        match &self.runs_on {
            RunsOn::Cpu(pool) => format!("cpu ({} threads, {})", pool.n_threads(), pool.isa()),
            RunsOn::Gpu(device) => device.queue.device().label().to_owned(),
        }
    }

    /// The vendor's library that this model uses, if any, weights that are held in another type than the file's, and
    /// fast paths it does without, with the reasons.
    pub fn notes(&self) -> Vec<String> {
        let RunsOn::Gpu(device) = &self.runs_on else { return Vec::new() };
        let used = device.blas().map(|library| format!("large products through {library}"));
        let refused = device.kernels.refused().into_iter().map(|(why, n)| match n {
            1 => why,
            n => format!("{why} ({n} times)"),
        });
        used.into_iter().chain(self.decoder.weights.conversions()).chain(refused).collect()
    }

    /// Why this model can run no more: the first fault of its GPU, and the memory that was given up for it. A new
    /// process, or the same model loaded again on another GPU, goes on.
    pub fn fault(&self) -> Option<String> {
        let RunsOn::Gpu(device) = &self.runs_on else { return None };
        let fault = device.queue.fault()?;
        let leaked: usize = device.queue.leaks().iter().map(|leak| leak.bytes).sum();
        Some(if leaked == 0 { fault.to_string() } else { format!("{fault}; {leaked} bytes in flight were given up") })
    }

    /// How copying the weights to the GPU went.
    pub fn loaded(&self) -> Option<UploadReport> {
        self.loaded
    }

    /// Bytes a second that the bus to the GPU takes from pinned memory, measured now.
    pub fn measure_bus(&self) -> Result<Option<f64>, Error> {
        match &self.runs_on {
            RunsOn::Gpu(device) => device.measure_bus().map(Some),
            RunsOn::Cpu(_) => Ok(None),
        }
    }

    /// What the GPU's driver was asked to do so far, in this process.
    pub fn counters(&self) -> Option<gpu::Counters> {
        let RunsOn::Gpu(device) = &self.runs_on else { return None };
        Some(device.queue.device().counters())
    }

    /// The times of the steps from now on, if the model was loaded to be profiled.
    pub fn profiler(&self) -> Option<Profiler> {
        let RunsOn::Gpu(device) = &self.runs_on else { return None };
        device.profiler()
    }

    /// Device time of each op of one step, in the order they ran; `None` on a CPU. Slower than the step itself.
    pub fn profile(&mut self, batch: &Batch) -> Result<Option<(StepProfile, DeviceLimits)>, Error> {
        batch.validate(&self.limits)?;
        let step = Step::new(batch, &self.decoder);
        let RunsOn::Gpu(device) = &mut self.runs_on else { return Ok(None) };
        device.profile(&mut self.decoder, &step).map(Some)
    }
}
