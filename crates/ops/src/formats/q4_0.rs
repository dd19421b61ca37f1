//! Q4_0: 32 weights, an f16 scale `d`, nibbles q in 0..16: `d * (q - 8)`. Low nibbles are elements 0 to 15, high
//! nibbles 16 to 31.

use super::block::{BlockFormat, f16_at, put_f16};

pub(crate) enum Q4_0 {}

impl BlockFormat for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, byte) in block[2..18].iter().enumerate() {
            out[i] = d * (f32::from(byte & 15) - 8.0);
            out[i + 16] = d * (f32::from(byte >> 4) - 8.0);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 4.6);
    }
}
