//! The head of a reranker: from the hidden state of the first token to one score (or a few classes).
//!
//! It is two small products for one row, so it stays on the host wherever the model runs.

use weights::Tensor;

use crate::names::{At, Format, Names};
use crate::{Config, Error};

pub struct Head {
    /// Width to width, with a hyperbolic tangent after it.
    dense: Option<Layer>,
    output: Layer,
}

/// The layers in safetensors, by what writes them: transformers' RoBERTa, its BERT.
pub const HUB_SPELLINGS: [(&str, &str); 2] =
    [("classifier.dense", "classifier.out_proj"), ("bert.pooler.dense", "classifier")];

struct Layer {
    /// `[bias.len(), n_in]`
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Head {
    /// `None` where the checkpoint has none.
    pub fn open(config: &Config, names: &Names) -> Result<Option<Self>, Error> {
        let find = |name: &str, suffix: &str| match names.format {
            Format::Gguf => names.find(At::Model, name, suffix),
            Format::Hub => names.checkpoint.find(&format!("{name}.{suffix}")),
        };
        for (dense, output) in [("cls", "cls.output")].into_iter().chain(HUB_SPELLINGS) {
            let Some(weight) = find(output, "weight") else { continue };
            let n_classes = weight.shape.first().copied().unwrap_or(1);
            let dense = match find(dense, "weight") {
                Some(weight) => Some(Layer::read(weight, find(dense, "bias"), [config.n_embd, config.n_embd])?),
                None => None,
            };
            let output = Layer::read(weight, find(output, "bias"), [n_classes, config.n_embd])?;
            return Ok(Some(Self { dense, output }));
        }
        Ok(None)
    }

    pub fn score(&self, hidden: &[f32]) -> Vec<f32> {
        let Some(dense) = &self.dense else { return self.output.apply(hidden) };
        let mut between = dense.apply(hidden);
        between.iter_mut().for_each(|x| *x = x.tanh());
        self.output.apply(&between)
    }
}

impl Layer {
    fn read(weight: &Tensor, bias: Option<&Tensor>, [n_out, n_in]: [usize; 2]) -> Result<Self, Error> {
        let numbers = |tensor: &Tensor, expected: &[usize]| {
            if tensor.shape != expected {
                let (name, found) = (tensor.name.clone(), tensor.shape.clone());
                return Err(Error::Shape { name, found, expected: expected.to_vec() });
            }
            let mut numbers = vec![0.0; expected.iter().product()];
            ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
            Ok(numbers)
        };
        let bias = bias.map_or_else(|| Ok(vec![0.0; n_out]), |bias| numbers(bias, &[n_out]))?;
        Ok(Self { weight: numbers(weight, &[n_out, n_in])?, bias })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(x.len().max(1)).zip(&self.bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias).collect()
    }
}
