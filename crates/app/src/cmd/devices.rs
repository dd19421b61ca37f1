//! `roci devices`: what can compute here.

use crate::machine::{Cpu, Memory};
use crate::options::{Format, print_json};
use crate::report::human_bytes;
use anyhow::Result;
use std::io::Write;

/// Show what can compute here
#[derive(clap::Args)]
#[command(after_help = "The name in the first column is what --device takes. GPUs are not supported yet.")]
pub struct Args {
    /// What to write to standard output
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

pub fn main(args: &Args) -> Result<()> {
    let cpu = Cpu::detect();
    let memory = Memory::read();
    if args.output == Format::Json {
        return print_json(&serde_json::json!({"devices": [{
            "device": "cpu",
            "name": cpu.name,
            "cores": cpu.n_cores,
            "features": cpu.features,
            "memory_total_bytes": memory.map(|memory| memory.total_bytes),
            "memory_available_bytes": memory.map(|memory| memory.available_bytes),
        }]}));
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
    Ok(())
}
