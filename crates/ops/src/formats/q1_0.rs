//! Q1_0: 128 weights, an f16 scale `d`, one bit each: `d` where it is set, else `-d`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use crate::tiles::two_bit::{TwoBit, few};

pub(crate) enum Q1_0 {}

impl BlockFormat for Q1_0 {
    const LEN: usize = 128;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, x) in out.iter_mut().enumerate() {
            *x = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std);
    }
}

impl TwoBit for Q1_0 {
    fn scale(block: &[u8]) -> u16 {
        u16_at(block, 0)
    }
}

few!(Q1_0);
