//! IQ4_NL: 32 weights, an f16 scale `d`, nibbles that pick one of sixteen uneven levels: `d * level`. Low nibbles are
//! elements 0 to 15, high nibbles 16 to 31.

use super::block::{BlockFormat, f16_at, put_f16};
use crate::tiles::leveled::{Leveled, ScaleBits, leveled};

pub(crate) enum Iq4Nl {}

/// ggml's levels, closer together near zero, where most weights are.
pub(crate) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl BlockFormat for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, byte) in block[2..18].iter().enumerate() {
            out[i] = d * f32::from(LEVELS[usize::from(byte & 15)]);
            out[i + 16] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 69.0);
    }
}

impl Leveled for Iq4Nl {
    const LEVELS: [i8; 16] = LEVELS;
    const SPAN: usize = 32;
    const SCALE_BITS: ScaleBits = ScaleBits::F16;

    fn scale(block: &[u8], _span: usize) -> f32 {
        f16_at(block, 0)
    }
}

leveled!(Iq4Nl);
