//! Functions of single elements, forward and backward.

use gpu::Vendor;

use super::calls::{ActivationMode, Calls, Nan};
use super::descriptor::Descriptor;
use super::{Dnn, NetworkNumber, Tensor, TensorMut, host};
use crate::error::Result;

/// A function of single elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    Identity,
    /// 1 / (1 + e^-x)
    Sigmoid,
    Tanh,
    /// max(0, x)
    Relu,
    /// min(limit, max(0, x))
    ClippedRelu {
        limit: f64,
    },
    /// x above zero, alpha (e^x - 1) below
    Elu {
        alpha: f64,
    },
    /// x above zero, slope x below; MIOpen's alone.
    LeakyRelu {
        slope: f64,
    },
    /// ln(1 + e^x); MIOpen's alone.
    Softplus,
    /// |x|; MIOpen's alone.
    Abs,
    /// x / (1 + e^(-beta x)); cuDNN's alone.
    Swish {
        beta: f64,
    },
}

impl Activation {
    pub(super) fn mode(self) -> ActivationMode {
        match self {
            Activation::Identity => ActivationMode::Identity,
            Activation::Sigmoid => ActivationMode::Sigmoid,
            Activation::Tanh => ActivationMode::Tanh,
            Activation::Relu => ActivationMode::Relu,
            Activation::ClippedRelu { .. } => ActivationMode::ClippedRelu,
            Activation::Elu { .. } => ActivationMode::Elu,
            Activation::LeakyRelu { .. } => ActivationMode::LeakyRelu,
            Activation::Softplus => ActivationMode::Softplus,
            Activation::Abs => ActivationMode::Abs,
            Activation::Swish { .. } => ActivationMode::Swish,
        }
    }

    /// The function's own number. MIOpen's tanh is beta tanh(alpha x).
    pub(super) fn coefficient(self) -> f64 {
        match self {
            Activation::ClippedRelu { limit } => limit,
            Activation::Elu { alpha } => alpha,
            Activation::LeakyRelu { slope } => slope,
            Activation::Swish { beta } => beta,
            Activation::Tanh => 1.0,
            _ => 0.0,
        }
    }

    #[track_caller]
    pub(super) fn descriptor(self, dnn: &Dnn) -> Result<Descriptor> {
        let vendor = dnn.vendor();
        let Some(mode) = self.mode().number_if_any(vendor) else {
            return Err(dnn.calls().opened.lacks(format!("activation {self:?}")));
        };
        let made = Descriptor::make(dnn, Calls::activation_create, Calls::activation_destroy)?;
        let (calls, coefficient) = (dnn.calls(), self.coefficient());
        // SAFETY: a live descriptor.
        unsafe {
            match vendor {
                Vendor::Amd => calls.activation_set_amd(made.handle(), mode, coefficient, 1.0, 1.0)?,
                Vendor::Nvidia => {
                    let nan = Nan::Propagate.number(vendor);
                    calls.activation_set_nvidia(made.handle(), mode, nan, coefficient)?;
                    if let Activation::Swish { beta } = self {
                        calls.activation_swish(made.handle(), beta)?;
                    }
                }
            }
        }
        Ok(made)
    }
}

impl Dnn {
    /// y = f(x)
    #[track_caller]
    pub fn activate<T: NetworkNumber>(
        &self,
        activation: Activation,
        x: Tensor<'_, T>,
        y: TensorMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "activate";
        let (x, y) = (self.read(CALL, &x)?, self.write_like(CALL, &y, x.shape.lengths())?);
        let by = activation.descriptor(self)?;
        let (one, zero) = (host(&1.0), host(&0.0));
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; scale factors that outlive the call.
        unsafe { self.calls().activation(self.handle(), by.handle(), one, x.handle(), x.at, zero, y.handle(), y.at) }
    }

    /// x's gradient, from x, y = f(x) and y's gradient.
    #[track_caller]
    pub fn activate_backward<T: NetworkNumber>(
        &self,
        activation: Activation,
        x: Tensor<'_, T>,
        y: Tensor<'_, T>,
        dy: Tensor<'_, T>,
        dx: TensorMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "activate_backward";
        let x = self.read(CALL, &x)?;
        let lengths = x.shape.lengths();
        let (y, dy) = (self.read_like(CALL, &y, lengths)?, self.read_like(CALL, &dy, lengths)?);
        let dx = self.write_like(CALL, &dx, lengths)?;
        let by = activation.descriptor(self)?;
        let (one, zero) = (host(&1.0), host(&0.0));
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; scale factors that outlive the call.
        unsafe {
            self.calls().activation_back(
                self.handle(),
                by.handle(),
                one,
                y.handle(),
                y.at,
                dy.handle(),
                dy.at,
                x.handle(),
                x.at,
                zero,
                dx.handle(),
                dx.at,
            )
        }
    }
}
