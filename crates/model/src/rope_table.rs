//! The angles of rope, in f64: cosine and sine of every pair at the positions of a batch.

use weights::Dtype;

use crate::names::{At, Names};
use crate::rope_scaling::RopeScaling;
use crate::{Config, Error};

pub struct RopeTable {
    /// Turn per position, one a pair.
    frequencies: Vec<f64>,
    magnitude: f64,
    base: f64,
    scaling: RopeScaling,
}

impl RopeTable {
    /// `n_ctx` is what the model will be used with: some families turn otherwise in a long context.
    pub fn new(config: &Config, names: &Names, n_ctx: usize) -> Result<Self, Error> {
        let mut scaling = config.rope.scaling.clone();
        if let RopeScaling::Long { short, long, .. } = &mut scaling
            && short.is_empty()
        {
            *short = divisors(names, "rope_factors_short", config.n_rot / 2)?.unwrap_or_default();
            *long = divisors(names, "rope_factors_long", config.n_rot / 2)?.unwrap_or_default();
            if short.is_empty() || long.is_empty() {
                scaling = RopeScaling::None;
            }
        }
        let base = f64::from(config.rope.base);
        let mut frequencies = scaling.frequencies(base, config.n_rot, n_ctx);
        // Llama 3.1 and later carry a divisor a pair in GGUF.
        if let Some(divisors) = divisors(names, "rope_freqs", config.n_rot / 2)? {
            frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
        }
        Ok(Self { frequencies, magnitude: scaling.magnitude(), base, scaling })
    }

    /// For layers with a window, where they turn by another base.
    pub fn local(config: &Config) -> Option<Self> {
        let base = f64::from(config.rope.local_base?);
        let scaling = RopeScaling::None;
        let n_rot = config.local_heads.map_or(config.n_rot, |local| local.n_rot);
        Some(Self { frequencies: scaling.frequencies(base, n_rot, 0), magnitude: 1.0, base, scaling })
    }

    /// Numbers of a head that are rotated.
    pub fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Fills `[n_rows, 2 * n_pairs]` for these positions.
    pub fn fill(&self, positions: &[u32], angles: &mut [f32]) {
        if self.frequencies.is_empty() {
            return;
        }
        for (position, row) in positions.iter().zip(angles.chunks_exact_mut(self.n_rot())) {
            let grown = self.scaling.base_at(self.base, self.n_rot(), *position);
            let grown = grown.map(|base| RopeScaling::None.frequencies(base, self.n_rot(), 0));
            let frequencies = grown.as_ref().unwrap_or(&self.frequencies);
            for (frequency, pair) in frequencies.iter().zip(row.chunks_exact_mut(2)) {
                let (sin, cos) = (f64::from(*position) * frequency).sin_cos();
                pair[0] = (cos * self.magnitude) as f32;
                pair[1] = (sin * self.magnitude) as f32;
            }
        }
    }
}

fn divisors(names: &Names, name: &str, n_pairs: usize) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = names.find(At::Model, name, "weight") else { return Ok(None) };
    let name = || tensor.name.clone();
    if tensor.shape != [n_pairs] {
        return Err(Error::Shape { name: name(), found: tensor.shape.clone(), expected: vec![n_pairs] });
    }
    if tensor.dtype.block_len() != 1 {
        return Err(Error::Tensor { name: name(), what: format!("{} where {} is expected", tensor.dtype, Dtype::F32) });
    }
    let mut numbers = vec![0.0; n_pairs];
    ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
    if numbers.iter().all(|x| x.is_finite() && *x > 0.0) {
        Ok(Some(numbers))
    } else {
        Err(Error::Tensor { name: name(), what: "divisors must be above zero".into() })
    }
}
