//! From one format to another.

use gpu::Vendor;

use super::{Action, Algorithm, Base, DataType, Sparse, SparseFormat, SparseMatrix, is_csr, same};
use crate::error::{Result, ensure, int};
use crate::scalar::Scalar;
use crate::view::{Matrix, MatrixMut};

impl Sparse {
    /// Writes a matrix, zeros included, into a dense one.
    #[track_caller]
    pub fn to_dense<T: Scalar>(&self, a: &SparseMatrix<T>, to: MatrixMut<'_, T>) -> Result<()> {
        same("to_dense", "rows", a.rows, to.shape.rows)?;
        same("to_dense", "columns", a.columns, to.shape.columns)?;
        ensure("to_dense", !matches!(a.format, SparseFormat::Bsr { .. }), || "neither library has it for Bsr".into())?;
        let at = self.binding.output(&to.data)?;
        let (matrix, dense) = (self.describe(a)?, self.dense::<T>(to.shape, at)?);
        let algorithm = Algorithm::ToDense.number(self.vendor());
        let (calls, handle, a, b) = (self.calls, self.handle, matrix.handle, dense.handle);
        let mut bytes = 0;
        // SAFETY: live descriptors of memory of this queue; scratch lives until the wait is over.
        unsafe {
            match self.vendor() {
                Vendor::Amd => calls.to_dense_amd(handle, a, b, algorithm, &mut bytes, 0),
                Vendor::Nvidia => calls.to_dense_bytes(handle, a, b, algorithm, &mut bytes),
            }?;
            let (_scratch, work) = self.scratch(bytes)?;
            match self.vendor() {
                Vendor::Amd => calls.to_dense_amd(handle, a, b, algorithm, &mut bytes, work),
                Vendor::Nvidia => calls.to_dense_nvidia(handle, a, b, algorithm, work),
            }?;
            self.binding.wait()?;
        }
        Ok(())
    }

    /// The elements of a dense matrix that are not zero, in COO, CSR or CSC.
    #[track_caller]
    pub fn from_dense<T: Scalar>(&self, from: Matrix<'_, T>, format: SparseFormat) -> Result<SparseMatrix<T>> {
        let (rows, columns) = (from.shape.rows, from.shape.columns);
        ensure("from_dense", !from.is_conjugate, || "the conjugate of a matrix".into())?;
        let n_outer = match format {
            SparseFormat::Coo => 0,
            SparseFormat::Csr => rows + 1,
            SparseFormat::Csc => columns + 1,
            SparseFormat::Bsr { .. } => {
                ensure("from_dense", false, || "neither library has it for Bsr; csr_to_bsr follows".into())?;
                unreachable!()
            }
        };
        let at = self.binding.input(&from.data)?;
        let outer = self.binding.upload(&vec![0i32; n_outer])?;
        let (inner, values) = (self.binding.alloc(0)?, self.binding.alloc(0)?);
        let mut made = SparseMatrix { format, rows, columns, outer, inner, values };
        let (dense, matrix) = (self.dense::<T>(from.shape, at)?, self.describe(&made)?);
        let algorithm = Algorithm::FromDense.number(self.vendor());
        let (calls, handle, a, b) = (self.calls, self.handle, dense.handle, matrix.handle);
        let mut bytes = 0;
        // SAFETY: live descriptors of memory of this queue. The arrays are made as large as the library's count of
        // elements says, before they are filled; scratch lives until the wait is over.
        unsafe {
            if self.vendor() == Vendor::Amd {
                calls.sparsify_amd(handle, a, b, algorithm, &mut bytes, 0)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.sparsify_amd(handle, a, b, algorithm, std::ptr::null_mut(), work)?;
                self.grow(&mut made, b)?;
                calls.sparsify_amd(handle, a, b, algorithm, &mut bytes, work)?;
                self.binding.wait()?;
            } else {
                calls.sparsify_bytes(handle, a, b, algorithm, &mut bytes)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.sparsify_count(handle, a, b, algorithm, work)?;
                self.grow(&mut made, b)?;
                calls.sparsify_nvidia(handle, a, b, algorithm, work)?;
                self.binding.wait()?;
            }
        }
        Ok(made)
    }

    /// The same matrix with a row for each element.
    #[track_caller]
    pub fn csr_to_coo<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        let (rows, _, n) = is_csr("csr_to_coo", a)?;
        let coo = self.alike(a, SparseFormat::Coo, a.len())?;
        let (offsets, base) = (self.binding.input(&a.outer.all())?, Base::Zero.number(self.vendor()));
        let indices = self.binding.input(&coo.outer.all())?;
        // SAFETY: as many indices as elements, in memory of this queue.
        unsafe { self.calls.csr_to_coo(self.handle, offsets, n, rows, indices, base) }?;
        self.copy_rest(a, coo)
    }

    /// The same matrix with an offset for each row.
    #[track_caller]
    pub fn coo_to_csr<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        ensure("coo_to_csr", a.format == SparseFormat::Coo, || format!("a matrix in {:?}", a.format))?;
        let (rows, n) = (int("coo_to_csr", "rows", a.rows)?, int("coo_to_csr", "elements", a.len())?);
        let csr = self.alike(a, SparseFormat::Csr, a.rows + 1)?;
        let (indices, base) = (self.binding.input(&a.outer.all())?, Base::Zero.number(self.vendor()));
        let offsets = self.binding.input(&csr.outer.all())?;
        // SAFETY: one offset more than rows, in memory of this queue; the indices are sorted.
        unsafe { self.calls.coo_to_csr(self.handle, indices, n, rows, offsets, base) }?;
        self.copy_rest(a, csr)
    }

    /// The same matrix by columns; also the CSR form of its transpose.
    #[track_caller]
    pub fn csr_to_csc<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        is_csr("csr_to_csc", a)?;
        let csc = self.alike(a, SparseFormat::Csc, a.columns + 1)?;
        self.turn(a, csc, a.rows, a.columns)
    }

    /// The same matrix by rows.
    #[track_caller]
    pub fn csc_to_csr<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        ensure("csc_to_csr", a.format == SparseFormat::Csc, || format!("a matrix in {:?}", a.format))?;
        let csr = self.alike(a, SparseFormat::Csr, a.rows + 1)?;
        // By columns it is the transposed matrix by rows.
        self.turn(a, csr, a.columns, a.rows)
    }

    /// Lists the elements of `a`, which has so many lines of such a length, the other way.
    #[track_caller]
    fn turn<T: Scalar>(
        &self,
        a: &SparseMatrix<T>,
        csc: SparseMatrix<T>,
        lines: usize,
        length: usize,
    ) -> Result<SparseMatrix<T>> {
        const CALL: &str = "csr_to_csc";
        let (rows, columns) = (int(CALL, "rows", lines)?, int(CALL, "columns", length)?);
        let n = int(CALL, "elements", a.len())?;
        let vendor = self.vendor();
        let (offsets, indices) = (self.binding.input(&a.outer.all())?, self.binding.input(&a.inner.all())?);
        let values = self.binding.input(&a.values.all())?;
        let (to_offsets, to_indices) = (self.binding.input(&csc.outer.all())?, self.binding.input(&csc.inner.all())?);
        let to_values = self.binding.input(&csc.values.all())?;
        let (action, base) = (Action::Numeric.number(vendor), Base::Zero.number(vendor));
        let (number, algorithm) = (DataType::of(T::KIND).number(vendor), Algorithm::ToCsc.number(vendor));
        let (calls, handle, mut bytes) = (self.calls, self.handle, 0);
        // SAFETY: arrays of the lengths that the format has, in memory of this queue; scratch lives until the wait.
        unsafe {
            if vendor == Vendor::Amd {
                calls.csr_to_csc_bytes_amd(handle, rows, columns, n, offsets, indices, action, &mut bytes)?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.csr_to_csc_amd(
                    T::KIND,
                    handle,
                    rows,
                    columns,
                    n,
                    values,
                    offsets,
                    indices,
                    to_values,
                    to_indices,
                    to_offsets,
                    action,
                    base,
                    work,
                )?;
                self.binding.wait()?;
            } else {
                calls.csr_to_csc_bytes_nvidia(
                    handle, rows, columns, n, values, offsets, indices, to_values, to_offsets, to_indices, number,
                    action, base, algorithm, &mut bytes,
                )?;
                let (_scratch, work) = self.scratch(bytes)?;
                calls.csr_to_csc_nvidia(
                    handle, rows, columns, n, values, offsets, indices, to_values, to_offsets, to_indices, number,
                    action, base, algorithm, work,
                )?;
                self.binding.wait()?;
            }
        }
        Ok(csc)
    }

    /// Empty arrays for the elements of `a` in another format.
    #[track_caller]
    fn alike<T: Scalar>(&self, a: &SparseMatrix<T>, format: SparseFormat, n_outer: usize) -> Result<SparseMatrix<T>> {
        self.binding.input(&a.outer.all())?;
        Ok(SparseMatrix {
            format,
            rows: a.rows,
            columns: a.columns,
            outer: self.binding.alloc(n_outer)?,
            inner: self.binding.alloc(a.inner.len())?,
            values: self.binding.alloc(a.values.len())?,
        })
    }

    /// The columns and values of `a`, which are the same in COO and CSR.
    #[track_caller]
    fn copy_rest<T: Scalar>(&self, a: &SparseMatrix<T>, mut to: SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        self.binding.copy(a.inner.all(), to.inner.all_mut())?;
        self.binding.copy(a.values.all(), to.values.all_mut())?;
        Ok(to)
    }
}
