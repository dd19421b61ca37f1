//! Neural networks: MIOpen | cuDNN.
//!
//! A [`Dnn`] is a handle of one queue. An operation is an object made for shapes and a number type, which holds the
//! library's descriptors and runs on tensors of those shapes. Tensors are views with strides; the second dimension
//! counts channels, whichever way they lie in memory. Numbers are f32, f16 or bf16, sums and scale factors f32.
//!
//! MIOpen compiles most kernels when they are first used and keeps them in `~/.cache/miopen`.

mod activation;
mod attention;
mod batch_norm;
mod calls;
mod convolution;
mod convolution_options;
mod convolution_solution;
mod descriptor;
mod dropout;
mod fusion;
mod layer_norm;
mod operand;
mod pooling;
mod recurrent;
mod recurrent_options;
mod reduce;
mod softmax;
mod tensor;

use std::rc::Rc;

use gpu::foreign::{Address, Binding};
use gpu::{Buffer, Queue, Vendor};

pub use activation::Activation;
pub use attention::{Attention, AttentionMask, AttentionSaved};
pub use batch_norm::{BatchNorm, BatchNormGradients, BatchNormParameters, BatchNormSaved, BatchNormStatistics};
#[doc(hidden)]
pub use calls::{AMD_SIZES, NVIDIA_SIZES};
pub use calls::{
    BatchNormMode, Calls, DataType, NetworkNumber, Pass, PoolingMode, Reduction, RnnBias, RnnCell, RnnDirection,
    SoftmaxKind, SoftmaxOver,
};
pub(crate) use calls::{Handle, Host, Int};
pub use convolution::Convolution;
pub use convolution_options::ConvolutionOptions;
pub use convolution_solution::ConvolutionSolution;
pub use dropout::{Dropout, DropoutMask};
pub use fusion::{FusedBatchNorm, FusedConvolution};
pub use layer_norm::{LayerNormGradients, LayerNormParameters, LayerNormSaved};
pub use pooling::{Pooling, PoolingOptions};
pub use recurrent::{Rnn, RnnGradients, RnnOutputGradients, RnnSaved, RnnState, RnnStateMut, RnnTensors};
pub use recurrent_options::{RnnGate, RnnOptions, RnnPart, RnnSource, RnnWay};
pub use tensor::{Tensor, TensorLayout, TensorMut, TensorShape};

use crate::error::{Result, report_late};
use crate::workspace::Workspace;

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[
    DataType::NUMBERS,
    calls::FilterLayout::NUMBERS,
    calls::ConvolutionMode::NUMBERS,
    calls::MathType::NUMBERS,
    Pass::NUMBERS,
    SoftmaxKind::NUMBERS,
    SoftmaxOver::NUMBERS,
    calls::ActivationMode::NUMBERS,
    calls::Nan::NUMBERS,
    PoolingMode::NUMBERS,
    calls::PoolingIndex::NUMBERS,
    BatchNormMode::NUMBERS,
    calls::LayerNormMode::NUMBERS,
    Reduction::NUMBERS,
    calls::ReductionIndices::NUMBERS,
    calls::ReductionIndex::NUMBERS,
    calls::DropoutMethod::NUMBERS,
    calls::Role::NUMBERS,
    RnnCell::NUMBERS,
    RnnDirection::NUMBERS,
    RnnBias::NUMBERS,
    calls::RnnInput::NUMBERS,
    calls::RnnAlgorithm::NUMBERS,
    calls::RnnPass::NUMBERS,
    calls::RnnLayout::NUMBERS,
    calls::RnnPadding::NUMBERS,
    calls::WeightGradient::NUMBERS,
    calls::StepsAxis::NUMBERS,
    calls::AttentionRole::NUMBERS,
    calls::IndexType::NUMBERS,
    calls::FusionDirection::NUMBERS,
    calls::FusedAlgorithm::NUMBERS,
];

/// A handle of one queue. Clones are the same handle.
#[derive(Clone)]
pub struct Dnn {
    inner: Rc<Inner>,
}

struct Inner {
    calls: &'static Calls,
    handle: Handle,
    binding: Binding,
    work: Workspace,
}

impl Dnn {
    /// A handle whose workspace grows with what is asked of it.
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        Self::of_binding(Binding::new(queue)?)
    }

    /// As [`Self::new`], for a stream that is no `Queue`.
    #[track_caller]
    pub fn of_binding(binding: Binding) -> Result<Self> {
        let work = Workspace::growing(&binding)?;
        Self::make(binding, work)
    }

    /// A handle that works in `workspace` alone: what does not fit is not chosen, or is an error.
    #[track_caller]
    pub fn with_workspace(queue: &Queue, workspace: Buffer<u8>) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let work = Workspace::fixed(&binding, workspace)?;
        Self::make(binding, work)
    }

    #[track_caller]
    fn make(binding: Binding, work: Workspace) -> Result<Self> {
        let calls = Calls::get(binding.vendor())?;
        binding.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.create(&mut handle) }?;
        let dnn = Self { inner: Rc::new(Inner { calls, handle, binding, work }) };
        // SAFETY: a live handle and a stream that the binding keeps alive.
        unsafe { calls.set_stream(handle, dnn.inner.binding.stream()) }?;
        Ok(dnn)
    }

    /// `MIOpen (libMIOpen.so.1)`
    pub fn library(&self) -> String {
        self.inner.calls.opened.label()
    }

    fn calls(&self) -> &'static Calls {
        self.inner.calls
    }

    fn handle(&self) -> Handle {
        self.inner.handle
    }

    fn binding(&self) -> &Binding {
        &self.inner.binding
    }

    fn vendor(&self) -> Vendor {
        self.inner.binding.vendor()
    }

    /// Before each call.
    #[track_caller]
    fn enter(&self) -> Result<()> {
        Ok(self.inner.binding.enter()?)
    }

    /// The most bytes an operation may work in.
    fn workspace_limit(&self) -> usize {
        self.inner.work.limit().unwrap_or(usize::MAX)
    }

    /// At least `bytes` of memory, valid for what is enqueued before the next call of this.
    #[track_caller]
    fn workspace(&self, call: &'static str, bytes: usize) -> Result<Address> {
        self.inner.work.at_least(&self.inner.binding, call, bytes)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Kernels of the library may be under way in its own memory.
        if self.binding.wait().is_err() {
            return;
        }
        // SAFETY: a handle that is destroyed once; nothing of it is under way.
        report_late(&self.binding, unsafe { self.calls.destroy(self.handle) });
    }
}

/// A scale factor as the libraries take it: on the host, f32 for every type of [`NetworkNumber`].
fn host(value: &f32) -> Host {
    std::ptr::from_ref(value).cast()
}
