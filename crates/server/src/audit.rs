//! The audit log: one line of JSON for every request that was made with a key, or with a wrong one. Who, when, from
//! where, what, and how it ended; never a key and never a prompt. Only appended to; SIGHUP opens the file anew, so that
//! it can be rotated.

use crate::hint::HintExt;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    file: Mutex<File>,
}

impl Audit {
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(open(path)?) })
    }

    pub fn reopen(&self) -> Result<()> {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = open(&self.path)?;
        Ok(())
    }

    pub fn write(&self, line: &Value) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .with_context(|| format!("cannot write the audit log `{}`", path.display()))
        .hint("--audit-log names a file in a folder that exists and may be written to")
}
