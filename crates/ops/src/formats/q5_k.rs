//! Q5_K: 256 weights in eight groups of 32. As Q4_K, with 32 bytes more after the scales: bit g of byte i is the fifth
//! bit of weight i of group g.

use super::block::{BlockFormat, f16_at, put_f16};
use super::q4_k::scale_and_min;

pub(crate) enum Q5K {}

impl BlockFormat for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;

    fn decode(block: &[u8], out: &mut [f32]) {
        let packed = block[4..16].try_into().expect("twelve bytes");
        for (g, values) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(packed, g);
            let (d, m) = (f16_at(block, 0) * f32::from(scale), f16_at(block, 2) * f32::from(min));
            let (highs, lows) = (&block[16..48], &block[48 + g / 2 * 32..][..32]);
            for ((x, low), high) in values.iter_mut().zip(lows).zip(highs) {
                *x = d * f32::from((low >> (g % 2 * 4) & 15) | (high >> g & 1) << 4) - m;
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 9.2 / 32.0);
        put_f16(block, 2, 15.5 * std / 9.2 / 32.0);
    }
}
