//! Batch normalisation: training, inference and its gradients.

use gpu::foreign::Address;
use gpu::{Slice, SliceMut};

use super::calls::{BatchNormMode, Calls};
use super::descriptor::Descriptor;
use super::{Dnn, NetworkNumber, Tensor, TensorMut, TensorShape, host};
use crate::error::{Result, ensure};

const CALL: &str = "batch_norm";

/// What normalised numbers are multiplied with and moved by; one of each for whatever has a mean of its own.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormParameters<'a> {
    pub scale: Slice<'a, f32>,
    pub bias: Slice<'a, f32>,
}

/// A running mean and variance, which move towards those of a batch by `factor`.
#[derive(Debug)]
pub struct BatchNormStatistics<'a> {
    pub factor: f64,
    pub mean: SliceMut<'a, f32>,
    pub variance: SliceMut<'a, f32>,
}

/// What the gradient needs of a batch: its means, and one over its standard deviations.
#[derive(Debug)]
pub struct BatchNormSaved<'a> {
    pub mean: SliceMut<'a, f32>,
    pub inverse_deviation: SliceMut<'a, f32>,
}

/// A batch normalisation of tensors of one shape.
pub struct BatchNorm<T: NetworkNumber> {
    dnn: Dnn,
    mode: BatchNormMode,
    shape: TensorShape,
    x: Descriptor,
    parameters: Descriptor,
    number: std::marker::PhantomData<T>,
}

impl<T: NetworkNumber> BatchNorm<T> {
    /// A normalisation of `x` (batch, channels, space).
    #[track_caller]
    pub fn new(dnn: &Dnn, x: &TensorShape, mode: BatchNormMode) -> Result<Self> {
        let lengths = x.lengths();
        ensure(CALL, lengths.len() >= 2, || format!("{lengths:?} has no channels"))?;
        let tensor = Descriptor::tensor(dnn, CALL, T::TYPE, x)?;
        let parameters = Descriptor::make(dnn, Calls::tensor_create, Calls::tensor_destroy)?;
        // SAFETY: live descriptors.
        unsafe { dnn.calls().batch_norm_derive(parameters.handle(), tensor.handle(), mode.number(dnn.vendor())) }?;
        let number = std::marker::PhantomData;
        Ok(Self { dnn: dnn.clone(), mode, shape: x.clone(), x: tensor, parameters, number })
    }

    /// How many means there are.
    pub fn parameters(&self) -> usize {
        let lengths = self.shape.lengths();
        match self.mode {
            BatchNormMode::Channels => lengths[1],
            BatchNormMode::Places => lengths[1..].iter().product(),
        }
    }

    /// The descriptor of the parameters.
    pub(super) fn derived(&self) -> super::Handle {
        self.parameters.handle()
    }

    /// y, with means and variances that are known.
    #[track_caller]
    pub fn inference(
        &self,
        x: Tensor<'_, T>,
        by: BatchNormParameters<'_>,
        mean: Slice<'_, f32>,
        variance: Slice<'_, f32>,
        epsilon: f64,
        y: TensorMut<'_, T>,
    ) -> Result<()> {
        let (at_x, at_y) = (self.input(&x)?, self.target(&y)?);
        let (scale, bias) = (self.known(&by.scale)?, self.known(&by.bias)?);
        let (mean, variance) = (self.known(&mean)?, self.known(&variance)?);
        let (calls, vendor, handle) = (self.dnn.calls(), self.dnn.vendor(), self.dnn.handle());
        let (mode, x, one, zero) = (self.mode.number(vendor), self.x.handle(), host(&1.0), host(&0.0));
        let parameters = self.parameters.handle();
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors; scale factors that outlive the call.
        unsafe {
            calls.batch_norm_infer(
                handle, mode, one, zero, x, at_x, x, at_y, parameters, scale, bias, mean, variance, epsilon,
            )
        }
    }

    /// y, with the means and variances of this batch, which are kept in `saved` for the gradient. The running
    /// variance is that of a sample (over n - 1).
    #[track_caller]
    pub fn training(
        &self,
        x: Tensor<'_, T>,
        by: BatchNormParameters<'_>,
        running: Option<BatchNormStatistics<'_>>,
        epsilon: f64,
        saved: &mut BatchNormSaved<'_>,
        y: TensorMut<'_, T>,
    ) -> Result<()> {
        let (at_x, at_y) = (self.input(&x)?, self.target(&y)?);
        let (scale, bias) = (self.known(&by.scale)?, self.known(&by.bias)?);
        let (factor, mean, variance) = match &running {
            Some(running) => (running.factor, self.written(&running.mean)?, self.written(&running.variance)?),
            None => (0.0, 0, 0),
        };
        let (saved_mean, saved_deviation) = (self.written(&saved.mean)?, self.written(&saved.inverse_deviation)?);
        let (calls, vendor, handle) = (self.dnn.calls(), self.dnn.vendor(), self.dnn.handle());
        let (mode, x, one, zero) = (self.mode.number(vendor), self.x.handle(), host(&1.0), host(&0.0));
        let parameters = self.parameters.handle();
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors, null where the libraries allow it; scale
        // factors that outlive the call.
        unsafe {
            calls.batch_norm_train(
                handle,
                mode,
                one,
                zero,
                x,
                at_x,
                x,
                at_y,
                parameters,
                scale,
                bias,
                factor,
                mean,
                variance,
                epsilon,
                saved_mean,
                saved_deviation,
            )
        }
    }

    /// The gradients of x, the scale and the bias, from y's and what `training` has saved.
    #[track_caller]
    pub fn backward(
        &self,
        x: Tensor<'_, T>,
        dy: Tensor<'_, T>,
        scale: Slice<'_, f32>,
        epsilon: f64,
        saved: &BatchNormSaved<'_>,
        gradients: BatchNormGradients<'_, T>,
    ) -> Result<()> {
        let (at_x, at_dy, at_dx) = (self.input(&x)?, self.input(&dy)?, self.target(&gradients.x)?);
        let scale = self.known(&scale)?;
        let (mean, deviation) = (self.written(&saved.mean)?, self.written(&saved.inverse_deviation)?);
        let (ds, db) = (self.written(&gradients.scale)?, self.written(&gradients.bias)?);
        let (calls, vendor, handle) = (self.dnn.calls(), self.dnn.vendor(), self.dnn.handle());
        let (mode, x, one, zero) = (self.mode.number(vendor), self.x.handle(), host(&1.0), host(&0.0));
        let parameters = self.parameters.handle();
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors; scale factors that outlive the call.
        unsafe {
            calls.batch_norm_back(
                handle, mode, one, zero, one, zero, x, at_x, x, at_dy, x, at_dx, parameters, scale, ds, db, epsilon,
                mean, deviation,
            )
        }
    }

    #[track_caller]
    fn fits(&self, found: &TensorShape) -> Result<()> {
        ensure(CALL, *found == self.shape, || format!("{found:?} where {:?} is due", self.shape))
    }

    #[track_caller]
    fn input(&self, tensor: &Tensor<'_, T>) -> Result<Address> {
        self.fits(&tensor.shape)?;
        Ok(self.dnn.binding().input(&tensor.data)?)
    }

    #[track_caller]
    fn target(&self, tensor: &TensorMut<'_, T>) -> Result<Address> {
        self.fits(&tensor.shape)?;
        Ok(self.dnn.binding().output(&tensor.data)?)
    }

    #[track_caller]
    fn one_each(&self, len: usize) -> Result<()> {
        let n = self.parameters();
        ensure(CALL, len == n, || format!("{len} parameters where {n} are due"))
    }

    #[track_caller]
    fn known(&self, parameters: &Slice<'_, f32>) -> Result<Address> {
        self.one_each(parameters.len())?;
        Ok(self.dnn.binding().input(parameters)?)
    }

    #[track_caller]
    fn written(&self, parameters: &SliceMut<'_, f32>) -> Result<Address> {
        self.one_each(parameters.len())?;
        Ok(self.dnn.binding().output(parameters)?)
    }
}

/// Where the gradients of the input and of the parameters go.
#[derive(Debug)]
pub struct BatchNormGradients<'a, T: NetworkNumber> {
    pub x: TensorMut<'a, T>,
    pub scale: SliceMut<'a, f32>,
    pub bias: SliceMut<'a, f32>,
}
