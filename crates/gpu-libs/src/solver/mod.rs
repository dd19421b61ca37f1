//! Dense linear systems and eigenvalues: rocSOLVER | cuSOLVER.
//!
//! Matrices lie by columns, as LAPACK has them, and most are overwritten by their factors. Every function
//! whose outcome depends on the numbers waits for it: a singular matrix is an error, not a wrong answer.
//! Singular values need at least as many rows as columns on NVIDIA; pass the transpose otherwise.

mod batched;
mod calls;
mod spectra;

use gpu::foreign::{Address, Binding};
use gpu::{Buffer, Queue, Slice, SliceMut, Vendor};

pub use calls::{Calls, Vectors};
use calls::{Handle, Int};
pub(crate) use calls::{SingularVectors, WorkMode};

use crate::blas::{Blas, Operation, Triangle};
use crate::error::{Error, Result, ensure, int, report_late};
use crate::scalar::Scalar;
use crate::view::{Matrix, MatrixMut, MatrixOrder, MatrixShape};

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] =
    &[SingularVectors::NUMBERS, WorkMode::NUMBERS, Vectors::NUMBERS, Triangle::NUMBERS, Operation::NUMBERS];

/// A solver of one queue.
pub struct Solver {
    calls: &'static Calls,
    /// rocSOLVER's handle, and what cuSOLVER's batches need.
    blas: Blas,
    /// cuSOLVER's own.
    handle: Handle,
}

/// A matrix by columns: (rows, columns, address, step).
type Columns = (Int, Int, Address, Int);

impl Solver {
    #[track_caller]
    pub fn new(queue: &Queue) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let calls = Calls::get(binding.vendor())?;
        let blas = Blas::make(binding, None)?;
        let mut handle = blas.handle();
        if blas.binding().vendor() == Vendor::Nvidia {
            // SAFETY: a valid out pointer; the current device is the queue's.
            unsafe { calls.create(&mut handle) }?;
        }
        let solver = Self { calls, blas, handle };
        if solver.vendor() == Vendor::Nvidia {
            // SAFETY: a live handle and a stream that the binding keeps alive.
            unsafe { calls.set_stream(handle, solver.binding().stream()) }?;
        }
        Ok(solver)
    }

    /// `rocSOLVER (librocsolver.so.0)`
    pub fn library(&self) -> String {
        self.calls.opened.label()
    }

    /// P A = L U: `a` becomes L (with ones on the diagonal) and U; `pivots` says which row was exchanged with each,
    /// counted from one.
    #[track_caller]
    pub fn lu<T: Scalar>(&self, a: MatrixMut<'_, T>, pivots: SliceMut<'_, i32>) -> Result<()> {
        let (m, n, a, lda) = self.columns_mut("lu", &a)?;
        let n_pivots = m.min(n) as usize;
        ensure("lu", pivots.len() >= n_pivots, || format!("{} pivots, {n_pivots} wanted", pivots.len()))?;
        let pivots = self.binding().output(&pivots)?;
        let (info, at_info) = self.info()?;
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        self.binding().enter()?;
        match self.vendor() {
            // SAFETY: the view was checked against memory of this queue, and so were the pivots; info is one number.
            Vendor::Amd => unsafe { calls.getrf_amd(kind, handle, m, n, a, lda, pivots, at_info) }?,
            Vendor::Nvidia => {
                // SAFETY: as above; the call only computes a size.
                let (_work, at, _) =
                    self.work::<T>(|n_work| unsafe { calls.getrf_bytes(kind, handle, m, n, a, lda, n_work) })?;
                // SAFETY: as above, with a workspace of the size asked for, kept until `judge` has waited.
                unsafe { calls.getrf_nvidia(kind, handle, m, n, a, lda, at, pivots, at_info) }?;
                return self.judge("lu", &info, "the matrix is singular: U has a zero on its diagonal in row");
            }
        }
        self.judge("lu", &info, "the matrix is singular: U has a zero on its diagonal in row")
    }

    /// Solves A X = B with the factors that `lu` made of A; `b` holds B before and X after.
    #[track_caller]
    pub fn solve_lu<T: Scalar>(&self, a: Matrix<'_, T>, pivots: Slice<'_, i32>, b: MatrixMut<'_, T>) -> Result<()> {
        let LinearSystem { n, a, lda, n_right, b, ldb } = self.system("solve_lu", &a, &b)?;
        ensure("solve_lu", pivots.len() >= n as usize, || format!("{} pivots, {n} wanted", pivots.len()))?;
        let pivots = self.binding().input(&pivots)?;
        let op = Operation::None.number(self.vendor());
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        let (info, at_info) = self.info()?;
        self.binding().enter()?;
        // SAFETY: views checked against memory of this queue and against each other.
        unsafe {
            match self.vendor() {
                Vendor::Amd => calls.getrs_amd(kind, handle, op, n, n_right, a, lda, pivots, b, ldb),
                Vendor::Nvidia => calls.getrs_nvidia(kind, handle, op, n, n_right, a, lda, pivots, b, ldb, at_info),
            }
        }?;
        drop(info);
        Ok(())
    }

    /// Solves A X = B: `a` becomes its factors, `b` the solution.
    #[track_caller]
    pub fn solve<T: Scalar>(&self, mut a: MatrixMut<'_, T>, b: MatrixMut<'_, T>) -> Result<()> {
        let mut pivots = self.binding().alloc::<i32>(a.shape.rows)?;
        let shape = a.shape;
        self.lu(MatrixMut { data: a.data.reborrow(), shape }, pivots.all_mut())?;
        let factors = Matrix { data: a.data.as_slice(), shape, is_conjugate: false };
        self.solve_lu(factors, pivots.all(), b)
    }

    /// A becomes its inverse.
    #[track_caller]
    pub fn inverse<T: Scalar>(&self, mut a: MatrixMut<'_, T>) -> Result<()> {
        let shape = a.shape;
        ensure("inverse", shape.rows == shape.columns, || format!("{} x {} is not square", shape.rows, shape.columns))?;
        let mut pivots = self.binding().alloc::<i32>(shape.rows)?;
        self.lu(MatrixMut { data: a.data.reborrow(), shape }, pivots.all_mut())?;
        if self.vendor() == Vendor::Amd {
            let (_, n, at, lda) = self.columns_mut("inverse", &a)?;
            let pivots = self.binding().output(&pivots.all_mut())?;
            let (info, at_info) = self.info()?;
            self.binding().enter()?;
            // SAFETY: the factors and pivots of a square matrix in memory of this queue.
            unsafe { self.calls.getri_amd(T::KIND, self.handle, n, at, lda, pivots, at_info) }?;
            return self.judge("inverse", &info, "the matrix is singular: a zero on the diagonal in row");
        }
        // cuSOLVER has no such call: the identity is solved for.
        let n = shape.rows;
        let mut identity = vec![T::ZERO; n * n];
        identity.iter_mut().step_by(n + 1).for_each(|x| *x = T::ONE);
        let mut identity = self.binding().upload(&identity)?;
        let factors = Matrix { data: a.data.as_slice(), shape, is_conjugate: false };
        self.solve_lu(factors, pivots.all(), MatrixMut::columns(identity.all_mut(), n, n)?)?;
        let found = Matrix::columns(identity.all(), n, n)?;
        self.blas.geam(T::ONE, found, T::ZERO, found, a)
    }

    /// A = L L^H or U^H U: the triangle of `a` that is named becomes its Cholesky factor.
    #[track_caller]
    pub fn cholesky<T: Scalar>(&self, triangle: Triangle, a: MatrixMut<'_, T>) -> Result<()> {
        let (m, n, a, lda) = self.columns_mut("cholesky", &a)?;
        ensure("cholesky", m == n, || format!("{m} x {n} is not square"))?;
        let fill = triangle.number(self.vendor());
        let (info, at_info) = self.info()?;
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        let words = "the matrix is not positive definite: no factor from row";
        self.binding().enter()?;
        match self.vendor() {
            // SAFETY: a square matrix in memory of this queue; info is one number.
            Vendor::Amd => unsafe { calls.potrf_amd(kind, handle, fill, n, a, lda, at_info) }?,
            Vendor::Nvidia => {
                // SAFETY: as above; the call only computes a size.
                let (_work, at, n_work) =
                    self.work::<T>(|n_work| unsafe { calls.potrf_bytes(kind, handle, fill, n, a, lda, n_work) })?;
                // SAFETY: as above, with a workspace of the size asked for, kept until `judge` has waited.
                unsafe { calls.potrf_nvidia(kind, handle, fill, n, a, lda, at, n_work, at_info) }?;
                return self.judge("cholesky", &info, words);
            }
        }
        self.judge("cholesky", &info, words)
    }

    /// Solves A X = B with the factor that `cholesky` made of A; `b` holds B before and X after.
    #[track_caller]
    pub fn solve_cholesky<T: Scalar>(&self, triangle: Triangle, a: Matrix<'_, T>, b: MatrixMut<'_, T>) -> Result<()> {
        let LinearSystem { n, a, lda, n_right, b, ldb } = self.system("solve_cholesky", &a, &b)?;
        let fill = triangle.number(self.vendor());
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        let (info, at_info) = self.info()?;
        self.binding().enter()?;
        // SAFETY: views checked against memory of this queue and against each other.
        unsafe {
            match self.vendor() {
                Vendor::Amd => calls.potrs_amd(kind, handle, fill, n, n_right, a, lda, b, ldb),
                Vendor::Nvidia => calls.potrs_nvidia(kind, handle, fill, n, n_right, a, lda, b, ldb, at_info),
            }
        }?;
        drop(info);
        Ok(())
    }

    /// A = Q R: the upper triangle of `a` becomes R; what is below it and `tau` describe Q.
    #[track_caller]
    pub fn qr<T: Scalar>(&self, a: MatrixMut<'_, T>, tau: SliceMut<'_, T>) -> Result<()> {
        let (m, n, a, lda) = self.columns_mut("qr", &a)?;
        let k = m.min(n) as usize;
        ensure("qr", tau.len() >= k, || format!("tau has {} elements, {k} wanted", tau.len()))?;
        let tau = self.binding().output(&tau)?;
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            // SAFETY: the view and tau were checked against memory of this queue.
            return unsafe { calls.geqrf_amd(kind, handle, m, n, a, lda, tau) };
        }
        let (_info, at_info) = self.info()?;
        // SAFETY: as above; the call only computes a size.
        let (_work, at, n_work) =
            self.work::<T>(|n_work| unsafe { calls.geqrf_bytes(kind, handle, m, n, a, lda, n_work) })?;
        // SAFETY: as above; giving the workspace back waits for the work.
        unsafe { calls.geqrf_nvidia(kind, handle, m, n, a, lda, tau, at, n_work, at_info) }
    }

    /// `a`, which `qr` has filled, becomes the first columns of Q.
    #[track_caller]
    pub fn q<T: Scalar>(&self, a: MatrixMut<'_, T>, tau: Slice<'_, T>) -> Result<()> {
        let (m, n, a, lda) = self.columns_mut("q", &a)?;
        ensure("q", m >= n && tau.len() >= n as usize, || {
            format!("{m} x {n} with {} reflections: at least as many rows and reflections as columns", tau.len())
        })?;
        let tau = self.binding().input(&tau)?;
        let (calls, handle, kind) = (self.calls, self.handle, T::KIND);
        self.binding().enter()?;
        if self.vendor() == Vendor::Amd {
            // SAFETY: the view and tau were checked against memory of this queue.
            return unsafe { calls.orgqr_amd(kind, handle, m, n, n, a, lda, tau) };
        }
        let (_info, at_info) = self.info()?;
        // SAFETY: as above; the call only computes a size.
        let (_work, at, n_work) =
            self.work::<T>(|n_work| unsafe { calls.orgqr_bytes(kind, handle, m, n, n, a, lda, tau, n_work) })?;
        // SAFETY: as above; giving the workspace back waits for the work.
        unsafe { calls.orgqr_nvidia(kind, handle, m, n, n, a, lda, tau, at, n_work, at_info) }
    }

    fn vendor(&self) -> Vendor {
        self.binding().vendor()
    }

    fn binding(&self) -> &Binding {
        self.blas.binding()
    }

    /// One number on the device for a call's outcome.
    #[track_caller]
    fn info(&self) -> Result<(Buffer<i32>, Address)> {
        let info = self.binding().upload(&[0i32])?;
        let at = self.binding().input(&info.all())?;
        Ok((info, at))
    }

    /// A workspace of as many `T`s as the library asks for.
    #[track_caller]
    fn work<T: Scalar>(&self, ask: impl FnOnce(*mut Int) -> Result<()>) -> Result<(Buffer<T>, Address, Int)> {
        let mut n: Int = 0;
        ask(&mut n)?;
        let work = self.binding().alloc::<T>(n.max(1) as usize)?;
        let at = self.binding().input(&work.all())?;
        Ok((work, at, n))
    }

    /// Waits for a call's outcome.
    #[track_caller]
    fn judge(&self, call: &'static str, info: &Buffer<i32>, words: &str) -> Result<()> {
        for (i, info) in self.binding().read(&info.all())?.into_iter().enumerate() {
            if info != 0 {
                let of = if i > 0 { format!(" of matrix {i}") } else { String::new() };
                return Err(Error::Numeric { call, why: format!("{words} {info}{of}") });
            }
        }
        Ok(())
    }

    #[track_caller]
    fn columns_mut<T: Scalar>(&self, call: &'static str, a: &MatrixMut<'_, T>) -> Result<Columns> {
        let (m, n, lda) = sizes(call, a.shape)?;
        Ok((m, n, self.binding().output(&a.data)?, lda))
    }

    /// A square A by columns and right-hand sides.
    #[track_caller]
    fn system<T: Scalar>(&self, call: &'static str, a: &Matrix<'_, T>, b: &MatrixMut<'_, T>) -> Result<LinearSystem> {
        let (m, n, lda) = sizes(call, a.shape)?;
        ensure(call, m == n && !a.is_conjugate, || format!("A is {m} x {n}; a plain square matrix is wanted"))?;
        let (rows, n_right, at_b, ldb) = self.columns_mut(call, b)?;
        ensure(call, rows == n, || format!("A has order {n}, B has {rows} rows"))?;
        Ok(LinearSystem { n, a: self.binding().input(&a.data)?, lda, n_right, b: at_b, ldb })
    }
}

/// A X = B as the library takes it: A is `n` x `n`, B has `n_right` columns.
struct LinearSystem {
    n: Int,
    a: Address,
    lda: Int,
    n_right: Int,
    b: Address,
    ldb: Int,
}

#[track_caller]
fn sizes(call: &'static str, shape: MatrixShape) -> Result<(Int, Int, Int)> {
    ensure(call, shape.order == MatrixOrder::Columns, || "the matrix must lie by columns".into())?;
    Ok((int(call, "rows", shape.rows)?, int(call, "columns", shape.columns)?, int(call, "a step", shape.step)?))
}

impl Drop for Solver {
    fn drop(&mut self) {
        if self.vendor() == Vendor::Amd || self.binding().enter().is_err() {
            return;
        }
        // SAFETY: a handle that is destroyed once.
        report_late(self.binding(), unsafe { self.calls.destroy(self.handle) });
    }
}
