//! Seeded random numbers and the comparison that every row of the table uses.

use ops::quant::{quantize, randomize};
use ops::{Isa, Pool};
use weights::Dtype;

/// A small generator of our own, so that a failing row can be repeated from its seed alone.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// Packed weights: random numbers, or for most packed types, whose encoders take their time, random blocks.
    pub fn weights(&mut self, dtype: Dtype, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; dtype.row_bytes(n).unwrap()];
        if dtype.is_plain() || [Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K].contains(&dtype) {
            quantize(dtype, &self.numbers(n), &mut bytes);
        } else {
            randomize(dtype, 1.0, || self.bits(), &mut bytes);
        }
        bytes
    }

    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    /// Numbers with a few outliers a hundred times the rest, as activations have them.
    pub fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| if self.bits().is_multiple_of(97) { self.number() * 100.0 } else { self.number() }).collect()
    }
}

/// A pool for each instruction set, with two threads.
pub fn pools() -> Vec<Pool> {
    Isa::available().into_iter().map(|isa| Pool::with_isa(2, isa)).collect()
}

/// `|out - truth| / |truth|` over the whole array; NaN never passes.
pub fn relative_error(out: &[f32], truth: &[f64]) -> f64 {
    assert_eq!(out.len(), truth.len());
    let norm: f64 = truth.iter().map(|t| t * t).sum::<f64>().sqrt();
    let error: f64 = out.iter().zip(truth).map(|(o, t)| (f64::from(*o) - t).powi(2)).sum::<f64>().sqrt();
    if norm == 0.0 { error } else { error / norm }
}

#[track_caller]
pub fn assert_close(what: &str, out: &[f32], truth: &[f64], bound: f64) {
    let error = relative_error(out, truth);
    assert!(error <= bound, "{what}: relative error {error:.3e}, bound {bound:.1e}");
}
