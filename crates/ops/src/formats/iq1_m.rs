//! IQ1_M: 256 weights in sixteen groups of 16. 32 bytes and 16 bytes of nibbles: a byte and three bits of a nibble pick
//! eight of -1, 0, 1 from IQ1_S's codebook, the nibble's top bit says which way they are moved. Four times 16 bits hold
//! four 3-bit scales each and, in their top four bits, a quarter of the f16 `d`:
//! `d * (2 scale + 1) * (level + 1/8)`, or minus an eighth.

use super::block::{BlockFormat, u16_at};
use super::grids::IQ1_S;
use super::iq1_s::{DELTA, eight};
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq1M {}

const SCALES: usize = 48;

/// The bits of `d`, a quarter of them from each of the four scales.
fn scale_bits(block: &[u8]) -> u16 {
    (0..4).fold(0, |bits, i| bits | (u16_at(block, SCALES + 2 * i) >> 12) << (4 * i))
}

impl BlockFormat for Iq1M {
    const LEN: usize = 256;
    const BYTES: usize = 56;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = half::f16::from_bits(scale_bits(block)).to_f32_const();
        for (i, values) in out.chunks_exact_mut(8).enumerate() {
            let group = i / 2;
            let scale = u16_at(block, SCALES + group / 4 * 2) >> (group % 4 * 3) & 7;
            let d = d * f32::from(2 * scale + 1);
            let rest = block[32 + group] >> (i % 2 * 4);
            let delta = if rest & 8 != 0 { -DELTA } else { DELTA };
            eight(IQ1_S[usize::from(block[i]) | usize::from(rest & 7) << 8], d, delta, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        let bits = half::f16::from_f32(std / 7.0).to_bits();
        for i in 0..4 {
            let quarter = (bits >> (4 * i) & 15) as u8;
            block[SCALES + 2 * i + 1] = block[SCALES + 2 * i + 1] & 15 | quarter << 4;
        }
    }
}

impl Coded for Iq1M {
    const UNIT: f32 = DELTA;
    const LEVELS: [i8; 16] = [-9, -7, -1, 1, 7, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        let scale = |i: usize| 2 * (u16_at(block, SCALES + i / 4 * 2) >> (i % 4 * 3) & 7) as i8 + 1;
        (scale_bits(block), std::array::from_fn(scale))
    }
}

coded!(Iq1M, 15 * 9, 8, None);
