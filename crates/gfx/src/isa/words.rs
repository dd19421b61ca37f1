//! The words of one instruction, as both families read them.

use super::{DecodeError, Decoded, Encoding, Family, Table, code};

pub(super) struct Words<'a> {
    pub family: Family,
    /// They may run past the instruction's end.
    pub words: &'a [u32],
    pub first: u32,
}

impl Words<'_> {
    /// A record of the instruction's name, still without operands.
    pub fn start(&self, encoding: Encoding, number: u16, n_words: u8) -> Result<Decoded, DecodeError> {
        let op = Table::of(self.family).name(encoding, number, self.first)?;
        Ok(Decoded::new(self.family, encoding, op, n_words))
    }

    pub fn word(&self, idx: usize) -> Result<u32, DecodeError> {
        self.words.get(idx).copied().ok_or(DecodeError::Cut { word: self.first })
    }

    /// The first two words as one number.
    pub fn quad(&self) -> Result<u64, DecodeError> {
        Ok(self.first as u64 | (self.word(1)? as u64) << 32)
    }

    /// Reads the literal that follows when one of the first `n` sources asks for it.
    pub fn literal(&self, d: &mut Decoded, n: usize) -> Result<(), DecodeError> {
        if d.src[..n].contains(&code::LITERAL) {
            d.literal = self.word(d.n_words as usize)?;
            d.n_words += 1;
        }
        Ok(())
    }
}
