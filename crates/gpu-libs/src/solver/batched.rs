//! Many small matrices at once.

use gpu::foreign::Address;
use gpu::{Buffer, Slice, SliceMut, Vendor};

use super::calls::Int;
use super::{Solver, sizes};
use crate::blas::{Operation, Triangle};
use crate::error::{Result, ensure, int};
use crate::scalar::Scalar;
use crate::view::{MatrixBatch, MatrixBatchMut};

impl Solver {
    /// `lu` of every member. Square matrices; `pivots` holds as many as rows for each member, one after the other.
    #[track_caller]
    pub fn lu_batched<T: Scalar>(&self, a: MatrixBatchMut<'_, T>, pivots: SliceMut<'_, i32>) -> Result<()> {
        const CALL: &str = "lu_batched";
        let (m, n, at, lda) = self.columns_mut(CALL, &a.first)?;
        ensure(CALL, m == n, || format!("{m} x {n} is not square"))?;
        ensure(CALL, pivots.len() >= n as usize * a.n, || {
            format!("{} pivots, {} wanted", pivots.len(), n as usize * a.n)
        })?;
        let pivots = self.binding().output(&pivots)?;
        let batch = int(CALL, "the batch", a.n)?;
        let (info, at_info) = self.infos(a.n)?;
        let words = "a matrix is singular: U has a zero on its diagonal in row";
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            let (calls, stride) = (self.calls, a.stride as i64);
            // SAFETY: every member was checked when the batch was made, the pivots above; one outcome for each.
            unsafe {
                calls.getrf_batched_amd(
                    T::KIND,
                    self.handle,
                    n,
                    n,
                    at,
                    lda,
                    stride,
                    pivots,
                    i64::from(n),
                    at_info,
                    batch,
                )
            }?;
            return self.judge(CALL, &info, words);
        }
        let (_list, list) = self.list::<T>(at, a.stride, a.n)?;
        // SAFETY: as above, with a list of the members' addresses that lives until `judge` has waited.
        unsafe { self.blas.getrf_list(T::KIND, n, list, lda, pivots, at_info, batch) }?;
        self.judge(CALL, &info, words)
    }

    /// `solve_lu` of every member.
    #[track_caller]
    pub fn solve_lu_batched<T: Scalar>(
        &self,
        a: MatrixBatch<'_, T>,
        pivots: Slice<'_, i32>,
        b: MatrixBatchMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "solve_lu_batched";
        let (m, n, lda) = sizes(CALL, a.first.shape)?;
        let (rows, n_right, at_b, ldb) = self.columns_mut(CALL, &b.first)?;
        ensure(CALL, m == n && rows == n && a.n == b.n && !a.first.is_conjugate, || {
            format!("{} systems of {m} x {n} and {} right-hand sides of {rows} rows", a.n, b.n)
        })?;
        ensure(CALL, pivots.len() >= n as usize * a.n, || {
            format!("{} pivots, {} wanted", pivots.len(), n as usize * a.n)
        })?;
        let (at, pivots) = (self.binding().input(&a.first.data)?, self.binding().input(&pivots)?);
        let (batch, op) = (int(CALL, "the batch", a.n)?, Operation::None.number(self.vendor()));
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            let (stride_a, stride_b) = (a.stride as i64, b.stride as i64);
            // SAFETY: every member was checked when the batches were made, the pivots above.
            return unsafe {
                self.calls.getrs_batched_amd(
                    T::KIND,
                    self.handle,
                    op,
                    n,
                    n_right,
                    at,
                    lda,
                    stride_a,
                    pivots,
                    i64::from(n),
                    at_b,
                    ldb,
                    stride_b,
                    batch,
                )
            };
        }
        let ((_a, list_a), (_b, list_b)) = (self.list::<T>(at, a.stride, a.n)?, self.list::<T>(at_b, b.stride, b.n)?);
        // SAFETY: as above, with lists of the members' addresses; giving them back waits for the work.
        unsafe { self.blas.getrs_list(T::KIND, op, n, n_right, list_a, lda, pivots, list_b, ldb, batch) }
    }

    /// `cholesky` of every member.
    #[track_caller]
    pub fn cholesky_batched<T: Scalar>(&self, triangle: Triangle, a: MatrixBatchMut<'_, T>) -> Result<()> {
        const CALL: &str = "cholesky_batched";
        let (m, n, at, lda) = self.columns_mut(CALL, &a.first)?;
        ensure(CALL, m == n, || format!("{m} x {n} is not square"))?;
        let (batch, fill) = (int(CALL, "the batch", a.n)?, triangle.number(self.vendor()));
        let (info, at_info) = self.infos(a.n)?;
        let words = "a matrix is not positive definite: no factor from row";
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            let (calls, stride) = (self.calls, a.stride as i64);
            // SAFETY: every member was checked when the batch was made; one outcome for each.
            unsafe { calls.potrf_batched_amd(T::KIND, self.handle, fill, n, at, lda, stride, at_info, batch) }?;
            return self.judge(CALL, &info, words);
        }
        let (_list, list) = self.list::<T>(at, a.stride, a.n)?;
        // SAFETY: as above, with a list of the members' addresses that lives until `judge` has waited.
        unsafe { self.calls.potrf_batched_nvidia(T::KIND, self.handle, fill, n, list, lda, at_info, batch) }?;
        self.judge(CALL, &info, words)
    }

    #[track_caller]
    fn infos(&self, n: usize) -> Result<(Buffer<i32>, Address)> {
        let info = self.binding().upload(&vec![0i32; n])?;
        let at = self.binding().input(&info.all())?;
        Ok((info, at))
    }

    /// The addresses of a batch's members, on the device.
    #[track_caller]
    fn list<T: Scalar>(&self, first: Address, stride: usize, n: usize) -> Result<(Buffer<u64>, Address)> {
        let bytes = (stride * size_of::<T>()) as u64;
        let list: Vec<u64> = (0..n as u64).map(|i| first + i * bytes).collect();
        let list = self.binding().upload(&list)?;
        let at = self.binding().input(&list.all())?;
        Ok((list, at))
    }
}

/// cuBLAS has the batched LU of NVIDIA's libraries.
impl crate::blas::Blas {
    /// # Safety
    /// The list holds `batch` addresses of square matrices; pivots and outcomes suffice for them.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "they are the library's own")]
    unsafe fn getrf_list(
        &self,
        kind: crate::scalar::ScalarKind,
        n: Int,
        list: Address,
        lda: Int,
        pivots: Address,
        info: Address,
        batch: Int,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.calls().getrf_batched(kind, self.handle(), n, list, lda, pivots, info, batch) }
    }

    /// # Safety
    /// The lists hold `batch` addresses each; the pivots are those of the first.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "they are the library's own")]
    unsafe fn getrs_list(
        &self,
        kind: crate::scalar::ScalarKind,
        op: Int,
        n: Int,
        n_right: Int,
        a: Address,
        lda: Int,
        pivots: Address,
        b: Address,
        ldb: Int,
        batch: Int,
    ) -> Result<()> {
        let mut info: Int = 0;
        // SAFETY: the caller's; the outcome is a number of the host.
        unsafe {
            self.calls().getrs_batched(kind, self.handle(), op, n, n_right, a, lda, pivots, b, ldb, &mut info, batch)
        }
    }
}
