//! Writes an adapter into the weights of a GGUF checkpoint: every matrix that it changes becomes `gain * (W + scale * B A)` in f32,
//! which a writer may pack again.

use std::collections::BTreeMap;

use weights::{Bytes, Checkpoint, Dtype, FileFormat, Tensor};

use super::{AdapterFile, Fitting, WeightChange, unusable};
use crate::{Config, Error};

/// The checkpoint with the adapter in its weights. Tensors that it leaves alone stay as they are.
pub fn merge(checkpoint: &Checkpoint, adapter: &AdapterFile) -> Result<Checkpoint, Error> {
    if checkpoint.format() != FileFormat::Gguf {
        return Err(unusable("adapters are merged into GGUF checkpoints; export the model first"));
    }
    let config = Config::from_checkpoint(checkpoint)?;
    let fitting = Fitting::of(checkpoint, &config)?;
    let mut by_source: BTreeMap<String, Vec<WeightChange>> = BTreeMap::new();
    for delta in fitting.fit(adapter)? {
        by_source.entry(fitting.rows(delta.tensor).source.clone()).or_default().push(delta);
    }
    let merged = checkpoint.tensors().iter().map(|tensor| match by_source.get(&tensor.name) {
        Some(deltas) => changed(tensor, deltas, &fitting),
        None => Ok(tensor.clone()),
    });
    Ok(checkpoint.with_tensors(merged.collect::<Result<_, _>>()?)?)
}

fn changed(tensor: &Tensor, deltas: &[WeightChange], fitting: &Fitting) -> Result<Tensor, Error> {
    let mut numbers = super::numbers(tensor);
    let n_cols = tensor.n_cols();
    for delta in deltas {
        let rows = fitting.rows(delta.tensor);
        let n_out = rows.shape[0];
        for (out, row) in rows.cut.picked().enumerate() {
            let row = &mut numbers[(rows.first_row + row) * n_cols..][..n_cols];
            for k in 0..delta.rank {
                let factor = delta.scale * delta.b[k * n_out + out];
                row.iter_mut().zip(&delta.a[k * n_cols..][..n_cols]).for_each(|(w, a)| *w += factor * a);
            }
            if let Some(gain) = &delta.gain {
                row.iter_mut().for_each(|w| *w *= gain[out]);
            }
        }
    }
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(Tensor::new(tensor.name.clone(), Dtype::F32, tensor.shape.clone(), Bytes::from_vec(bytes))?)
}
