//! Seeded random numbers and the comparison that every row of the table uses.

use ops::quant::{quantize, randomize};
use ops::{Isa, Pool};
use weights::Dtype;

/// Seeded random numbers, and weights and activations made of them.
pub struct Random(test_support::Random);

impl std::ops::Deref for Random {
    type Target = test_support::Random;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Random {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(test_support::Random::new(seed))
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
    test_support::golden::relative_error(out.iter().map(|x| f64::from(*x)), truth.iter().copied())
}

#[track_caller]
pub fn assert_close(what: &str, out: &[f32], truth: &[f64], bound: f64) {
    let error = relative_error(out, truth);
    assert!(error <= bound, "{what}: relative error {error:.3e}, bound {bound:.1e}");
}
