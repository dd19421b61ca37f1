//! Q4_1: 32 weights, f16 scale `d` and minimum `m`, nibbles q in 0..16: `d * q + m`. Nibbles lie as in Q4_0.

use super::block::{BlockFormat, f16_at, put_f16};

pub(crate) enum Q4_1 {}

impl BlockFormat for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for (i, byte) in block[4..20].iter().enumerate() {
            out[i] = d * f32::from(byte & 15) + m;
            out[i + 16] = d * f32::from(byte >> 4) + m;
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 4.6);
        put_f16(block, 2, -7.5 * std / 4.6);
    }
}
