//! NVFP4: 64 weights in four groups of 16. Four scales of 8 bits (no sign, four of exponent, three of fraction), then
//! eight bytes of 4-bit floats a group: low nibbles are its elements 0 to 7, high nibbles 8 to 15.

use super::block::BlockFormat;
use super::mxfp4::LEVELS;
use crate::tiles::leveled::{Leveled, ScaleBits, leveled};

pub(crate) enum Nvfp4 {}

/// Half of an unsigned 8-bit float's value; its not-a-number counts as zero. The sign bit means nothing.
pub(crate) fn half_scale(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match bits {
        0 | 0x7F => 0.0,
        _ if exponent == 0 => fraction * 0.5 / 512.0,
        _ => (1.0 + fraction / 8.0) * 2.0_f32.powi(exponent - 8),
    }
}

impl BlockFormat for Nvfp4 {
    const LEN: usize = 64;
    const BYTES: usize = 36;

    fn decode(block: &[u8], out: &mut [f32]) {
        for (g, values) in out.chunks_exact_mut(16).enumerate() {
            let d = half_scale(block[g]);
            for (i, byte) in block[4 + g * 8..][..8].iter().enumerate() {
                values[i] = d * f32::from(LEVELS[usize::from(byte & 15)]);
                values[i + 8] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        let wanted = std / 5.9;
        let nearest =
            (0..0x7F).min_by(|&a, &b| (half_scale(a) - wanted).abs().total_cmp(&(half_scale(b) - wanted).abs()));
        block[..4].fill(nearest.expect("some scale"));
    }
}

impl Leveled for Nvfp4 {
    const LEVELS: [i8; 16] = LEVELS;
    const SPAN: usize = 16;
    const SCALE_BITS: ScaleBits = ScaleBits::F16;

    fn scale(block: &[u8], span: usize) -> f32 {
        half_scale(block[span])
    }
}

leveled!(Nvfp4);
