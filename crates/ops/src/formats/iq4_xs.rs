//! IQ4_XS: 256 weights in eight groups of 32, each as in IQ4_NL. An f16 `d`; 2 bytes and 4 bytes hold the high two and
//! the low four bits of a group's scale: `(d * (scale - 32)) * level`.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use super::iq4_nl::LEVELS;
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Iq4Xs {}

/// The signed scale of a group.
fn scale(block: &[u8], g: usize) -> i8 {
    let low = block[4 + g / 2] >> (g % 2 * 4) & 15;
    (low | ((u16_at(block, 2) >> (2 * g) & 3) as u8) << 4) as i8 - 32
}

impl BlockFormat for Iq4Xs {
    const LEN: usize = 256;
    const BYTES: usize = 136;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (g, values) in out.chunks_exact_mut(32).enumerate() {
            let d = d * f32::from(scale(block, g));
            for (i, byte) in block[8 + g * 16..][..16].iter().enumerate() {
                values[i] = d * f32::from(LEVELS[usize::from(byte & 15)]);
                values[i + 16] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 69.0 / 18.5);
    }
}

impl Coded for Iq4Xs {
    const UNIT: f32 = 1.0;
    const LEVELS: [i8; 16] = LEVELS;

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 0), std::array::from_fn(|i| scale(block, i / 2)))
    }
}

coded!(Iq4Xs, 32 * 127, 2, Some(25));
