//! What a caller can choose about a model: where and how it is loaded, and how its engine schedules. Anything left open
//! is decided by the device, its memory and the model (`load_plan`), never inherited from another device.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use ::model::{AdapterLimits, BlasUse, CompileProgress, KvType, Watch};

use crate::Device;
use crate::keep::Keep;
use crate::masks::ConstraintGuard;
#[cfg(unix)]
use crate::process::EngineProcess;
use crate::quantize::Mix;
use crate::speculate::Speculate;

/// Where and how a model is loaded.
///
/// ```
/// use rocinante::{Device, Options, Scheduling, Workload};
/// // On the CPU, with four answers at a time.
/// let scheduling = Scheduling { max_running: Some(4), ..Scheduling::default() };
/// let options = Options { device: Device::Cpu, workload: Workload::Server(scheduling), ..Options::default() };
/// # assert_eq!(options.context, None);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Where to compute.
    pub device: Device,
    /// Tokens that a prompt and its answer may have together; `None`: what the model was trained for, at most 8192,
    /// less if memory is short.
    pub context: Option<usize>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// CPU threads; `None`: one per core.
    pub n_threads: Option<usize>,
    /// The same request gives the same tokens and log-probabilities, bit for bit, whatever else the model computes at the
    /// time. Slower, above all for prompts on a GPU.
    pub deterministic: bool,
    /// Whether a GPU's products of many rows may go through the vendor's library. Where this program answers probes
    /// ([`answer_if_asked`](crate::answer_if_asked)), AMD's is tried in a child process first, because it ends the process
    /// that asks it for kernels it lacks.
    pub blas: BlasUse,
    /// What layers with a window keep of a context.
    pub windows: WindowUse,
    /// Who guesses tokens ahead.
    pub speculate: Speculate,
    /// Makes the weights smaller while loading.
    #[serde(with = "crate::quantize::by_name")]
    pub quantize: Option<&'static Mix>,
    /// Room for adapters, which [requests](crate::Request::adapter) may then name. None by default.
    pub adapters: AdapterLimits,
    /// Where contexts go that the KV pool has no room for. Nowhere by default.
    pub keep: Keep,
    /// How closely a GPU's steps are watched.
    pub watch: Watch,
    /// Treat a GPU, or an engine in a process of its own, as hung after a step of this many seconds.
    pub step_deadline: Duration,
    /// A chat template (Jinja) to use instead of the files' own.
    pub chat_template: Option<String>,
    /// Tell what happens to the prefix cache, for routers; see [`Handle::kv_log`](engine::Handle::kv_log).
    pub tells_cache: bool,
    /// Measures the bus to the GPU, so that the notes say how well loading used it.
    pub measures_loading: bool,
    /// Hears how far the compilation of GPU kernels is, where they were not compiled before.
    #[serde(skip)]
    pub on_compile: Option<fn(CompileProgress)>,
    /// Asked about every constraint before it is compiled.
    #[serde(skip)]
    pub constraint_guard: Option<ConstraintGuard>,
    /// Run the engine in a process of its own, which may die without taking this one or its requests along; `None`: on
    /// a thread.
    #[cfg(unix)]
    #[serde(skip)]
    pub process: Option<EngineProcess>,
    /// What the model is loaded for.
    pub workload: Workload,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: Device::default(),
            context: None,
            kv_type: KvType::F16,
            n_threads: None,
            deterministic: false,
            blas: BlasUse::default(),
            windows: WindowUse::default(),
            speculate: Speculate::default(),
            quantize: None,
            adapters: AdapterLimits::default(),
            keep: Keep::default(),
            watch: Watch::Off,
            step_deadline: Duration::from_secs(120),
            chat_template: None,
            tells_cache: false,
            measures_loading: false,
            on_compile: None,
            constraint_guard: None,
            #[cfg(unix)]
            process: None,
            workload: Workload::Conversation,
        }
    }
}

impl Options {
    /// CPU threads that will compute.
    pub fn threads(&self) -> usize {
        self.n_threads.unwrap_or_else(n_cores)
    }
}

/// Cores that this process may use.
pub fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a model is loaded for.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub enum Workload {
    /// One answer at a time; further requests wait for their turn.
    Conversation,
    /// Many answers at once.
    Server(Scheduling),
    /// No engine: the caller runs the model's steps, as benchmarks do.
    Steps(StepSizes),
}

/// How an engine shares out its steps. `None` is chosen by the device, its free memory and the model.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub struct Scheduling {
    /// Maximum number of requests generating at once.
    pub max_running: Option<usize>,
    /// Requests that may wait; one more is refused.
    pub max_queue: usize,
    /// Maximum number of tokens in one step.
    pub max_batch_tokens: Option<usize>,
    /// Prompt tokens in a step that also generates.
    pub prefill_chunk: Option<usize>,
    /// Tokens in the pool of keys and values that all requests share.
    pub kv_tokens: Option<usize>,
    /// Models that will share this device's memory; the pool leaves room for the others.
    pub n_models: usize,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            max_running: None,
            max_queue: 256,
            max_batch_tokens: None,
            prefill_chunk: None,
            kv_tokens: None,
            n_models: 1,
        }
    }
}

/// Sizes of the steps of a model without an engine.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub struct StepSizes {
    /// Sequences that hold a full context at once.
    pub n_sequences: usize,
    /// Rows of the largest step.
    pub max_batch_tokens: usize,
    /// Rows of a step that may ask for logits.
    pub max_logits_rows: usize,
}

/// What layers with a window keep of a context.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum WindowUse {
    /// Their window, where that saves much memory.
    #[default]
    Auto,
    /// As much as the other layers: a prompt can go on from any place of an earlier one.
    Whole,
}
