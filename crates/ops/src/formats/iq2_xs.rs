//! IQ2_XS: 256 weights in sixteen groups of 16, an f16 `d` before them. Sixty-four bytes hold 16 bits for every eight
//! weights: nine pick their magnitudes from a codebook of 512, seven their signs (the eighth makes their number even).
//! Eight bytes of 4-bit scales follow: `d * (scale + 1/2) / 4 * magnitude`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use super::grids::{IQ2_XS, signs_of};
use super::iq2_xxs::eight;
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq2Xs {}

impl BlockFormat for Iq2Xs {
    const LEN: usize = 256;
    const BYTES: usize = 74;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, values) in out.chunks_exact_mut(8).enumerate() {
            let code = u16_at(block, 2 + 2 * i);
            let group = i / 2;
            let d = d * (0.5 + f32::from(block[66 + group / 2] >> (group % 2 * 4) & 15)) * 0.25;
            eight(IQ2_XS[usize::from(code & 511)], signs_of((code >> 9) as u8), d, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 53.0);
    }
}

impl Coded for Iq2Xs {
    const UNIT: f32 = 0.125;
    const LEVELS: [i8; 16] = [8, 25, 43, -8, -25, -43, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (block[66 + i / 2] >> (i % 2 * 4) & 15) as i8 + 1))
    }
}

coded!(Iq2Xs, 31 * 43, 4, None);
