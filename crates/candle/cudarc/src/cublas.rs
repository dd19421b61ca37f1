//! Matrix products: rocBLAS, hipBLAS or cuBLAS where one is found, else a kernel of our own.
//!
//! Column-major, as BLAS is. `CudaBlas::library` says which it is.

use std::ffi::{c_int, c_longlong, c_void};
use std::sync::Arc;

use gpu::unchecked::{BatchedProduct, Blas, Matrix, Number};
use half::{bf16, f16};

use crate::driver::{CudaModule, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg};
use crate::nvrtc::Ptx;

const TILE: u32 = 32;
/// Rows of C that a block of `GEMV` makes, and the most columns.
const GEMV_ROWS: u32 = 8;
const GEMV_COLUMNS: u32 = 8;
const SOURCE: &str = include_str!("gemm.hip");

pub mod sys {
    //! The few names of cuBLAS's header that Candle spells out.
    #![allow(non_camel_case_types, reason = "the names are the header's")]

    /// Points at a `CudaBlas`'s insides, and only `result` looks there.
    pub type cublasHandle_t = *mut super::Inner;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cublasOperation_t {
        CUBLAS_OP_N,
        CUBLAS_OP_T,
        CUBLAS_OP_C,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cudaDataType_t {
        CUDA_R_16F,
        CUDA_R_16BF,
        CUDA_R_32F,
        CUDA_R_64F,
    }
    pub type cudaDataType = cudaDataType_t;

    /// Every product here accumulates in f32, or in f64 for f64. `CUBLAS_COMPUTE_16F` says how wide the
    /// factors alpha and beta are that it comes with.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cublasComputeType_t {
        CUBLAS_COMPUTE_16F,
        CUBLAS_COMPUTE_32F,
        CUBLAS_COMPUTE_32F_FAST_16BF,
        CUBLAS_COMPUTE_32F_FAST_TF32,
        CUBLAS_COMPUTE_64F,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum cublasGemmAlgo_t {
        CUBLAS_GEMM_DEFAULT,
        CUBLAS_GEMM_DEFAULT_TENSOR_OP,
    }
}

pub struct CudaBlas {
    inner: Box<Inner>,
    handle: sys::cublasHandle_t,
}

// SAFETY: the handle points into the box, which moves with it; calls through it take their turns inside.
unsafe impl Send for CudaBlas {}
// SAFETY: as above.
unsafe impl Sync for CudaBlas {}

pub struct Inner {
    stream: Arc<CudaStream>,
    library: Result<Blas, gpu::Error>,
    own: Arc<CudaModule>,
}

impl CudaBlas {
    pub fn new(stream: Arc<CudaStream>) -> Result<Self, result::CublasError> {
        let library = Blas::new(stream.inner()?);
        let own = stream.context().load_module(Ptx::from_src(SOURCE))?;
        let mut inner = Box::new(Inner { stream, library, own });
        let handle = std::ptr::from_mut(&mut *inner);
        Ok(Self { inner, handle })
    }

    pub fn handle(&self) -> &sys::cublasHandle_t {
        &self.handle
    }

    /// `rocBLAS (librocblas.so.5)`, or why there is no library and our own kernel does the work.
    pub fn library(&self) -> String {
        match &self.inner.library {
            Ok(library) => library.library(),
            Err(error) => format!("our own kernel ({error})"),
        }
    }
}

impl Inner {
    /// # Safety
    /// As [`Blas::multiply`].
    unsafe fn multiply(&self, product: BatchedProduct) -> Result<(), result::CublasError> {
        if product.m == 0 || product.n == 0 || product.batch == 0 {
            return Ok(());
        }
        match &self.library {
            // A library may refuse an empty sum; the kernel writes its zeros.
            // SAFETY: the caller's.
            Ok(library) if product.k > 0 => unsafe { library.multiply(product) }.map_err(result::CublasError::from),
            // SAFETY: the caller's.
            _ => unsafe { self.multiply_here(product) },
        }
    }

    /// # Safety
    /// As [`Blas::multiply`].
    unsafe fn multiply_here(&self, product: BatchedProduct) -> Result<(), result::CublasError> {
        let BatchedProduct { number, m, n, k, batch, alpha, beta, a, b, c } = product;
        // A's row and B's column are what the result keeps; k is what is summed over.
        let steps = |matrix: Matrix, is_kept_first: bool| -> (u64, u64) {
            let (one, ld) = (1u64, matrix.ld as u64);
            if is_kept_first != matrix.is_transposed { (one, ld) } else { (ld, one) }
        };
        let ((a_row, a_k), (b_column, b_k)) = (steps(a, true), steps(b, false));
        let (m, n, k, ld_c) = (m as u32, n as u32, k as u32, c.ld as u64);
        // Weights by one token or a few: no tile is worth its while.
        let is_narrow = n <= GEMV_COLUMNS && a_k == 1 && number != Number::F64;
        let kernel = if !is_narrow {
            "gemm"
        } else if n == 1 {
            "gemv1"
        } else {
            "gemv8"
        };
        let function = self.own.load_function(&format!("{kernel}_{}", suffix(number)))?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&a.at).arg(&b.at).arg(&c.at).arg(&m).arg(&n).arg(&k);
        launch.arg(&a_row).arg(&a_k).arg(&b_column).arg(&b_k).arg(&ld_c);
        launch.arg(&a.stride).arg(&b.stride).arg(&c.stride).arg(&alpha).arg(&beta);
        let blocks = if is_narrow { (m.div_ceil(GEMV_ROWS), 1) } else { (m.div_ceil(TILE), n.div_ceil(TILE)) };
        let grid_dim = (blocks.0, blocks.1, batch as u32);
        // SAFETY: the parameters of `GEMM` and `GEMV` in gemm.hip, in their order; the memory is the caller's.
        unsafe { launch.launch(LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 })? };
        Ok(())
    }
}

/// A number type's name in gemm.hip.
fn suffix(number: Number) -> &'static str {
    match number {
        Number::F16 => "f16",
        Number::BF16 => "bf16",
        Number::F32 => "f32",
        Number::F64 => "f64",
    }
}

pub mod result {
    //! Products on raw addresses.

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("{0}")]
    pub struct CublasError(String);

    impl From<gpu::Error> for CublasError {
        fn from(error: gpu::Error) -> Self {
            Self(error.to_string())
        }
    }

    impl From<crate::driver::DriverError> for CublasError {
        fn from(error: crate::driver::DriverError) -> Self {
            Self(error.to_string())
        }
    }

    /// C = alpha op(A) op(B) + beta C, `batch_count` times, all of one number type.
    ///
    /// # Safety
    /// `handle` is a live `CudaBlas`'s; every matrix lies in live device memory; alpha and beta point at
    /// host numbers as wide as the compute type.
    #[allow(clippy::too_many_arguments, reason = "cudarc's signature")]
    #[rustfmt::skip]
    pub unsafe fn gemm_strided_batched_ex(
        handle: sys::cublasHandle_t, transa: sys::cublasOperation_t, transb: sys::cublasOperation_t,
        m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, a_type: sys::cudaDataType, lda: c_int, stride_a: c_longlong,
        b: *const c_void, b_type: sys::cudaDataType, ldb: c_int, stride_b: c_longlong,
        beta: *const c_void, c: *mut c_void, c_type: sys::cudaDataType, ldc: c_int, stride_c: c_longlong,
        batch_count: c_int, compute_type: sys::cublasComputeType_t, _algo: sys::cublasGemmAlgo_t,
    ) -> Result<(), CublasError> {
        if a_type != b_type || a_type != c_type {
            return Err(CublasError(format!("a product of {a_type:?} and {b_type:?} into {c_type:?}")));
        }
        let number = match a_type {
            sys::cudaDataType_t::CUDA_R_16F => Number::F16,
            sys::cudaDataType_t::CUDA_R_16BF => Number::BF16,
            sys::cudaDataType_t::CUDA_R_32F => Number::F32,
            sys::cudaDataType_t::CUDA_R_64F => Number::F64,
        };
        let factor = |at: *const c_void| -> f64 {
            use sys::cublasComputeType_t::{CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_64F};
            // SAFETY: the caller's number, of this width.
            unsafe {
                match compute_type {
                    CUBLAS_COMPUTE_16F => at.cast::<f16>().read_unaligned().to_f64(),
                    CUBLAS_COMPUTE_64F => at.cast::<f64>().read_unaligned(),
                    _ => f64::from(at.cast::<f32>().read_unaligned()),
                }
            }
        };
        let matrix = |at: u64, ld: c_int, stride: i64, op: sys::cublasOperation_t| {
            Matrix { at, ld, stride, is_transposed: op != sys::cublasOperation_t::CUBLAS_OP_N }
        };
        let product = BatchedProduct {
            number, m, n, k, batch: batch_count, alpha: factor(alpha), beta: factor(beta),
            a: matrix(a as u64, lda, stride_a, transa),
            b: matrix(b as u64, ldb, stride_b, transb),
            c: matrix(c as u64, ldc, stride_c, sys::cublasOperation_t::CUBLAS_OP_N),
        };
        // SAFETY: the caller's handle, alive, and memory.
        unsafe { (*handle).multiply(product) }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct GemmConfig<T> {
    pub transa: sys::cublasOperation_t,
    pub transb: sys::cublasOperation_t,
    pub m: c_int,
    pub n: c_int,
    pub k: c_int,
    pub alpha: T,
    pub lda: c_int,
    pub ldb: c_int,
    pub beta: T,
    pub ldc: c_int,
}

#[derive(Clone, Copy, Debug)]
pub struct StridedBatchedConfig<T> {
    pub gemm: GemmConfig<T>,
    pub batch_size: c_int,
    pub stride_a: c_longlong,
    pub stride_b: c_longlong,
    pub stride_c: c_longlong,
}

pub trait Gemm<T: Copy> {
    /// # Safety
    /// As [`Self::gemm_strided_batched`].
    unsafe fn gemm<A: DevicePtr<T>, B: DevicePtr<T>, C: DevicePtrMut<T>>(
        &self,
        gemm: GemmConfig<T>,
        a: &A,
        b: &B,
        c: &mut C,
    ) -> Result<(), result::CublasError> {
        let once = StridedBatchedConfig { gemm, batch_size: 1, stride_a: 0, stride_b: 0, stride_c: 0 };
        // SAFETY: the caller's.
        unsafe { self.gemm_strided_batched(once, a, b, c) }
    }

    /// # Safety
    /// Every matrix of the batch lies inside its slice.
    unsafe fn gemm_strided_batched<A: DevicePtr<T>, B: DevicePtr<T>, C: DevicePtrMut<T>>(
        &self,
        config: StridedBatchedConfig<T>,
        a: &A,
        b: &B,
        c: &mut C,
    ) -> Result<(), result::CublasError>;
}

macro_rules! gemms {
    ($($ty:ty = $number:ident, $widen:expr;)*) => {$(
        impl Gemm<$ty> for CudaBlas {
            unsafe fn gemm_strided_batched<A: DevicePtr<$ty>, B: DevicePtr<$ty>, C: DevicePtrMut<$ty>>(
                &self,
                config: StridedBatchedConfig<$ty>,
                a: &A,
                b: &B,
                c: &mut C,
            ) -> Result<(), result::CublasError> {
                let StridedBatchedConfig { gemm, batch_size: batch, stride_a, stride_b, stride_c } = config;
                let stream = &*self.inner.stream;
                let ((a, _order_a), (b, _order_b)) = (a.device_ptr(stream), b.device_ptr(stream));
                let (c, _order_c) = c.device_ptr_mut(stream);
                let is_transposed = |op| op != sys::cublasOperation_t::CUBLAS_OP_N;
                let (transa, transb) = (is_transposed(gemm.transa), is_transposed(gemm.transb));
                let product = BatchedProduct {
                    number: Number::$number,
                    m: gemm.m,
                    n: gemm.n,
                    k: gemm.k,
                    batch,
                    alpha: ($widen)(gemm.alpha),
                    beta: ($widen)(gemm.beta),
                    a: Matrix { at: a, ld: gemm.lda, stride: stride_a, is_transposed: transa },
                    b: Matrix { at: b, ld: gemm.ldb, stride: stride_b, is_transposed: transb },
                    c: Matrix { at: c, ld: gemm.ldc, stride: stride_c, is_transposed: false },
                };
                // SAFETY: the caller's.
                unsafe { self.inner.multiply(product) }
            }
        }
    )*};
}

gemms! {
    f16 = F16, f16::to_f64;
    bf16 = BF16, bf16::to_f64;
    f32 = F32, f64::from;
    f64 = F64, |value: f64| value;
}
