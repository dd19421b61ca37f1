//! Q3_K: 256 weights in sixteen groups of 16. 32 bytes hold a third bit for each weight, 64 bytes their low two bits,
//! 12 bytes sixteen 6-bit scales (minus 32), then an f16 `d`: `(d * scale) * q` with q in -4..4. A third bit that is
//! not set takes 4 away.

use super::block::{BlockFormat, f16_at, put_f16, u16_at};
use crate::tiles::coded::{Coded, coded};

pub(crate) enum Q3K {}

/// The signed scale of a group: four low bits of one byte, two high bits of another.
pub(crate) fn scale(packed: &[u8], g: usize) -> i8 {
    let low = packed[g % 8] >> (g / 8 * 4) & 15;
    let high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

impl BlockFormat for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 108);
        for (g, values) in out.chunks_exact_mut(16).enumerate() {
            let d = d * f32::from(scale(&block[96..108], g));
            let (run, first) = (g / 2, g % 2 * 16);
            let (lows, highs) = (&block[32 + run / 4 * 32 + first..][..16], &block[first..][..16]);
            for ((x, low), high) in values.iter_mut().zip(lows).zip(highs) {
                let missing = 4 * (1 - (high >> run & 1) as i8);
                *x = d * f32::from((low >> (run % 4 * 2) & 3) as i8 - missing);
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 108, std / 43.0);
    }
}

impl Coded for Q3K {
    const UNIT: f32 = 1.0;
    const LEVELS: [i8; 16] = [-4, -3, -2, -1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0];

    fn scales(block: &[u8]) -> (u16, [i8; 16]) {
        (u16_at(block, 108), std::array::from_fn(|i| scale(&block[96..108], i)))
    }
}

coded!(Q3K, 32 * 4, 8, None);
