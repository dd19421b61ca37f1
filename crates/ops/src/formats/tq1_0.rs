//! TQ1_0: 256 ternary weights. 48 bytes of five and 4 bytes of four base-3 digits each, an f16 scale `d` at the end:
//! `d * (digit - 1)`.
//!
//! A byte is a fixed-point fraction: times 3 and above the point stands its first digit. Digit n of 32 neighbouring
//! bytes are 32 neighbouring weights (of 16 bytes and of 4 in the later parts).

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use crate::tiles::two_bit::{TwoBit, few};

pub(crate) enum Tq1_0 {}

/// First byte, bytes and digits of each part.
pub(crate) const PARTS: [(usize, usize, usize); 3] = [(0, 32, 5), (32, 16, 5), (48, 4, 4)];
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

impl BlockFormat for Tq1_0 {
    const LEN: usize = 256;
    const BYTES: usize = 54;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 52);
        let mut values = out.iter_mut();
        for (first, n_bytes, n_digits) in PARTS {
            for power in &POWERS[..n_digits] {
                for (byte, x) in block[first..][..n_bytes].iter().zip(&mut values) {
                    let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
                    *x = d * f32::from(digit as i8 - 1);
                }
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 52, std / 0.82);
    }
}

impl TwoBit for Tq1_0 {
    fn scale(block: &[u8]) -> u16 {
        u16_at(block, 52)
    }
}

few!(Tq1_0);
