//! Q2_K: 256 weights in sixteen groups of 16. A byte for each group holds a 4-bit scale (low) and a 4-bit minimum
//! (high); 64 bytes of 2-bit quants; f16 `d` and `dmin`: `(d * scale) * q - (dmin * min)`. The bytes of each half of
//! the block hold four runs of 32 weights, two bits of every byte each.

use super::block::{BlockFormat, f16_at, put_f16};

pub(crate) enum Q2K {}

impl BlockFormat for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (g, values) in out.chunks_exact_mut(16).enumerate() {
            let (d, m) = (d * f32::from(block[g] & 15), dmin * f32::from(block[g] >> 4));
            // Group g: half g / 8, run g / 2 % 4 of it, one or the other 16 of the run's 32.
            let (first, shift) = (16 + g / 8 * 32 + g % 2 * 16, g / 2 % 4 * 2);
            for (x, byte) in values.iter_mut().zip(&block[first..]) {
                *x = d * f32::from(byte >> shift & 3) - m;
            }
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 80, std / 13.0);
        put_f16(block, 82, 1.5 * std / 13.0);
    }
}
