//! Q4_K: 256 weights in eight groups of 32. f16 `d` and `dmin`; each group has a 6-bit scale and a 6-bit minimum,
//! packed into 12 bytes: `(d * scale) * q - (dmin * min)`. The nibbles of groups 2j and 2j + 1 share 32 bytes: low
//! nibbles the first, high nibbles the second.

use super::block::{BlockFormat, f16_at, put_f16};
use crate::tiles::GROUP;

pub(crate) enum Q4K {}

/// The 6-bit scale and minimum of a group.
pub(crate) fn scale_and_min(packed: &[u8; 12], group_idx: usize) -> (u8, u8) {
    if group_idx < 4 {
        (packed[group_idx] & 63, packed[group_idx + 4] & 63)
    } else {
        let low = packed[group_idx + 4];
        ((low & 15) | (packed[group_idx - 4] >> 6) << 4, (low >> 4) | (packed[group_idx] >> 6) << 4)
    }
}

/// The inverse of [`scale_and_min`], into bytes that were zero.
pub(crate) fn put_scale_and_min(block: &mut [u8], g: usize, scale: u8, min: u8) {
    if g < 4 {
        block[4 + g] |= scale;
        block[8 + g] |= min;
    } else {
        block[8 + g] = (scale & 15) | (min & 15) << 4;
        block[g] |= (scale >> 4) << 6;
        block[4 + g] |= (min >> 4) << 6;
    }
}

pub(crate) fn packed_scales(block: &[u8]) -> &[u8; 12] {
    block[4..16].try_into().expect("twelve bytes")
}

impl BlockFormat for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;

    fn decode(block: &[u8], out: &mut [f32]) {
        for (g, values) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scale, min) = scale_and_min(packed_scales(block), g);
            let (d, m) = (f16_at(block, 0) * f32::from(scale), f16_at(block, 2) * f32::from(min));
            for (x, byte) in values.iter_mut().zip(&block[16 + g / 2 * GROUP..]) {
                *x = d * f32::from(byte >> (4 * (g % 2)) & 15) - m;
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        // Sixteen even levels deviate by 4.6; the scales are random 6-bit numbers.
        put_f16(block, 0, std / 4.6 / 32.0);
        put_f16(block, 2, 7.5 * std / 4.6 / 32.0);
    }
}
