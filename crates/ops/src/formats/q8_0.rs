//! Q8_0: 32 weights, an f16 scale `d`, signed bytes q: `d * q`.

use super::block::{BlockFormat, f16_at, put_f16};

pub(crate) enum Q8_0 {}

impl BlockFormat for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (x, &byte) in out.iter_mut().zip(&block[2..34]) {
            *x = d * f32::from(byte as i8);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 74.0);
    }
}
