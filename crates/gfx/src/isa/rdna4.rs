//! RDNA4 (gfx12) bit layouts, by the tables of AMD's RDNA4 ISA guide: vectors, scalars and LDS are laid out as RDNA3's;
//! memory instructions have three words and an offset of 24 bits.

use super::rdna3::RdnaReader;
use super::words::Words;
use super::{DecodeError, Decoded, Encoding, Family, bits, code, is_set};

/// Decodes one instruction; `words` may run past its end.
pub fn decode(words: &[u32]) -> Result<Decoded, DecodeError> {
    let Some(&first) = words.first() else { return Err(DecodeError::Cut { word: 0 }) };
    let reader = RdnaReader { words: Words { family: Family::Rdna4, words, first } };
    if first >> 31 == 0 {
        return reader.short_vector();
    }
    match first >> 26 {
        0x31 => buffer(&reader.words),
        0x32 => reader.dual(),
        // 0xcd and 0xce are interpolation and parameter loads, for graphics only.
        0x33 if first >> 23 == 0x198 => reader.packed(),
        0x35 => reader.long_vector(),
        0x36 => reader.lds(),
        0x3b => memory(&reader.words),
        0x3d => scalar_memory(&reader.words),
        _ => reader.scalar(),
    }
}

fn memory(words: &Words<'_>) -> Result<Decoded, DecodeError> {
    let q = words.quad()?;
    let encoding = match words.first >> 24 {
        0xec => Encoding::Flat,
        0xed => Encoding::Scratch,
        0xee => Encoding::Global,
        _ => return Err(DecodeError::Encoding { word: words.first }),
    };
    let mut d = words.start(encoding, bits(q, 21, 14), 3)?;
    let third = words.word(2)?;
    d.imm = third as i32 >> 8;
    d.src = [code::VGPR + (third & 0xff) as u16, code::VGPR + bits(q, 62, 55), code::ZERO];
    d.dst = code::VGPR + bits(q, 39, 32);
    d.saddr = if encoding == Encoding::Flat { code::NULL } else { bits(q, 6, 0) };
    d.uses_vaddr = encoding != Encoding::Scratch || is_set(q, 49);
    // The lowest bit of the temporal hint.
    d.returns_old = is_set(q, 52);
    Ok(d)
}

fn buffer(words: &Words<'_>) -> Result<Decoded, DecodeError> {
    let q = words.quad()?;
    let mut d = words.start(Encoding::Mubuf, bits(q, 21, 14), 3)?;
    let third = words.word(2)?;
    d.imm = third as i32 >> 8;
    d.src = [code::VGPR + (third & 0xff) as u16, code::VGPR + bits(q, 39, 32), bits(q, 6, 0)];
    d.dst = code::VGPR + bits(q, 39, 32);
    d.saddr = bits(q, 49, 41);
    d.returns_old = is_set(q, 52);
    d.uses_vaddr = is_set(q, 62);
    if is_set(q, 63) {
        return Err(DecodeError::Unsupported { op: d.op, word: words.first, what: "indexed buffer access" });
    }
    Ok(d)
}

fn scalar_memory(words: &Words<'_>) -> Result<Decoded, DecodeError> {
    let q = words.quad()?;
    let mut d = words.start(Encoding::Smem, bits(q, 18, 13), 2)?;
    d.src = [bits(q, 5, 0) << 1, bits(q, 63, 57), code::ZERO];
    d.sdst = bits(q, 12, 6);
    // 24 bits, signed.
    d.imm = ((words.word(1)? << 8) as i32) >> 8;
    Ok(d)
}
