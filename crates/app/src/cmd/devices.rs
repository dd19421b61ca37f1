//! `roci devices`: what can compute here.

use crate::machine::Cpu;
use crate::options::{ReportFormat, print_json};
use crate::report::human_bytes;
use anyhow::Result;
use rocinante::HostMemory;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  roci devices                              what can compute here
  roci run smollm2 --device rocm:0 \"Hi\"    compute on the first AMD GPU
  roci run smollm2 --device cpu \"Hi\"       leave the GPUs alone

The first column is what --device takes. `auto` picks the first GPU that is not refused; `roci doctor` explains why one is
missing or refused.";

/// List devices, and why a GPU was refused
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let cpu = Cpu::detect();
    let memory = HostMemory::read();
    let found = gpu::discovery::Discovery::here();
    if args.output == ReportFormat::Json {
        let gpus = found.devices.iter().map(|found| {
            serde_json::json!({
                "device": format!("{}:{}", found.vendor.word(), found.ordinal),
                "name": found.name,
                "architecture": found.arch,
                "is_integrated": found.is_integrated,
                "pci": found.pci,
                "driver": found.driver,
                "memory_total_bytes": found.memory_bytes,
                "refused": found.refused,
            })
        });
        let cpu = serde_json::json!({
            "device": "cpu",
            "name": cpu.name,
            "cores": cpu.n_cores,
            "features": cpu.features,
            "memory_total_bytes": memory.map(|memory| memory.total_bytes),
            "memory_available_bytes": memory.map(|memory| memory.available_bytes),
        });
        let absent =
            found.absent.iter().map(|(vendor, why)| serde_json::json!({"vendor": vendor.to_string(), "why": why}));
        let devices: Vec<_> = std::iter::once(cpu).chain(gpus).collect();
        return print_json(&serde_json::json!({"devices": devices, "absent": absent.collect::<Vec<_>>()}));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "cpu  {}", cpu.name.as_deref().unwrap_or(std::env::consts::ARCH))?;
    writeln!(out, "     cores     {}", cpu.n_cores)?;
    let features =
        if cpu.features.is_empty() { "none that the kernels use".to_owned() } else { cpu.features.join(" ") };
    writeln!(out, "     features  {features}")?;
    if let Some(memory) = memory {
        let (available, total) = (human_bytes(memory.available_bytes), human_bytes(memory.total_bytes));
        writeln!(out, "     memory    {available} available of {total}")?;
    }
    for found in &found.devices {
        writeln!(out, "{found}")?;
    }
    for (vendor, why) in &found.absent {
        writeln!(out, "no {vendor} GPU: {why}")?;
    }
    Ok(())
}
