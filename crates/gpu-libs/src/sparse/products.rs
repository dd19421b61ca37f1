//! Products and triangular systems.

use std::ffi::c_void;

use gpu::foreign::Address;
use gpu::{Slice, SliceMut, Vendor};

use super::{
    Algorithm, Attribute, DataType, DiagonalType, Fill, Handle, LibraryChoice, Operation, Sparse, SparseFormat,
    SparseMatrix, Stage, is_csr, same,
};
use crate::blas::{Diagonal, Triangle};
use crate::error::{Result, ensure};
use crate::scalar::Scalar;
use crate::view::{Matrix, MatrixMut};

fn host<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

impl Sparse {
    /// y = alpha A x + beta y
    #[track_caller]
    pub fn spmv<T: Scalar>(
        &self,
        alpha: T,
        a: &SparseMatrix<T>,
        x: Slice<'_, T>,
        beta: T,
        y: SliceMut<'_, T>,
    ) -> Result<()> {
        same("spmv", "columns of A and length of x", a.columns, x.len())?;
        same("spmv", "rows of A and length of y", a.rows, y.len())?;
        let (at_x, at_y) = (self.binding.input(&x)?, self.binding.output(&y)?);
        let matrix = self.describe(a)?;
        let (vx, vy) = (self.vector::<T>(x.len(), at_x)?, self.vector::<T>(y.len(), at_y)?);
        let (op, number) = (self.op(), self.number::<T>());
        let algorithm = Algorithm::SpMv.number(self.vendor());
        let (calls, handle, (a, x, y)) = (self.calls, self.handle, (matrix.handle, vx.handle, vy.handle));
        let (alpha, beta, mut bytes) = (host(&alpha), host(&beta), 0);
        // SAFETY: live descriptors of memory of this queue; scalars and scratch live until the wait is over.
        unsafe {
            if self.vendor() == Vendor::Amd {
                let run = |stage, bytes: &mut usize, work| {
                    calls.spmv_amd(handle, op, alpha, a, x, beta, y, number, algorithm, stage, bytes, work)
                };
                self.in_stages(run)?;
            } else {
                calls.spmv_bytes(handle, op, alpha, a, x, beta, y, number, algorithm, &mut bytes)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.spmv_nvidia(handle, op, alpha, a, x, beta, y, number, algorithm, work)?;
                self.binding.wait()?;
            }
        }
        Ok(())
    }

    /// C = alpha A B + beta C with a sparse A. B and C may lie either way.
    #[track_caller]
    pub fn spmm<T: Scalar>(
        &self,
        alpha: T,
        a: &SparseMatrix<T>,
        b: Matrix<'_, T>,
        beta: T,
        c: MatrixMut<'_, T>,
    ) -> Result<()> {
        same("spmm", "columns of A and rows of B", a.columns, b.shape.rows)?;
        same("spmm", "rows of A and C", a.rows, c.shape.rows)?;
        same("spmm", "columns of B and C", b.shape.columns, c.shape.columns)?;
        ensure("spmm", !b.is_conjugate, || "the conjugate of B".into())?;
        let (at_b, at_c) = (self.binding.input(&b.data)?, self.binding.output(&c.data)?);
        let matrix = self.describe(a)?;
        let (db, dc) = (self.dense::<T>(b.shape, at_b)?, self.dense::<T>(c.shape, at_c)?);
        let (op, number) = (self.op(), self.number::<T>());
        let algorithm = Algorithm::SpMm.number(self.vendor());
        let (calls, handle, (a, b, c)) = (self.calls, self.handle, (matrix.handle, db.handle, dc.handle));
        let (alpha, beta, mut bytes) = (host(&alpha), host(&beta), 0);
        // SAFETY: as for `spmv`.
        unsafe {
            if self.vendor() == Vendor::Amd {
                let run = |stage, bytes: &mut usize, work| {
                    calls.spmm_amd(handle, op, op, alpha, a, b, beta, c, number, algorithm, stage, bytes, work)
                };
                self.in_stages(run)?;
            } else {
                calls.spmm_bytes(handle, op, op, alpha, a, b, beta, c, number, algorithm, &mut bytes)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.spmm_nvidia(handle, op, op, alpha, a, b, beta, c, number, algorithm, work)?;
                self.binding.wait()?;
            }
        }
        Ok(())
    }

    /// AMD's calls come three times: for the bytes of scratch, to prepare and to compute.
    fn in_stages(&self, run: impl Fn(LibraryChoice, &mut usize, Address) -> Result<()>) -> Result<()> {
        let (number, mut bytes) = (|stage: Stage| stage.number(Vendor::Amd), 0);
        run(number(Stage::Size), &mut bytes, 0)?;
        let (_scratch, work) = self.scratch(bytes)?;
        run(number(Stage::Preprocess), &mut bytes, work)?;
        run(number(Stage::Compute), &mut bytes, work)?;
        self.binding.wait()?;
        Ok(())
    }

    /// alpha A B of two CSR matrices, as a new one.
    #[track_caller]
    pub fn spgemm<T: Scalar>(&self, alpha: T, a: &SparseMatrix<T>, b: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        is_csr("spgemm", a)?;
        is_csr("spgemm", b)?;
        same("spgemm", "columns of A and rows of B", a.columns, b.rows)?;
        let (da, db) = (self.describe(a)?, self.describe(b)?);
        let mut product = SparseMatrix {
            format: SparseFormat::Csr,
            rows: a.rows,
            columns: b.columns,
            outer: self.binding.upload(&vec![0i32; a.rows + 1])?,
            inner: self.binding.alloc(0)?,
            values: self.binding.alloc(0)?,
        };
        let dc = self.describe(&product)?;
        let (op, number) = (self.op(), self.number::<T>());
        let algorithm = Algorithm::SpGemm.number(self.vendor());
        let (calls, handle) = (self.calls, self.handle);
        let zero = T::ZERO;
        let (alpha, mut bytes) = (host(&alpha), 0);
        let (da, db, dc_handle) = (da.handle, db.handle, dc.handle);
        // SAFETY: live descriptors of memory of this queue. The product's arrays are made as large as the library's
        // count of elements says, before they are filled; scratch lives until the wait is over.
        unsafe {
            if self.vendor() == Vendor::Amd {
                let run = |stage: Stage, bytes: &mut usize, work| {
                    let (stage, none) = (stage.number(Vendor::Amd), std::ptr::null());
                    calls.spgemm_amd(
                        handle, op, op, alpha, da, db, none, dc_handle, dc_handle, number, algorithm, stage, bytes,
                        work,
                    )
                };
                run(Stage::Size, &mut bytes, 0)?;
                let (_scratch, work) = self.scratch(bytes)?;
                run(Stage::Preprocess, &mut bytes, work)?;
                self.grow(&mut product, dc_handle)?;
                run(Stage::Compute, &mut bytes, work)?;
                self.binding.wait()?;
            } else {
                let beta = host(&zero);
                let plan = SparsePlan::spgemm(calls)?;
                let estimate = |bytes: &mut usize, work| {
                    let (n, d) = (number, plan.handle);
                    calls.spgemm_estimate(handle, op, op, alpha, da, db, beta, dc_handle, n, algorithm, d, bytes, work)
                };
                estimate(&mut bytes, 0)?;
                let (_first, work) = self.scratch(bytes)?;
                estimate(&mut bytes, work)?;
                let compute = |bytes: &mut usize, work| {
                    let (n, d) = (number, plan.handle);
                    calls.spgemm_compute(handle, op, op, alpha, da, db, beta, dc_handle, n, algorithm, d, bytes, work)
                };
                compute(&mut bytes, 0)?;
                let (_second, work) = self.scratch(bytes)?;
                compute(&mut bytes, work)?;
                self.grow(&mut product, dc_handle)?;
                let d = plan.handle;
                calls.spgemm_copy(handle, op, op, alpha, da, db, beta, dc_handle, number, algorithm, d)?;
                self.binding.wait()?;
            }
        }
        Ok(product)
    }

    /// Makes the arrays of a matrix as large as the library has counted, and tells it where they are.
    #[track_caller]
    pub(super) fn grow<T: Scalar>(&self, matrix: &mut SparseMatrix<T>, descriptor: Handle) -> Result<()> {
        let (mut rows, mut columns, mut n) = (0, 0, 0);
        // SAFETY: a live descriptor and valid out pointers.
        unsafe { self.calls.matrix_size(descriptor, &mut rows, &mut columns, &mut n) }?;
        let n = usize::try_from(n).unwrap_or(0);
        if matrix.format == SparseFormat::Coo {
            matrix.outer = self.binding.alloc(n)?;
        }
        matrix.inner = self.binding.alloc(n)?;
        matrix.values = self.binding.alloc(n)?;
        let outer = self.binding.input(&matrix.outer.all())?;
        let (inner, values) = (self.binding.input(&matrix.inner.all())?, self.binding.input(&matrix.values.all())?);
        // SAFETY: arrays of the counted length, which the matrix owns.
        unsafe {
            match matrix.format {
                SparseFormat::Coo => self.calls.coo_pointers(descriptor, outer, inner, values),
                SparseFormat::Csc => self.calls.csc_pointers(descriptor, outer, inner, values),
                SparseFormat::Csr | SparseFormat::Bsr { .. } => {
                    self.calls.csr_pointers(descriptor, outer, inner, values)
                }
            }
        }
    }

    /// Solves A x = alpha b with one triangle of a square CSR or COO matrix.
    #[track_caller]
    pub fn spsv<T: Scalar>(
        &self,
        triangle: Triangle,
        diagonal: Diagonal,
        alpha: T,
        a: &SparseMatrix<T>,
        b: Slice<'_, T>,
        x: SliceMut<'_, T>,
    ) -> Result<()> {
        same("spsv", "rows and columns of A", a.rows, a.columns)?;
        same("spsv", "order of A and length of b", a.rows, b.len())?;
        same("spsv", "order of A and length of x", a.rows, x.len())?;
        ensure("spsv", matches!(a.format, SparseFormat::Csr | SparseFormat::Coo), || {
            format!("a matrix in {:?}", a.format)
        })?;
        let (at_b, at_x) = (self.binding.input(&b)?, self.binding.output(&x)?);
        let matrix = self.describe(a)?;
        let fill = match triangle {
            Triangle::Lower => Fill::Lower,
            Triangle::Upper => Fill::Upper,
        };
        let ones = match diagonal {
            Diagonal::Stored => DiagonalType::Stored,
            Diagonal::Ones => DiagonalType::Ones,
        };
        let vendor = self.vendor();
        self.set(matrix.handle, Attribute::Fill, fill.number(vendor))?;
        self.set(matrix.handle, Attribute::Diagonal, ones.number(vendor))?;
        let (vb, vx) = (self.vector::<T>(b.len(), at_b)?, self.vector::<T>(x.len(), at_x)?);
        let (op, number, algorithm) = (self.op(), self.number::<T>(), Algorithm::SpSv.number(vendor));
        let (calls, handle, (a, b, x)) = (self.calls, self.handle, (matrix.handle, vb.handle, vx.handle));
        let (alpha, mut bytes) = (host(&alpha), 0);
        // SAFETY: as for `spmv`.
        unsafe {
            if vendor == Vendor::Amd {
                let run = |stage, bytes: &mut usize, work| {
                    calls.spsv_amd(handle, op, alpha, a, b, x, number, algorithm, stage, bytes, work)
                };
                self.in_stages(run)?;
            } else {
                let plan = SparsePlan::spsv(calls)?;
                let d = plan.handle;
                calls.spsv_bytes(handle, op, alpha, a, b, x, number, algorithm, d, &mut bytes)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.spsv_analysis(handle, op, alpha, a, b, x, number, algorithm, d, work)?;
                calls.spsv_solve(handle, op, alpha, a, b, x, number, algorithm, d)?;
                self.binding.wait()?;
            }
        }
        Ok(())
    }

    #[track_caller]
    fn set(&self, matrix: Handle, attribute: Attribute, value: LibraryChoice) -> Result<()> {
        // SAFETY: a live descriptor and a number of that attribute's enum, which the library copies.
        unsafe {
            self.calls.matrix_set(matrix, attribute.number(self.vendor()), host(&value), size_of::<LibraryChoice>())
        }
    }

    fn op(&self) -> LibraryChoice {
        Operation::None.number(self.vendor())
    }

    fn number<T: Scalar>(&self) -> LibraryChoice {
        DataType::of(T::KIND).number(self.vendor())
    }
}

/// What cuSPARSE keeps between the steps of a function.
struct SparsePlan {
    calls: &'static super::Calls,
    handle: Handle,
    is_product: bool,
}

impl SparsePlan {
    fn spgemm(calls: &'static super::Calls) -> Result<Self> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer.
        unsafe { calls.spgemm_create(&mut handle) }?;
        Ok(Self { calls, handle, is_product: true })
    }

    fn spsv(calls: &'static super::Calls) -> Result<Self> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer.
        unsafe { calls.spsv_create(&mut handle) }?;
        Ok(Self { calls, handle, is_product: false })
    }
}

impl Drop for SparsePlan {
    fn drop(&mut self) {
        // SAFETY: made above and destroyed once, after the function has waited; it holds host memory only.
        let _ = unsafe {
            if self.is_product { self.calls.spgemm_destroy(self.handle) } else { self.calls.spsv_destroy(self.handle) }
        };
    }
}
