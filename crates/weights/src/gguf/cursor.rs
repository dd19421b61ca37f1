//! A position in the bytes of a file that cannot leave them: every read says how much it needs and for which field,
//! and every count is checked against the bytes left before anything is allocated for it.

use std::fmt;

use crate::{Error, Result};

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether counts, lengths and dimensions take 32 bits, as in version 1.
    pub(super) is_narrow: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, is_narrow: false }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, n_bytes: u64, field: fmt::Arguments<'_>) -> Result<&'a [u8]> {
        let left = self.left();
        if n_bytes > left {
            return Err(Error::Truncated { field: field.to_string(), at: self.at as u64, needs: n_bytes, left });
        }
        // Fits usize: it is at most the number of bytes left in a slice.
        let end = self.at + n_bytes as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: fmt::Arguments<'_>) -> Result<[u8; N]> {
        let taken = self.take(N as u64, field)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u32(&mut self, field: fmt::Arguments<'_>) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: fmt::Arguments<'_>) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A count, a length or a dimension, as wide as the version has them.
    pub(super) fn size(&mut self, field: fmt::Arguments<'_>) -> Result<u64> {
        if self.is_narrow { Ok(u64::from(self.u32(field)?)) } else { self.u64(field) }
    }

    /// A count of things of which each takes at least `min_bytes` in the file. What it returns is safe to reserve.
    pub(super) fn count(&mut self, min_bytes: u64, field: fmt::Arguments<'_>) -> Result<usize> {
        let count = self.size(field)?;
        // Nothing takes less than half as much where lengths are half as wide.
        let min_bytes = if self.is_narrow { (min_bytes / 2).max(1) } else { min_bytes };
        let (left, at_most) = (self.left(), self.left() / min_bytes);
        if count > at_most {
            return Err(Error::Count { field: field.to_string(), count, left, at_most });
        }
        Ok(count as usize)
    }

    /// A length, then that many bytes of UTF-8.
    pub(super) fn str(&mut self, field: fmt::Arguments<'_>) -> Result<&'a str> {
        let n_bytes = self.size(format_args!("length of {field}"))?;
        let at = self.at;
        let bytes = self.take(n_bytes, field)?;
        std::str::from_utf8(bytes).map_err(|error| {
            let bad = at + error.valid_up_to();
            Error::invalid(field, format!("not UTF-8: byte {:#04x} at byte {bad}", self.bytes[bad]))
        })
    }
}
