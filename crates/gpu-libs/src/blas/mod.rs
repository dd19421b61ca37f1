//! Vectors and dense matrices: rocBLAS | cuBLAS.
//!
//! A handle is made for one queue and works on it alone; scalars are passed and returned on the host, so
//! functions that return a number, such as `dot`, wait for it. Matrices of either order are taken as they are. A function
//! that has no meaning for an order (the conjugate without the transpose) is refused, never emulated.

mod calls;
mod compact;
mod matrix_vector;
mod mixed;
mod products;
mod vectors;

use std::ffi::c_void;

use gpu::foreign::{Address, Binding};
use gpu::{Buffer, Element, Queue};

pub(crate) use calls::{Algorithm, Compute, Handle, Host, HostMut, Int, LibraryChoice, PointerMode};
pub use calls::{Calls, DataType, Diagonal, Operation, Side, Triangle};
pub use matrix_vector::Band;
pub use mixed::{Factor, Product};
pub use products::{Symmetric, Triangular};
pub use vectors::Rotation;

use crate::error::{Error, Result, ensure, int, report_late};
use crate::scalar::Scalar;
use crate::view::{Matrix, MatrixMut, MatrixOrder, Vector, VectorMut};

/// The numbers of every enum above, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[
    Operation::NUMBERS,
    Triangle::NUMBERS,
    Diagonal::NUMBERS,
    Side::NUMBERS,
    PointerMode::NUMBERS,
    DataType::NUMBERS,
    Compute::NUMBERS,
    Algorithm::NUMBERS,
];

/// A BLAS handle of one queue.
pub struct Blas {
    calls: &'static Calls,
    handle: Handle,
    binding: Binding,
    /// Kept for as long as the library may use it.
    _workspace: Option<Buffer<u8>>,
}

impl Blas {
    /// A handle whose scratch memory is the library's own.
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        Self::make(Binding::new(queue)?, None)
    }

    /// A handle that uses `workspace` and allocates nothing.
    #[track_caller]
    pub fn with_workspace(queue: &Queue, workspace: Buffer<u8>) -> Result<Self> {
        Self::make(Binding::new(queue)?, Some(workspace))
    }

    #[track_caller]
    pub(crate) fn make(binding: Binding, workspace: Option<Buffer<u8>>) -> Result<Self> {
        let calls = Calls::get(binding.vendor())?;
        binding.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.create(&mut handle) }?;
        let blas = Self { calls, handle, binding, _workspace: workspace };
        // SAFETY: a live handle and a stream that the binding keeps alive.
        unsafe { calls.set_stream(handle, blas.binding.stream()) }?;
        let mode = PointerMode::Host.number(blas.binding.vendor());
        // SAFETY: a live handle.
        unsafe { calls.set_pointer_mode(handle, mode) }?;
        if let Some(workspace) = &blas._workspace {
            let at = blas.binding.input(&workspace.all())?;
            // SAFETY: memory of this queue that `blas` owns for as long as the handle.
            unsafe { calls.set_workspace(handle, at, workspace.len()) }?;
        }
        Ok(blas)
    }

    /// `rocBLAS (librocblas.so.5)`
    pub fn library(&self) -> String {
        self.calls.opened.label()
    }

    pub(crate) fn calls(&self) -> &'static Calls {
        self.calls
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Before each call.
    #[track_caller]
    fn enter(&self) -> Result<()> {
        Ok(self.binding.enter()?)
    }

    #[track_caller]
    fn read<T: Element>(&self, call: &'static str, x: &Vector<'_, T>) -> Result<(Int, Address, Int)> {
        let at = self.binding.input(&x.data)?;
        Ok((int(call, "a vector's length", x.len)?, at, int(call, "a vector's step", x.step)?))
    }

    #[track_caller]
    fn write<T: Element>(&self, call: &'static str, x: &VectorMut<'_, T>) -> Result<(Int, Address, Int)> {
        let at = self.binding.output(&x.data)?;
        Ok((int(call, "a vector's length", x.len)?, at, int(call, "a vector's step", x.step)?))
    }

    /// A matrix as BLAS sees it: by columns, with what has to be done to them.
    #[track_caller]
    fn operand<T: Scalar>(&self, call: &'static str, matrix: &Matrix<'_, T>) -> Result<Operand> {
        let is_conjugate = matrix.is_conjugate && T::KIND.is_complex();
        let operation = match (matrix.shape.order, is_conjugate) {
            (MatrixOrder::Columns, false) => Operation::None,
            (MatrixOrder::Rows, false) => Operation::Transpose,
            (MatrixOrder::Rows, true) => Operation::Conjugate,
            (MatrixOrder::Columns, true) => {
                return Err(Error::shape(call, "BLAS conjugates only what it transposes; these orders need one alone"));
            }
        };
        let at = self.binding.input(&matrix.data)?;
        Ok(Operand { at, ld: int(call, "a matrix's step", matrix.shape.step)?, operation })
    }

    /// A matrix that is written, which must lie by columns.
    #[track_caller]
    fn target<T: Element>(&self, call: &'static str, matrix: &MatrixMut<'_, T>) -> Result<(Address, Int)> {
        debug_assert_eq!(matrix.shape.order, MatrixOrder::Columns, "the caller has transposed the problem");
        Ok((self.binding.output(&matrix.data)?, int(call, "a matrix's step", matrix.shape.step)?))
    }

    fn choice(&self, operation: Operation) -> LibraryChoice {
        operation.number(self.binding.vendor())
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.binding.enter().is_err() {
            return; // a dead queue: the library would wait for it
        }
        // SAFETY: a handle that is destroyed once.
        report_late(&self.binding, unsafe { self.calls.destroy(self.handle) });
    }
}

/// A matrix as BLAS takes it.
#[derive(Clone, Copy)]
struct Operand {
    at: Address,
    ld: Int,
    operation: Operation,
}

/// The address of something on the host.
fn host<T>(value: &T) -> Host {
    std::ptr::from_ref(value).cast::<c_void>()
}

fn host_mut<T>(value: &mut T) -> HostMut {
    std::ptr::from_mut(value).cast::<c_void>()
}

#[track_caller]
fn same(call: &'static str, what: &str, a: usize, b: usize) -> Result<()> {
    ensure(call, a == b, || format!("{what}: {a} and {b}"))
}

#[track_caller]
fn square(call: &'static str, rows: usize, columns: usize) -> Result<()> {
    ensure(call, rows == columns, || format!("a matrix of {rows} x {columns} is not square"))
}
