//! The vendor's matrix products on raw addresses, column-major, as the libraries themselves have them.
//!
//! For `unchecked` only. A handle is bound to one stream; calls from two threads take turns, because the
//! libraries' handles may not be shared.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::blas_library::{BlasLibrary, Gemm, GemmOperand as LibraryMatrix};
use crate::error::{Error, Result};
use crate::raw;
use crate::unchecked::Stream;

/// The numbers a product is made of. Halves and f32 accumulate in f32, f64 in f64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Number {
    F16,
    BF16,
    F32,
    F64,
}

/// One operand, column-major.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Address of the first element.
    pub at: u64,
    /// Elements from a column to the next.
    pub ld: i32,
    /// Elements from a matrix of the batch to the next.
    pub stride: i64,
    /// Whether its transpose is meant.
    pub is_transposed: bool,
}

/// C [m, n] = alpha A [m, k] B [k, n] + beta C, `batch` times.
#[derive(Clone, Copy, Debug)]
pub struct BatchedProduct {
    /// The type of A, B and C.
    pub number: Number,
    /// Rows of A and C.
    pub m: i32,
    /// Columns of B and C.
    pub n: i32,
    /// Columns of A and rows of B.
    pub k: i32,
    /// How many products.
    pub batch: i32,
    /// What the product is multiplied by.
    pub alpha: f64,
    /// What the old C is multiplied by.
    pub beta: f64,
    /// The left factor.
    pub a: Matrix,
    /// The right factor.
    pub b: Matrix,
    /// The result.
    pub c: Matrix,
}

/// A BLAS handle bound to one stream.
pub struct Blas {
    calls: BlasLibrary,
    handle: Mutex<raw::Blas>,
    stream: Stream,
}

impl Blas {
    /// A handle bound to `stream`, if a library is there.
    #[track_caller]
    pub fn new(stream: &Stream) -> Result<Self> {
        let device = stream.device();
        let mut reasons = Vec::new();
        for numbers in device.vendor().blas_libraries() {
            match BlasLibrary::open(device.vendor(), *numbers) {
                Ok(calls) => return Self::bind(calls, stream),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(Error::NoBlas { device: device.label().to_owned(), why: reasons.join("; ") })
    }

    fn bind(calls: BlasLibrary, stream: &Stream) -> Result<Self> {
        stream.shared().ready()?;
        let mut handle = raw::Blas::NULL;
        // SAFETY: a valid out pointer; `ready` made the stream's device the thread's current one.
        let created = unsafe { (calls.create)(&mut handle) };
        calls.check(calls.numbers.create, created)?;
        // SAFETY: a handle made above and a stream that lives in `self`.
        let status = unsafe { (calls.set_stream)(handle, stream.shared().stream) };
        calls.check(calls.numbers.set_stream, status)?;
        // SAFETY: a live handle; factors are passed from the host's stack.
        let status = unsafe { (calls.set_pointer_mode)(handle, calls.numbers.pointer_mode_host) };
        calls.check(calls.numbers.set_pointer_mode, status)?;
        Ok(Self { calls, handle: Mutex::new(handle), stream: stream.clone() })
    }

    /// `rocBLAS (librocblas.so.5)`
    pub fn library(&self) -> String {
        format!("{} ({})", self.calls.numbers.name, self.calls.path)
    }

    /// Enqueue a product.
    ///
    /// # Safety
    /// Every matrix of the batch lies in memory that is alive and that work on the stream may use.
    #[track_caller]
    pub unsafe fn multiply(&self, product: BatchedProduct) -> Result<()> {
        let BatchedProduct { number, m, n, k, batch, alpha, beta, a, b, c } = product;
        self.stream.shared().ready()?;
        let numbers = &self.calls.numbers;
        let (kind, compute) = match number {
            Number::F16 => (numbers.f16, numbers.compute_f32),
            Number::BF16 => (numbers.bf16, numbers.compute_f32),
            Number::F32 => (numbers.f32, numbers.compute_f32),
            Number::F64 => (numbers.f64, numbers.compute_f64),
        };
        let single = [alpha as f32, beta as f32];
        let double = [alpha, beta];
        let factor = |i: usize| -> *const c_void {
            if number == Number::F64 {
                std::ptr::from_ref(&double[i]).cast()
            } else {
                std::ptr::from_ref(&single[i]).cast()
            }
        };
        let op = |matrix: Matrix| if matrix.is_transposed { numbers.op_transpose } else { numbers.op_none };
        let operand =
            |matrix: Matrix| LibraryMatrix { at: matrix.at, kind, ld: matrix.ld as c_int, stride: matrix.stride };
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let gemm = Gemm {
            handle: *handle,
            op_a: op(a),
            op_b: op(b),
            m,
            n,
            k,
            alpha: factor(0),
            a: operand(a),
            b: operand(b),
            beta: factor(1),
            c: operand(c),
            batch,
            compute,
        };
        // SAFETY: a live handle bound to the stream, held by this thread alone; the memory is the caller's.
        let status = unsafe { self.calls.gemm(gemm) };
        self.calls.check(numbers.gemm, status)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // Destroying a handle waits for its stream: not for one that is dead.
        if self.stream.wait().is_ok() {
            let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: made by `create`, destroyed once.
            let _ = unsafe { (self.calls.destroy)(*handle) };
        }
    }
}
