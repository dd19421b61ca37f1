//! SentencePiece's normalisation: a table of replacements, the longest match at each place first.
//!
//! The table (`precompiled_charsmap`) is a length, a double-array trie of 32-bit units (as Darts lays it out) and the
//! replacements, each ended by a zero byte. It comes out of a file, so every index is checked.

use crate::{Error, Result};

pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

/// One unit of the trie: bits 0-7 and 31 the label, bit 8 whether a value hangs below, bits 9-30 the way down.
#[derive(Copy, Clone)]
struct Unit(u32);

impl Unit {
    fn has_value(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    fn label(self) -> u32 {
        self.0 & 0x8000_00ff
    }

    fn offset(self) -> usize {
        // Bit 9 says that the offset is counted in units of 256.
        ((self.0 >> 10) << ((self.0 & 1 << 9) >> 6)) as usize
    }
}

impl CharsMap {
    pub(crate) fn new(table: &[u8]) -> Result<Self> {
        let bad = |problem: &str| Error::BadCharsMap(format!("{problem} ({} bytes in all)", table.len()));
        let (length, rest) = table.split_first_chunk::<4>().ok_or_else(|| bad("it is cut before its length"))?;
        let n_bytes = u32::from_le_bytes(*length) as usize;
        if n_bytes >= rest.len() || !n_bytes.is_multiple_of(4) {
            return Err(bad("its length is wrong"));
        }
        let (trie, replacements) = rest.split_at(n_bytes);
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    fn unit(&self, at: usize) -> Option<Unit> {
        self.units.get(at).copied().map(Unit)
    }

    /// The longest entry that `text` begins with: its length and its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut at = self.unit(0)?.offset();
        let mut found = None;
        for (idx, &byte) in text.iter().enumerate().take_while(|&(_, &byte)| byte != 0) {
            at ^= usize::from(byte);
            let Some(unit) = self.unit(at).filter(|unit| unit.label() == u32::from(byte)) else { break };
            at ^= unit.offset();
            if unit.has_value()
                && let Some(value) = self.unit(at)
            {
                found = Some((idx + 1, value.value()));
            }
        }
        let (n_bytes, start) = found?;
        let replacement = self.replacements.get(start..)?;
        let end = replacement.iter().position(|&byte| byte == 0)?;
        Some((n_bytes, std::str::from_utf8(&replacement[..end]).ok()?))
    }

    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            match self.longest(rest.as_bytes()) {
                Some((n_bytes, replacement)) if rest.is_char_boundary(n_bytes) => {
                    out.push_str(replacement);
                    rest = &rest[n_bytes..];
                }
                _ => {
                    out.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_lies_is_an_error_or_changes_nothing() {
        for bad in [&[][..], &[1, 0], &[4, 0, 0, 0], &[8, 0, 0, 0, 1, 2, 3, 4], &[3, 0, 0, 0, 1, 2, 3, 4, 5]] {
            assert!(CharsMap::new(bad).is_err(), "{bad:?}");
        }
        // Every unit points far out of the table.
        let mut table = vec![16, 0, 0, 0];
        table.extend([0xff; 16]);
        table.push(0);
        assert_eq!(CharsMap::new(&table).unwrap().apply("abc é"), "abc é");
    }
}
