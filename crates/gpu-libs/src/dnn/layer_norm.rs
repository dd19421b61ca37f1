//! Layer normalisation. MIOpen has functions for it; cuDNN computes it by graphs only, which are not wrapped.

use super::calls::LayerNormMode;
use super::{Dnn, NetworkNumber, Tensor, TensorMut};
use crate::error::{Result, ensure, int};

const CALL: &str = "layer_norm";

/// What a layer normalisation multiplies with and moves by.
#[derive(Clone, Debug)]
pub struct LayerNormParameters<'a, T: NetworkNumber> {
    /// Of the shape of what is normalised.
    pub weight: Tensor<'a, T>,
    pub bias: Tensor<'a, T>,
    /// Added to the variance.
    pub epsilon: f32,
}

/// The mean of each thing that was normalised, and one over its standard deviation.
#[derive(Debug)]
pub struct LayerNormSaved<'a, T: NetworkNumber> {
    pub mean: TensorMut<'a, T>,
    pub inverse_deviation: TensorMut<'a, T>,
}

/// Where the gradients of a layer normalisation go.
#[derive(Debug)]
pub struct LayerNormGradients<'a, T: NetworkNumber> {
    pub x: TensorMut<'a, T>,
    pub weight: TensorMut<'a, T>,
    pub bias: TensorMut<'a, T>,
}

impl Dnn {
    #[track_caller]
    fn has_layer_norm(&self) -> Result<()> {
        match self.vendor() {
            gpu::Vendor::Amd => Ok(()),
            gpu::Vendor::Nvidia => Err(self.calls().opened.lacks("layer normalisation but by graphs, not wrapped")),
        }
    }

    /// y = (x - mean) / deviation * weight + bias, the mean and deviation of the last dimensions, as many as the
    /// weight has.
    #[track_caller]
    pub fn layer_norm<T: NetworkNumber>(
        &self,
        x: Tensor<'_, T>,
        by: LayerNormParameters<'_, T>,
        y: TensorMut<'_, T>,
        saved: &mut LayerNormSaved<'_, T>,
    ) -> Result<()> {
        self.has_layer_norm()?;
        let lengths = x.shape.lengths().to_vec();
        let first = normalised(&lengths, by.weight.shape.lengths())?;
        let (outer, inner) = lengths.split_at(first);
        let (x, y) = (self.read(CALL, &x)?, self.write_like(CALL, &y, &lengths)?);
        let (w, b) = (self.read_like(CALL, &by.weight, inner)?, self.read_like(CALL, &by.bias, inner)?);
        let mean = self.write_like(CALL, &saved.mean, outer)?;
        let deviation = self.write_like(CALL, &saved.inverse_deviation, outer)?;
        let mode = LayerNormMode::WeightBias.number(self.vendor());
        let first = int(CALL, "a dimension", first)?;
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say.
        unsafe {
            self.calls().layer_norm(
                self.handle(),
                mode,
                x.handle(),
                x.at,
                w.handle(),
                w.at,
                b.handle(),
                b.at,
                by.epsilon,
                first,
                y.handle(),
                y.at,
                mean.handle(),
                mean.at,
                deviation.handle(),
                deviation.at,
            )
        }
    }

    /// The gradients, from x, what `layer_norm` saved, and y's gradient.
    #[track_caller]
    pub fn layer_norm_backward<T: NetworkNumber>(
        &self,
        x: Tensor<'_, T>,
        weight: Tensor<'_, T>,
        saved: &LayerNormSaved<'_, T>,
        dy: Tensor<'_, T>,
        gradients: LayerNormGradients<'_, T>,
    ) -> Result<()> {
        self.has_layer_norm()?;
        let lengths = x.shape.lengths().to_vec();
        let first = normalised(&lengths, weight.shape.lengths())?;
        let (outer, inner) = lengths.split_at(first);
        let (x, dy) = (self.read(CALL, &x)?, self.read_like(CALL, &dy, &lengths)?);
        let w = self.read_like(CALL, &weight, inner)?;
        let mean = self.write_like(CALL, &saved.mean, outer)?;
        let deviation = self.write_like(CALL, &saved.inverse_deviation, outer)?;
        let dx = self.write_like(CALL, &gradients.x, &lengths)?;
        let (dw, db) =
            (self.write_like(CALL, &gradients.weight, inner)?, self.write_like(CALL, &gradients.bias, inner)?);
        let (mode, handle) = (LayerNormMode::WeightBias.number(self.vendor()), self.handle());
        let first = int(CALL, "a dimension", first)?;
        let mut bytes = 0;
        self.enter()?;
        // SAFETY: live descriptors and a valid out pointer.
        unsafe {
            self.calls().layer_norm_back_bytes(
                handle,
                mode,
                dy.handle(),
                x.handle(),
                w.handle(),
                mean.handle(),
                deviation.handle(),
                first,
                dx.handle(),
                dw.handle(),
                db.handle(),
                &mut bytes,
            )
        }?;
        let work = self.workspace(CALL, bytes)?;
        // SAFETY: memory of this queue, as large as the descriptors say; the workspace is as large as was asked for.
        unsafe {
            self.calls().layer_norm_back(
                handle,
                mode,
                work,
                bytes,
                dy.handle(),
                dy.at,
                x.handle(),
                x.at,
                w.handle(),
                w.at,
                mean.handle(),
                mean.at,
                deviation.handle(),
                deviation.at,
                first,
                dx.handle(),
                dx.at,
                dw.handle(),
                dw.at,
                db.handle(),
                db.at,
            )
        }
    }
}

/// The first dimension that is normalised.
#[track_caller]
fn normalised(x: &[usize], weight: &[usize]) -> Result<usize> {
    let is_end = weight.len() < x.len() && x.ends_with(weight);
    ensure(CALL, is_end, || format!("{x:?} does not end with the weight's {weight:?}"))?;
    Ok(x.len() - weight.len())
}
