//! A file that is not there until it is whole: written under a hidden name beside its target, then renamed over it.
//! Dropped before that, it removes itself.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    is_kept: bool,
}

impl Temporary {
    pub(super) fn create(target: &Path) -> Result<(Self, File)> {
        let Some(name) = target.file_name() else {
            let reason = "the path does not end in a file name".to_owned();
            return Err(Error::Write { path: target.to_owned(), reason });
        };
        // Process id and counter keep writers of one target apart; `create_new` decides where that is not enough.
        static N_CREATED: AtomicU32 = AtomicU32::new(0);
        loop {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{}.part", std::process::id(), N_CREATED.fetch_add(1, Ordering::Relaxed)));
            let path = target.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Self { path, is_kept: false }, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => {
                    return Err(Error::Io { path: target.to_owned(), action: "be written", source });
                }
            }
        }
    }

    /// Gives the file its target's name, for good: the rename itself is on disk when this returns.
    pub(super) fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.is_kept = true;
        sync_folder(target)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // A leftover that cannot be removed is all that is lost here, and the caller already has an error.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the new name survive a power cut.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
