//! Encoders of IQ1_S and IQ1_M: three levels, moved up or down by an eighth, from a codebook of eights.
//!
//! Which way a group's levels are moved is chosen first, by the error of rounding to them freely at its best scale.

use std::sync::LazyLock;

use super::super::block::put_f16;
use super::super::{Iq1M, Iq1S, grids, iq1_s};
use super::Encode;
use super::codebook::Layout;
use super::fit::{Levels, error_weights, scale};
use super::nearest_entry::Codebook;

static IQ1_S: LazyLock<Layout<8, 3>> = LazyLock::new(|| layout(32));
static IQ1_M: LazyLock<Layout<8, 3>> = LazyLock::new(|| layout(16));

fn layout(group_len: usize) -> Layout<8, 3> {
    Layout { book: Codebook::new(&grids::IQ1_S), group_len, first: 1.0, step: 2.0, n_codes: 8 }
}

struct Up;
struct Down;

fn three(x: f32, delta: f32) -> f32 {
    (x - delta).round().clamp(-1.0, 1.0) + delta
}

impl Levels for Up {
    const LOW: f32 = -1.0 + iq1_s::DELTA;
    const HIGH: f32 = 1.0 + iq1_s::DELTA;

    fn round(x: f32) -> f32 {
        three(x, iq1_s::DELTA)
    }
}

impl Levels for Down {
    const LOW: f32 = -1.0 - iq1_s::DELTA;
    const HIGH: f32 = 1.0 - iq1_s::DELTA;

    fn round(x: f32) -> f32 {
        three(x, -iq1_s::DELTA)
    }
}

/// Whether levels moved down suit these weights better.
fn is_down(x: &[f32], w: &[f32]) -> bool {
    fn error<L: Levels>(x: &[f32], w: &[f32]) -> f32 {
        // A negative scale would turn the other way round, which the format does not have.
        let scale = scale::<L>(x, w).abs();
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        x.iter().zip(w).map(|(x, w)| w * (scale * L::round(x * inverse) - x).powi(2)).sum()
    }
    error::<Down>(x, w) < error::<Up>(x, w)
}

fn levels(is_down: bool) -> [f32; 3] {
    let delta = if is_down { -iq1_s::DELTA } else { iq1_s::DELTA };
    grids::LEVELS_1.map(|level| f32::from(level) + delta)
}

impl Encode for Iq1S {
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
        let mut w = [0.0; 256];
        error_weights(values, importance, &mut w);
        let down: [bool; 8] = std::array::from_fn(|g| is_down(&values[32 * g..][..32], &w[32 * g..][..32]));
        let fit = IQ1_S.encode(values, &w, |at| levels(down[at / 32]));
        put_f16(block, 0, fit.d);
        for g in 0..8 {
            let mut rest = (fit.codes[g] as u16) << 12 | u16::from(down[g]) << 15;
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
        let down: [bool; 32] = std::array::from_fn(|i| is_down(&values[8 * i..][..8], &w[8 * i..][..8]));
        let fit = IQ1_M.encode(values, &w, |at| levels(down[at / 8]));
        block[32..48].fill(0);
        for i in 0..32 {
            let entry = fit.entries[i];
            block[i] = entry as u8;
            let nibble = (entry >> 8) as u8 | u8::from(down[i]) << 3;
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
