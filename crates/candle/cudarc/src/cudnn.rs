//! Convolutions by MIOpen or cuDNN, under the names of cudarc's `cudnn` that Candle's feature `cudnn` asks for.
//!
//! The libraries are crate `gpu-libs`' business. What is decided here: which algorithm computes is the library's own choice,
//! whatever Candle names; sums are f32; a shape is planned once and kept; inputs that are not dense are copied first, because
//! MIOpen takes their strides and then computes as if they were. What is not offered (f64, u8) is an error: nothing goes another
//! way in silence.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use gpu_libs::dnn::{Convolution, ConvolutionOptions, Dnn, NetworkNumber, TensorShape};
use half::{bf16, f16};

use crate::driver::{
    CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use crate::nvrtc::Ptx;

const PACK: &str = include_str!("pack.hip");

pub use safe::{ConvForward, Cudnn};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CudnnError(String);

impl From<gpu_libs::Error> for CudnnError {
    fn from(error: gpu_libs::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<crate::driver::DriverError> for CudnnError {
    fn from(error: crate::driver::DriverError) -> Self {
        Self(error.to_string())
    }
}

pub mod sys {
    //! The few names of cuDNN's header that Candle spells out.
    #![allow(non_camel_case_types, reason = "the names are the header's")]

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cudnnConvolutionMode_t {
        CUDNN_CONVOLUTION,
        CUDNN_CROSS_CORRELATION,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cudnnTensorFormat_t {
        CUDNN_TENSOR_NCHW,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cudnnConvolutionFwdAlgo_t {
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_DIRECT,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
        CUDNN_CONVOLUTION_FWD_ALGO_COUNT,
    }
}

/// A number type that Candle may ask a convolution of.
pub trait CudnnDataType: DeviceRepr + Copy + PartialEq + 'static {
    #[doc(hidden)]
    const ZERO: Self;
    #[doc(hidden)]
    const ONE: Self;

    /// # Safety
    /// x, w and y are memory of the handle's stream with elements of the shape's three spans.
    #[doc(hidden)]
    unsafe fn forward(_cudnn: &Cudnn, _shape: &Shape, _at: [u64; 3]) -> Result<(), CudnnError> {
        Err(refused::<Self>())
    }
}

fn refused<T>() -> CudnnError {
    let name = std::any::type_name::<T>();
    CudnnError(format!("no convolution of {name} here: cast it to f32, or build Candle without feature `cudnn`"))
}

macro_rules! convolved {
    ($($ty:ty = $zero:expr, $one:expr;)*) => {$(
        impl CudnnDataType for $ty {
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            unsafe fn forward(cudnn: &Cudnn, shape: &Shape, [x, w, y]: [u64; 3]) -> Result<(), CudnnError> {
                // SAFETY: the caller's.
                Ok(unsafe { cudnn.plan::<$ty>(shape)?.forward_at(x, w, y) }?)
            }
        }
    )*};
}

convolved! {
    f32 = 0.0, 1.0;
    f16 = f16::ZERO, f16::ONE;
    bf16 = bf16::ZERO, bf16::ONE;
}

impl CudnnDataType for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

impl CudnnDataType for u8 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
}

/// What a convolution is planned for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[doc(hidden)]
pub struct Shape {
    x: Vec<usize>,
    w: Vec<usize>,
    y: Vec<usize>,
    options: [[usize; 2]; 3],
}

pub mod safe {
    use super::*;

    /// One stream's handle, and the convolutions planned so far.
    pub struct Cudnn {
        stream: Arc<CudaStream>,
        dnn: Dnn,
        pack: Arc<CudaModule>,
        plans: RefCell<HashMap<(std::any::TypeId, Shape), Rc<dyn Any>>>,
    }

    pub struct ConvDescriptor<C> {
        options: [[usize; 2]; 3],
        sum: PhantomData<C>,
    }

    pub struct TensorDescriptor<T> {
        lengths: Vec<usize>,
        strides: Vec<usize>,
        cudnn: Arc<Cudnn>,
        number: PhantomData<T>,
    }

    pub struct FilterDescriptor<T> {
        lengths: Vec<usize>,
        number: PhantomData<T>,
    }

    /// y = x convolved with w.
    pub struct ConvForward<'a, X: CudnnDataType, C: CudnnDataType, Y: CudnnDataType> {
        pub conv: &'a ConvDescriptor<C>,
        pub x: &'a TensorDescriptor<X>,
        pub w: &'a FilterDescriptor<X>,
        pub y: &'a TensorDescriptor<Y>,
    }

    fn dense(lengths: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; lengths.len()];
        for i in (1..lengths.len()).rev() {
            strides[i - 1] = strides[i] * lengths[i];
        }
        strides
    }

    fn sizes<const N: usize>(what: &str, numbers: [i32; N]) -> Result<[usize; N], CudnnError> {
        if let Some(number) = numbers.iter().find(|number| **number < 0) {
            return Err(CudnnError(format!("{what} of {number}")));
        }
        Ok(numbers.map(|number| number as usize))
    }

    impl Cudnn {
        #[allow(clippy::arc_with_non_send_sync, reason = "Candle keeps it in an `Arc`, one for each thread")]
        pub fn new(stream: Arc<CudaStream>) -> Result<Arc<Self>, CudnnError> {
            let dnn = Dnn::of_binding(stream.inner()?.binding()).map_err(|error| {
                CudnnError(format!("{error}; Candle without feature `cudnn` needs no such library"))
            })?;
            let pack = stream.context().load_module(Ptx::from_src(PACK))?;
            Ok(Arc::new(Self { stream, dnn, pack, plans: RefCell::default() }))
        }

        /// `MIOpen (libMIOpen.so.1)`
        pub fn library(&self) -> String {
            self.dnn.library()
        }

        pub fn create_conv2d<C: CudnnDataType>(
            &self,
            padding: [i32; 2],
            stride: [i32; 2],
            dilation: [i32; 2],
            mode: sys::cudnnConvolutionMode_t,
        ) -> Result<ConvDescriptor<C>, CudnnError> {
            if mode != sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION {
                return Err(CudnnError("only cross-correlations are convolved here".to_owned()));
            }
            let options = [sizes("a padding", padding)?, sizes("a stride", stride)?, sizes("a dilation", dilation)?];
            Ok(ConvDescriptor { options, sum: PhantomData })
        }

        pub fn create_4d_tensor<T: CudnnDataType>(
            self: &Arc<Self>,
            _format: sys::cudnnTensorFormat_t,
            lengths: [i32; 4],
        ) -> Result<TensorDescriptor<T>, CudnnError> {
            let lengths = sizes("a dimension", lengths)?;
            Ok(TensorDescriptor {
                lengths: lengths.to_vec(),
                strides: dense(&lengths),
                cudnn: self.clone(),
                number: PhantomData,
            })
        }

        pub fn create_4d_tensor_ex<T: CudnnDataType>(
            self: &Arc<Self>,
            lengths: [i32; 4],
            strides: [i32; 4],
        ) -> Result<TensorDescriptor<T>, CudnnError> {
            let (lengths, strides) = (sizes("a dimension", lengths)?.to_vec(), sizes("a stride", strides)?.to_vec());
            Ok(TensorDescriptor { lengths, strides, cudnn: self.clone(), number: PhantomData })
        }

        pub fn create_4d_filter<T: CudnnDataType>(
            &self,
            _format: sys::cudnnTensorFormat_t,
            lengths: [i32; 4],
        ) -> Result<FilterDescriptor<T>, CudnnError> {
            Ok(FilterDescriptor { lengths: sizes("a dimension", lengths)?.to_vec(), number: PhantomData })
        }

        /// A dense copy of a tensor that lies anyhow.
        fn packed<T: CudnnDataType>(&self, x: &TensorDescriptor<T>, from: u64) -> Result<CudaSlice<T>, CudnnError> {
            let kernel = match size_of::<T>() {
                2 => "pack_u16",
                4 => "pack_u32",
                _ => return Err(refused::<T>()),
            };
            let function = self.pack.load_function(kernel)?;
            let elements: usize = x.lengths.iter().product();
            let too_many = |_| CudnnError(format!("a tensor of {:?}", x.lengths));
            let n = u32::try_from(elements).map_err(too_many)?;
            // SAFETY: written by the kernel below.
            let mut to = unsafe { self.stream.alloc::<T>(elements)? };
            let lengths: Vec<u32> = x.lengths[1..].iter().map(|length| *length as u32).collect();
            let strides: Vec<u64> = x.strides.iter().map(|stride| *stride as u64).collect();
            let mut launch = self.stream.launch_builder(&function);
            launch.arg(&from).arg(&mut to).arg(&n);
            for length in &lengths {
                launch.arg(length);
            }
            for stride in &strides {
                launch.arg(stride);
            }
            let grid_dim = (n.div_ceil(256), 1, 1);
            // SAFETY: the parameters of `PACK`, in their order; the caller described the memory it reads.
            unsafe { launch.launch(LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 })? };
            Ok(to)
        }

        /// The convolution of this shape, planned now or before.
        pub(super) fn plan<T: NetworkNumber + 'static>(&self, shape: &Shape) -> Result<Rc<Convolution<T>>, CudnnError> {
            let key = (std::any::TypeId::of::<T>(), shape.clone());
            if let Some(plan) = self.plans.borrow().get(&key).and_then(|plan| plan.clone().downcast().ok()) {
                return Ok(plan);
            }
            let [padding, stride, dilation] = shape.options.map(|option| option.to_vec());
            let options = ConvolutionOptions { padding, stride, dilation, groups: 1 };
            let (x, w) = (TensorShape::dense(&shape.x)?, TensorShape::dense(&shape.w)?);
            let plan = Rc::new(Convolution::<T>::new(&self.dnn, &x, &w, &options)?);
            if plan.output().lengths() != shape.y {
                return Err(CudnnError(format!("an output of {:?}, not {:?}", shape.y, plan.output().lengths())));
            }
            self.plans.borrow_mut().insert(key, plan.clone());
            Ok(plan)
        }
    }

    impl<X: CudnnDataType, C: CudnnDataType> ConvForward<'_, X, C, X> {
        /// A name that means nothing: the library chooses when the convolution is planned.
        pub fn pick_algorithm(&self) -> Result<sys::cudnnConvolutionFwdAlgo_t, CudnnError> {
            Ok(sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM)
        }

        /// None is needed from outside: the handle keeps one, which grows.
        pub fn get_workspace_size(&self, _algorithm: sys::cudnnConvolutionFwdAlgo_t) -> Result<usize, CudnnError> {
            Ok(0)
        }

        /// # Safety
        /// The slices hold tensors of the shapes that were described.
        pub unsafe fn launch<Workspace, Src, Filter, Dst>(
            &self,
            _algorithm: sys::cudnnConvolutionFwdAlgo_t,
            _workspace: Option<&mut Workspace>,
            (alpha, beta): (X, X),
            src: &Src,
            filter: &Filter,
            dst: &mut Dst,
        ) -> Result<(), CudnnError>
        where
            Workspace: DevicePtrMut<u8>,
            Src: DevicePtr<X>,
            Filter: DevicePtr<X>,
            Dst: DevicePtrMut<X>,
        {
            if alpha != X::ONE || beta != X::ZERO {
                return Err(CudnnError("convolutions that scale or add to what is there are not offered".to_owned()));
            }
            let cudnn = &self.x.cudnn;
            let ((x, _order_x), (w, _order_w)) = (src.device_ptr(&cudnn.stream), filter.device_ptr(&cudnn.stream));
            let (y, _order_y) = dst.device_ptr_mut(&cudnn.stream);
            let packed = (self.x.strides != dense(&self.x.lengths)).then(|| cudnn.packed(self.x, x)).transpose()?;
            let x = packed.as_ref().map_or(x, |packed| packed.device_ptr(&cudnn.stream).0);
            let shape = Shape {
                x: self.x.lengths.clone(),
                w: self.w.lengths.clone(),
                y: self.y.lengths.clone(),
                options: self.conv.options,
            };
            // SAFETY: the caller's slices; memory of other streams is kept in order by the guards above.
            unsafe { X::forward(cudnn, &shape, [x, w, y]) }
        }
    }
}
