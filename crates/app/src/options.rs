//! Arguments that several commands share, spelled the same everywhere.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;

/// What a command writes to standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Where a model computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Device {
    #[default]
    Auto,
    Cpu,
    Gpu {
        vendor: gpu::Vendor,
        ordinal: u32,
    },
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu { vendor, ordinal } => write!(f, "{}:{ordinal}", vendor.word()),
        }
    }
}

fn parse_device(text: &str) -> Result<Device, String> {
    let gpu = || {
        let (word, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        Some(Device::Gpu { vendor: gpu::Vendor::from_word(word)?, ordinal: ordinal.parse().ok()? })
    };
    match text {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        _ => gpu().ok_or_else(|| {
            let words = gpu::Vendor::ALL.map(|vendor| format!("{}[:N]", vendor.word())).join(", ");
            format!("expected auto, cpu, {words} (see `roci devices`)")
        }),
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    #[default]
    F16,
    F32,
}

/// Where and how a model is loaded.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Device and memory")]
pub struct LoadArgs {
    /// Where to compute; auto takes the best device that is here
    #[arg(long, default_value_t, value_parser = parse_device)]
    pub device: Device,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Tokens the model can look back on [default: what it was trained for, at most 8192, less if memory is short]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    pub context: Option<u32>,
    /// Type of the stored keys and values
    #[arg(long, value_enum, default_value_t)]
    pub kv_type: KvType,
    /// A GPU that takes longer for one step counts as hung
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    pub step_deadline: u32,
}

impl LoadArgs {
    /// The device that was asked for; `auto` is the best GPU that passes its self-test, else the CPU.
    pub fn choose_device(&self) -> model::DeviceChoice {
        match self.device {
            Device::Cpu => model::DeviceChoice::Cpu,
            Device::Gpu { vendor, ordinal } => model::DeviceChoice::Gpu { vendor, ordinal },
            Device::Auto => {
                let found = gpu::discovery::Probe::this_program().map(|probe| probe.discover()).unwrap_or_default();
                found.best(None).map_or(model::DeviceChoice::Cpu, |best| model::DeviceChoice::Gpu {
                    vendor: best.vendor,
                    ordinal: best.ordinal,
                })
            }
        }
    }

    pub fn n_threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}

/// How the next token is chosen.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Choosing tokens")]
pub struct SamplingArgs {
    /// 0 always takes the most probable token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.7, allow_negative_numbers = true, value_parser = parse_from_zero)]
    pub temperature: f32,
    /// Choose among the K most probable tokens only; 0: all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Choose among the fewest tokens whose probabilities add up to P; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub top_p: f32,
    /// Drop tokens less probable than P times the best; 0: none
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub min_p: f32,
    /// Make tokens of the last 64 less probable by this factor; 1: off
    #[arg(long, value_name = "F", default_value_t = 1.0, allow_negative_numbers = true, value_parser = parse_from_zero)]
    pub repeat_penalty: f32,
    /// Subtract X from the logit of each token that occurred in the last 64
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_number)]
    pub presence_penalty: f32,
    /// Subtract X for each time a token occurred in the last 64
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_number)]
    pub frequency_penalty: f32,
    /// Add BIAS to the logit of the token ID (see `roci tokenize`); -inf forbids it; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer [default: another one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop after so many tokens
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub max_tokens: usize,
    /// Stop before this text appears; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    pub fn sampling(&self, seed: u64) -> engine::Sampling {
        engine::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().map(|&(id, bias)| (model::TokenId(id), bias)).collect(),
            seed,
            ..engine::Sampling::default()
        }
    }

    /// The seed that was asked for, or a fresh one.
    pub fn pick_seed(&self) -> u64 {
        // std seeds its hash maps from the system's randomness.
        self.seed.unwrap_or_else(|| RandomState::new().hash_one("seed") >> 1)
    }
}

fn parse_number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("expected a number".to_owned()),
    }
}

fn parse_from_zero(text: &str) -> Result<f32, String> {
    parse_number(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err("expected a number from 0".to_owned()) })
}

fn parse_fraction(text: &str) -> Result<f32, String> {
    let in_range = |v| if (0.0..=1.0).contains(&v) { Ok(v) } else { Err("expected a number from 0 to 1".to_owned()) };
    parse_number(text).and_then(in_range)
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse::<f32>().ok()?)));
    parts.filter(|(_, bias)| !bias.is_nan()).ok_or_else(|| "expected ID=BIAS, as in 42=-1.5 or 42=-inf".to_owned())
}

/// JSON on standard output, for people and programs alike.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
