//! Several layers in one kernel: a convolution with its bias and activation, a batch normalisation with its activation.
//!
//! MIOpen fuses what it has kernels for on a device and says so when a fusion is made. cuDNN fuses convolutions with
//! ReLU or with no activation, and no batch normalisation with known means.

use gpu::foreign::Address;
use gpu::{Slice, Vendor};

use super::activation::Activation;
use super::batch_norm::BatchNormParameters;
use super::calls::{Calls, FusedAlgorithm, FusionDirection};
use super::convolution::Convolution;
use super::convolution_options::ConvolutionOptions;
use super::descriptor::Descriptor;
use super::{BatchNormMode, Dnn, Handle, NetworkNumber, Pass, Tensor, TensorMut, TensorShape, host};
use crate::error::{Error, Result, ensure};

const CALL: &str = "fusion";

/// MIOpen's plan: what follows what. Its operations belong to it.
struct FusionPlan {
    dnn: Dnn,
    plan: Descriptor,
}

impl FusionPlan {
    #[track_caller]
    fn new(dnn: &Dnn, x: Handle) -> Result<Self> {
        let mut plan: Handle = std::ptr::null_mut();
        let direction = FusionDirection::Vertical.number(Vendor::Amd);
        dnn.enter()?;
        // SAFETY: a valid out pointer and a live descriptor, which the library copies.
        unsafe { dnn.calls().fusion_create(&mut plan, direction, x) }?;
        Ok(Self { dnn: dnn.clone(), plan: Descriptor::own(dnn, plan, Calls::fusion_destroy) })
    }

    /// An operation that `add` appends.
    #[track_caller]
    fn operation(&self, add: impl FnOnce(Handle, *mut Handle) -> Result<()>) -> Result<Handle> {
        let mut operation: Handle = std::ptr::null_mut();
        add(self.plan.handle(), &mut operation)?;
        Ok(operation)
    }

    /// Refuses what the library has no kernel for. An unknown error is a kernel that it knows of and was packed without,
    /// as Debian packs it without Winograd's; it names the file on standard error.
    #[track_caller]
    fn compile(&self, what: impl FnOnce() -> String) -> Result<()> {
        // SAFETY: a live plan.
        let done = unsafe { self.dnn.calls().fusion_compile(self.dnn.handle(), self.plan.handle()) };
        done.map_err(|error| match error {
            Error::Call { library, name, .. }
                if name == "miopenStatusUnsupportedOp" || name == "miopenStatusUnknownError" =>
            {
                let arch = &self.dnn.binding().device().properties().arch;
                Error::Unsupported { library, what: format!("fused {} on {arch} ({name})", what()) }
            }
            other => other,
        })
    }

    /// Runs it on operands that `set` fills in.
    #[track_caller]
    fn run(
        &self,
        [x, y]: [Handle; 2],
        [at_x, at_y]: [Address; 2],
        set: impl FnOnce(Handle) -> Result<()>,
    ) -> Result<()> {
        let calls = self.dnn.calls();
        let operands = Descriptor::make(&self.dnn, Calls::operands_create, Calls::operands_destroy)?;
        set(operands.handle())?;
        let (handle, plan, mut bytes) = (self.dnn.handle(), self.plan.handle(), 0);
        // SAFETY: a live plan and a valid out pointer.
        unsafe { calls.fusion_bytes(handle, plan, &mut bytes, FusedAlgorithm::Direct.number(Vendor::Amd)) }?;
        let work = self.dnn.workspace(CALL, bytes)?;
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the plan's descriptors by the caller; operands of its
        // operations; the workspace is as large as was asked for.
        unsafe { calls.fusion_run(handle, plan, x, at_x, y, at_y, operands.handle(), work, bytes) }
    }
}

/// y = f(x convolved with w + bias), a bias for each channel of y.
pub struct FusedConvolution<T: NetworkNumber> {
    convolution: Convolution<T>,
    activation: Activation,
    /// cuDNN's.
    function: Descriptor,
    /// MIOpen's: the plan with its convolution, bias and, where there is one, activation.
    plan: Option<(FusionPlan, Handle, Handle, Option<Handle>)>,
}

impl<T: NetworkNumber> FusedConvolution<T> {
    /// A convolution of `x` (batch, channels, space) with filters `w` (channels out, channels in by groups, space).
    #[track_caller]
    pub fn new(
        dnn: &Dnn,
        x: &TensorShape,
        w: &TensorShape,
        options: &ConvolutionOptions,
        activation: Activation,
    ) -> Result<Self> {
        let convolution = Convolution::<T>::new(dnn, x, w, options)?;
        let function = activation.descriptor(dnn)?;
        let what = || format!("convolution of {:?} and {:?}, bias and {activation:?}", x.lengths(), w.lengths());
        let calls = dnn.calls();
        let plan = if dnn.vendor() == Vendor::Amd {
            let (descriptor, [of_x, of_w, _], bias) = convolution.handles();
            let plan = FusionPlan::new(dnn, of_x)?;
            let filter = plan.operation(|plan, op| {
                // SAFETY: live descriptors and a valid out pointer.
                unsafe { calls.fused_convolution(plan, op, descriptor, of_w) }
            })?;
            let added = plan.operation(|plan, op| {
                // SAFETY: as above.
                unsafe { calls.fused_bias(plan, op, bias) }
            })?;
            let mode = activation.mode().number(Vendor::Amd);
            let last = match activation {
                Activation::Identity => None,
                _ => Some(plan.operation(|plan, op| {
                    // SAFETY: as above.
                    unsafe { calls.fused_activation(plan, op, mode) }
                })?),
            };
            plan.compile(what)?;
            Some((plan, filter, added, last))
        } else {
            if !matches!(activation, Activation::Identity | Activation::Relu) {
                return Err(calls.opened.lacks(format!("fused {}: ReLU or nothing", what())));
            }
            None
        };
        Ok(Self { convolution, activation, function, plan })
    }

    /// The output's shape.
    pub fn output(&self) -> &TensorShape {
        self.convolution.output()
    }

    /// y = f(x convolved with w + bias)
    #[track_caller]
    pub fn forward(&self, x: Tensor<'_, T>, w: Tensor<'_, T>, bias: Slice<'_, T>, y: TensorMut<'_, T>) -> Result<()> {
        let [at_x, at_w, at_y] = self.convolution.addresses(&x, &w, &y)?;
        let channels = self.output().lengths()[1];
        ensure(CALL, bias.len() == channels, || format!("{} biases of {channels} channels", bias.len()))?;
        let dnn = self.convolution.dnn();
        let at_bias = dnn.binding().input(&bias)?;
        let (descriptor, [of_x, of_w, of_y], of_bias) = self.convolution.handles();
        let (calls, one, zero) = (dnn.calls(), host(&1.0), host(&0.0));
        if let Some((plan, filter, added, last)) = &self.plan {
            let coefficient = self.activation.coefficient();
            return plan.run([of_x, of_y], [at_x, at_y], |operands| {
                // SAFETY: live operands and operations of this plan; memory of this queue, checked against their
                // descriptors; scale factors, which the library copies.
                unsafe {
                    calls.operands_convolution(operands, *filter, one, zero, at_w)?;
                    calls.operands_bias(operands, *added, one, zero, at_bias)?;
                    match last {
                        Some(last) => calls.operands_activation(operands, *last, one, zero, coefficient, 1.0, 1.0),
                        None => Ok(()),
                    }
                }
            });
        }
        // The one algorithm that cuDNN has for both functions.
        let algorithm = FusedAlgorithm::Direct.number(Vendor::Nvidia);
        let bytes = self.convolution.bytes_of_algorithm(Pass::Forward, algorithm)?;
        let work = dnn.workspace(CALL, bytes)?;
        let handle = dnn.handle();
        dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors; z is y and is multiplied by zero; the workspace
        // is as large as was asked for; scale factors that outlive the call.
        unsafe {
            calls.fused_nvidia(
                handle,
                one,
                of_x,
                at_x,
                of_w,
                at_w,
                descriptor,
                algorithm,
                work,
                bytes,
                zero,
                of_y,
                at_y,
                of_bias,
                at_bias,
                self.function.handle(),
                of_y,
                at_y,
            )
        }
    }
}

/// y = f((x - mean) / deviation * scale + bias), with means and variances that are known; MIOpen's alone.
pub struct FusedBatchNorm<T: NetworkNumber> {
    plan: FusionPlan,
    norm: Handle,
    last: Handle,
    x: Descriptor,
    shape: TensorShape,
    parameters: usize,
    activation: Activation,
    number: std::marker::PhantomData<T>,
}

impl<T: NetworkNumber> FusedBatchNorm<T> {
    /// A normalisation of `x` (batch, channels, space).
    #[track_caller]
    pub fn new(dnn: &Dnn, x: &TensorShape, mode: BatchNormMode, activation: Activation) -> Result<Self> {
        if dnn.vendor() == Vendor::Nvidia {
            return Err(dnn.calls().opened.lacks("fused batch normalisation with known means"));
        }
        let norm = super::BatchNorm::<T>::new(dnn, x, mode)?;
        let tensor = Descriptor::tensor(dnn, CALL, T::TYPE, x)?;
        let (calls, plan) = (dnn.calls(), FusionPlan::new(dnn, tensor.handle())?);
        let (number, derived) = (mode.number(Vendor::Amd), norm.derived());
        let first = plan.operation(|plan, op| {
            // SAFETY: live descriptors and a valid out pointer.
            unsafe { calls.fused_batch_norm(plan, op, number, derived) }
        })?;
        let function = activation.mode().number(Vendor::Amd);
        let last = plan.operation(|plan, op| {
            // SAFETY: as above.
            unsafe { calls.fused_activation(plan, op, function) }
        })?;
        plan.compile(|| format!("batch normalisation of {:?} and {activation:?}", x.lengths()))?;
        let parameters = norm.parameters();
        let number = std::marker::PhantomData;
        Ok(Self { plan, norm: first, last, x: tensor, shape: x.clone(), parameters, activation, number })
    }

    /// y, of x's shape.
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
        for found in [x.shape(), y.shape()] {
            ensure(CALL, *found == self.shape, || format!("{found:?} where {:?} is due", self.shape))?;
        }
        let dnn = &self.plan.dnn;
        let known = |parameters: &Slice<'_, f32>| -> Result<Address> {
            let (len, due) = (parameters.len(), self.parameters);
            ensure(CALL, len == due, || format!("{len} parameters where {due} are due"))?;
            Ok(dnn.binding().input(parameters)?)
        };
        let (scale, bias, mean, variance) = (known(&by.scale)?, known(&by.bias)?, known(&mean)?, known(&variance)?);
        let at = [dnn.binding().input(&x.data)?, dnn.binding().output(&y.data)?];
        let (calls, one, zero, coefficient) = (dnn.calls(), host(&1.0), host(&0.0), self.activation.coefficient());
        self.plan.run([self.x.handle(); 2], at, |operands| {
            // SAFETY: live operands and operations of this plan; memory of this queue, as large as its descriptors say;
            // scale factors, which the library copies.
            unsafe {
                calls.operands_batch_norm(operands, self.norm, one, zero, scale, bias, mean, variance, epsilon)?;
                calls.operands_activation(operands, self.last, one, zero, coefficient, 1.0, 1.0)
            }
        })
    }
}
