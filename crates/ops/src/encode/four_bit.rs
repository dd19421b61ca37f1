//! Encoders of the formats whose nibbles pick uneven levels: IQ4_NL, IQ4_XS, and the 4-bit floats MXFP4 and NVFP4.

use super::Encode;
use super::fit::{Levels, as_f16, error_weights, scale};
use super::superblock::scaled;
use crate::formats::block::put_f16;
use crate::formats::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, iq4_nl, mxfp4, nvfp4};

/// IQ4_NL's levels.
struct NonLinear;

impl Levels for NonLinear {
    const LOW: f32 = -127.0;
    const HIGH: f32 = 113.0;

    fn round(x: f32) -> f32 {
        f32::from(iq4_nl::LEVELS[level_idx(x)])
    }
}

/// For each whole number from the lowest level on: the level nearest to it, and where the next one begins to be nearer.
/// No two of those thresholds lie between the same integers.
static NEAREST: [(u8, f32); 256] = {
    let mut table = [(15, f32::INFINITY); 256];
    let mut idx = 0;
    let mut at = 0;
    while at < 256 && idx < 15 {
        let border = (iq4_nl::LEVELS[idx] as f32 + iq4_nl::LEVELS[idx + 1] as f32) / 2.0;
        let from = at as f32 + NonLinear::LOW;
        if from > border {
            idx += 1;
            continue;
        }
        table[at] = (idx as u8, border);
        at += 1;
    }
    table
};

/// The nearest of sixteen rising levels, the lower of equals.
fn level_idx(x: f32) -> usize {
    let from = (x - NonLinear::LOW).clamp(0.0, 255.0);
    let (idx, border) = NEAREST[from as usize];
    usize::from(idx) + usize::from(x > border)
}

impl Encode for Iq4Nl {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 32];
        error_weights(values, importance, &mut w);
        let d = as_f16(scale::<NonLinear>(values, &w));
        put_f16(block, 0, d);
        let idx = |x: f32| level_idx(if d == 0.0 { 0.0 } else { x / d }) as u8;
        for i in 0..16 {
            block[2 + i] = idx(values[i]) | idx(values[i + 16]) << 4;
        }
    }
}

impl Encode for Iq4Xs {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = scaled::<NonLinear>(values, &w, 8, -32, 31);
        block.fill(0);
        put_f16(block, 0, fit.d);
        for g in 0..8 {
            let code = (fit.codes[g] + 32) as u8;
            let high = u16::from(code >> 4) << (2 * g);
            block[2] |= high as u8;
            block[3] |= (high >> 8) as u8;
            block[4 + g / 2] |= (code & 15) << (g % 2 * 4);
            for i in 0..16 {
                let idx = |i: usize| level_idx(fit.levels[g * 32 + i]) as u8;
                block[8 + g * 16 + i] = idx(i) | idx(i + 16) << 4;
            }
        }
    }
}

/// The 4-bit float nearest to `x / d`, the first of equals.
fn float_idx(x: f32, d: f32) -> u8 {
    let off = |idx: usize| (f32::from(mxfp4::LEVELS[idx]) * d - x).abs();
    let mut best = 0;
    for idx in 1..16 {
        if off(idx) < off(best) {
            best = idx;
        }
    }
    best as u8
}

/// Errors of a group of 4-bit floats.
fn float_error(values: &[f32], importance: Option<&[f32]>, d: f32) -> f32 {
    let off = |x: f32| f32::from(mxfp4::LEVELS[usize::from(float_idx(x, d))]) * d - x;
    let w = |i: usize| importance.map_or(1.0, |importance| importance[i]);
    values.iter().enumerate().map(|(i, x)| w(i) * off(*x) * off(*x)).sum()
}

impl Encode for Mxfp4 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let most = values.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        // The exponent that lets the largest weight reach the levels' own exponent of two.
        let mut exponent = if most > 0.0 { (most.log2().floor() + 125.0).clamp(0.0, 254.0) as u8 } else { 0 };
        if importance.is_some() {
            let near = [exponent, exponent.saturating_sub(1), (exponent + 1).min(254)];
            let error = |e: u8| float_error(values, importance, mxfp4::half_power(e));
            exponent = near.into_iter().min_by(|&a, &b| error(a).total_cmp(&error(b))).expect("three exponents");
        }
        let d = mxfp4::half_power(exponent);
        block[0] = exponent;
        for i in 0..16 {
            block[1 + i] = float_idx(values[i], d) | float_idx(values[i + 16], d) << 4;
        }
    }
}

impl Encode for Nvfp4 {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        for (g, values) in values.chunks_exact(16).enumerate() {
            let importance = importance.map(|importance| &importance[16 * g..][..16]);
            let most = values.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            // Scales rise with their bits. The one that brings the largest weight nearest to the largest level, or with
            // importance the best of its neighbours.
            let wanted = most / 12.0;
            let above = (0..=0x7E_u8).find(|&bits| nvfp4::half_scale(bits) >= wanted).unwrap_or(0x7E);
            let below = above.saturating_sub(1);
            let is_below = wanted - nvfp4::half_scale(below) < nvfp4::half_scale(above) - wanted;
            let mut bits = if is_below { below } else { above };
            if importance.is_some() {
                let error = |bits: u8| float_error(values, importance, nvfp4::half_scale(bits));
                let near = bits.saturating_sub(2)..=(bits + 2).min(0x7E);
                bits = near.min_by(|&a, &b| error(a).total_cmp(&error(b))).expect("some scales");
            }
            let d = nvfp4::half_scale(bits);
            block[g] = bits;
            for i in 0..8 {
                block[4 + g * 8 + i] = float_idx(values[i], d) | float_idx(values[i + 8], d) << 4;
            }
        }
    }
}
