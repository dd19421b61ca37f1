//! `roci kernels`: the compiled kernels that are kept on disk. They are made on first need; this makes the common ones
//! before, and shows or removes what is there.

use crate::options::{self, ReportFormat, print_json};
use crate::progress::{self, Counted};
use crate::report::{HintExt, counted, human_bytes};
use anyhow::{Context, Result, anyhow};
use gpu::Cache;
use model::{DeviceChoice, KvType, LoadOptions, Model, Recipe, Synthetic};
use rocinante::Device;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use weights::Dtype;

const EXAMPLES: &str = "\
Examples:
  roci kernels build                for the best GPU available
  roci kernels build --all-types    for every weight type, which takes minutes
  roci kernels list
  roci kernels clear

Without --all-types, `build` compiles for F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K and Q6_K; kernels for other types
are compiled when such a model is first loaded.

Kernels are kept in ROCI_KERNEL_CACHE, by default ~/.cache/roci/kernels, under a key of source, options,
architecture and compiler version: kernels of another version are never used.";

/// The common weight types, as the help lists them; kernels of the others are compiled when a model first needs them.
const COMMON: [Dtype; 8] =
    [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];

/// Build, list or clear compiled GPU kernels
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: KernelsCommand,
}

#[derive(clap::Subcommand)]
enum KernelsCommand {
    /// Compile kernels now instead of on first use, by loading tiny models; those for other head sizes are still compiled
    /// on first use
    Build(Build),
    /// List compiled kernels
    List(ListArgs),
    /// Remove all compiled kernels
    Clear,
}

#[derive(clap::Args)]
struct Build {
    /// The GPU to compile for; auto picks the best one available
    #[arg(long, default_value_t, value_parser = options::parse_device)]
    device: Device,
    /// Compile for every weight type instead of the common ones
    #[arg(long)]
    all_types: bool,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
}

pub fn main(args: &Args) -> Result<()> {
    let cache = Cache::of_user();
    let folder = cache.folder().ok_or_else(|| anyhow!("there is no folder to keep kernels in"));
    let folder = folder.hint("set ROCI_KERNEL_CACHE")?;
    match &args.command {
        KernelsCommand::Build(build) => make(build, &cache),
        KernelsCommand::List(list) => show(list, &cache, folder),
        KernelsCommand::Clear => {
            let (n, n_bytes) = cache.clear()?;
            let bytes = human_bytes(n_bytes);
            Ok(writeln!(std::io::stdout(), "removed {}, {bytes}, from {}", counted(n, "kernel"), folder.display())?)
        }
    }
}

/// What is loaded: each weight type, and one of them with each other type of keys and values, because no kernel depends
/// on both.
fn loads(all_types: bool) -> Vec<(Dtype, KvType)> {
    let known = Dtype::ALL.into_iter().filter(|dtype| ops::device_dtype(*dtype) == *dtype);
    let wanted = known.filter(|dtype| all_types || COMMON.contains(dtype));
    wanted.map(|dtype| (dtype, KvType::F16)).chain([(Dtype::F32, KvType::F32)]).collect()
}

fn make(build: &Build, cache: &Cache) -> Result<()> {
    let device = match build.device {
        Device::Gpu { vendor, ordinal } => DeviceChoice::Gpu { vendor, ordinal },
        Device::Cpu => return Err(anyhow!("only GPUs have kernels to compile")).hint("omit --device, or name a GPU"),
        Device::Auto => {
            let found = gpu::discovery::Probe::this_program()?.discover();
            let best = found.best(None).ok_or_else(|| anyhow!("no GPU was found")).hint("`roci devices` says why")?;
            DeviceChoice::Gpu { vendor: best.vendor, ordinal: best.ordinal }
        }
    };
    let n_before = cache.entries()?.len();
    let loads = loads(build.all_types);
    let bar = progress::bar("compiling", Some(loads.len() as u64), Counted::Things);
    for (dtype, kv_type) in loads {
        bar.set_message(format!("  for {dtype} weights"));
        let checkpoint = model::synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 1)?;
        let options = LoadOptions { device, kv_type, n_blocks: 8, max_batch_tokens: 64, ..LoadOptions::default() };
        // Loading runs a step of each kind.
        Model::load(&checkpoint, options).with_context(|| format!("cannot compile for {dtype} weights"))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let n = cache.entries()?.len();
    Ok(writeln!(std::io::stdout(), "{} compiled, {n} in the cache", counted(n.saturating_sub(n_before), "kernel"))?)
}

fn show(args: &ListArgs, cache: &Cache, folder: &Path) -> Result<()> {
    let entries = cache.entries()?;
    if args.output == ReportFormat::Json {
        let kernels = entries.iter().map(|entry| {
            let (unit, arch) = parts(&entry.name);
            json!({"name": unit, "architecture": arch, "bytes": entry.bytes, "file": format!("{}.co", entry.name)})
        });
        return print_json(&json!({"folder": folder, "kernels": kernels.collect::<Vec<_>>()}));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for entry in &entries {
        let (unit, arch) = parts(&entry.name);
        writeln!(out, "{unit:16} {arch:24} {:>9}", human_bytes(entry.bytes))?;
    }
    let n_bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    writeln!(out, "{}, {} in {}", counted(entries.len(), "kernel"), human_bytes(n_bytes), folder.display())?;
    Ok(out.flush()?)
}

/// A kernel's name on disk is unit-architecture-key; an architecture may have minus signs of its own.
fn parts(name: &str) -> (&str, &str) {
    let (front, _key) = name.rsplit_once('-').unwrap_or((name, ""));
    front.split_once('-').unwrap_or((front, "?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_common_types_and_all_types_are_all() {
        let listed = COMMON.map(|dtype| dtype.name().to_owned());
        let (last, rest) = listed.split_last().unwrap();
        assert!(EXAMPLES.contains(&format!("{} and {last};", rest.join(", "))), "{EXAMPLES}");
        assert_eq!(loads(false).len(), COMMON.len() + 1);
        let packed = Dtype::ALL.into_iter().filter(|dtype| !dtype.is_plain());
        let all = loads(true);
        for dtype in packed {
            assert!(all.contains(&(dtype, KvType::F16)), "{dtype} is left out");
        }
    }

    #[test]
    fn names_on_disk_are_taken_apart() {
        assert_eq!(parts("matmul_units-gfx1100-1b51c8"), ("matmul_units", "gfx1100"));
        assert_eq!(parts("take_rows-gfx942_sramecc-_xnack--00"), ("take_rows", "gfx942_sramecc-_xnack-"));
        assert_eq!(parts("odd"), ("odd", "?"));
    }
}
