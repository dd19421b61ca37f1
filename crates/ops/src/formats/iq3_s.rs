//! IQ3_S: 256 weights in eight groups of 32, an f16 `d` before them. For every four weights a byte and a ninth bit (of
//! 8 bytes after them) pick magnitudes from a codebook of 512; then 32 bytes of signs and 4 bytes of 4-bit scales:
//! `d * (1 + 2 scale) * magnitude`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use super::grids::{IQ3_S, LEVELS_3_S};
use super::iq3_xxs::four;
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq3S {}

impl BlockFormat for Iq3S {
    const LEN: usize = 256;
    const BYTES: usize = 110;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, values) in out.chunks_exact_mut(4).enumerate() {
            let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
            let group = i / 8;
            let scale = block[106 + group / 2] >> (group % 2 * 4) & 15;
            let d = d * f32::from(1 + 2 * scale);
            let signs = block[74 + i / 2] >> (i % 2 * 4);
            four(&LEVELS_3_S, IQ3_S[usize::from(block[2 + i]) | high << 8], signs, d, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 165.0);
    }
}

impl Coded for Iq3S {
    const UNIT: f32 = 1.0;
    const LEVELS: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (block[106 + i / 4] >> (i / 2 % 2 * 4) & 15) as i8 + 1))
    }
}

coded!(Iq3S, 31 * 15, 8, None);
