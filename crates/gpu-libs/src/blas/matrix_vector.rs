//! Level 2: a matrix and vectors.

use super::{Blas, Diagonal, Int, Operation, Triangle, host, same, square};
use crate::error::{Error, Result, ensure, int};
use crate::scalar::Scalar;
use crate::view::{Matrix, MatrixMut, MatrixOrder, Vector, VectorMut};

/// A band matrix: its rows, and the diagonals that are stored beside the main one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    pub n_rows: usize,
    pub n_below: usize,
    pub n_above: usize,
}

// Functions that differ in their name alone are written once, as in `vectors.rs`.

macro_rules! symmetric_products {
    ($($(#[$doc:meta])* $name:ident $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            alpha: T,
            a: Matrix<'_, T>,
            x: impl Into<Vector<'a, T>>,
            beta: T,
            y: impl Into<VectorMut<'a, T>>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let (x, y) = (x.into(), y.into());
            $($check(CALL, a.shape.order)?;)?
            let (n, at, ld, fill) = self.symmetric(CALL, &a, triangle)?;
            same(CALL, "order of A and length of x", a.shape.rows, x.len)?;
            same(CALL, "order of A and length of y", a.shape.rows, y.len)?;
            let ((_, x, step_x), (_, y, step_y)) = (self.read(CALL, &x)?, self.write(CALL, &y)?);
            self.enter()?;
            let (alpha, beta) = (host(&alpha), host(&beta));
            // SAFETY: as for `gemv`.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, n, alpha, at, ld, x, step_x, beta, y, step_y) }
        }
    )*};
}

macro_rules! triangular_products {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            diagonal: Diagonal,
            a: Matrix<'_, T>,
            x: impl Into<VectorMut<'a, T>>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let x = x.into();
            square(CALL, a.shape.rows, a.shape.columns)?;
            same(CALL, "order of A and length of x", a.shape.rows, x.len)?;
            let (at, fill) = self.triangular(CALL, &a, triangle)?;
            let (op, diagonal) = (self.choice(at.operation), diagonal.number(self.binding.vendor()));
            let (n, x, step) = self.write(CALL, &x)?;
            self.enter()?;
            // SAFETY: as for `gemv`.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, op, diagonal, n, at.at, at.ld, x, step) }
        }
    )*};
}

macro_rules! rank_ones {
    ($($(#[$doc:meta])* $name:ident, alpha: $alpha:ty $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            alpha: $alpha,
            x: impl Into<Vector<'a, T>>,
            a: MatrixMut<'_, T>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let x = x.into();
            $($check(CALL, a.shape.order)?;)?
            let (at, ld, fill) = self.symmetric_target(CALL, a, triangle, x.len)?;
            let (n, x, step) = self.read(CALL, &x)?;
            self.enter()?;
            // SAFETY: as for `gemv`; the alpha of `her` is real for every kind.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, n, host(&alpha), x, step, at, ld) }
        }
    )*};
}

macro_rules! rank_twos {
    ($($(#[$doc:meta])* $name:ident $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            alpha: T,
            x: impl Into<Vector<'a, T>>,
            y: impl Into<Vector<'a, T>>,
            a: MatrixMut<'_, T>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let (x, y) = (x.into(), y.into());
            $($check(CALL, a.shape.order)?;)?
            same(CALL, "lengths of x and y", x.len, y.len)?;
            let (at, ld, fill) = self.symmetric_target(CALL, a, triangle, x.len)?;
            let ((n, x, step_x), (_, y, step_y)) = (self.read(CALL, &x)?, self.read(CALL, &y)?);
            self.enter()?;
            // SAFETY: as for `gemv`.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, n, host(&alpha), x, step_x, y, step_y, at, ld) }
        }
    )*};
}

impl Blas {
    /// y = alpha A x + beta y
    #[track_caller]
    pub fn gemv<'a, T: Scalar>(
        &self,
        alpha: T,
        a: Matrix<'_, T>,
        x: impl Into<Vector<'a, T>>,
        beta: T,
        y: impl Into<VectorMut<'a, T>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("gemv", "columns of A and length of x", a.shape.columns, x.len)?;
        same("gemv", "rows of A and length of y", a.shape.rows, y.len)?;
        let at = self.operand("gemv", &a)?;
        let (rows, columns) = (int("gemv", "rows", a.shape.rows)?, int("gemv", "columns", a.shape.columns)?);
        let (m, n) = if at.operation == Operation::None { (rows, columns) } else { (columns, rows) };
        let ((_, x, step_x), (_, y, step_y)) = (self.read("gemv", &x)?, self.write("gemv", &y)?);
        let op = self.choice(at.operation);
        self.enter()?;
        let (alpha, beta) = (host(&alpha), host(&beta));
        // SAFETY: views checked against memory of this queue, shapes against each other; scalars outlive the call.
        unsafe { self.calls.gemv(T::KIND, self.handle, op, m, n, alpha, at.at, at.ld, x, step_x, beta, y, step_y) }
    }

    /// y = alpha A x + beta y for a band matrix: column j of `bands` holds A's column j from its
    /// topmost stored diagonal down, as BLAS stores it. `bands` lies by columns.
    #[track_caller]
    pub fn gbmv<'a, T: Scalar>(
        &self,
        alpha: T,
        bands: Matrix<'_, T>,
        band: Band,
        x: impl Into<Vector<'a, T>>,
        beta: T,
        y: impl Into<VectorMut<'a, T>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        by_columns("gbmv", bands.shape.order)?;
        same("gbmv", "stored diagonals and rows of their matrix", band.n_below + band.n_above + 1, bands.shape.rows)?;
        same("gbmv", "columns of A and length of x", bands.shape.columns, x.len)?;
        same("gbmv", "rows of A and length of y", band.n_rows, y.len)?;
        let at = self.operand("gbmv", &bands)?;
        let (m, n) = (int("gbmv", "rows", band.n_rows)?, int("gbmv", "columns", bands.shape.columns)?);
        let (below, above) = (int("gbmv", "diagonals", band.n_below)?, int("gbmv", "diagonals", band.n_above)?);
        let ((_, x, step_x), (_, y, step_y)) = (self.read("gbmv", &x)?, self.write("gbmv", &y)?);
        let (op, alpha, beta) = (self.choice(Operation::None), host(&alpha), host(&beta));
        self.enter()?;
        // SAFETY: as for `gemv`.
        unsafe {
            let (kind, handle) = (T::KIND, self.handle);
            self.calls.gbmv(kind, handle, op, m, n, below, above, alpha, at.at, at.ld, x, step_x, beta, y, step_y)
        }
    }

    /// A = alpha x y^T + A
    #[track_caller]
    pub fn ger<'a, T: Scalar>(
        &self,
        alpha: T,
        x: impl Into<Vector<'a, T>>,
        y: impl Into<Vector<'a, T>>,
        a: MatrixMut<'_, T>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        // A^T = alpha y x^T + A^T
        let (x, y, a) = if a.shape.order == MatrixOrder::Rows { (y, x, a.t()) } else { (x, y, a) };
        same("ger", "rows of A and length of x", a.shape.rows, x.len)?;
        same("ger", "columns of A and length of y", a.shape.columns, y.len)?;
        let ((m, x, step_x), (n, y, step_y)) = (self.read("ger", &x)?, self.read("ger", &y)?);
        let (at, ld) = self.target("ger", &a)?;
        self.enter()?;
        // SAFETY: as for `gemv`.
        unsafe { self.calls.ger(T::KIND, self.handle, m, n, host(&alpha), x, step_x, y, step_y, at, ld) }
    }

    /// A = alpha x y^H + A, for a matrix by columns.
    #[track_caller]
    pub fn gerc<'a, T: Scalar>(
        &self,
        alpha: T,
        x: impl Into<Vector<'a, T>>,
        y: impl Into<Vector<'a, T>>,
        a: MatrixMut<'_, T>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        by_columns("gerc", a.shape.order)?;
        same("gerc", "rows of A and length of x", a.shape.rows, x.len)?;
        same("gerc", "columns of A and length of y", a.shape.columns, y.len)?;
        let ((m, x, step_x), (n, y, step_y)) = (self.read("gerc", &x)?, self.read("gerc", &y)?);
        let (at, ld) = self.target("gerc", &a)?;
        self.enter()?;
        // SAFETY: as for `gemv`.
        unsafe { self.calls.gerc(T::KIND, self.handle, m, n, host(&alpha), x, step_x, y, step_y, at, ld) }
    }

    symmetric_products! {
        /// y = alpha A x + beta y for a symmetric matrix, of which one triangle is read.
        symv;
        /// y = alpha A x + beta y for a Hermitian matrix by columns, of which one triangle is read.
        hemv, by_columns;
    }

    rank_ones! {
        /// A = alpha x x^T + A, of which one triangle is written.
        syr, alpha: T;
        /// A = alpha x x^H + A, of which one triangle is written. A Hermitian matrix by columns.
        her, alpha: T::Real, by_columns;
    }

    rank_twos! {
        /// A = alpha (x y^T + y x^T) + A, of which one triangle is written.
        syr2;
        /// A = alpha x y^H + conj(alpha) y x^H + A, of which one triangle is written. A Hermitian matrix by columns.
        her2, by_columns;
    }

    triangular_products! {
        /// x = A x for a triangular matrix.
        trmv;
        /// Solves A x = b for a triangular matrix; x holds b before and the solution after.
        trsv;
    }

    /// A triangular operand: in memory, a transposed matrix has the other triangle.
    #[track_caller]
    pub(super) fn triangular<T: Scalar>(
        &self,
        call: &'static str,
        a: &Matrix<'_, T>,
        triangle: Triangle,
    ) -> Result<(super::Operand, super::LibraryChoice)> {
        let at = self.operand(call, a)?;
        let stored = if at.operation == Operation::None { triangle } else { triangle.flipped() };
        Ok((at, stored.number(self.binding.vendor())))
    }

    /// A symmetric operand, as (order, address, step, fill).
    #[track_caller]
    pub(super) fn symmetric<T: Scalar>(
        &self,
        call: &'static str,
        a: &Matrix<'_, T>,
        triangle: Triangle,
    ) -> Result<(Int, u64, Int, super::LibraryChoice)> {
        square(call, a.shape.rows, a.shape.columns)?;
        ensure(call, !a.is_conjugate || !T::KIND.is_complex(), || "the conjugate of a symmetric matrix".into())?;
        let (at, fill) = self.triangular(call, a, triangle)?;
        Ok((int(call, "the order of A", a.shape.rows)?, at.at, at.ld, fill))
    }

    #[track_caller]
    fn symmetric_target<T: Scalar>(
        &self,
        call: &'static str,
        a: MatrixMut<'_, T>,
        triangle: Triangle,
        len: usize,
    ) -> Result<(u64, Int, super::LibraryChoice)> {
        square(call, a.shape.rows, a.shape.columns)?;
        same(call, "order of A and length of x", a.shape.rows, len)?;
        let (a, triangle) =
            if a.shape.order == MatrixOrder::Rows { (a.t(), triangle.flipped()) } else { (a, triangle) };
        let (at, ld) = self.target(call, &a)?;
        Ok((at, ld, triangle.number(self.binding.vendor())))
    }
}

#[track_caller]
pub(super) fn by_columns(call: &'static str, order: MatrixOrder) -> Result<()> {
    if order == MatrixOrder::Columns { Ok(()) } else { Err(Error::shape(call, "this matrix must lie by columns")) }
}
