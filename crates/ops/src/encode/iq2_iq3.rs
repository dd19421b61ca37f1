//! Encoders of the IQ2 and IQ3 formats: magnitudes from a codebook, signs apart.

use std::sync::LazyLock;

use super::Encode;
use super::codebook::{CodebookLayout, CodedBlock, magnitudes};
use super::fit::error_weights;
use super::nearest_entry::Codebook;
use crate::formats::block::put_f16;
use crate::formats::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, grids};

static IQ2_XXS: LazyLock<CodebookLayout<8, 3>> = LazyLock::new(|| two_bit(&grids::IQ2_XXS, 32));
static IQ2_XS: LazyLock<CodebookLayout<8, 3>> = LazyLock::new(|| two_bit(&grids::IQ2_XS, 16));
static IQ2_S: LazyLock<CodebookLayout<8, 3>> = LazyLock::new(|| two_bit(&grids::IQ2_S, 16));
static IQ3_XXS: LazyLock<CodebookLayout<4, 8>> = LazyLock::new(|| three_bit(&grids::IQ3_XXS, &LEVELS_3_XXS, 0.25));
static IQ3_S: LazyLock<CodebookLayout<4, 8>> = LazyLock::new(|| three_bit(&grids::IQ3_S, &LEVELS_3_S, 1.0));

static LEVELS_2: [[f32; 3]; 1] = [floats(grids::LEVELS_2)];
static LEVELS_3_XXS: [[f32; 8]; 1] = [floats(grids::LEVELS_3_XXS)];
static LEVELS_3_S: [[f32; 8]; 1] = [floats(grids::LEVELS_3_S)];

const fn floats<const N: usize>(levels: [u8; N]) -> [f32; N] {
    let mut out = [0.0; N];
    let mut i = 0;
    while i < N {
        out[i] = levels[i] as f32;
        i += 1;
    }
    out
}

fn two_bit(entries: &[u16], group_len: usize) -> CodebookLayout<8, 3> {
    let (book, levels) = (Codebook::new(entries), LEVELS_2.as_slice());
    CodebookLayout { book, levels, choice_len: group_len, group_len, first: 0.125, step: 0.25, n_codes: 16, from: 0.55 }
}

/// Scales that are odd multiples of the first one.
fn three_bit(entries: &[u16], levels: &'static [[f32; 8]], first: f32) -> CodebookLayout<4, 8> {
    let book = Codebook::new(entries);
    CodebookLayout { book, levels, choice_len: 32, group_len: 32, first, step: 2.0 * first, n_codes: 16, from: 0.55 }
}

/// Signs and codes of a block. Where `is_even`, a format keeps seven of eight signs.
fn fit<const LEN: usize, const RADIX: usize>(
    layout: &CodebookLayout<LEN, RADIX>,
    values: &[f32],
    importance: Option<&[f32]>,
    is_even: bool,
) -> (CodedBlock, [u8; 32]) {
    let mut w = [0.0; 256];
    error_weights(values, importance, &mut w);
    let mut x = [0.0; 256];
    let signs = magnitudes(values, &w, is_even, &mut x);
    (layout.encode(&x, &w), signs)
}

/// Four runs of seven signs and a scale in 32 bits.
fn signs_and_scale(signs: &[u8], code: usize) -> [u8; 4] {
    let bits = signs.iter().enumerate().fold((code as u32) << 28, |bits, (i, s)| bits | u32::from(s & 127) << (7 * i));
    bits.to_le_bytes()
}

/// Nibbles of neighbouring groups in a byte each.
fn put_codes(codes: &[usize], bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = codes[2 * i] as u8 | (codes[2 * i + 1] as u8) << 4);
}

impl Encode for Iq2Xxs {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (fit, signs) = fit(&IQ2_XXS, values, importance, true);
        put_f16(block, 0, fit.d);
        for g in 0..8 {
            let part = &mut block[2 + 8 * g..][..8];
            part[..4].iter_mut().enumerate().for_each(|(i, byte)| *byte = fit.entries[4 * g + i] as u8);
            part[4..].copy_from_slice(&signs_and_scale(&signs[4 * g..][..4], fit.codes[g]));
        }
    }
}

impl Encode for Iq2Xs {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (fit, signs) = fit(&IQ2_XS, values, importance, true);
        put_f16(block, 0, fit.d);
        for i in 0..32 {
            let word = fit.entries[i] | u16::from(signs[i] & 127) << 9;
            block[2 + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
        put_codes(&fit.codes, &mut block[66..]);
    }
}

impl Encode for Iq2S {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (fit, signs) = fit(&IQ2_S, values, importance, false);
        put_f16(block, 0, fit.d);
        block[66..74].fill(0);
        for i in 0..32 {
            block[2 + i] = fit.entries[i] as u8;
            block[34 + i] = signs[i];
            block[66 + i / 4] |= ((fit.entries[i] >> 8) as u8) << (i % 4 * 2);
        }
        put_codes(&fit.codes, &mut block[74..]);
    }
}

impl Encode for Iq3Xxs {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (fit, signs) = fit(&IQ3_XXS, values, importance, true);
        put_f16(block, 0, fit.d);
        for i in 0..64 {
            block[2 + i] = fit.entries[i] as u8;
        }
        for g in 0..8 {
            block[66 + 4 * g..][..4].copy_from_slice(&signs_and_scale(&signs[4 * g..][..4], fit.codes[g]));
        }
    }
}

impl Encode for Iq3S {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let (fit, signs) = fit(&IQ3_S, values, importance, false);
        put_f16(block, 0, fit.d);
        block[66..74].fill(0);
        for i in 0..64 {
            block[2 + i] = fit.entries[i] as u8;
            block[66 + i / 8] |= ((fit.entries[i] >> 8) as u8) << (i % 8);
        }
        block[74..106].copy_from_slice(&signs);
        put_codes(&fit.codes, &mut block[106..]);
    }
}
