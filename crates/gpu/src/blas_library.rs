//! The calls of a BLAS library, found by dlopen: rocBLAS, hipBLAS or cuBLAS behind one interface.
//!
//! Raw calls and checked statuses only; which matrix goes where is `blas.rs`, and the numbers each
//! library uses are in `vendor.rs`.

use std::ffi::{c_char, c_int, c_void};

use crate::blas::Number;
use crate::driver::open_first;
use crate::error::{Error, Result};
use crate::raw::{self, Address};
use crate::vendor::{BlasNumbers, Vendor, text};

/// One operand as the libraries see it, column-major.
#[derive(Clone, Copy)]
pub struct GemmOperand {
    pub at: Address,
    pub kind: c_int,
    pub ld: c_int,
    pub stride: i64,
}

/// A strided-batched product, column-major: C [m, n] = alpha op(A) op(B) + beta C.
pub struct Gemm {
    pub handle: raw::Blas,
    pub op_a: c_int,
    pub op_b: c_int,
    pub m: c_int,
    pub n: c_int,
    pub k: c_int,
    pub alpha: *const c_void,
    pub a: GemmOperand,
    pub b: GemmOperand,
    pub beta: *const c_void,
    pub c: GemmOperand,
    pub batch: c_int,
    pub compute: c_int,
}

#[rustfmt::skip]
type CommonGemm = unsafe extern "C" fn(
    raw::Blas, c_int, c_int, c_int, c_int, c_int,
    *const c_void, Address, c_int, c_int, i64, Address, c_int, c_int, i64,
    *const c_void, Address, c_int, c_int, i64,
    c_int, c_int, c_int,
) -> c_int;

/// rocBLAS writes to a fourth matrix D and takes a solution index and flags.
#[rustfmt::skip]
type RocblasGemm = unsafe extern "C" fn(
    raw::Blas, c_int, c_int, c_int, c_int, c_int,
    *const c_void, Address, c_int, c_int, i64, Address, c_int, c_int, i64,
    *const c_void, Address, c_int, c_int, i64, Address, c_int, c_int, i64,
    c_int, c_int, c_int, i32, u32,
) -> c_int;

#[derive(Clone, Copy)]
enum GemmCall {
    Rocblas(RocblasGemm),
    Common(CommonGemm),
}

pub struct BlasLibrary {
    pub numbers: BlasNumbers,
    pub path: String,
    pub create: unsafe extern "C" fn(*mut raw::Blas) -> c_int,
    pub destroy: unsafe extern "C" fn(raw::Blas) -> c_int,
    pub set_stream: unsafe extern "C" fn(raw::Blas, raw::Stream) -> c_int,
    pub set_pointer_mode: unsafe extern "C" fn(raw::Blas, c_int) -> c_int,
    pub set_workspace: Option<unsafe extern "C" fn(raw::Blas, Address, usize) -> c_int>,
    gemm: GemmCall,
    status_text: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

impl BlasLibrary {
    pub fn open(vendor: Vendor, numbers: BlasNumbers) -> Result<Self> {
        let (library, path) = open_first(vendor, numbers.name, &vendor.candidates(numbers.sonames))?;
        macro_rules! symbol {
            ($name:expr) => {
                // SAFETY: the field this fills has the signature in that library's header (AMD's are compared
                // in tests/it/headers.rs; NVIDIA's agree with hipBLAS argument for argument).
                unsafe { library.get($name.as_bytes()) }
                    .map(|found| *found)
                    .map_err(|_| Error::missing_symbol($name, &path))
            };
        }
        let gemm = if numbers.is_rocblas {
            GemmCall::Rocblas(symbol!(numbers.gemm)?)
        } else {
            GemmCall::Common(symbol!(numbers.gemm)?)
        };
        Ok(Self {
            numbers,
            create: symbol!(numbers.create)?,
            destroy: symbol!(numbers.destroy)?,
            set_stream: symbol!(numbers.set_stream)?,
            set_pointer_mode: symbol!(numbers.set_pointer_mode)?,
            set_workspace: symbol!(numbers.set_workspace).ok(),
            gemm,
            status_text: symbol!(numbers.status_text).ok(),
            path,
        })
    }

    pub fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the call returns a static string or null for any number.
        let words = self.status_text.map(|words| unsafe { text(words(status)) });
        Err(Error::Blas { library: self.path.clone(), call, status, text: words.unwrap_or_default() })
    }

    pub fn number(&self, number: Number) -> c_int {
        let numbers = &self.numbers;
        match number {
            Number::F32 => numbers.f32,
            Number::F16 => numbers.f16,
            Number::BF16 => numbers.bf16,
            Number::I8 => numbers.i8,
            Number::I32 => numbers.i32,
        }
    }

    /// # Safety
    /// The handle is alive and bound to a stream, every matrix of the batch lies in device memory that
    /// work on that stream may use, and the factors are on the host.
    #[rustfmt::skip]
    pub unsafe fn gemm(&self, g: Gemm) -> c_int {
        let Gemm { handle, op_a, op_b, m, n, k, alpha, a, b, beta, c, batch, compute } = g;
        let algorithm = self.numbers.algorithm;
        // SAFETY: the caller vouches for all of it.
        unsafe {
            match self.gemm {
                GemmCall::Common(gemm) => gemm(
                    handle, op_a, op_b, m, n, k,
                    alpha, a.at, a.kind, a.ld, a.stride, b.at, b.kind, b.ld, b.stride,
                    beta, c.at, c.kind, c.ld, c.stride,
                    batch, compute, algorithm,
                ),
                GemmCall::Rocblas(gemm) => gemm(
                    handle, op_a, op_b, m, n, k,
                    alpha, a.at, a.kind, a.ld, a.stride, b.at, b.kind, b.ld, b.stride,
                    beta, c.at, c.kind, c.ld, c.stride, c.at, c.kind, c.ld, c.stride,
                    batch, compute, algorithm, 0, 0,
                ),
            }
        }
    }
}
