//! Encoders of the ternary formats TQ1_0 and TQ2_0: the largest weight is the scale, as in models trained to three
//! values.

use super::Encode;
use crate::formats::block::put_f16;
use crate::formats::{Tq1_0, Tq2_0, tq1_0};

/// The scale, and weights as 0, 1 or 2.
fn digits(values: &[f32]) -> (f32, [u8; 256]) {
    let d = values.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut digits = [0; 256];
    digits.iter_mut().zip(values).for_each(|(digit, x)| *digit = ((x * inverse).round() + 1.0) as u8);
    (d, digits)
}

impl Encode for Tq1_0 {
    fn encode(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, digits) = digits(values);
        let mut at = 0;
        for (first, n_bytes, n_digits) in tq1_0::PARTS {
            for i in 0..n_bytes {
                let number = (0..5).fold(0_u16, |number, n| {
                    let digit = if n < n_digits { digits[at + n * n_bytes + i] } else { 0 };
                    3 * number + u16::from(digit)
                });
                // As a fraction of 256, rounded up so that no digit is lost.
                block[first + i] = (number * 256).div_ceil(243) as u8;
            }
            at += n_bytes * n_digits;
        }
        put_f16(block, 52, d);
    }
}

impl Encode for Tq2_0 {
    fn encode(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, digits) = digits(values);
        block.fill(0);
        for (i, digit) in digits.iter().enumerate() {
            block[i / 128 * 32 + i % 32] |= digit << (i % 128 / 32 * 2);
        }
        put_f16(block, 64, d);
    }
}
