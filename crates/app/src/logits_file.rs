//! Stored predictions of one model over a text, the base that `perplexity --kl-base` compares with.
//! A format of our own, little-endian, two bytes per vocabulary entry:
//!
//! ```text
//!   8 bytes  "ROCIKLD1"
//!   u32      n_vocab, n_chunk (tokens per chunk), n_chunks, n_scored (rows per chunk)
//!   u32      tokens[n_chunks * n_chunk]
//!   then n_chunks * n_scored rows: f32 low, f32 step, u16 q[n_vocab]; log-probability = low + step * q
//! ```
//!
//! `low` is at most 24 below the best: what is less probable than e^-24 of it is stored as that. One
//! step is at most 24/65535; once the row adds up to one again, its rounding changes a divergence by
//! less than 1e-7.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"ROCIKLD1";
const RANGE: f32 = 24.0;

/// The shape of a stored run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsShape {
    pub n_vocab: usize,
    pub n_chunk: usize,
    pub n_chunks: usize,
    pub n_scored: usize,
}

impl LogitsShape {
    fn n_bytes(self) -> Option<u64> {
        let rows = (self.n_chunks as u64).checked_mul(self.n_scored as u64)?;
        let row_bytes = 8 + 2 * self.n_vocab as u64;
        let tokens = (self.n_chunks as u64).checked_mul(self.n_chunk as u64)?.checked_mul(4)?;
        rows.checked_mul(row_bytes)?.checked_add(tokens)?.checked_add(24)
    }
}

/// Writes rows in order to a temporary file; `finish` gives it its name.
pub struct LogitsWriter {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    row: Vec<u8>,
}

impl LogitsWriter {
    pub fn create(path: &Path, shape: LogitsShape, tokens: &[u32]) -> Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        let temporary = PathBuf::from(name);
        let file = File::create(&temporary).with_context(|| format!("cannot write `{}`", temporary.display()))?;
        let mut writer = Self { file: BufWriter::new(file), temporary, path: path.to_owned(), row: Vec::new() };
        let mut head = MAGIC.to_vec();
        for n in [shape.n_vocab, shape.n_chunk, shape.n_chunks, shape.n_scored] {
            head.extend(u32::try_from(n).context("too large to store")?.to_le_bytes());
        }
        head.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        writer.put(&head)?;
        Ok(writer)
    }

    /// One row of log-probabilities.
    pub fn row(&mut self, logprobs: &[f32]) -> Result<()> {
        let high = logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let low = logprobs.iter().copied().fold(f32::INFINITY, f32::min).max(high - RANGE);
        let step = (high - low) / f32::from(u16::MAX);
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.extend(low.to_le_bytes());
        row.extend(step.to_le_bytes());
        let per_step = if step > 0.0 { 1.0 / step } else { 0.0 };
        row.extend(logprobs.iter().flat_map(|&value| (((value - low) * per_step).round() as u16).to_le_bytes()));
        let put = self.put(&row);
        self.row = row;
        put
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write `{}`", self.temporary.display()))
    }

    pub fn finish(mut self) -> Result<()> {
        self.file.flush().with_context(|| format!("cannot write `{}`", self.temporary.display()))?;
        std::fs::rename(&self.temporary, &self.path).with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

impl Drop for LogitsWriter {
    fn drop(&mut self) {
        // Gone already if it was finished.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// Reads rows in order.
pub struct LogitsReader {
    file: BufReader<File>,
    pub path: PathBuf,
    pub shape: LogitsShape,
    pub tokens: Vec<u32>,
    row: Vec<u8>,
}

impl LogitsReader {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
        let n_bytes = file.metadata().with_context(|| format!("cannot read `{}`", path.display()))?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut head = [0; 24];
        let is_whole = file.read_exact(&mut head).is_ok() && head.starts_with(MAGIC);
        if !is_whole {
            bail!("`{}` is not a file of stored logits", path.display());
        }
        let mut numbers = head[8..].chunks_exact(4).map(u32_of).map(|n| n as usize);
        let mut next = || numbers.next().unwrap_or(0);
        let shape = LogitsShape { n_vocab: next(), n_chunk: next(), n_chunks: next(), n_scored: next() };
        // Checked before anything is allocated by the header's word.
        if shape.n_bytes() != Some(n_bytes) {
            bail!("`{}` has {n_bytes} bytes, its header asks for {:?}", path.display(), shape.n_bytes());
        }
        let mut bytes = vec![0; shape.n_chunks * shape.n_chunk * 4];
        file.read_exact(&mut bytes).with_context(|| format!("cannot read `{}`", path.display()))?;
        let tokens = bytes.chunks_exact(4).map(u32_of).collect();
        Ok(Self { file, path: path.to_owned(), shape, tokens, row: vec![0; 8 + 2 * shape.n_vocab] })
    }

    /// The next row of log-probabilities into `out`, which has the vocabulary's length.
    pub fn row(&mut self, out: &mut [f32]) -> Result<()> {
        self.file.read_exact(&mut self.row).with_context(|| format!("cannot read `{}`", self.path.display()))?;
        let low = f32::from_bits(u32_of(&self.row[..4]));
        let step = f32::from_bits(u32_of(&self.row[4..8]));
        for (value, q) in out.iter_mut().zip(self.row[8..].chunks_exact(2)) {
            *value = low + step * f32::from(u16::from_le_bytes([q[0], q[1]]));
        }
        Ok(())
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_within_a_step() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("base");
        let shape = LogitsShape { n_vocab: 3, n_chunk: 4, n_chunks: 1, n_scored: 2 };
        let rows = [[-0.1f32, -2.5, -3.9], [-7.0, -1e-4, -60.0]];
        let mut writer = LogitsWriter::create(&path, shape, &[1, 2, 3, 4]).unwrap();
        rows.iter().for_each(|row| writer.row(row).unwrap());
        writer.finish().unwrap();
        let mut reader = LogitsReader::open(&path).unwrap();
        assert_eq!((reader.shape, reader.tokens.as_slice()), (shape, &[1, 2, 3, 4][..]));
        let mut found = [0.0; 3];
        for row in rows {
            reader.row(&mut found).unwrap();
            for (found, value) in found.iter().zip(row) {
                // Far down only the bound is kept.
                let value = value.max(row.iter().copied().fold(f32::MIN, f32::max) - RANGE);
                assert!((found - value).abs() <= RANGE / 65535.0, "{found} {value}");
            }
        }
    }

    #[test]
    fn cut_and_lying_files_are_errors() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("base");
        let check = |bytes: &[u8], message: &str| {
            std::fs::write(&path, bytes).unwrap();
            let error = LogitsReader::open(&path).err().expect("must fail").to_string();
            assert!(error.contains(message), "{error}");
        };
        check(b"ROCIKLD1", "not a file of stored logits");
        check(&[0; 64], "not a file of stored logits");
        let mut lying = MAGIC.to_vec();
        lying.extend([0xff; 16]);
        check(&lying, "has 24 bytes");
    }
}
