//! Arguments that several commands share, spelled the same everywhere.

use crate::report::{self, HintExt};
use crate::sampling_args::SamplingArgs;
use crate::store;
use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use rocinante::quantize::Mix;
use rocinante::{Device, Options, Speculate, Workload, n_cores};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use text::RenderOptions;

/// What a command writes to standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    #[default]
    Text,
    Json,
}

/// `-q -v` cannot both be meant.
pub fn check_verbosity(is_verbose: bool) -> Result<()> {
    match is_verbose && report::is_quiet() {
        true => Err(anyhow!("--quiet and --verbose contradict each other")).hint("leave one of them out"),
        false => Ok(()),
    }
}

/// A device as it is typed.
pub fn parse_device(text: &str) -> Result<Device, String> {
    text.parse().map_err(|_| format!("expected {} (see `roci devices`)", rocinante::device_names()))
}

/// The recipe's own spelling of a name.
pub fn parse_mix(name: &str) -> Result<&'static str, String> {
    Mix::find(name).map(|mix| mix.name).ok_or_else(|| format!("expected one of: {}", Mix::names()))
}

/// How tokens are guessed ahead, as it is typed.
pub fn parse_speculate(text: &str) -> Result<Speculate, String> {
    text.parse().map_err(|_| "expected auto, ngram, mtp, draft=MODEL or off".to_owned())
}

/// Tokens that are guessed ahead.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculateArgs {
    /// Guess tokens ahead and verify several in one step, for the same answer sooner: ngram looks them up in the text, mtp
    /// uses the extra layer that some models have, draft=MODEL uses a smaller model with the same vocabulary, off disables
    /// it, auto (the default of run and serve) is ngram on a CPU with few requests
    #[arg(long, value_name = "HOW", value_parser = parse_speculate)]
    pub speculate: Option<Speculate>,
}

impl SpeculateArgs {
    /// With the file of the draft model, which is fetched if it is not here.
    pub fn resolve(&self) -> Result<Speculate> {
        match self.speculate.as_ref().unwrap_or(&Speculate::Auto) {
            Speculate::Draft(name) => Ok(Speculate::Draft(store::resolve(&name.to_string_lossy())?)),
            other => Ok(other.clone()),
        }
    }
}

/// A custom chat template.
#[derive(Debug, Clone, clap::Args)]
pub struct TemplateArgs {
    /// Use the Jinja chat template in this file instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
}

impl TemplateArgs {
    /// What is in the file. Read when it is needed: a server that reads its settings again needs it no more.
    pub fn text(&self) -> Result<Option<String>> {
        let Some(path) = &self.chat_template_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).with_context(|| format!("chat template {}", path.display()));
        text.map(Some).hint("--chat-template-file takes a file with a Jinja template")
    }
}

/// Whether a model thinks before it answers, where its template can say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Think {
    True,
    False,
    Low,
    Medium,
    High,
}

impl Think {
    /// How a conversation is rendered.
    pub fn render_options(think: Option<Self>) -> RenderOptions {
        let mut options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let Some(think) = think else { return options };
        options.set_thinking(think != Self::False);
        let effort = match think {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::True | Self::False => return options,
        };
        options.extra.insert("reasoning_effort".to_owned(), effort.into());
        options
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvTypeOption {
    #[default]
    F16,
    F32,
    // Half of f16's memory. No help texts: with them, --help of every command would be printed in its long form.
    #[value(name = "q8_0")]
    Q8_0,
    // A little more than a quarter of it; answers change.
    #[value(name = "q4_0")]
    Q4_0,
}

/// The vendor's library for products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum BlasOption {
    // Where it is installed and works.
    #[default]
    Auto,
    // Our own kernels only.
    Off,
}

/// Where and how a model is loaded.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Device and memory")]
pub struct LoadArgs {
    /// Where to compute; auto picks the best device available
    #[arg(long, default_value_t, value_parser = parse_device)]
    pub device: Device,
    /// llama.cpp's flag, also -ngl: 0 computes on the CPU; otherwise the whole model goes to a GPU
    #[arg(long, value_name = "N", alias = "n-gpu-layers", allow_negative_numbers = true)]
    pub gpu_layers: Option<i32>,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Context length in tokens [default: the model's own, at most 8192, less if memory is short]
    #[arg(short, long, value_name = "TOKENS", alias = "ctx-size", value_parser = clap::value_parser!(u32).range(16..))]
    pub context: Option<u32>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t)]
    pub kv_type: KvTypeOption,
    /// Answer the same request the same way, bit for bit, whatever else is running (slower)
    #[arg(long)]
    pub deterministic: bool,
    /// Whether a GPU may multiply large batches with the vendor's library (rocBLAS, hipBLAS, cuBLAS)
    #[arg(long, value_enum, default_value_t)]
    pub blas: BlasOption,
    /// Wait after every GPU op and name the first that fails or stalls (slow)
    #[arg(long)]
    pub debug_sync: bool,
    /// Report the name of every op to rocprof or nsys (roctx, NVTX)
    #[arg(long, conflicts_with = "debug_sync")]
    pub ranges: bool,
    /// Quantize the weights while loading: Q8_0, Q6_K, Q4_K_M, ... (an unknown name lists all)
    #[arg(long, value_name = "TYPE", value_parser = parse_mix)]
    pub quantize: Option<&'static str>,
    /// Treat a device as hung after a step of this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    pub step_deadline: u32,
}

impl LoadArgs {
    /// How closely the model's steps are watched.
    pub fn watch(&self) -> model::Watch {
        match (self.debug_sync, self.ranges) {
            (true, _) => model::Watch::DebugSync,
            (_, true) => model::Watch::Ranges,
            _ => model::Watch::Off,
        }
    }

    /// What was typed, as the runtime takes it.
    pub fn options(&self, workload: Workload) -> Options {
        Options {
            device: self.device(),
            context: self.context.map(|n_ctx| n_ctx as usize),
            kv_type: match self.kv_type {
                KvTypeOption::F16 => rocinante::KvType::F16,
                KvTypeOption::F32 => rocinante::KvType::F32,
                KvTypeOption::Q8_0 => rocinante::KvType::Q8_0,
                KvTypeOption::Q4_0 => rocinante::KvType::Q4_0,
            },
            n_threads: Some(self.n_threads()),
            deterministic: self.deterministic,
            blas: match self.blas {
                BlasOption::Auto => rocinante::BlasUse::Auto,
                BlasOption::Off => rocinante::BlasUse::Off,
            },
            quantize: self.quantize.and_then(Mix::find),
            watch: self.watch(),
            step_deadline: std::time::Duration::from_secs(self.step_deadline.into()),
            on_compile: Some(crate::compiling::show),
            workload,
            ..Options::default()
        }
    }

    /// The device that was asked for. Who asks for GPU layers and has no usable GPU is told so.
    fn device(&self) -> Device {
        match self.gpu_layers {
            None => self.device,
            Some(0) => Device::Cpu,
            Some(_) if self.device != Device::Auto => self.device,
            Some(n_layers) => {
                let chosen = Device::Auto.choose();
                if chosen.device() == Device::Cpu {
                    let why = if chosen.refused.is_empty() { &chosen.absent } else { &chosen.refused };
                    let why = why.join("; ");
                    report::warning(&format!("-ngl {n_layers} has no effect, the model runs on the CPU: {why}"));
                }
                chosen.device()
            }
        }
    }

    /// The same request gives the same answer: the seed is then fixed too.
    pub fn seeded(&self, sampling: &SamplingArgs) -> SamplingArgs {
        let seed = sampling.seed.or(self.deterministic.then_some(0));
        SamplingArgs { seed, ..sampling.clone() }
    }

    /// Threads that compute. More than there are cores would wait for each other at every op: they are bounded, with
    /// a warning.
    pub fn n_threads(&self) -> usize {
        bounded_threads(self.threads)
    }
}

/// As many threads as were asked for, at most one per core.
pub fn bounded_threads(asked: Option<u16>) -> usize {
    let n_cores = n_cores();
    let asked = asked.map_or(n_cores, usize::from);
    if asked > n_cores {
        report::warning(&format!("--threads {asked} is more than the {n_cores} cores here; using {n_cores}"));
    }
    asked.min(n_cores)
}

/// JSON on standard output, for people and programs alike.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
