//! One file over HTTP, into a `.part` file that survives: a cut connection, a stopped process and a
//! restarted machine all go on where they were (Range). Leaves a whole file with the right checksum,
//! or an error; renaming it to its place is the caller's.

use crate::disk::{self, Leftover};
use crate::event::{Observer, PullEvent};
use crate::http::{Client, Response, host};
use anyhow::{Context, Result, anyhow, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// Attempts in a row that may bring no new byte.
const MAX_IDLE_ATTEMPTS: u32 = 4;

/// What to fetch.
#[derive(Debug)]
pub struct Download<'a> {
    pub url: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    /// The model's name, for progress reports.
    pub label: &'a str,
    pub sha256: Option<&'a str>,
    pub n_bytes: Option<u64>,
    pub part: &'a Path,
    /// Bytes of the same model that were fetched before this file, and of all its files.
    pub before: u64,
    pub total: Option<u64>,
}

/// How an attempt failed.
enum AttemptError {
    /// A new connection may help.
    Transient(anyhow::Error),
    Permanent(anyhow::Error),
}

/// The part file with the state that must agree with its bytes.
struct PartFile {
    file: File,
    hasher: Sha256,
    n_bytes: u64,
}

impl PartFile {
    fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.with_context(|| format!("cannot write `{}`", path.display()))?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut n_bytes = 0;
        loop {
            let n = file.read(&mut buffer).with_context(|| format!("cannot read `{}`", path.display()))?;
            if n == 0 {
                return Ok(Self { file, hasher, n_bytes });
            }
            hasher.update(&buffer[..n]);
            n_bytes += n as u64;
        }
    }

    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.n_bytes = 0;
        Ok(())
    }
}

impl Download<'_> {
    pub fn fetch(&self, client: &Client, observer: &dyn Observer) -> Result<()> {
        let mut part = PartFile::open(self.part)?;
        if let Some(n_bytes) = self.n_bytes {
            disk::check_room(self.part, n_bytes.saturating_sub(part.n_bytes))?;
        }
        let (label, host) = (self.label, host(self.url));
        // The parts of one model are one download.
        if self.before == 0 {
            observer.on(PullEvent::Begin {
                label,
                n_total: self.total.or(self.n_bytes),
                host: &host,
                digest: self.sha256,
            });
        }
        self.fetch_and_verify(client, &mut part, observer)?;
        part.file.sync_all().map_err(|error| self.write_error(error, &part))
    }

    fn write_error(&self, error: std::io::Error, part: &PartFile) -> anyhow::Error {
        let n_needed = self.n_bytes.map(|n_bytes| n_bytes.saturating_sub(part.n_bytes));
        disk::explain(error, self.part, n_needed, Leftover::Resumable)
    }

    fn fetch_and_verify(&self, client: &Client, part: &mut PartFile, observer: &dyn Observer) -> Result<()> {
        let is_resumed = part.n_bytes > 0;
        self.fetch_part(client, part, observer)?;
        if is_resumed && self.verify(part).is_err() {
            // The old bytes may be of another version of the file: once more, from the start.
            part.restart()?;
            self.fetch_part(client, part, observer)?;
        }
        self.verify(part).inspect_err(|_| {
            // Nothing of it can be used, and the next run must not resume it.
            let _ = std::fs::remove_file(self.part);
        })
    }

    fn fetch_part(&self, client: &Client, part: &mut PartFile, observer: &dyn Observer) -> Result<()> {
        let mut n_idle = 0;
        loop {
            if self.n_bytes.is_some_and(|n_bytes| n_bytes == part.n_bytes) {
                return Ok(());
            }
            let before = part.n_bytes;
            let error = match self.attempt(client, part, observer) {
                Ok(()) => return Ok(()),
                Err(AttemptError::Permanent(error)) => return Err(error),
                Err(AttemptError::Transient(error)) => error,
            };
            n_idle = if part.n_bytes > before { 0 } else { n_idle + 1 };
            if n_idle >= MAX_IDLE_ATTEMPTS {
                return Err(error);
            }
            observer.on(PullEvent::Note(&format!("{}: {}; going on", self.label, crate::hint::one_line(&error))));
            std::thread::sleep(Duration::from_millis(200 << n_idle));
        }
    }

    /// One request. Ok: the server says that this is the whole file.
    fn attempt(&self, client: &Client, part: &mut PartFile, observer: &dyn Observer) -> Result<(), AttemptError> {
        let range = format!("bytes={}-", part.n_bytes);
        let mut headers = self.headers.to_vec();
        // A compressed transfer would make ranges meaningless.
        headers.push(("accept-encoding", "identity"));
        if part.n_bytes > 0 {
            headers.push(("range", &range));
        }
        let response = client.get(self.url, &headers).map_err(AttemptError::Transient)?;
        let total = self.place(&response, part)?;
        if let Some(total) = total {
            disk::check_room(self.part, total.saturating_sub(part.n_bytes)).map_err(AttemptError::Permanent)?;
        }
        self.copy(response, part, total, observer)?;
        match total {
            Some(total) if part.n_bytes < total => {
                Err(AttemptError::Transient(anyhow!("the connection ended at {} of {total} bytes", part.n_bytes)))
            }
            Some(total) if part.n_bytes > total => {
                Err(AttemptError::Permanent(anyhow!("{} sent {} bytes of {total}", host(self.url), part.n_bytes)))
            }
            _ => Ok(()),
        }
    }

    /// Where the answer's bytes belong, and the size of the whole file if the server told it.
    fn place(&self, response: &Response, part: &mut PartFile) -> Result<Option<u64>, AttemptError> {
        let number = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        match response.status().as_u16() {
            200 => {
                part.restart().map_err(AttemptError::Permanent)?;
                Ok(number("content-length").or(self.n_bytes))
            }
            206 => {
                let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
                let (first, total) = parse_content_range(range.unwrap_or_default()).ok_or_else(|| {
                    AttemptError::Permanent(anyhow!("{} sent a part without its place", host(self.url)))
                })?;
                if first != part.n_bytes {
                    part.restart().map_err(AttemptError::Permanent)?;
                    return Err(AttemptError::Transient(anyhow!(
                        "{} sent another part than asked for",
                        host(self.url)
                    )));
                }
                Ok(total.or(self.n_bytes))
            }
            // The part is longer than the file: it is not of this file.
            416 => {
                part.restart().map_err(AttemptError::Permanent)?;
                Err(AttemptError::Transient(anyhow!("{} has a shorter file", host(self.url))))
            }
            408 | 425 | 429 | 500..=599 => {
                Err(AttemptError::Transient(anyhow!("{} answered {}", host(self.url), response.status())))
            }
            _ => Err(AttemptError::Permanent(anyhow!("{} answered {}", host(self.url), response.status()))),
        }
    }

    fn verify(&self, part: &PartFile) -> Result<()> {
        let Some(expected) = self.sha256 else { return Ok(()) };
        let found = hex(&part.hasher.clone().finalize());
        if !found.eq_ignore_ascii_case(expected) {
            bail!("{}: wrong checksum: SHA-256 {found}, expected {expected}", self.label);
        }
        Ok(())
    }

    fn copy(
        &self,
        response: Response,
        part: &mut PartFile,
        total: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<(), AttemptError> {
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            observer.on(PullEvent::Progress { n_done: self.before + part.n_bytes, n_total: self.total.or(total) });
            if observer.is_cancelled() {
                return Err(AttemptError::Permanent(anyhow!(
                    "{}: the download was stopped; it can be resumed",
                    self.label
                )));
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) => {
                    let at = format!("the connection broke at {} bytes", part.n_bytes);
                    return Err(AttemptError::Transient(anyhow::Error::new(error).context(at)));
                }
            };
            let written = part.file.write_all(&buffer[..n]);
            if let Err(error) = written {
                // Bytes of an incomplete write are not in the checksum: the next attempt reads the file anew.
                let _ = part.file.set_len(part.n_bytes);
                return Err(AttemptError::Permanent(self.write_error(error, part)));
            }
            part.hasher.update(&buffer[..n]);
            part.n_bytes += n as u64;
        }
    }
}

/// `bytes 5-9/10` -> (5, Some(10)).
fn parse_content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.parse().ok()?;
    match total {
        "*" => Some((first, None)),
        total => Some((first, Some(total.parse().ok()?))),
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a whole file.
pub fn sha256_of(path: &Path) -> Result<String> {
    Ok(hex(&PartFile::open(path)?.hasher.finalize()))
}
