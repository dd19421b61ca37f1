//! Sparse matrices: rocSPARSE | cuSPARSE.
//!
//! Products with vectors (SpMV), dense matrices (SpMM) and sparse ones (SpGEMM), triangular systems (SpSV) and
//! conversions, for matrices in COO, CSR, CSC and BSR. A [`SparseMatrix`] owns its memory, and its indices
//! cannot be wrong. Every function waits for its end, because its descriptors and buffers live that long.

mod blocks;
mod calls;
mod conversions;
mod matrix;
mod products;

use gpu::foreign::{Address, Binding};
use gpu::{Buffer, Queue, Vendor};

pub use calls::Calls;
pub(crate) use calls::{
    Action, Algorithm, Attribute, Base, BlockDirection, DataType, DenseOrder, DiagonalType, Fill, Handle, Index, Int,
    LibraryChoice, Operation, PointerMode, Stage,
};
pub use matrix::{SparseFormat, SparseMatrix};

use crate::error::{Result, ensure, int, report_late};
use crate::scalar::Scalar;
use crate::view::{MatrixOrder, MatrixShape};

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[
    Operation::NUMBERS,
    PointerMode::NUMBERS,
    Index::NUMBERS,
    Base::NUMBERS,
    DataType::NUMBERS,
    DenseOrder::NUMBERS,
    BlockDirection::NUMBERS,
    Attribute::NUMBERS,
    Fill::NUMBERS,
    DiagonalType::NUMBERS,
    Stage::NUMBERS,
    Action::NUMBERS,
    Algorithm::NUMBERS,
];

/// A handle of one queue.
pub struct Sparse {
    calls: &'static Calls,
    handle: Handle,
    binding: Binding,
}

impl Sparse {
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let calls = Calls::get(binding.vendor())?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.create(&mut handle) }?;
        let sparse = Self { calls, handle, binding };
        let mode = PointerMode::Host.number(sparse.vendor());
        // SAFETY: a live handle and a stream that the binding keeps alive.
        unsafe {
            calls.set_stream(handle, sparse.binding.stream())?;
            calls.set_pointer_mode(handle, mode)?;
        }
        Ok(sparse)
    }

    /// `rocSPARSE (librocsparse.so.1)`
    pub fn library(&self) -> String {
        self.calls.opened.label()
    }

    fn vendor(&self) -> Vendor {
        self.binding.vendor()
    }

    /// Scratch memory; a library may want a pointer even where it wants no bytes.
    #[track_caller]
    fn scratch(&self, bytes: usize) -> Result<(Buffer<u8>, Address)> {
        let buffer = self.binding.alloc::<u8>(bytes.max(16))?;
        let at = self.binding.input(&buffer.all())?;
        Ok((buffer, at))
    }

    #[track_caller]
    fn describe<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<Descriptor> {
        let vendor = self.vendor();
        let (outer, inner) = (self.binding.input(&a.outer.all())?, self.binding.input(&a.inner.all())?);
        let values = self.binding.input(&a.values.all())?;
        let (rows, columns, n) = (a.rows as i64, a.columns as i64, a.inner.len() as i64);
        let (index, base) = (Index::I32.number(vendor), Base::Zero.number(vendor));
        let number = DataType::of(T::KIND).number(vendor);
        let mut handle: Handle = std::ptr::null_mut();
        let (calls, out) = (self.calls, &raw mut handle);
        self.binding.enter()?;
        // SAFETY: a valid out pointer; buffers of the lengths the matrix was checked for, which outlive the descriptor.
        unsafe {
            match (a.format, vendor) {
                (SparseFormat::Coo, _) => {
                    calls.coo_create(out, rows, columns, n, outer, inner, values, index, base, number)
                }
                (SparseFormat::Csr, _) => {
                    calls.csr_create(out, rows, columns, n, outer, inner, values, index, index, base, number)
                }
                (SparseFormat::Csc, _) => {
                    calls.csc_create(out, rows, columns, n, outer, inner, values, index, index, base, number)
                }
                (SparseFormat::Bsr { block }, Vendor::Amd) => {
                    let (side, direction) = (block as i64, BlockDirection::Rows.number(vendor));
                    let (rows, columns) = (rows / side, columns / side);
                    calls.bsr_create_amd(
                        out, rows, columns, n, direction, side, outer, inner, values, index, index, base, number,
                    )
                }
                (SparseFormat::Bsr { block }, Vendor::Nvidia) => {
                    let (side, order) = (block as i64, DenseOrder::Rows.number(vendor));
                    let (rows, columns) = (rows / side, columns / side);
                    calls.bsr_create_nvidia(
                        out, rows, columns, n, side, side, outer, inner, values, index, index, base, number, order,
                    )
                }
            }
        }?;
        Ok(Descriptor { calls, handle, of: Of::Matrix })
    }

    #[track_caller]
    fn vector<T: Scalar>(&self, len: usize, at: Address) -> Result<Descriptor> {
        let number = DataType::of(T::KIND).number(self.vendor());
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; `len` numbers at that address, which outlive the descriptor.
        unsafe { self.calls.vector_create(&mut handle, len as i64, at, number) }?;
        Ok(Descriptor { calls: self.calls, handle, of: Of::Vector })
    }

    #[track_caller]
    fn dense<T: Scalar>(&self, shape: MatrixShape, at: Address) -> Result<Descriptor> {
        let number = DataType::of(T::KIND).number(self.vendor());
        let order = match shape.order {
            MatrixOrder::Rows => DenseOrder::Rows,
            MatrixOrder::Columns => DenseOrder::Columns,
        };
        let (rows, columns, step) = (shape.rows as i64, shape.columns as i64, shape.step as i64);
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the shape was checked against the memory at that address.
        unsafe { self.calls.dense_create(&mut handle, rows, columns, step, at, number, order.number(self.vendor())) }?;
        Ok(Descriptor { calls: self.calls, handle, of: Of::Dense })
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        if self.binding.wait().is_err() {
            return;
        }
        // SAFETY: a handle that is destroyed once, with nothing of it under way.
        report_late(&self.binding, unsafe { self.calls.destroy(self.handle) });
    }
}

/// A description of memory, for the length of one function.
struct Descriptor {
    calls: &'static Calls,
    handle: Handle,
    of: Of,
}

enum Of {
    Matrix,
    Vector,
    Dense,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `Sparse` and destroyed once; a descriptor holds host memory only, so nothing can be lost
        // if the library refuses.
        let _ = unsafe {
            match self.of {
                Of::Matrix => self.calls.matrix_destroy(self.handle),
                Of::Vector => self.calls.vector_destroy(self.handle),
                Of::Dense => self.calls.dense_destroy(self.handle),
            }
        };
    }
}

#[track_caller]
fn same(call: &'static str, what: &str, a: usize, b: usize) -> Result<()> {
    ensure(call, a == b, || format!("{what}: {a} and {b}"))
}

#[track_caller]
fn is_csr<T: Scalar>(call: &'static str, a: &SparseMatrix<T>) -> Result<(Int, Int, Int)> {
    ensure(call, a.format == SparseFormat::Csr, || format!("a matrix in {:?}; Csr is wanted", a.format))?;
    Ok((int(call, "rows", a.rows)?, int(call, "columns", a.columns)?, int(call, "elements", a.len())?))
}
