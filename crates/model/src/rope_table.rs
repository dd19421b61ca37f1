//! The angles of rope, in f64: cosine and sine of every pair at the positions of a batch.

use weights::{Checkpoint, Dtype};

use crate::names::Names;
use crate::{Config, Error};

pub struct RopeTable {
    /// Turn per position, one a pair.
    frequencies: Vec<f64>,
}

impl RopeTable {
    pub fn new(config: &Config, checkpoint: &Checkpoint, names: &Names) -> Result<Self, Error> {
        let n_pairs = config.n_rot / 2;
        let divisors = Self::divisors(checkpoint, names, n_pairs)?;
        let frequencies = (0..n_pairs)
            .map(|pair| {
                let exponent = -2.0 * pair as f64 / config.n_rot as f64;
                let frequency = f64::from(config.rope_base).powf(exponent);
                frequency / f64::from(config.rope_factor) / divisors.as_ref().map_or(1.0, |d| f64::from(d[pair]))
            })
            .collect();
        Ok(Self { frequencies })
    }

    /// Llama 3.1 and later carry a divisor a pair in the file.
    fn divisors(checkpoint: &Checkpoint, names: &Names, n_pairs: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = checkpoint.find(names.rope_factors) else { return Ok(None) };
        let name = || tensor.name.clone();
        if tensor.shape != [n_pairs] {
            return Err(Error::Shape { name: name(), found: tensor.shape.clone(), expected: vec![n_pairs] });
        }
        if tensor.dtype.block_len() != 1 {
            return Err(Error::Tensor {
                name: name(),
                what: format!("{} where {} is expected", tensor.dtype, Dtype::F32),
            });
        }
        let mut numbers = vec![0.0; n_pairs];
        ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
        if numbers.iter().all(|x| x.is_finite() && *x > 0.0) {
            Ok(Some(numbers))
        } else {
            Err(Error::Tensor { name: name(), what: "divisors must be above zero".into() })
        }
    }

    /// Numbers of a head that are turned.
    pub fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Fills `[n_rows, 2 * n_pairs]` for these positions.
    pub fn fill(&self, positions: &[u32], angles: &mut [f32]) {
        for (position, row) in positions.iter().zip(angles.chunks_exact_mut(2 * self.frequencies.len().max(1))) {
            for (frequency, pair) in self.frequencies.iter().zip(row.chunks_exact_mut(2)) {
                let (sin, cos) = (f64::from(*position) * frequency).sin_cos();
                pair[0] = cos as f32;
                pair[1] = sin as f32;
            }
        }
    }
}
