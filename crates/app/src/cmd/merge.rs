//! `roci merge`: a model with an adapter in its weights, as a GGUF file that llama.cpp reads too.

use super::quantize::{self, Output};
use crate::options::{bounded_threads, parse_mix};
use crate::report::{self, HintExt, human_bytes};
use crate::{lora_args, model_file, store};
use anyhow::{Result, anyhow};
use rocinante::quantize::Mix;
use std::path::PathBuf;
use std::time::Instant;
use weights::{Dtype, FileFormat};

const EXAMPLES: &str = "\
Examples:
  roci merge model-f16.gguf --lora sql-lora -o model-sql.gguf
  roci merge folder-of-safetensors --lora sql.gguf -o model-sql.gguf --type Q4_K_M

Without --type every tensor keeps its type. Quantized weights are decoded, changed
and quantized again, which rounds them twice: start from F16, BF16 or F32 weights where you can.";

/// Merge an adapter into a model's weights
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The adapter: a folder from PEFT or a GGUF file
    #[arg(long, value_name = "PATH")]
    lora: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Q4_K_M, Q8_0, F16, ... (an unknown name lists all) [default: the types of the model]
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_mix)]
    mix: Option<&'static str>,
    /// Allow weights that are already quantized to change their type
    #[arg(long)]
    allow_requantize: bool,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let files = model_file::open(&path)?;
    let adapter = lora_args::open(&args.lora, &files)?;
    let checkpoint = files.into_checkpoint();
    let mix = args.mix.and_then(Mix::find);
    let output = Output { path: &args.out, force: args.force, allow_requantize: args.allow_requantize };
    quantize::check(&output, &path, &checkpoint, mix)?;
    let checkpoint = match checkpoint.format() {
        FileFormat::Gguf => checkpoint,
        FileFormat::Safetensors => rocinante::quantize::as_gguf(checkpoint, &path)
            .hint("`--lora` of run and serve takes safetensors as they are")?,
    };
    let kept: Vec<Dtype> = checkpoint.tensors().iter().map(|tensor| tensor.dtype).collect();
    if kept.iter().any(|dtype| !dtype.is_plain()) && mix.is_none_or(|mix| !mix.base.is_plain()) {
        report::note("the model is quantized already: what the adapter changes is rounded twice");
    }
    let start = Instant::now();
    let merged = model::merge(&checkpoint, adapter.opened()).map_err(|error| anyhow!("{error}"))?;
    let types = mix.map_or(kept, |mix| mix.plan(&merged, false).types);
    let metadata = match mix {
        Some(mix) => quantize::typed(merged.metadata(), mix),
        None => merged.metadata().clone(),
    };
    quantize::write(&args.out, merged, quantize::whole(&metadata), &types, None, bounded_threads(args.threads))?;
    let size = human_bytes(std::fs::metadata(&args.out)?.len());
    println!("{}: {size} in {:.1} s", args.out.display(), start.elapsed().as_secs_f64());
    Ok(())
}
