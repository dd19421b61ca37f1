//! `roci quantize`: the same model in a smaller type, as a GGUF file that llama.cpp reads too.

use crate::options::{bounded_threads, parse_mix};
use crate::progress::{self, Counted};
use crate::report::{self, HintExt, counted, human_bytes};
use crate::{model_file, store};
use anyhow::{Context, Result, anyhow};
use rocinante::quantize::{self, Importance, Mix, convert};
use std::path::{Path, PathBuf};
use std::time::Instant;
use weights::gguf::TensorInfo;
use weights::{Checkpoint, Dtype, FileFormat, GgufWriter, Metadata, Tensor};

const EXAMPLES: &str = "\
Examples:
  roci quantize model-f16.gguf model-q4_k_m.gguf --type Q4_K_M
  roci quantize model-f16.gguf small.gguf --type IQ3_XXS --imatrix model.imatrix.gguf
  roci quantize folder-of-safetensors model-q4_k_m.gguf --type Q4_K_M

A type is a recipe: most tensors get the type of that name, and the most sensitive ones a larger
type. Rows that do not fill whole blocks get the nearest type that fits.";

/// Quantize a model
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The file to write
    out: PathBuf,
    /// Q4_K_M, Q5_K_M, Q6_K, Q8_0, IQ4_XS, ... (an unknown name lists all)
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_mix)]
    mix: &'static str,
    /// Allow quantizing weights that are already quantized, which rounds them twice
    #[arg(long)]
    allow_requantize: bool,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
    /// Importance matrix (see `roci imatrix`)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub fn main(args: &Args) -> Result<()> {
    let path = store::resolve(&args.model)?;
    let checkpoint = model_file::open(&path)?.into_checkpoint();
    let n_source_bytes = checkpoint.file_bytes();
    let mix = Mix::find(args.mix).expect("the argument was parsed to a known name");
    let output = Output { path: &args.out, force: args.force, allow_requantize: args.allow_requantize };
    check(&output, &path, &checkpoint, Some(mix))?;
    let checkpoint = match checkpoint.format() {
        FileFormat::Gguf => checkpoint,
        FileFormat::Safetensors => {
            checkpoint.notes().iter().for_each(|note| report::note(note));
            quantize::as_gguf(checkpoint, &path)
                .hint("`--quantize TYPE` of run and serve takes safetensors as they are")?
        }
    };
    let importance = importance(args, &checkpoint)?;
    let plan = mix.plan(&checkpoint, importance.is_some());
    if plan.n_blind > 0 {
        let n = plan.n_blind;
        report::note(&format!("types that need --imatrix to be good: {}", counted(n, "tensor")));
    }
    if plan.n_fallback > 0 {
        let n = plan.n_fallback;
        report::note(&format!(
            "{} of a larger type: the rows do not fill whole blocks of the one asked for",
            counted(n, "tensor")
        ));
    }
    let start = Instant::now();
    let metadata = metadata(args, checkpoint.metadata(), mix, importance.as_ref());
    write(&args.out, checkpoint, metadata, &plan.types, importance.as_ref(), bounded_threads(args.threads))?;
    let n_bytes_out = std::fs::metadata(&args.out)?.len();
    let (from, to) = (human_bytes(n_source_bytes), human_bytes(n_bytes_out));
    if n_source_bytes < n_bytes_out {
        report::note(&format!("the result is larger than its source ({to} from {from})"));
    }
    println!("{}: {from} -> {to} as {} in {:.1} s", args.out.display(), mix.name, start.elapsed().as_secs_f64());
    Ok(())
}

/// A file to write, and what was allowed for it.
pub struct Output<'a> {
    pub path: &'a Path,
    pub force: bool,
    pub allow_requantize: bool,
}

/// Refuses what cannot be quantized, or would be by mistake; without a recipe, types stay as they are.
pub fn check(output: &Output, path: &Path, checkpoint: &Checkpoint, mix: Option<&Mix>) -> Result<()> {
    let out = output.path;
    if let Some(tensor) = checkpoint.unsupported().first() {
        return Err(anyhow!("tensor `{}` has type {}", tensor.name, tensor.type_name))
            .hint("a file that cannot be read in full cannot be quantized");
    }
    if out.canonicalize().is_ok_and(|out| path.canonicalize().is_ok_and(|path| path == out)) {
        return Err(anyhow!("`{}` is both the input and the output", out.display())).hint("name another output file");
    }
    if out.exists() && !output.force {
        return Err(anyhow!("`{}` exists", out.display())).hint("--force overwrites it");
    }
    let Some(mix) = mix else { return Ok(()) };
    let is_packed = |tensor: &Tensor| !tensor.dtype.is_plain() && tensor.dtype != mix.base;
    if let Some(tensor) = checkpoint.tensors().iter().find(|tensor| is_packed(tensor))
        && !mix.base.is_plain()
        && !output.allow_requantize
    {
        let (file, name, dtype) = (path.display(), &tensor.name, tensor.dtype.name());
        return Err(anyhow!("`{file}` is already quantized: tensor `{name}` is {dtype}"))
            .hint("start from F16, BF16 or F32 weights, or add --allow-requantize and accept the loss");
    }
    Ok(())
}

fn importance(args: &Args, checkpoint: &Checkpoint) -> Result<Option<Importance>> {
    let Some(file) = &args.imatrix else { return Ok(None) };
    let importance = Importance::read(file).map_err(|error| model_file::hinted(file, error))?;
    if !checkpoint.tensors().iter().any(|tensor| importance.by_name.contains_key(&tensor.name)) {
        return Err(anyhow!("`{}` contains none of this model's tensors", file.display()))
            .hint("create one from this model: roci imatrix MODEL TEXT OUT");
    }
    Ok(Some(importance))
}

/// The source's metadata, without what says that it came in parts: the result is written whole.
fn metadata(args: &Args, source: &Metadata, mix: &Mix, importance: Option<&Importance>) -> Metadata {
    let mut metadata = typed(source, mix);
    if let (Some(importance), Some(file)) = (importance, &args.imatrix) {
        metadata.set("quantize.imatrix.file", file.display().to_string());
        metadata.set("quantize.imatrix.entries_count", importance.by_name.len() as u32);
        metadata.set("quantize.imatrix.chunks_count", importance.n_chunks);
    }
    whole(&metadata)
}

/// The metadata of a file in another type.
pub fn typed(source: &Metadata, mix: &Mix) -> Metadata {
    let mut metadata = source.clone();
    metadata.set("general.file_type", mix.file_type);
    metadata.set("general.quantization_version", 2u32);
    metadata
}

/// The metadata of a file that is written whole.
pub fn whole(metadata: &Metadata) -> Metadata {
    let whole = metadata.iter().filter(|(key, _)| !key.starts_with("split."));
    whole.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// Writes the tensors in these types.
pub fn write(
    out: &Path,
    checkpoint: Checkpoint,
    metadata: Metadata,
    types: &[Dtype],
    importance: Option<&Importance>,
    n_threads: usize,
) -> Result<()> {
    let tensors = checkpoint.tensors().iter().zip(types);
    let infos: Vec<TensorInfo> = tensors
        .map(|(tensor, &dtype)| TensorInfo { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() })
        .collect();
    let n_bytes = |info: &TensorInfo| {
        (info.shape.iter().product::<usize>() / info.dtype.block_len() * info.dtype.block_bytes()) as u64
    };
    let total: u64 = infos.iter().map(n_bytes).sum();
    hub::disk::check_room(out, total)?;
    let mut writer = GgufWriter::create(out, &metadata, &infos)
        .hint("check that its folder exists and is writable")
        .map_err(report::writing(out, Some(total)))?;
    let failed = report::writing(out, Some(total));
    let bar = progress::bar("quantizing", Some(total), Counted::Bytes);
    // Each tensor is dropped once it is written: one that was made from others takes memory of its own.
    for (tensor, &dtype) in checkpoint.into_tensors().into_iter().zip(types) {
        bar.set_message(format!("  {}", tensor.name));
        if dtype == tensor.dtype {
            writer.tensor(&tensor.bytes).map_err(&failed)?;
            bar.inc(tensor.bytes.len() as u64);
        } else {
            let bytes = convert::tensor(&tensor, dtype, importance, n_threads, |n| bar.inc(n));
            writer.tensor(&bytes).map_err(&failed)?;
        }
        tensor.bytes.release_pages();
    }
    writer.finish().map_err(&failed).with_context(|| format!("cannot write `{}`", out.display()))?;
    bar.finish_and_clear();
    Ok(())
}
