//! Q2_0: 64 weights, an f16 scale `d`, two bits each: `(q - 1) * d`, so -1, 0, 1 or 2 times the scale.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use crate::tiles::two_bit::{TwoBit, few};

pub(crate) enum Q2_0 {}

impl BlockFormat for Q2_0 {
    const LEN: usize = 64;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, x) in out.iter_mut().enumerate() {
            *x = f32::from((block[2 + i / 4] >> (i % 4 * 2) & 3) as i8 - 1) * d;
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 1.2);
    }
}

impl TwoBit for Q2_0 {
    fn scale(block: &[u8]) -> u16 {
        u16_at(block, 0)
    }
}

few!(Q2_0);
