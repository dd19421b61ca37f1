//! `roci rm`: give the disk space back.

use crate::report::{HintExt, human_bytes};
use anyhow::{Result, anyhow};
use hub::{Store, StoredModel, normal_name};
use std::io::Write;

/// Remove downloaded models
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  roci rm smollm2\n  roci rm --all    everything, unfinished downloads included")]
pub struct Args {
    /// Names as `roci list` shows them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Remove every model and every unfinished download
    #[arg(long)]
    all: bool,
}

pub fn main(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let mut out = std::io::stdout().lock();
    if args.all {
        let n_bytes = store.remove_all()?;
        writeln!(out, "removed everything in {} ({})", store.root().display(), human_bytes(n_bytes))?;
        return Ok(());
    }
    let entries = store.entries()?;
    // First all names, then the first removal: a wrong one must not leave half of the work done.
    let mut chosen: Vec<&StoredModel> = Vec::new();
    for name in &args.names {
        let matching = entries.iter().filter(|entry| is_named(entry, name));
        let before = chosen.len();
        chosen.extend(matching);
        if chosen.len() == before && store.forget(name)? {
            writeln!(out, "removed the name {name}; its file was gone")?;
        } else if chosen.len() == before {
            return Err(anyhow!("`{name}` is not in {}", store.root().display())).hint("`roci list` shows what is");
        }
    }
    // Names before the downloads that they share a file with.
    chosen.sort_by_key(|entry| entry.named.is_none());
    for entry in chosen {
        match store.remove(entry)? {
            0 => writeln!(out, "removed the name {}", entry.name)?,
            n_bytes => writeln!(out, "removed {} ({})", entry.name, human_bytes(n_bytes))?,
        }
    }
    Ok(())
}

/// `hf:owner/repo` stands for all fetched files of the repository.
fn is_named(entry: &StoredModel, name: &str) -> bool {
    normal_name(&entry.name) == normal_name(name)
        || (name.starts_with("hf:") && entry.name.starts_with(&format!("{name}:")))
}
