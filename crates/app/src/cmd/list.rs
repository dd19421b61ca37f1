//! `roci list`: the models in the cache folder, and the known names that are not there yet.

use crate::options::{Format, print_json};
use crate::report::human_bytes;
use crate::store::{self, Cache};
use anyhow::Result;
use std::io::Write;

/// List downloaded models
#[derive(clap::Args)]
#[command(after_help = "Models are kept in $ROCI_HOME, or in ~/.cache/roci. `roci rm NAME` removes one.")]
pub struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

pub fn main(args: &Args) -> Result<()> {
    let cache = Cache::from_env()?;
    let entries = cache.entries()?;
    let missing = store::KNOWN.iter().filter(|known| !entries.iter().any(|entry| entry.name == known.name));
    if args.output == Format::Json {
        let here = entries
            .iter()
            .map(|entry| serde_json::json!({"name": entry.name, "bytes": entry.n_bytes, "path": entry.path}));
        let available =
            missing.map(|known| serde_json::json!({"name": known.name, "bytes": known.n_bytes, "about": known.about}));
        return print_json(&serde_json::json!({
            "folder": cache.root(),
            "models": here.collect::<Vec<_>>(),
            "available": available.collect::<Vec<_>>(),
        }));
    }
    let mut out = std::io::stdout().lock();
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0).max(8);
    if entries.is_empty() {
        writeln!(out, "no models in {}", cache.root().display())?;
    } else {
        writeln!(out, "{:width$}  {:>8}  FILE", "NAME", "SIZE")?;
    }
    for entry in &entries {
        writeln!(out, "{:width$}  {:>8}  {}", entry.name, human_bytes(entry.n_bytes), entry.path.display())?;
    }
    for known in missing {
        let (name, size) = (known.name, human_bytes(known.n_bytes));
        writeln!(out, "{name:width$}  {size:>8}  not fetched: {} (roci pull {name})", known.about)?;
    }
    Ok(())
}
