//! Q6_K: 256 weights, an f16 `d`, sixteen 8-bit scales of 16 weights each, 6-bit q: `(d * scale) * (q - 32)`.
//! Each half of 128 weights has 64 bytes of low nibbles and 32 bytes of high bit pairs: the weight at `32 * part + l`
//! takes its low nibble from byte `l + 32 * (part % 2)` (high nibble for parts 2 and 3) and its high bits from bit
//! pair `part` of byte `l`.

use super::block::{BlockFormat, f16_at, put_f16};

pub(crate) enum Q6K {}

const HIGH: usize = 128;
pub(crate) const SCALES: usize = 192;
pub(crate) const D: usize = 208;

/// Sets the 6-bit q of element `i` in bytes that were zero.
pub(crate) fn put_q(block: &mut [u8], i: usize, q: u8) {
    let (half, part, l) = (i / 128, i % 128 / 32, i % 32);
    block[half * 64 + l + 32 * (part % 2)] |= (q & 15) << (4 * (part / 2));
    block[HIGH + half * 32 + l] |= (q >> 4) << (2 * part);
}

/// The integer q - 32 of element `i` of the block.
pub(crate) fn q_at(block: &[u8], i: usize) -> i16 {
    let (half, part, l) = (i / 128, i % 128 / 32, i % 32);
    let low = block[half * 64 + l + 32 * (part % 2)] >> (4 * (part / 2)) & 15;
    let high = block[HIGH + half * 32 + l] >> (2 * part) & 3;
    i16::from(low | high << 4) - 32
}

impl BlockFormat for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, D);
        for (i, x) in out.iter_mut().enumerate() {
            *x = (d * f32::from(block[SCALES + i / 16] as i8)) * f32::from(q_at(block, i));
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, D, std / 18.5 / 74.0);
    }
}
