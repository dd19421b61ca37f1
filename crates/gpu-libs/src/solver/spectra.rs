//! Singular values and eigenvalues.

use gpu::{SliceMut, Vendor};

use super::{SingularVectors, Solver, Vectors, WorkMode};
use crate::blas::Triangle;
use crate::error::{Result, ensure};
use crate::scalar::Scalar;
use crate::view::MatrixMut;

impl Solver {
    /// A = U diag(s) V^H. With k the smaller size of A, `u` gets k columns and `vh` k rows; the singular values are
    /// in descending order. What `a` holds afterwards is anything.
    #[track_caller]
    pub fn svd<T: Scalar>(
        &self,
        a: MatrixMut<'_, T>,
        s: SliceMut<'_, T::Real>,
        u: MatrixMut<'_, T>,
        vh: MatrixMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "svd";
        let (m, n, a, lda) = self.columns_mut(CALL, &a)?;
        let k = m.min(n);
        let ((u_rows, u_columns, u, ldu), (v_rows, v_columns, vh, ldv)) =
            (self.columns_mut(CALL, &u)?, self.columns_mut(CALL, &vh)?);
        ensure(CALL, (u_rows, u_columns) == (m, k) && (v_rows, v_columns) == (k, n), || {
            format!("U is {u_rows} x {u_columns} and V^H {v_rows} x {v_columns}; {m} x {k} and {k} x {n} are wanted")
        })?;
        ensure(CALL, s.len() >= k as usize, || format!("{} singular values, {k} wanted", s.len()))?;
        let s = self.binding().output(&s)?;
        let (info, at_info) = self.info()?;
        let rest = self.binding().alloc::<T::Real>(k.max(2) as usize)?;
        let at_rest = self.binding().input(&rest.all())?;
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        let words = "the iteration did not converge: superdiagonals left";
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            let (vectors, mode) =
                (SingularVectors::Singular.number(Vendor::Amd), WorkMode::OutOfPlace.number(Vendor::Amd));
            // SAFETY: views checked against memory of this queue and against each other; scratch of k numbers.
            unsafe {
                calls
                    .gesvd_amd(kind, handle, vectors, vectors, m, n, a, lda, s, u, ldu, vh, ldv, at_rest, mode, at_info)
            }?;
            return self.judge(CALL, &info, words);
        }
        ensure(CALL, m >= n, || format!("{m} x {n}: cuSOLVER wants as many rows as columns, so pass the transpose"))?;
        // SAFETY: a valid out pointer; the call only computes a size.
        let (_work, work, n_work) =
            self.work::<T>(|n_work| unsafe { calls.gesvd_bytes(kind, handle, m, n, n_work) })?;
        let thin = b'S' as i8;
        // SAFETY: as above, with a workspace of the size asked for, kept until `judge` has waited.
        unsafe {
            calls.gesvd_nvidia(
                kind, handle, thin, thin, m, n, a, lda, s, u, ldu, vh, ldv, work, n_work, at_rest, at_info,
            )
        }?;
        self.judge(CALL, &info, words)
    }

    /// The eigenvalues of a symmetric or Hermitian matrix, ascending, by divide and conquer. One triangle of `a` is
    /// read; with `Vectors::All` its columns become the eigenvectors.
    #[track_caller]
    pub fn eigen<T: Scalar>(
        &self,
        vectors: Vectors,
        triangle: Triangle,
        a: MatrixMut<'_, T>,
        values: SliceMut<'_, T::Real>,
    ) -> Result<()> {
        const CALL: &str = "eigen";
        let (m, n, a, lda) = self.columns_mut(CALL, &a)?;
        ensure(CALL, m == n, || format!("{m} x {n} is not square"))?;
        ensure(CALL, values.len() >= n as usize, || format!("{} eigenvalues, {n} wanted", values.len()))?;
        let values = self.binding().output(&values)?;
        let (info, at_info) = self.info()?;
        let rest = self.binding().alloc::<T::Real>(n.max(1) as usize)?;
        let at_rest = self.binding().input(&rest.all())?;
        let (fill, vectors) = (triangle.number(self.vendor()), vectors.number(self.vendor()));
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        let words = "the iteration did not converge: off-diagonals left";
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            // SAFETY: a square matrix and n values in memory of this queue; scratch of n numbers.
            unsafe { calls.syevd_amd(kind, handle, vectors, fill, n, a, lda, values, at_rest, at_info) }?;
            return self.judge(CALL, &info, words);
        }
        let ask = |n_work| {
            // SAFETY: a valid out pointer; the call only computes a size.
            unsafe { calls.syevd_bytes(kind, handle, vectors, fill, n, a, lda, values, n_work) }
        };
        let (_work, work, n_work) = self.work::<T>(ask)?;
        // SAFETY: as above, with a workspace of the size asked for, kept until `judge` has waited.
        unsafe { calls.syevd_nvidia(kind, handle, vectors, fill, n, a, lda, values, work, n_work, at_info) }?;
        self.judge(CALL, &info, words)
    }
}
