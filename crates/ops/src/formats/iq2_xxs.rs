//! IQ2_XXS: 256 weights in eight groups of 32, an f16 `d` before them. A group takes 8 bytes: four bytes that pick
//! eight magnitudes each from a codebook of 256, then 32 bits: four times seven for signs (the eighth sign makes their
//! number even) and a 4-bit scale on top: `d * (scale + 1/2) / 4 * magnitude`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at, u32_at};
use super::grids::{IQ2_XXS, LEVELS_2, code_2, signs_of};
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq2Xxs {}

/// Eight magnitudes of a codebook entry times `d`, with their signs.
pub(crate) fn eight(entry: u16, signs: u8, d: f32, out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        let magnitude = d * f32::from(LEVELS_2[code_2(entry, i)]);
        *x = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
    }
}

impl BlockFormat for Iq2Xxs {
    const LEN: usize = 256;
    const BYTES: usize = 66;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (g, values) in out.chunks_exact_mut(32).enumerate() {
            let codes = &block[2 + 8 * g..][..4];
            let rest = u32_at(block, 6 + 8 * g);
            let d = d * (0.5 + (rest >> 28) as f32) * 0.25;
            for (i, values) in values.chunks_exact_mut(8).enumerate() {
                eight(IQ2_XXS[usize::from(codes[i])], signs_of((rest >> (7 * i) & 127) as u8), d, values);
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 53.0);
    }
}

impl Coded for Iq2Xxs {
    const UNIT: f32 = 0.125;
    const LEVELS: [i8; 16] = [8, 25, 43, -8, -25, -43, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        // (scale + 1/2) / 4 is (2 scale + 1) / 8.
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (u32_at(block, 6 + 8 * (i / 2)) >> 28) as i8 + 1))
    }
}

coded!(Iq2Xxs, 31 * 43, 4, None);
