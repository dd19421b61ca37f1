//! IQ1_S: 256 weights in eight groups of 32, an f16 `d` before them. A byte and three more bits pick eight of -1, 0, 1
//! from a codebook of 2048; the 16 bits a group that hold those bits end in a 3-bit scale and a sign:
//! `d * (2 scale + 1) * (level + 1/8)`, or minus an eighth.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use super::grids::{IQ1_S, LEVELS_1, code_2};
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq1S {}

/// How far the levels are moved.
pub(crate) const DELTA: f32 = 0.125;

pub(crate) fn eight(entry: u16, d: f32, delta: f32, out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(LEVELS_1[code_2(entry, i)]) + delta);
    }
}

impl BlockFormat for Iq1S {
    const LEN: usize = 256;
    const BYTES: usize = 50;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, values) in out.chunks_exact_mut(8).enumerate() {
            let rest = u16_at(block, 34 + i / 4 * 2);
            let d = d * f32::from(2 * (rest >> 12 & 7) + 1);
            let delta = if rest >> 15 == 1 { -DELTA } else { DELTA };
            let high = usize::from(rest >> (i % 4 * 3) & 7);
            eight(IQ1_S[usize::from(block[2 + i]) | high << 8], d, delta, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 7.0);
    }
}

impl Coded for Iq1S {
    const UNIT: f32 = DELTA;
    const LEVELS: [i8; 16] = [-9, -7, -1, 1, 7, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (u16_at(block, 34 + 2 * (i / 2)) >> 12 & 7) as i8 + 1))
    }
}

coded!(Iq1S, 15 * 9, 8, None);
