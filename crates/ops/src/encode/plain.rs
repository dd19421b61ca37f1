//! The formats of 32 weights with an f16 scale (Q4_0 to Q8_0), and those of one and two bits (Q1_0, Q2_0).
//!
//! Without importance these are ggml's reference encodings: the factor is `1 / d` before d is rounded to f16. With it,
//! the scale (and minimum) with the least weighted error is looked for.

use super::Encode;
use super::fit::{Integers, Levels, as_f16, error_weights, scale};
use crate::formats::block::put_f16;
use crate::formats::{Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

fn inverse_of(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// `d` and the quants of an even format with `2 * middle` levels, the middle added.
fn even<L: Levels>(values: &[f32], importance: Option<&[f32]>, middle: f32) -> (f32, [u8; 32]) {
    let mut q = [0; 32];
    if importance.is_some() {
        let mut w = [0.0; 32];
        error_weights(values, importance, &mut w);
        let d = as_f16(scale::<L>(values, &w));
        q.iter_mut().zip(values).for_each(|(q, x)| *q = (L::round(x * inverse_of(d)) + middle) as u8);
        return (d, q);
    }
    // The value farthest from zero takes the lowest level, so that the range is used on the side that needs it.
    let extreme = values.iter().copied().fold(values[0], |a, b| if b.abs() > a.abs() { b } else { a });
    let d = extreme / -middle;
    let inverse = inverse_of(d);
    for (q, x) in q.iter_mut().zip(values) {
        *q = (x * inverse + (middle + 0.5)).trunc().clamp(0.0, 2.0 * middle - 1.0) as u8;
    }
    (d, q)
}

/// `(d, m)` and the quants of a format with a minimum.
fn uneven(values: &[f32], importance: Option<&[f32]>, high: f32) -> (f32, f32, [u8; 32]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let top = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut d, mut m) = ((top - low) / high, low);
    let mut q = [0; 32];
    let reference = |d: f32, q: &mut [u8; 32]| {
        let inverse = inverse_of(d);
        for (q, x) in q.iter_mut().zip(values) {
            *q = ((x - low) * inverse + 0.5).trunc().clamp(0.0, high) as u8;
        }
    };
    reference(d, &mut q);
    if importance.is_none() || d == 0.0 {
        return (d, m, q);
    }
    let mut w = [0.0; 32];
    error_weights(values, importance, &mut w);
    // Ranges a little narrower and wider, each solved for the line that its roundings fit best.
    let mut least = f32::INFINITY;
    for k in -10..=6 {
        let inverse = (high + high / 80.0 * k as f32) / (top - low);
        let start = (inverse, low);
        let (mut a, mut b) = (1.0 / start.0, start.1);
        for _ in 0..2 {
            let round = |x: f32| ((x - b) / a).round().clamp(0.0, high);
            let (mut sw, mut sq, mut sqq, mut sx, mut sxq) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for (x, w) in values.iter().zip(&w) {
                let q = round(*x);
                sw += w;
                sq += w * q;
                sqq += w * q * q;
                sx += w * x;
                sxq += w * x * q;
            }
            let determinant = sw * sqq - sq * sq;
            if determinant > 0.0 {
                (a, b) = ((sw * sxq - sx * sq) / determinant, (sqq * sx - sq * sxq) / determinant);
            }
            if a <= 0.0 {
                break;
            }
        }
        let (a, b) = (as_f16(a), as_f16(b));
        if a <= 0.0 {
            continue;
        }
        let round = |x: f32| ((x - b) / a).round().clamp(0.0, high);
        let error: f32 = values.iter().zip(&w).map(|(x, w)| w * (a * round(*x) + b - x).powi(2)).sum();
        if error < least {
            (least, d, m) = (error, a, b);
            q.iter_mut().zip(values).for_each(|(q, x)| *q = round(*x) as u8);
        }
    }
    (d, m, q)
}

fn put_nibbles(q: &[u8; 32], bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (q[i] & 15) | (q[i + 16] & 15) << 4);
}

/// The fifth bits of 32 quants.
fn fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    q.iter().enumerate().fold(0_u32, |bits, (i, q)| bits | u32::from(q >> 4) << i).to_le_bytes()
}

impl Encode for Q4_0 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, q) = even::<Integers<-8, 7>>(values, importance, 8.0);
        put_f16(block, 0, d);
        put_nibbles(&q, &mut block[2..]);
    }
}

impl Encode for Q4_1 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, m, q) = uneven(values, importance, 15.0);
        put_f16(block, 0, d);
        put_f16(block, 2, m);
        put_nibbles(&q, &mut block[4..]);
    }
}

impl Encode for Q5_0 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, q) = even::<Integers<-16, 15>>(values, importance, 16.0);
        put_f16(block, 0, d);
        block[2..6].copy_from_slice(&fifth_bits(&q));
        put_nibbles(&q, &mut block[6..]);
    }
}

impl Encode for Q5_1 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (d, m, q) = uneven(values, importance, 31.0);
        put_f16(block, 0, d);
        put_f16(block, 2, m);
        block[4..8].copy_from_slice(&fifth_bits(&q));
        put_nibbles(&q, &mut block[8..]);
    }
}

impl Encode for Q8_0 {
    fn encode(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
        let d = values.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / 127.0;
        let inverse = inverse_of(d);
        put_f16(block, 0, d);
        for (byte, x) in block[2..34].iter_mut().zip(values) {
            // Half away from zero, as ggml rounds.
            *byte = (x * inverse).round() as i8 as u8;
        }
    }
}

impl Encode for Q1_0 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let w = |i: usize| importance.map_or(1.0, |importance| importance[i]);
        let (mut sum, mut sum_w) = (0.0, 0.0);
        block[2..].fill(0);
        for (i, x) in values.iter().enumerate() {
            sum += w(i) * x.abs();
            sum_w += w(i);
            block[2 + i / 8] |= u8::from(*x >= 0.0) << (i % 8);
        }
        put_f16(block, 0, if sum_w > 0.0 { sum / sum_w } else { 0.0 });
    }
}

impl Encode for Q2_0 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let d = if importance.is_some() {
            let mut w = [0.0; 64];
            error_weights(values, importance, &mut w);
            // The range reaches farther up than down, and the sign of the scale says which way up is.
            as_f16(scale::<Integers<-1, 2>>(values, &w))
        } else {
            values.iter().fold(0.0_f32, |a, b| a.max(b.abs()))
        };
        let inverse = inverse_of(d);
        put_f16(block, 0, d);
        block[2..].fill(0);
        for (i, x) in values.iter().enumerate() {
            let q = ((x * inverse).round() + 1.0).clamp(0.0, 3.0) as u8;
            block[2 + i / 4] |= q << (i % 4 * 2);
        }
    }
}
