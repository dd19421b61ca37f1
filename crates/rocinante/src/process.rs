//! A model whose engine runs in a process of its own: the parent keeps the tokenizer, the template and the requests, the
//! child has the device and the weights. [`serve_engine`] is the child's whole life.
//!
//! Constraints are compiled at both ends: the parent refuses bad ones, with the guard that the caller chose, and the
//! child, which computes the masks, takes only what the parent has checked.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::model::DeviceChoice;
use engine::{Handle, Helpers};
use serde::{Deserialize, Serialize};
use worker::wire::StepPatience;
use worker::{EngineProgram, LoadChoice, Notice, Opened, RestartPolicy, StartError, StatusWatch, Supervisor};

use crate::device::Device;
use crate::keep;
use crate::masks::Masks;
use crate::model_files::ModelFiles;
use crate::model_summary::ModelSummary;
use crate::options::{Options, Workload};
use crate::speculate::{Speculate, Speculation};
use crate::{Error, Result, human_bytes};

/// A child and its parent must be the same program.
const BUILD: &str = env!("CARGO_PKG_VERSION");
/// Time for the device's own deadline to be noticed and told, before the process is taken to hang.
const GRACE: Duration = Duration::from_secs(2);
/// A CPU that still computes may be slow: a step of a large model takes minutes on a small machine.
const CPU_PATIENCE: u32 = 10;
const GPU_PATIENCE: u32 = 2;

/// How an engine's process is started and watched.
#[derive(Clone)]
pub struct EngineProcess {
    program: PathBuf,
    args: Vec<OsString>,
    max_deaths: usize,
    only_for_gpus: bool,
    falls_back: bool,
    on_notice: worker::OnNotice,
}

impl EngineProcess {
    /// This same program, started with `args`; it must then call [`serve_engine`].
    pub fn this_program(args: impl IntoIterator<Item = OsString>) -> std::io::Result<Self> {
        let link = Path::new("/proc/self/exe");
        // The link works also when the file was replaced since the start.
        let program = if link.exists() { link.to_owned() } else { std::env::current_exe()? };
        Ok(Self {
            program,
            args: args.into_iter().collect(),
            max_deaths: RestartPolicy::default().max_deaths,
            only_for_gpus: false,
            falls_back: false,
            on_notice: Arc::new(|_| {}),
        })
    }

    /// After so many deaths in ten minutes the model is given up.
    pub fn max_deaths(self, max_deaths: usize) -> Self {
        Self { max_deaths, ..self }
    }

    /// Models on the CPU stay in this process.
    pub fn only_for_gpus(self) -> Self {
        Self { only_for_gpus: true, ..self }
    }

    /// A GPU whose processes die too often is given up for the CPU, which continues the requests.
    pub fn or_on_the_cpu(self) -> Self {
        Self { falls_back: true, ..self }
    }

    /// Hears what becomes of the process. Must not block.
    pub fn observed_by(self, on_notice: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Self { on_notice: Arc::new(on_notice), ..self }
    }

    pub(crate) fn is_for(&self, device: DeviceChoice) -> bool {
        !self.only_for_gpus || device != DeviceChoice::Cpu
    }
}

impl fmt::Debug for EngineProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineProcess")
            .field("program", &self.program)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// What a child is to load.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ChildLoad {
    path: PathBuf,
    options: Options,
}

/// Starts a process that loads the model, and waits for it.
pub(crate) fn start(
    path: &Path,
    options: &Options,
    process: &EngineProcess,
) -> Result<(Handle, ModelSummary, StatusWatch)> {
    let program = EngineProgram { path: process.program.clone(), args: process.args.clone(), build: BUILD.to_owned() };
    let policy = RestartPolicy { max_deaths: process.max_deaths, ..RestartPolicy::default() };
    // The child may have another working folder one day; the parent's is what the path was meant in.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let load = ChildLoad {
        path,
        options: Options { speculate: options.speculate.absolute(), keep: options.keep.absolute(), ..options.clone() },
    };
    let fallback =
        (process.falls_back && options.device != Device::Cpu).then_some(on_the_cpu as fn(&ChildLoad) -> ChildLoad);
    let what = LoadChoice { first: load, fallback };
    let started = Supervisor::start(program, policy, what, pinned, Arc::clone(&process.on_notice));
    started.map_err(|error| match error {
        StartError::Refused(why) => Error::Load(why),
        StartError::Died(why) => Error::Stopped(why),
    })
}

/// What later processes load: the same device, context and pool, whatever the machine looks like by then.
fn pinned(load: &ChildLoad, about: &ModelSummary) -> ChildLoad {
    let (plan, mut options) = (&about.plan, load.options.clone());
    options.device = Device::of(plan.options.device);
    options.context = Some(plan.n_ctx());
    options.blas = plan.options.blas;
    options.measures_loading = false;
    if let Workload::Server(scheduling) = &mut options.workload {
        scheduling.max_running = Some(plan.schedule.max_running);
        scheduling.max_batch_tokens = Some(plan.schedule.max_batch_tokens);
        scheduling.prefill_chunk = Some(plan.schedule.prefill_chunk);
        scheduling.kv_tokens = Some(plan.n_pool_tokens());
    }
    ChildLoad { path: load.path.clone(), options }
}

fn on_the_cpu(load: &ChildLoad) -> ChildLoad {
    ChildLoad { path: load.path.clone(), options: Options { device: Device::Cpu, ..load.options.clone() } }
}

/// Runs an engine for the process that started this one, until that process is gone. Its standard input is the
/// connection: nothing may have read from it.
pub fn serve_engine() -> std::result::Result<(), worker::ChildError> {
    worker::serve(BUILD, |load: ChildLoad, n_before, progress| {
        open(load, n_before, &|text: String| progress.say(text)).map_err(|error| describe(&error))
    })
}

fn open(load: ChildLoad, n_before: u32, say: &dyn Fn(String)) -> Result<Opened<ModelSummary>> {
    let ChildLoad { path, options } = load;
    crate::fault::while_loading(n_before);
    let start = Instant::now();
    match options.quantize {
        Some(mix) => say(format!("quantizing the weights to {}", mix.name)),
        None => say("opening the files".to_owned()),
    }
    let files = ModelFiles::open_with(&path, &options)?;
    let device = files.choose_device(options.device)?;
    if let Speculate::Draft(path) = &options.speculate {
        say(format!("loading the draft model {}", path.display()));
    }
    let mut speculation = Speculation::load(&files, &options, &device)?;
    say("planning the memory".to_owned());
    let plan = files.plan_beside(&options, device, speculation.beside_bytes)?;
    say(format!("loading {} of weights", human_bytes(plan.memory().weights_bytes as u64)));
    let mut model = files.load(&plan)?;
    speculation.attach_to(&mut model)?;
    let mut about = ModelSummary::of(&files, &options, plan, &model, start)?;
    about.notes.extend(speculation.note());
    // The vocabulary is read when the first constraint needs it: most requests have none.
    let masks = Masks::later(move || {
        let files = ModelFiles::open(&path).map_err(|error| error.to_string())?;
        files.tokenizer().map(Arc::new).map_err(|error| error.to_string())
    });
    let max_queue = about.plan.schedule.max_queue;
    // The parent bounds the queue; here everything it has taken on must fit at once.
    let (max_all, tells_cache) = (usize::MAX >> 1, options.tells_cache);
    let Speculation { drafter, drafting, .. } = speculation;
    let (store, notes) = keep::open(files.checkpoint(), &options, &about.plan, &model);
    about.notes.extend(notes);
    let engine_options = engine::EngineOptions { max_queue: max_all, tells_cache, drafting, ..about.engine_options() };
    let model = crate::fault::injected(model, n_before);
    let engine = engine::start_helped(model, engine_options, Helpers { masks: Some(Box::new(masks)), drafter, store });
    let factor = if about.plan.options.device == DeviceChoice::Cpu { CPU_PATIENCE } else { GPU_PATIENCE };
    let deadline = options.step_deadline;
    let patience = StepPatience { idle: deadline + GRACE, busy: deadline.saturating_mul(factor) + GRACE };
    Ok(Opened { about, engine, max_queue, patience })
}

/// An error with what caused it, where it does not say so itself.
fn describe(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source()).fold(error.to_string(), |text, source| {
        let source = source.to_string();
        if text.contains(&source) { text } else { format!("{text}: {source}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Scheduling;
    use crate::quantize::Mix;

    #[test]
    fn options_cross_the_border() {
        let scheduling = Scheduling { max_running: Some(3), kv_tokens: Some(1000), ..Scheduling::default() };
        let options = Options {
            device: "rocm:1".parse().unwrap(),
            quantize: Mix::find("Q4_K_M"),
            context: Some(77),
            speculate: Speculate::Draft("small.gguf".into()),
            keep: crate::Keep { host_bytes: 1, disk_bytes: 2, folder: Some("f".into()), session: None },
            workload: Workload::Server(scheduling),
            ..Options::default()
        };
        let bytes = worker::frame::encode(&ChildLoad { path: "a/b.gguf".into(), options: options.clone() }).unwrap();
        let load: ChildLoad = worker::frame::FrameReader::new(bytes.as_slice()).read().unwrap();
        assert_eq!(load.path, Path::new("a/b.gguf"));
        assert_eq!(format!("{:?}", load.options), format!("{options:?}"));
    }
}
