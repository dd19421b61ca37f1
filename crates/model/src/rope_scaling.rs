//! How rope's angles are stretched beyond the context that a model was first trained for: numbers from a file, and
//! their effect on a frequency.

use std::f64::consts::PI;

use crate::Error;
use crate::family::Family;
use crate::keys::MetadataKeys;

#[derive(Clone, PartialEq, Debug)]
pub enum RopeScaling {
    None,
    /// Positions are divided.
    Linear {
        factor: f64,
    },
    /// The base grows with the position once it is beyond the trained context.
    Dynamic {
        factor: f64,
        original: f64,
    },
    /// Low frequencies are divided, high ones kept.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    Yarn(Yarn),
    /// Only the first part of the pairs turns; frequencies are those of a whole head.
    Proportional {
        part: f64,
    },
    /// A divisor for each pair; which list depends on the context the model is loaded for. Empty: they are tensors.
    Long {
        short: Vec<f32>,
        long: Vec<f32>,
        original: f64,
        magnitude: f64,
    },
}

/// Pairs that turn often are kept, those that turn rarely divided, with a ramp between.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Yarn {
    pub factor: f64,
    pub original: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// What cosines and sines are multiplied with.
    pub magnitude: f64,
    /// Compressed attention puts its growth on the scores instead; this is its root.
    pub attention: Option<f64>,
    pub truncates: bool,
}

/// How much attention is sharpened for a context `factor` times as long.
pub fn mscale(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// As GGUF says it.
    pub fn from_keys(keys: &MetadataKeys, family: &Family, is_compressed: bool) -> Result<Self, Error> {
        let kind = keys.word("rope.scaling.type")?.unwrap_or_default();
        let factor = f64::from(keys.number("rope.scaling.factor", 1.0)?);
        let context = keys.count("context_length")?.unwrap_or(0);
        let original = keys.count("rope.scaling.original_context_length")?;
        let original_or = original.unwrap_or(context) as f64;
        let given = keys.positive("rope.scaling.attn_factor")?.map(f64::from);
        match kind {
            // Phi's files have the lists as tensors and no type.
            "" | "none" | "longrope" if original.is_some() => {
                let magnitude = given.unwrap_or_else(|| long_magnitude(context as f64 / original_or, original_or));
                Ok(Self::Long { short: Vec::new(), long: Vec::new(), original: original_or, magnitude })
            }
            "" | "none" | "longrope" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor }),
            "yarn" => {
                let multiplier = keys.positive("rope.scaling.yarn_log_multiplier")?.map(f64::from);
                // Files of compressed attention keep a tenth of it.
                let attention = multiplier.filter(|_| is_compressed).map(|x| mscale(factor, 10.0 * x));
                let growth = mscale(factor, 1.0) / multiplier.map_or(1.0, |x| mscale(factor, x));
                Ok(Self::Yarn(Yarn {
                    factor,
                    original: original_or,
                    beta_fast: f64::from(keys.number("rope.scaling.yarn_beta_fast", 32.0)?),
                    beta_slow: f64::from(keys.number("rope.scaling.yarn_beta_slow", 1.0)?),
                    magnitude: if attention.is_some() { 1.0 } else { given.unwrap_or(1.0) * growth },
                    attention,
                    truncates: family.yarn_truncates,
                }))
            }
            other => Err(keys.error("rope.scaling.type", format!("`{other}` is not supported"))),
        }
    }

    /// What scores grow by twice, where it is not in the angles.
    pub fn attention_factor(&self) -> Option<f32> {
        let Self::Yarn(yarn) = self else { return None };
        yarn.attention.map(|factor| factor as f32)
    }

    /// What cosines and sines are multiplied with.
    pub fn magnitude(&self) -> f64 {
        match self {
            Self::Yarn(yarn) => yarn.magnitude,
            Self::Long { magnitude, .. } => *magnitude,
            _ => 1.0,
        }
    }

    /// The frequencies of `n_rot / 2` pairs for a model that will be used with `n_ctx` tokens.
    pub fn frequencies(&self, base: f64, n_rot: usize, n_ctx: usize) -> Vec<f64> {
        let plain = |pair: usize| base.powf(-2.0 * pair as f64 / n_rot as f64);
        let all = (0..n_rot / 2).map(|pair| (pair, plain(pair)));
        match self {
            Self::None | Self::Dynamic { .. } => all.map(|(_, f)| f).collect(),
            Self::Linear { factor } => all.map(|(_, f)| f / factor).collect(),
            Self::Llama3 { factor, low, high, original } => all
                .map(|(_, f)| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
            Self::Yarn(yarn) => {
                let (low, high) = yarn.range(base, n_rot);
                all.map(|(pair, f)| {
                    let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / yarn.factor * ramp + f * (1.0 - ramp)
                })
                .collect()
            }
            Self::Proportional { part } => {
                let n_turning = (part * n_rot as f64 / 2.0) as usize;
                all.map(|(pair, f)| if pair < n_turning { f } else { 0.0 }).collect()
            }
            Self::Long { short, long, original, .. } => {
                let divisors = if n_ctx as f64 > *original { long } else { short };
                all.map(|(pair, f)| f / divisors.get(pair).map_or(1.0, |d| f64::from(*d))).collect()
            }
        }
    }

    /// The base at a position, where it depends on it.
    pub fn base_at(&self, base: f64, n_rot: usize, position: u32) -> Option<f64> {
        let Self::Dynamic { factor, original } = self else { return None };
        let n_tokens = f64::from(position) + 1.0;
        let growth = factor * n_tokens / original - (factor - 1.0);
        (n_tokens > *original && n_rot > 2).then(|| base * growth.powf(n_rot as f64 / (n_rot as f64 - 2.0)))
    }
}

impl Yarn {
    /// Pairs between which the ramp runs.
    fn range(&self, base: f64, n_rot: usize) -> (f64, f64) {
        let pair_of = |n_turns: f64| n_rot as f64 * (self.original / (n_turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncates {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(n_rot as f64 - 1.0));
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}

/// LongRoPE's growth of attention for a context `factor` times the original.
pub fn long_magnitude(factor: f64, original: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
}
