//! Encoders of IQ1_S and IQ1_M: three levels, moved up or down by an eighth, from a codebook of eights.
//!
//! Which way the levels of a group are moved is chosen with its entries, at every scale that is tried.

use std::sync::LazyLock;

use super::Encode;
use super::codebook::CodebookLayout;
use super::fit::error_weights;
use super::nearest_entry::Codebook;
use crate::formats::block::put_f16;
use crate::formats::{Iq1M, Iq1S, grids, iq1_s};

static IQ1_S: LazyLock<CodebookLayout<8, 3>> = LazyLock::new(|| layout(32, 32));
static IQ1_M: LazyLock<CodebookLayout<8, 3>> = LazyLock::new(|| layout(16, 8));

/// Moved up, and moved down.
static LEVELS: [[f32; 3]; 2] =
    [[-1.0 + iq1_s::DELTA, iq1_s::DELTA, 1.0 + iq1_s::DELTA], [-1.0 - iq1_s::DELTA, -iq1_s::DELTA, 1.0 - iq1_s::DELTA]];

fn layout(group_len: usize, choice_len: usize) -> CodebookLayout<8, 3> {
    let book = Codebook::new(&grids::IQ1_S);
    CodebookLayout { book, levels: &LEVELS, choice_len, group_len, first: 1.0, step: 2.0, n_codes: 8, from: 0.35 }
}

impl Encode for Iq1S {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = IQ1_S.encode(values, &w);
        put_f16(block, 0, fit.d);
        for g in 0..8 {
            let mut rest = (fit.codes[g] as u16) << 12 | u16::from(fit.choices[4 * g]) << 15;
            for i in 0..4 {
                let entry = fit.entries[4 * g + i];
                block[2 + 4 * g + i] = entry as u8;
                rest |= (entry >> 8) << (3 * i);
            }
            block[34 + 2 * g..][..2].copy_from_slice(&rest.to_le_bytes());
        }
    }
}

impl Encode for Iq1M {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let fit = IQ1_M.encode(values, &w);
        block[32..48].fill(0);
        for i in 0..32 {
            let entry = fit.entries[i];
            block[i] = entry as u8;
            let nibble = (entry >> 8) as u8 | fit.choices[i] << 3;
            block[32 + i / 2] |= nibble << (i % 2 * 4);
        }
        let d = half::f16::from_f32(fit.d).to_bits();
        for part in 0..4 {
            let codes = (0..4).fold(0, |bits, i| bits | (fit.codes[4 * part + i] as u16) << (3 * i));
            let word = codes | (d >> (4 * part) & 15) << 12;
            block[48 + 2 * part..][..2].copy_from_slice(&word.to_le_bytes());
        }
    }
}
