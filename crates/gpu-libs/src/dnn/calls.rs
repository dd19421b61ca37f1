//! MIOpen and cuDNN. NVIDIA's side is cuDNN's descriptor interface, which version 9 still has beside its graphs.

use std::ffi::c_void;

use gpu::foreign::Address;
use half::{bf16, f16};

pub(crate) use crate::table::{Handle, Host, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// MIOpen | cuDNN
    Calls, role "neural network",
    amd Names {
        name: "MIOpen", sonames: &["libMIOpen.so.1"],
        status_name: "miopenGetErrorString", status_text: "", statuses: &[],
    },
    nvidia Names {
        name: "cuDNN", sonames: &["libcudnn.so.9"],
        status_name: "cudnnGetErrorString", status_text: "", statuses: &[],
    };
    plain {
        create           | "miopenCreate"                 | "cudnnCreate"                   | (handle: *mut Handle);
        destroy          | "miopenDestroy"                | "cudnnDestroy"                  | (handle: Handle);
        set_stream       | "miopenSetStream"              | "cudnnSetStream"                | (handle: Handle, stream: Handle);
        tensor_create    | "miopenCreateTensorDescriptor" | "cudnnCreateTensorDescriptor"   | (tensor: *mut Handle);
        tensor_destroy   | "miopenDestroyTensorDescriptor" | "cudnnDestroyTensorDescriptor" | (tensor: Handle);
        tensor_set       | "miopenSetTensorDescriptor"    | "cudnnSetTensorNdDescriptor"    | (tensor: Handle, number: LibraryChoice, n: Int, lengths: *const Int, strides: *const Int);
        filter_create    | "" | "cudnnCreateFilterDescriptor"  | (filter: *mut Handle);
        filter_destroy   | "" | "cudnnDestroyFilterDescriptor" | (filter: Handle);
        filter_set       | "" | "cudnnSetFilterNdDescriptor"   | (filter: Handle, number: LibraryChoice, layout: LibraryChoice, n: Int, lengths: *const Int);

        convolution_create   | "miopenCreateConvolutionDescriptor"  | "cudnnCreateConvolutionDescriptor"  | (convolution: *mut Handle);
        convolution_destroy  | "miopenDestroyConvolutionDescriptor" | "cudnnDestroyConvolutionDescriptor" | (convolution: Handle);
        convolution_groups   | "miopenSetConvolutionGroupCount"     | "cudnnSetConvolutionGroupCount"     | (convolution: Handle, n: Int);
        convolution_set_amd  | "miopenInitConvolutionNdDescriptor"  | "" | (convolution: Handle, n: Int, padding: *const Int, stride: *const Int, dilation: *const Int, mode: LibraryChoice);
        convolution_set_nvidia | "" | "cudnnSetConvolutionNdDescriptor" | (convolution: Handle, n: Int, padding: *const Int, stride: *const Int, dilation: *const Int, mode: LibraryChoice, sum: LibraryChoice);
        convolution_math     | "" | "cudnnSetConvolutionMathType" | (convolution: Handle, math: LibraryChoice);

        forward_count    | "miopenConvolutionForwardGetSolutionCount" | "" | (handle: Handle, w: Handle, x: Handle, convolution: Handle, y: Handle, n: *mut usize);
        forward_list     | "miopenConvolutionForwardGetSolution" | "" | (handle: Handle, w: Handle, x: Handle, convolution: Handle, y: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        forward_amd      | "miopenConvolutionForwardImmediate" | "" | (handle: Handle, w: Handle, w_at: Address, x: Handle, x_at: Address, convolution: Handle, y: Handle, y_at: Address, work: Address, bytes: usize, solution: u64);
        data_count       | "miopenConvolutionBackwardDataGetSolutionCount" | "" | (handle: Handle, dy: Handle, w: Handle, convolution: Handle, dx: Handle, n: *mut usize);
        data_list        | "miopenConvolutionBackwardDataGetSolution" | "" | (handle: Handle, dy: Handle, w: Handle, convolution: Handle, dx: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        data_amd         | "miopenConvolutionBackwardDataImmediate" | "" | (handle: Handle, dy: Handle, dy_at: Address, w: Handle, w_at: Address, convolution: Handle, dx: Handle, dx_at: Address, work: Address, bytes: usize, solution: u64);
        weights_count    | "miopenConvolutionBackwardWeightsGetSolutionCount" | "" | (handle: Handle, dy: Handle, x: Handle, convolution: Handle, dw: Handle, n: *mut usize);
        weights_list     | "miopenConvolutionBackwardWeightsGetSolution" | "" | (handle: Handle, dy: Handle, x: Handle, convolution: Handle, dw: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        weights_amd      | "miopenConvolutionBackwardWeightsImmediate" | "" | (handle: Handle, dy: Handle, dy_at: Address, x: Handle, x_at: Address, convolution: Handle, dw: Handle, dw_at: Address, work: Address, bytes: usize, solution: u64);

        forward_guess    | "" | "cudnnGetConvolutionForwardAlgorithm_v7" | (handle: Handle, x: Handle, w: Handle, convolution: Handle, y: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        forward_find     | "" | "cudnnFindConvolutionForwardAlgorithm" | (handle: Handle, x: Handle, w: Handle, convolution: Handle, y: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        forward_nvidia   | "" | "cudnnConvolutionForward" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, w: Handle, w_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, y: Handle, y_at: Address);
        data_guess       | "" | "cudnnGetConvolutionBackwardDataAlgorithm_v7" | (handle: Handle, w: Handle, dy: Handle, convolution: Handle, dx: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        data_find        | "" | "cudnnFindConvolutionBackwardDataAlgorithm" | (handle: Handle, w: Handle, dy: Handle, convolution: Handle, dx: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        data_nvidia      | "" | "cudnnConvolutionBackwardData" | (handle: Handle, alpha: Host, w: Handle, w_at: Address, dy: Handle, dy_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, dx: Handle, dx_at: Address);
        weights_guess    | "" | "cudnnGetConvolutionBackwardFilterAlgorithm_v7" | (handle: Handle, x: Handle, dy: Handle, convolution: Handle, dw: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        weights_find     | "" | "cudnnFindConvolutionBackwardFilterAlgorithm" | (handle: Handle, x: Handle, dy: Handle, convolution: Handle, dw: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        weights_nvidia   | "" | "cudnnConvolutionBackwardFilter" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, dy: Handle, dy_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, dw: Handle, dw_at: Address);
        bias_gradient    | "miopenConvolutionBackwardBias" | "cudnnConvolutionBackwardBias" | (handle: Handle, alpha: Host, dy: Handle, dy_at: Address, beta: Host, db: Handle, db_at: Address);

        problem_convolution | "miopenCreateConvProblem" | "" | (problem: *mut Handle, convolution: Handle, direction: LibraryChoice);
        problem_destroy  | "miopenDestroyProblem" | "" | (problem: Handle);
        problem_tensor   | "miopenSetProblemTensorDescriptor" | "" | (problem: Handle, role: LibraryChoice, tensor: Handle);
        find             | "miopenFindSolutions" | "" | (handle: Handle, problem: Handle, options: Handle, solutions: *mut Handle, n: *mut usize, limit: usize);
        solution_destroy | "miopenDestroySolution" | "" | (solution: Handle);
        solution_bytes   | "miopenGetSolutionWorkspaceSize" | "" | (solution: Handle, bytes: *mut usize);
        solution_time    | "miopenGetSolutionTime" | "" | (solution: Handle, ms: *mut f32);
        solution_run     | "miopenRunSolution" | "" | (handle: Handle, solution: Handle, n: usize, tensors: *const AmdArgument, work: Address, bytes: usize);
    }
    typed {}
}

/// `miopenConvSolution_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AmdSolution {
    pub ms: f32,
    pub bytes: usize,
    pub solution: u64,
    pub algorithm: LibraryChoice,
}

/// `miopenTensorArgument_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AmdArgument {
    pub role: LibraryChoice,
    /// Null: the tensor is the one the problem was described with.
    pub tensor: *mut Handle,
    pub at: *mut c_void,
}

/// `cudnnConvolutionFwdAlgoPerf_t` and its two counterparts, which have the same fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvidiaSolution {
    pub algorithm: LibraryChoice,
    pub status: LibraryChoice,
    pub ms: f32,
    pub bytes: usize,
    pub determinism: LibraryChoice,
    pub math: LibraryChoice,
    pub reserved: [Int; 3],
}

/// Structs that cross the border, for the check against the headers: (C++ type, bytes).
#[doc(hidden)]
pub const AMD_SIZES: &[(&str, usize)] =
    &[("miopenConvSolution_t", size_of::<AmdSolution>()), ("miopenTensorArgument_t", size_of::<AmdArgument>())];
#[doc(hidden)]
pub const NVIDIA_SIZES: &[(&str, usize)] = &[
    ("cudnnConvolutionFwdAlgoPerf_t", size_of::<NvidiaSolution>()),
    ("cudnnConvolutionBwdDataAlgoPerf_t", size_of::<NvidiaSolution>()),
    ("cudnnConvolutionBwdFilterAlgoPerf_t", size_of::<NvidiaSolution>()),
];

numbers! {
    /// What a tensor's elements are.
    pub enum DataType {
        F32 = "miopenFloat" 1 | "CUDNN_DATA_FLOAT" 0;
        F16 = "miopenHalf" 0 | "CUDNN_DATA_HALF" 2;
        BF16 = "miopenBFloat16" 5 | "CUDNN_DATA_BFLOAT16" 9;
    }
    pub(crate) enum FilterLayout {
        ChannelsFirst = "" 0 | "CUDNN_TENSOR_NCHW" 0;
        ChannelsLast = "" 0 | "CUDNN_TENSOR_NHWC" 1;
    }
    /// What neural networks call a convolution is a correlation: the filter is not turned over.
    pub(crate) enum ConvolutionMode {
        Correlation = "miopenConvolution" 0 | "CUDNN_CROSS_CORRELATION" 1;
    }
    /// Matrix units are allowed wherever they take the numbers as they are.
    pub(crate) enum MathType {
        Default = "" 0 | "CUDNN_DEFAULT_MATH" 0;
        /// No rounding of f32 to tf32.
        Fma = "" 0 | "CUDNN_FMA_MATH" 3;
    }
    /// Which of a convolution's three products is computed.
    pub enum Pass {
        Forward = "miopenProblemDirectionForward" 0 | "" 0;
        BackwardData = "miopenProblemDirectionBackward" 1 | "" 0;
        BackwardWeights = "miopenProblemDirectionBackwardWeights" 2 | "" 0;
    }
    pub(crate) enum Role {
        X = "miopenTensorConvolutionX" 1 | "" 0;
        W = "miopenTensorConvolutionW" 2 | "" 0;
        Y = "miopenTensorConvolutionY" 3 | "" 0;
    }
}

/// A number that both libraries compute networks with: `f32`, `f16` or `bf16`. Scale factors and sums are f32.
pub trait NetworkNumber: gpu::Element {
    const TYPE: DataType;
}

impl NetworkNumber for f32 {
    const TYPE: DataType = DataType::F32;
}

impl NetworkNumber for f16 {
    const TYPE: DataType = DataType::F16;
}

impl NetworkNumber for bf16 {
    const TYPE: DataType = DataType::BF16;
}
