//! TQ2_0: 256 weights in 64 bytes of two bits each, an f16 scale `d` at the end: `d * (q - 1)`. The bytes of each half
//! hold four runs of 32 weights, two bits of every byte each.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use crate::tiles::two_bit::{TwoBit, few};

pub(crate) enum Tq2_0 {}

impl BlockFormat for Tq2_0 {
    const LEN: usize = 256;
    const BYTES: usize = 66;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 64);
        for (run, values) in out.chunks_exact_mut(32).enumerate() {
            for (x, byte) in values.iter_mut().zip(&block[run / 4 * 32..]) {
                *x = d * f32::from((byte >> (run % 4 * 2) & 3) as i8 - 1);
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 64, std / 1.2);
    }
}

impl TwoBit for Tq2_0 {
    fn scale(block: &[u8]) -> u16 {
        u16_at(block, 64)
    }
}

few!(Tq2_0);
