//! Encoders of the K-quants: groups with small integer scales in blocks of 256.

use super::Encode;
use super::fit::{Integers, error_weights};
use super::superblock::{affine, scaled};
use crate::formats::block::put_f16;
use crate::formats::{Q2K, Q3K, Q4K, Q5K, Q6K};

impl Encode for Q2K {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = affine(values, &w, 16, 15, 3.0);
        block.fill(0);
        for g in 0..16 {
            block[g] = fit.scales[g] | fit.mins[g] << 4;
        }
        for (i, q) in fit.q.iter().enumerate() {
            block[16 + i / 128 * 32 + i % 32] |= q << (i % 128 / 32 * 2);
        }
        put_f16(block, 80, fit.d);
        put_f16(block, 82, fit.dmin);
    }
}

impl Encode for Q3K {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = scaled::<Integers<-4, 3>>(values, &w, 16, -32, 31);
        block.fill(0);
        for (i, level) in fit.levels.iter().enumerate() {
            let q = (level + 4.0) as u8;
            block[i % 32] |= (q >> 2) << (i / 32);
            block[32 + i / 128 * 32 + i % 32] |= (q & 3) << (i % 128 / 32 * 2);
        }
        for g in 0..16 {
            let code = (fit.codes[g] + 32) as u8;
            block[96 + g % 8] |= (code & 15) << (g / 8 * 4);
            block[104 + g % 4] |= (code >> 4) << (g / 4 * 2);
        }
        put_f16(block, 108, fit.d);
    }
}

/// Eight 6-bit scales and minima in twelve bytes that were zero: four of each as they are, the low bits of the others
/// in pairs, their high bits on top of the first.
fn put_scales_and_mins(packed: &mut [u8], scales: &[u8], mins: &[u8]) {
    for g in 0..4 {
        packed[g] = scales[g] | (scales[g + 4] >> 4) << 6;
        packed[g + 4] = mins[g] | (mins[g + 4] >> 4) << 6;
        packed[g + 8] = (scales[g + 4] & 15) | (mins[g + 4] & 15) << 4;
    }
}

impl Encode for Q4K {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = affine(values, &w, 8, 63, 15.0);
        block.fill(0);
        put_f16(block, 0, fit.d);
        put_f16(block, 2, fit.dmin);
        put_scales_and_mins(&mut block[4..16], &fit.scales, &fit.mins);
        for (i, q) in fit.q.iter().enumerate() {
            block[16 + i / 64 * 32 + i % 32] |= q << (i % 64 / 32 * 4);
        }
    }
}

impl Encode for Q5K {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = affine(values, &w, 8, 63, 31.0);
        block.fill(0);
        put_f16(block, 0, fit.d);
        put_f16(block, 2, fit.dmin);
        put_scales_and_mins(&mut block[4..16], &fit.scales, &fit.mins);
        for (i, q) in fit.q.iter().enumerate() {
            block[16 + i % 32] |= (q >> 4) << (i / 32);
            block[48 + i / 64 * 32 + i % 32] |= (q & 15) << (i % 64 / 32 * 4);
        }
    }
}

impl Encode for Q6K {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = scaled::<Integers<-32, 31>>(values, &w, 16, -128, 127);
        block.fill(0);
        for (i, level) in fit.levels.iter().enumerate() {
            let q = (level + 32.0) as u8;
            let (half, part, l) = (i / 128, i % 128 / 32, i % 32);
            block[half * 64 + l + 32 * (part % 2)] |= (q & 15) << (4 * (part / 2));
            block[128 + half * 32 + l] |= (q >> 4) << (2 * part);
        }
        for g in 0..16 {
            block[192 + g] = fit.codes[g] as i8 as u8;
        }
        put_f16(block, 208, fit.d);
    }
}
