//! Arguments that several commands share, spelled the same everywhere.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
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

pub fn parse_device(text: &str) -> Result<Device, String> {
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
    /// Wait after every op on a GPU and name the first that fails or stalls; slow
    #[arg(long)]
    pub debug_sync: bool,
    /// Name every op to rocprof or nsys (roctx, NVTX); without it only while such a tool is attached, and not in graphs
    #[arg(long, conflicts_with = "debug_sync")]
    pub ranges: bool,
    /// Make the weights smaller while loading: Q8_0 Q6_K Q4_K_M ... (an unknown name lists them all)
    #[arg(long, value_name = "TYPE", value_parser = crate::cmd::quantize::parse_mix)]
    pub quantize: Option<&'static str>,
    /// A GPU that takes longer for one step counts as hung
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

/// JSON on standard output, for people and programs alike.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
