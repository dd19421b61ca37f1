//! Q5_1: 32 weights, an f16 scale `d` and an f16 minimum `m`, a fifth bit for each in 4 bytes, then nibbles:
//! `d * q + m`. Low nibbles are elements 0 to 15, high nibbles 16 to 31.

use super::block::{BlockFormat, f16_at, put_f16, u32_at};

pub(crate) enum Q5_1 {}

impl BlockFormat for Q5_1 {
    const LEN: usize = 32;
    const BYTES: usize = 24;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        for i in 0..16 {
            let byte = block[8 + i];
            let q = |low: u8, i: usize| f32::from(low | (((high >> i & 1) as u8) << 4));
            out[i] = d * q(byte & 15, i) + m;
            out[i + 16] = d * q(byte >> 4, i + 16) + m;
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 9.2);
        put_f16(block, 2, -15.5 * std / 9.2);
    }
}
