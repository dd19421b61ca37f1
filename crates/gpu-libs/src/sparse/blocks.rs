//! From single elements to blocks and back. NVIDIA has these functions up to CUDA 12.

use super::{BlockDirection, Calls, Handle, Sparse, SparseFormat, SparseMatrix, is_csr};
use crate::error::{Result, ensure, int};
use crate::scalar::Scalar;

/// A general matrix, counted from zero: what both libraries make a description of if they are told nothing else.
struct GeneralForm {
    calls: &'static Calls,
    handle: Handle,
}

impl GeneralForm {
    #[track_caller]
    fn new(calls: &'static Calls) -> Result<Self> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer.
        unsafe { calls.form_create(&mut handle) }?;
        Ok(Self { calls, handle })
    }
}

impl Drop for GeneralForm {
    fn drop(&mut self) {
        // SAFETY: made above and destroyed once; it holds host memory only.
        let _ = unsafe { self.calls.form_destroy(self.handle) };
    }
}

impl Sparse {
    /// The same matrix in square blocks; rows and columns must be multiples of the block's side.
    #[track_caller]
    pub fn csr_to_bsr<T: Scalar>(&self, a: &SparseMatrix<T>, block: usize) -> Result<SparseMatrix<T>> {
        const CALL: &str = "csr_to_bsr";
        let (rows, columns, _) = is_csr(CALL, a)?;
        ensure(CALL, block > 0 && a.rows.is_multiple_of(block) && a.columns.is_multiple_of(block), || {
            format!("{} x {} in blocks of {block}", a.rows, a.columns)
        })?;
        let (calls, handle, side) = (self.calls, self.handle, int(CALL, "a block", block)?);
        let direction = BlockDirection::Rows.number(self.vendor());
        let (offsets, indices) = (self.binding.input(&a.outer.all())?, self.binding.input(&a.inner.all())?);
        let values = self.binding.input(&a.values.all())?;
        let forms = (GeneralForm::new(calls)?, GeneralForm::new(calls)?);
        let (from, to) = (forms.0.handle, forms.1.handle);
        let outer = self.binding.alloc::<i32>(a.rows / block + 1)?;
        let to_offsets = self.binding.input(&outer.all())?;
        let mut n = 0;
        self.binding.enter()?;
        // SAFETY: arrays of the lengths that the format has, in memory of this queue; in host pointer mode the count is
        // there when the call returns.
        unsafe {
            calls
                .count_blocks(handle, direction, rows, columns, from, offsets, indices, side, to, to_offsets, &mut n)?;
        }
        let n = usize::try_from(n).unwrap_or(0);
        let format = SparseFormat::Bsr { block };
        let (inner, made_values) = (self.binding.alloc(n)?, self.binding.alloc(n * block * block)?);
        let made = SparseMatrix { format, rows: a.rows, columns: a.columns, outer, inner, values: made_values };
        let (to_indices, to_values) = (self.binding.input(&made.inner.all())?, self.binding.input(&made.values.all())?);
        // SAFETY: as above; as many blocks as were counted.
        unsafe {
            calls.csr_to_bsr(
                T::KIND,
                handle,
                direction,
                rows,
                columns,
                from,
                values,
                offsets,
                indices,
                side,
                to,
                to_values,
                to_offsets,
                to_indices,
            )?;
        }
        self.binding.wait()?;
        Ok(made)
    }

    /// The same matrix with every number of its blocks as an element, zeros included.
    #[track_caller]
    pub fn bsr_to_csr<T: Scalar>(&self, a: &SparseMatrix<T>) -> Result<SparseMatrix<T>> {
        const CALL: &str = "bsr_to_csr";
        let SparseFormat::Bsr { block } = a.format else {
            ensure(CALL, false, || format!("a matrix in {:?}", a.format))?;
            unreachable!()
        };
        let (calls, handle, side) = (self.calls, self.handle, int(CALL, "a block", block)?);
        let (rows, columns) = (int(CALL, "rows", a.rows / block)?, int(CALL, "columns", a.columns / block)?);
        let direction = BlockDirection::Rows.number(self.vendor());
        let (offsets, indices) = (self.binding.input(&a.outer.all())?, self.binding.input(&a.inner.all())?);
        let values = self.binding.input(&a.values.all())?;
        let forms = (GeneralForm::new(calls)?, GeneralForm::new(calls)?);
        let (from, to) = (forms.0.handle, forms.1.handle);
        let outer = self.binding.alloc::<i32>(a.rows + 1)?;
        let (inner, made_values) = (self.binding.alloc(a.len())?, self.binding.alloc(a.len())?);
        let (n_rows, n_columns) = (a.rows, a.columns);
        let format = SparseFormat::Csr;
        let made = SparseMatrix { format, rows: n_rows, columns: n_columns, outer, inner, values: made_values };
        let (to_offsets, to_indices) = (self.binding.input(&made.outer.all())?, self.binding.input(&made.inner.all())?);
        let to_values = self.binding.input(&made.values.all())?;
        self.binding.enter()?;
        // SAFETY: arrays of the lengths that the formats have, in memory of this queue.
        unsafe {
            calls.bsr_to_csr(
                T::KIND,
                handle,
                direction,
                rows,
                columns,
                from,
                values,
                offsets,
                indices,
                side,
                to,
                to_values,
                to_offsets,
                to_indices,
            )?;
        }
        self.binding.wait()?;
        Ok(made)
    }
}
