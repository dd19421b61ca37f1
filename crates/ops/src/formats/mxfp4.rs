//! MXFP4: 32 weights, an 8-bit exponent, then 4-bit floats (sign, two bits of exponent, one of fraction). Low nibbles
//! are elements 0 to 15, high nibbles 16 to 31.
//!
//! The levels below are doubled to be integers, and the scale is halved for it.

use super::block::BlockFormat;
use crate::tiles::leveled::{Leveled, ScaleBits, leveled};

pub(crate) enum Mxfp4 {}

/// Twice the value of each 4-bit float.
pub(crate) const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of two to the power of `exponent - 127`; the two least are below the normal numbers.
pub(crate) fn half_power(exponent: u8) -> f32 {
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { u32::from(exponent - 1) << 23 })
}

impl BlockFormat for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = half_power(block[0]);
        for (i, byte) in block[1..17].iter().enumerate() {
            out[i] = d * f32::from(LEVELS[usize::from(byte & 15)]);
            out[i + 16] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        // The levels deviate by 5.9, half of it after the halving.
        block[0] = ((std / 2.95).log2().round() + 127.0).clamp(0.0, 254.0) as u8;
    }
}

impl Leveled for Mxfp4 {
    const LEVELS: [i8; 16] = LEVELS;
    const SPAN: usize = 32;
    const SCALE_BITS: ScaleBits = ScaleBits::Bf16;

    fn scale(block: &[u8], _span: usize) -> f32 {
        half_power(block[0])
    }
}

leveled!(Mxfp4);
