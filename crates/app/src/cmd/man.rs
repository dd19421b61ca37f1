//! `roci man`: man pages, one per command, made from the command line's own definition.

use crate::report::HintExt;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  roci man ~/.local/share/man/man1    then `man roci-serve` works";

/// Write man pages to a folder
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Folder to write to; created if it does not exist
    folder: PathBuf,
}

pub fn main(args: &Args, command: clap::Command) -> Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| format!("cannot write man pages to `{}`", folder.display()))
        .hint("use a folder you can write to")?;
    let n_pages = std::fs::read_dir(folder)?.filter_map(Result::ok).filter(is_ours).count();
    Ok(writeln!(std::io::stdout(), "{n_pages} man pages in {}", folder.display())?)
}

fn is_ours(entry: &std::fs::DirEntry) -> bool {
    let name = entry.file_name();
    name.to_string_lossy().starts_with("roci") && name.to_string_lossy().ends_with(".1")
}
