//! Room on a disk: asked for before something large is written, and named when it runs out all the same.

use crate::hint::HintExt;
use anyhow::{Context, Result};
use rocinante::human_bytes;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A disk without enough room; the error that callers can branch on.
#[derive(Debug)]
pub struct DiskFull {
    pub path: PathBuf,
    /// Bytes that were still to be written, where that is known.
    pub n_needed: Option<u64>,
    pub n_free: Option<u64>,
}

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no space left on the disk of `{}`", self.path.display())?;
        match (self.n_needed, self.n_free) {
            (Some(needed), Some(free)) => {
                write!(f, ": {} needed, {} free", human_bytes(needed), human_bytes(free))
            }
            (Some(needed), None) => write!(f, ": {} needed", human_bytes(needed)),
            (None, Some(free)) => write!(f, ": {} free", human_bytes(free)),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for DiskFull {}

/// What happens to a file that could not be written to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// It was removed.
    Removed,
    /// It stays, and the next attempt continues it.
    Resumable,
}

impl DiskFull {
    /// The disk of a path as it is now.
    pub fn at(path: &Path, n_needed: Option<u64>) -> Self {
        Self { path: path.to_owned(), n_needed, n_free: free_bytes(path) }
    }

    /// Whether an error is about a full disk.
    pub fn is_in(error: &anyhow::Error) -> bool {
        crate::hint::is_caused_by::<Self>(error)
    }
}

/// Bytes that can still be written beside or below this path, where the system tells.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let existing = path.ancestors().find(|folder| folder.exists())?;
    free_of(existing)
}

#[cfg(unix)]
fn free_of(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    // Pseudo file systems count no blocks at all.
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free_of(_: &Path) -> Option<u64> {
    None
}

/// Refuses to start what cannot end: `n_needed` more bytes for `path`.
pub fn check_room(path: &Path, n_needed: u64) -> Result<()> {
    match free_bytes(path) {
        Some(n_free) if n_free < n_needed => {
            let full = DiskFull { path: path.to_owned(), n_needed: Some(n_needed), n_free: Some(n_free) };
            Err(full).hint("free some space, or write to a folder on another disk (ROCI_HOME moves the models)")
        }
        _ => Ok(()),
    }
}

/// A failed write as what it was: a full disk by its name, with what is needed and what became of the file.
pub fn explain(error: io::Error, path: &Path, n_needed: Option<u64>, leftover: Leftover) -> anyhow::Error {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if !matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) {
        return anyhow::Error::new(error).context(format!("cannot write `{}`", path.display()));
    }
    let kept = match leftover {
        Leftover::Removed => "the incomplete file was removed",
        Leftover::Resumable => "what has arrived is kept, and the next attempt continues it",
    };
    let full: Result<()> = Err(error).context(DiskFull::at(path, n_needed));
    full.hint(format!("free some space, or write to a folder on another disk (ROCI_HOME moves the models); {kept}"))
        .expect_err("an error stays one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::{hint_of, one_line};

    #[test]
    fn a_full_disk_is_named() {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        let path = std::env::temp_dir().join("model.part");
        let error = explain(error, &path, Some(5_000_000_000), Leftover::Resumable);
        let text = one_line(&error);
        assert!(text.starts_with("no space left on the disk of `"), "{text}");
        assert!(text.contains("5.00 GB needed, ") && DiskFull::is_in(&error), "{text}");
        assert!(hint_of(&error).unwrap().contains("continues it"));
        let other = explain(io::Error::from(io::ErrorKind::PermissionDenied), &path, None, Leftover::Removed);
        assert!(!DiskFull::is_in(&other) && one_line(&other).starts_with("cannot write `"));
    }

    #[test]
    fn room_is_asked_for_before_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there");
        check_room(&path, 1).unwrap();
        let error = check_room(&path, u64::MAX).unwrap_err();
        assert!(DiskFull::is_in(&error), "{error:#}");
    }
}
