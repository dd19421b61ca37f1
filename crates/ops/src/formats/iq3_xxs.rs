//! IQ3_XXS: 256 weights in eight groups of 32, an f16 `d` before them. Sixty-four bytes pick four magnitudes each from
//! a codebook of 256; then 32 bits a group: four times seven for signs (the eighth makes their number even) and a 4-bit
//! scale on top: `d * (scale + 1/2) / 2 * magnitude`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at, u32_at};
use super::grids::{IQ3_XXS, LEVELS_3_XXS, code_3, signs_of};
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq3Xxs {}

/// Four magnitudes of a codebook entry times `d`, with the low four of `signs`.
pub(crate) fn four(levels: &[u8; 8], entry: u16, signs: u8, d: f32, out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        let magnitude = d * f32::from(levels[code_3(entry, i)]);
        *x = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
    }
}

impl BlockFormat for Iq3Xxs {
    const LEN: usize = 256;
    const BYTES: usize = 98;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, values) in out.chunks_exact_mut(4).enumerate() {
            let rest = u32_at(block, 66 + i / 8 * 4);
            let d = d * (0.5 + (rest >> 28) as f32) * 0.5;
            let signs = signs_of((rest >> (i / 2 % 4 * 7) & 127) as u8) >> (i % 2 * 4);
            four(&LEVELS_3_XXS, IQ3_XXS[usize::from(block[2 + i])], signs, d, values);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 120.0);
    }
}

impl Coded for Iq3Xxs {
    const UNIT: f32 = 0.25;
    const LEVELS: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        // (scale + 1/2) / 2 is (2 scale + 1) / 4.
        (u16_at(block, 0), std::array::from_fn(|i| 2 * (u32_at(block, 66 + 4 * (i / 2)) >> 28) as i8 + 1))
    }
}

coded!(Iq3Xxs, 31 * 62, 4, None);
