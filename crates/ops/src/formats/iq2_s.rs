//! IQ2_S: 256 weights in sixteen groups of 16, an f16 `d` before them. For every eight weights a byte and two more bits
//! (of 8 bytes after the signs) pick magnitudes from a codebook of 1024, and a byte holds eight signs; then eight bytes
//! of 4-bit scales: `d * (scale + 1/2) / 4 * magnitude`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use super::grids::IQ2_S;
use super::iq2_xxs::eight;
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq2S {}

impl BlockFormat for Iq2S {
    const LEN: usize = 256;
    const BYTES: usize = 82;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, values) in out.chunks_exact_mut(8).enumerate() {
            let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
            let group = i / 2;
            let d = d * (0.5 + f32::from(block[74 + group / 2] >> (group % 2 * 4) & 15)) * 0.25;
            eight(IQ2_S[usize::from(block[2 + i]) | high << 8], block[34 + i], d, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 53.0);
    }
}

impl Coded for Iq2S {
    const UNIT: f32 = 0.125;
    const LEVELS: [i8; 16] = [8, 25, 43, -8, -25, -43, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (block[74 + i / 2] >> (i % 2 * 4) & 15) as i8 + 1))
    }
}

coded!(Iq2S, 31 * 43, 4, None);
