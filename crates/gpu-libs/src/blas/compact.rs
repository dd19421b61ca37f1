//! Level 2: matrices of which memory holds some diagonals, or one triangle packed column after column.
//!
//! Diagonals lie as BLAS stores them: each is a row of a matrix by columns, whose column j holds what the column j of
//! the whole matrix has on them. Functions of Hermitian matrices are those of symmetric ones for real numbers (`hpr` is
//! BLAS's `spr`).

use gpu::foreign::Address;
use gpu::{Slice, SliceMut};

use super::matrix_vector::by_columns;
use super::{Blas, Diagonal, Int, LibraryChoice, Operation, Triangle, host, same};
use crate::error::{Result, ensure, int};
use crate::scalar::Scalar;
use crate::view::{Matrix, Vector, VectorMut};

// Functions that differ in their name alone are written once, as in `vectors.rs`.

macro_rules! triangular_bands {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            operation: Operation,
            diagonal: Diagonal,
            bands: Matrix<'_, T>,
            x: impl Into<VectorMut<'a, T>>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let x = x.into();
            let (n, k, at, ld) = self.bands(CALL, &bands, x.len)?;
            let (_, x, step) = self.write(CALL, &x)?;
            let [fill, op, diagonal] = self.stored(triangle, operation, diagonal);
            self.enter()?;
            // SAFETY: as for `gemv`.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, op, diagonal, n, k, at, ld, x, step) }
        }
    )*};
}

macro_rules! packed_triangles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a, T: Scalar>(
            &self,
            triangle: Triangle,
            operation: Operation,
            diagonal: Diagonal,
            packed: Slice<'_, T>,
            x: impl Into<VectorMut<'a, T>>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            let x = x.into();
            fits(CALL, packed.len(), x.len)?;
            let at = self.binding.input(&packed)?;
            let (n, x, step) = self.write(CALL, &x)?;
            let [fill, op, diagonal] = self.stored(triangle, operation, diagonal);
            self.enter()?;
            // SAFETY: as for `gemv`; the triangle was checked against its memory.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, op, diagonal, n, at, x, step) }
        }
    )*};
}

impl Blas {
    /// y = alpha A x + beta y for a Hermitian band matrix, of which one triangle's diagonals are stored.
    #[doc(alias = "sbmv")]
    #[track_caller]
    pub fn hbmv<'a, T: Scalar>(
        &self,
        triangle: Triangle,
        alpha: T,
        bands: Matrix<'_, T>,
        x: impl Into<Vector<'a, T>>,
        beta: T,
        y: impl Into<VectorMut<'a, T>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("hbmv", "lengths of x and y", x.len, y.len)?;
        let (n, k, at, ld) = self.bands("hbmv", &bands, x.len)?;
        let ((_, x, step_x), (_, y, step_y)) = (self.read("hbmv", &x)?, self.write("hbmv", &y)?);
        let (fill, alpha, beta) = (triangle.number(self.binding.vendor()), host(&alpha), host(&beta));
        self.enter()?;
        // SAFETY: as for `gemv`.
        unsafe { self.calls.hbmv(T::KIND, self.handle, fill, n, k, alpha, at, ld, x, step_x, beta, y, step_y) }
    }

    triangular_bands! {
        /// x = A x for a triangular band matrix.
        tbmv;
        /// Solves A x = b for a triangular band matrix; x holds b before and the solution after.
        tbsv;
    }

    /// y = alpha A x + beta y for a Hermitian matrix of which one triangle is packed.
    #[doc(alias = "spmv")]
    #[track_caller]
    pub fn hpmv<'a, T: Scalar>(
        &self,
        triangle: Triangle,
        alpha: T,
        packed: Slice<'_, T>,
        x: impl Into<Vector<'a, T>>,
        beta: T,
        y: impl Into<VectorMut<'a, T>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("hpmv", "lengths of x and y", x.len, y.len)?;
        fits("hpmv", packed.len(), x.len)?;
        let at = self.binding.input(&packed)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.read("hpmv", &x)?, self.write("hpmv", &y)?);
        let (fill, alpha, beta) = (triangle.number(self.binding.vendor()), host(&alpha), host(&beta));
        self.enter()?;
        // SAFETY: as for `gemv`; the triangle was checked against its memory.
        unsafe { self.calls.hpmv(T::KIND, self.handle, fill, n, alpha, at, x, step_x, beta, y, step_y) }
    }

    packed_triangles! {
        /// x = A x for a packed triangle.
        tpmv;
        /// Solves A x = b for a packed triangle; x holds b before and the solution after.
        tpsv;
    }

    /// A = alpha x x^H + A, of which one triangle is packed.
    #[doc(alias = "spr")]
    #[track_caller]
    pub fn hpr<'a, T: Scalar>(
        &self,
        triangle: Triangle,
        alpha: T::Real,
        x: impl Into<Vector<'a, T>>,
        packed: SliceMut<'_, T>,
    ) -> Result<()> {
        let x = x.into();
        fits("hpr", packed.len(), x.len)?;
        let at = self.binding.output(&packed)?;
        let (n, x, step) = self.read("hpr", &x)?;
        let fill = triangle.number(self.binding.vendor());
        self.enter()?;
        // SAFETY: as for `hpmv`; alpha is real for every kind.
        unsafe { self.calls.hpr(T::KIND, self.handle, fill, n, host(&alpha), x, step, at) }
    }

    /// A = alpha x y^H + conj(alpha) y x^H + A, of which one triangle is packed.
    #[doc(alias = "spr2")]
    #[track_caller]
    pub fn hpr2<'a, T: Scalar>(
        &self,
        triangle: Triangle,
        alpha: T,
        x: impl Into<Vector<'a, T>>,
        y: impl Into<Vector<'a, T>>,
        packed: SliceMut<'_, T>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        same("hpr2", "lengths of x and y", x.len, y.len)?;
        fits("hpr2", packed.len(), x.len)?;
        let at = self.binding.output(&packed)?;
        let ((n, x, step_x), (_, y, step_y)) = (self.read("hpr2", &x)?, self.read("hpr2", &y)?);
        let fill = triangle.number(self.binding.vendor());
        self.enter()?;
        // SAFETY: as for `hpmv`.
        unsafe { self.calls.hpr2(T::KIND, self.handle, fill, n, host(&alpha), x, step_x, y, step_y, at) }
    }

    /// A triangular matrix's choices, as the library calls them.
    fn stored(&self, triangle: Triangle, operation: Operation, diagonal: Diagonal) -> [LibraryChoice; 3] {
        let vendor = self.binding.vendor();
        [triangle.number(vendor), self.choice(operation), diagonal.number(vendor)]
    }

    /// Diagonals of one triangle of a matrix of this order, as (order, diagonals beside the main one, address, step).
    #[track_caller]
    fn bands<T: Scalar>(
        &self,
        call: &'static str,
        bands: &Matrix<'_, T>,
        order: usize,
    ) -> Result<(Int, Int, Address, Int)> {
        by_columns(call, bands.shape.order)?;
        ensure(call, bands.shape.rows > 0, || "no diagonal is stored".into())?;
        same(call, "order of A and length of x", bands.shape.columns, order)?;
        let at = self.operand(call, bands)?;
        Ok((int(call, "order", order)?, int(call, "diagonals", bands.shape.rows - 1)?, at.at, at.ld))
    }
}

#[track_caller]
fn fits(call: &'static str, packed: usize, order: usize) -> Result<()> {
    let due = order.checked_add(1).and_then(|n| n.checked_mul(order)).map(|n| n / 2);
    ensure(call, due.is_some_and(|due| packed >= due), || format!("{packed} packed elements for order {order}"))
}
