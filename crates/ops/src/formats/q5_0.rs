//! Q5_0: 32 weights, an f16 scale `d`, a fifth bit for each in 4 bytes, then nibbles: `d * (q - 16)`. Low nibbles are
//! elements 0 to 15, high nibbles 16 to 31.

use super::block::{BlockFormat, f16_at, put_f16, u32_at};

pub(crate) enum Q5_0 {}

impl BlockFormat for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, high) = (f16_at(block, 0), u32_at(block, 2));
        for i in 0..16 {
            let byte = block[6 + i];
            let q = |low: u8, i: usize| f32::from((low | (((high >> i & 1) as u8) << 4)) as i8 - 16);
            out[i] = d * q(byte & 15, i);
            out[i + 16] = d * q(byte >> 4, i + 16);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 9.2);
    }
}
