//! Models for commands: what was typed becomes a file on this machine, fetched with a bar if it is not here.

use crate::progress::Terminal;
use crate::report::HintExt;
use anyhow::{Result, anyhow};
use hub::{Fetcher, Resolved};
use std::path::PathBuf;

/// The file for a model argument.
pub fn resolve(spec: &str) -> Result<PathBuf> {
    Ok(resolve_named(spec)?.path)
}

/// The same, with how its name says that it is used.
pub fn resolve_named(spec: &str) -> Result<Resolved> {
    Fetcher::new(&Terminal::default())?.resolve(spec)
}

/// The same for a model that is here; nothing is downloaded.
pub fn find_named(spec: &str) -> Result<Resolved> {
    let found = Fetcher::new(&Terminal::default())?.find(spec)?;
    found
        .ok_or_else(|| anyhow!("`{spec}` is not on this machine"))
        .with_hint(|| format!("`roci pull {spec}` downloads it"))
}
