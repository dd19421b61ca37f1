//! Level 3: matrices and matrices.

use gpu::foreign::Address;

use super::matrix_vector::by_columns;
use super::{Blas, Diagonal, Int, LibraryChoice, Operand, Operation, Side, Triangle, host, same, square};
use crate::error::{Result, ensure, int};
use crate::scalar::{Scalar, ScalarKind};
use crate::view::{Matrix, MatrixBatch, MatrixBatchMut, MatrixMut, MatrixOrder, Vector};

/// The sizes and operands of a product, as BLAS takes them.
pub(super) struct Gemm {
    pub m: Int,
    pub n: Int,
    pub k: Int,
    pub a: Operand,
    pub b: Operand,
    pub c: Address,
    pub ldc: Int,
}

/// A symmetric or Hermitian factor, of which one triangle is read.
#[derive(Clone, Copy)]
pub struct Symmetric<'a, T: Scalar> {
    pub matrix: Matrix<'a, T>,
    pub triangle: Triangle,
}

/// A triangular factor.
#[derive(Clone, Copy)]
pub struct Triangular<'a, T: Scalar> {
    pub matrix: Matrix<'a, T>,
    pub triangle: Triangle,
    pub diagonal: Diagonal,
}

// Functions that differ in their name and in one check are written once, as in `vectors.rs`.

macro_rules! symmetric_products {
    ($($(#[$doc:meta])* $name:ident $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<T: Scalar>(
            &self,
            side: Side,
            alpha: T,
            a: Symmetric<'_, T>,
            b: Matrix<'_, T>,
            beta: T,
            c: MatrixMut<'_, T>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            $(
                for order in [a.matrix.shape.order, b.shape.order, c.shape.order] {
                    $check(CALL, order)?;
                }
            )?
            same_order(CALL, b.shape.order, c.shape.order)?;
            let (side, b, c) =
                if c.shape.order == MatrixOrder::Rows { (side.flipped(), b.t(), c.t()) } else { (side, b, c) };
            let SymmetricProduct { side, fill, m, n, a, lda, b, c, ldc } =
                self.symmetric_product(CALL, side, a, b, c)?;
            let (alpha, beta) = (host(&alpha), host(&beta));
            self.enter()?;
            // SAFETY: as for `gemm`.
            unsafe { self.calls.$name(T::KIND, self.handle, side, fill, m, n, alpha, a, lda, b.at, b.ld, beta, c, ldc) }
        }
    )*};
}

macro_rules! rank_k_updates {
    ($($(#[$doc:meta])* $name:ident, scalars: $scalar:ty, $takes:ident $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<T: Scalar>(
            &self,
            triangle: Triangle,
            alpha: $scalar,
            a: Matrix<'_, T>,
            beta: $scalar,
            c: MatrixMut<'_, T>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            $($check(CALL, c.shape.order)?;)?
            let (n, k, fill, c, ldc) = self.rank_k(CALL, triangle, &a, c)?;
            let a = self.operand(CALL, &a)?;
            $takes(CALL, T::KIND, a)?;
            let (op, alpha, beta) = (self.choice(a.operation), host(&alpha), host(&beta));
            self.enter()?;
            // SAFETY: as for `gemm`; the scalars of `herk` are real for every kind.
            unsafe { self.calls.$name(T::KIND, self.handle, fill, op, n, k, alpha, a.at, a.ld, beta, c, ldc) }
        }
    )*};
}

macro_rules! rank_2k_updates {
    ($($(#[$doc:meta])* $name:ident, beta: $beta:ty, $takes:ident $(, $check:ident)?;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<T: Scalar>(
            &self,
            triangle: Triangle,
            alpha: T,
            a: Matrix<'_, T>,
            b: Matrix<'_, T>,
            beta: $beta,
            c: MatrixMut<'_, T>,
        ) -> Result<()> {
            const CALL: &str = stringify!($name);
            $($check(CALL, c.shape.order)?;)?
            same_order(CALL, a.shape.order, b.shape.order)?;
            same(CALL, "rows of A and B", a.shape.rows, b.shape.rows)?;
            same(CALL, "columns of A and B", a.shape.columns, b.shape.columns)?;
            let (n, k, fill, c, ldc) = self.rank_k(CALL, triangle, &a, c)?;
            let (a, b) = (self.operand(CALL, &a)?, self.operand(CALL, &b)?);
            $takes(CALL, T::KIND, a)?;
            $takes(CALL, T::KIND, b)?;
            let (op, alpha, beta) = (self.choice(a.operation), host(&alpha), host(&beta));
            self.enter()?;
            // SAFETY: as for `gemm`; the beta of `her2k` is real for every kind.
            unsafe {
                self.calls.$name(T::KIND, self.handle, fill, op, n, k, alpha, a.at, a.ld, b.at, b.ld, beta, c, ldc)
            }
        }
    )*};
}

impl Blas {
    /// C = alpha A B + beta C. Orders may differ; `a.t()` and `a.h()` cost nothing.
    #[track_caller]
    pub fn gemm<T: Scalar>(
        &self,
        alpha: T,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        beta: T,
        c: MatrixMut<'_, T>,
    ) -> Result<()> {
        let Gemm { m, n, k, a, b, c, ldc } = self.arrange("gemm", a, b, c)?;
        let (op_a, op_b) = (self.choice(a.operation), self.choice(b.operation));
        let (alpha, beta) = (host(&alpha), host(&beta));
        self.enter()?;
        // SAFETY: views checked against memory of this queue, shapes against each other; scalars outlive the call.
        unsafe {
            self.calls.gemm(T::KIND, self.handle, op_a, op_b, m, n, k, alpha, a.at, a.ld, b.at, b.ld, beta, c, ldc)
        }
    }

    /// The same product of every member of three batches at constant strides.
    #[track_caller]
    pub fn gemm_strided_batched<T: Scalar>(
        &self,
        alpha: T,
        a: MatrixBatch<'_, T>,
        b: MatrixBatch<'_, T>,
        beta: T,
        c: MatrixBatchMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "gemm_strided_batched";
        same(CALL, "matrices in A and C", a.n, c.n)?;
        same(CALL, "matrices in B and C", b.n, c.n)?;
        let batch = int(CALL, "the batch", c.n)?;
        // Operands change places where C lies by rows.
        let (stride_a, stride_b) =
            if c.first.shape.order == MatrixOrder::Rows { (b.stride, a.stride) } else { (a.stride, b.stride) };
        let (stride_a, stride_b, stride_c) = (stride_a as i64, stride_b as i64, c.stride as i64);
        let Gemm { m, n, k, a, b, c, ldc } = self.arrange(CALL, a.first, b.first, c.first)?;
        let (op_a, op_b) = (self.choice(a.operation), self.choice(b.operation));
        let (alpha, beta) = (host(&alpha), host(&beta));
        let (kind, handle) = (T::KIND, self.handle);
        self.enter()?;
        // SAFETY: as for `gemm`; every member of a batch was checked when the batch was made.
        unsafe {
            self.calls.gemm_strided_batched(
                kind, handle, op_a, op_b, m, n, k, alpha, a.at, a.ld, stride_a, b.at, b.ld, stride_b, beta, c, ldc,
                stride_c, batch,
            )
        }
    }

    /// `C[i] = alpha A[i] B[i] + beta C[i]` for matrices that lie anywhere. All of A, all of B and all of C have one
    /// shape, step and order each. Uploads three lists of addresses and waits for the end.
    #[track_caller]
    pub fn gemm_batched<T: Scalar>(
        &self,
        alpha: T,
        a: &[Matrix<'_, T>],
        b: &[Matrix<'_, T>],
        beta: T,
        c: Vec<MatrixMut<'_, T>>,
    ) -> Result<()> {
        const CALL: &str = "gemm_batched";
        same(CALL, "matrices in A and C", a.len(), c.len())?;
        same(CALL, "matrices in B and C", b.len(), c.len())?;
        let batch = int(CALL, "the batch", c.len())?;
        let (Some(first_a), Some(first_b)) = (a.first(), b.first()) else { return Ok(()) };
        let is_alike = |x: &Matrix<'_, T>, y: &Matrix<'_, T>| x.shape == y.shape && x.is_conjugate == y.is_conjugate;
        let alike = a.iter().all(|x| is_alike(x, first_a))
            && b.iter().all(|x| is_alike(x, first_b))
            && c.iter().all(|x| x.shape == c[0].shape);
        ensure(CALL, alike, || "matrices of one operand differ in shape, step or order".into())?;
        let is_by_rows = c[0].shape.order == MatrixOrder::Rows;
        let inputs = |list: &[Matrix<'_, T>]| -> Result<Vec<u64>> {
            list.iter().map(|x| Ok(self.binding.input(&x.data)?)).collect()
        };
        let (list_a, list_b) = if is_by_rows { (inputs(b)?, inputs(a)?) } else { (inputs(a)?, inputs(b)?) };
        let list_c = c.iter().map(|x| Ok(self.binding.output(&x.data)?)).collect::<Result<Vec<u64>>>()?;
        let first_c = c.into_iter().next().expect("as many as A has");
        let Gemm { m, n, k, a, b, ldc, .. } = self.arrange(CALL, *first_a, *first_b, first_c)?;
        let lists = [self.binding.upload(&list_a)?, self.binding.upload(&list_b)?, self.binding.upload(&list_c)?];
        let mut at = [0; 3];
        for (at, list) in at.iter_mut().zip(&lists) {
            *at = self.binding.input(&list.all())?;
        }
        let (op_a, op_b) = (self.choice(a.operation), self.choice(b.operation));
        let (alpha, beta) = (host(&alpha), host(&beta));
        let (kind, handle) = (T::KIND, self.handle);
        self.enter()?;
        // SAFETY: as for `gemm`, for every member; the lists live until the wait is over.
        unsafe {
            self.calls.gemm_batched(
                kind, handle, op_a, op_b, m, n, k, alpha, at[0], a.ld, at[1], b.ld, beta, at[2], ldc, batch,
            )
        }?;
        Ok(self.binding.wait()?)
    }

    /// A product with C by columns: where C lies by rows, C^T = B^T A^T is computed.
    #[track_caller]
    pub(super) fn arrange<T: Scalar>(
        &self,
        call: &'static str,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<Gemm> {
        let (a, b, c) = if c.shape.order == MatrixOrder::Rows { (b.t(), a.t(), c.t()) } else { (a, b, c) };
        same(call, "inner sizes", a.shape.columns, b.shape.rows)?;
        same(call, "outer sizes", a.shape.rows, c.shape.rows)?;
        same(call, "outer sizes", b.shape.columns, c.shape.columns)?;
        let (m, n) = (int(call, "a size", c.shape.rows)?, int(call, "a size", c.shape.columns)?);
        let k = int(call, "a size", a.shape.columns)?;
        let (a, b) = (self.operand(call, &a)?, self.operand(call, &b)?);
        let (c, ldc) = self.target(call, &c)?;
        Ok(Gemm { m, n, k, a, b, c, ldc })
    }

    symmetric_products! {
        /// C = alpha A B + beta C (or B A, for `Side::Right`) with a symmetric A. B and C have one order.
        symm;
        /// C = alpha A B + beta C (or B A) with a Hermitian A, of which one triangle is read. All three lie by columns.
        hemm, by_columns;
    }

    rank_k_updates! {
        /// C = alpha A A^T + beta C, of which one triangle is written.
        syrk, scalars: T, unconjugated;
        /// C = alpha A A^H + beta C, of which one triangle is written. A is by columns, or the conjugate transpose of
        /// such a matrix; C is by columns.
        herk, scalars: T::Real, not_transposed_alone, by_columns;
    }

    rank_2k_updates! {
        /// C = alpha (A B^T + B A^T) + beta C, of which one triangle is written. A and B have one order.
        syr2k, beta: T, unconjugated;
        /// C = alpha A B^H + conj(alpha) B A^H + beta C, of which one triangle is written. A and B lie by columns, or
        /// are the conjugate transposes of such matrices; C lies by columns.
        her2k, beta: T::Real, not_transposed_alone, by_columns;
    }

    /// C = alpha A B (or B A) with a triangular A. B and C have one order.
    #[track_caller]
    pub fn trmm<T: Scalar>(
        &self,
        side: Side,
        alpha: T,
        a: Triangular<'_, T>,
        b: Matrix<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<()> {
        same_order("trmm", b.shape.order, c.shape.order)?;
        same("trmm", "rows of B and C", b.shape.rows, c.shape.rows)?;
        same("trmm", "columns of B and C", b.shape.columns, c.shape.columns)?;
        let is_by_rows = c.shape.order == MatrixOrder::Rows;
        let b = if is_by_rows { b.t() } else { b };
        let TriangularProduct { side, fill, diagonal, m, n, a, c, ldc } = self.beside("trmm", side, a, c)?;
        let b = self.operand("trmm", &b)?;
        let (op, alpha) = (self.choice(a.operation), host(&alpha));
        let (kind, handle) = (T::KIND, self.handle);
        self.enter()?;
        // SAFETY: as for `gemm`.
        unsafe { self.calls.trmm(kind, handle, side, fill, op, diagonal, m, n, alpha, a.at, a.ld, b.at, b.ld, c, ldc) }
    }

    /// Solves A X = alpha B (or X A = alpha B) with a triangular A; `b` holds B before and X after.
    #[track_caller]
    pub fn trsm<T: Scalar>(&self, side: Side, alpha: T, a: Triangular<'_, T>, b: MatrixMut<'_, T>) -> Result<()> {
        let TriangularProduct { side, fill, diagonal, m, n, a, c: b, ldc: ldb } = self.beside("trsm", side, a, b)?;
        let (op, alpha) = (self.choice(a.operation), host(&alpha));
        self.enter()?;
        // SAFETY: as for `gemm`.
        unsafe { self.calls.trsm(T::KIND, self.handle, side, fill, op, diagonal, m, n, alpha, a.at, a.ld, b, ldb) }
    }

    /// C = alpha A + beta B; also how a matrix is transposed into another order.
    #[track_caller]
    pub fn geam<T: Scalar>(
        &self,
        alpha: T,
        a: Matrix<'_, T>,
        beta: T,
        b: Matrix<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<()> {
        let (a, b, c) = if c.shape.order == MatrixOrder::Rows { (a.t(), b.t(), c.t()) } else { (a, b, c) };
        for x in [&a, &b] {
            same("geam", "rows", x.shape.rows, c.shape.rows)?;
            same("geam", "columns", x.shape.columns, c.shape.columns)?;
        }
        let (m, n) = (int("geam", "rows", c.shape.rows)?, int("geam", "columns", c.shape.columns)?);
        let (a, b) = (self.operand("geam", &a)?, self.operand("geam", &b)?);
        let (c, ldc) = self.target("geam", &c)?;
        let (op_a, op_b) = (self.choice(a.operation), self.choice(b.operation));
        let (alpha, beta) = (host(&alpha), host(&beta));
        self.enter()?;
        // SAFETY: as for `gemm`.
        unsafe { self.calls.geam(T::KIND, self.handle, op_a, op_b, m, n, alpha, a.at, a.ld, beta, b.at, b.ld, c, ldc) }
    }

    /// C = A diag(x), or diag(x) A for `Side::Left`. A and C have one order.
    #[track_caller]
    pub fn dgmm<'a, T: Scalar>(
        &self,
        side: Side,
        a: Matrix<'_, T>,
        x: impl Into<Vector<'a, T>>,
        c: MatrixMut<'_, T>,
    ) -> Result<()> {
        let x = x.into();
        same_order("dgmm", a.shape.order, c.shape.order)?;
        let (side, a, c) =
            if c.shape.order == MatrixOrder::Rows { (side.flipped(), a.t(), c.t()) } else { (side, a, c) };
        same("dgmm", "rows", a.shape.rows, c.shape.rows)?;
        same("dgmm", "columns", a.shape.columns, c.shape.columns)?;
        let beside = if side == Side::Left { c.shape.rows } else { c.shape.columns };
        same("dgmm", "length of x and the size beside it", x.len, beside)?;
        let (m, n) = (int("dgmm", "rows", c.shape.rows)?, int("dgmm", "columns", c.shape.columns)?);
        let a = self.operand("dgmm", &a)?;
        let (_, x, step) = self.read("dgmm", &x)?;
        let (c, ldc) = self.target("dgmm", &c)?;
        let side = side.number(self.binding.vendor());
        self.enter()?;
        // SAFETY: as for `gemm`.
        unsafe { self.calls.dgmm(T::KIND, self.handle, side, m, n, a.at, a.ld, x, step, c, ldc) }
    }

    /// The sizes and the target of `syrk`, `herk` and `syr2k`, as (n, k, fill, address, step).
    #[track_caller]
    fn rank_k<T: Scalar>(
        &self,
        call: &'static str,
        triangle: Triangle,
        a: &Matrix<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<(Int, Int, LibraryChoice, Address, Int)> {
        square(call, c.shape.rows, c.shape.columns)?;
        same(call, "rows of A and order of C", a.shape.rows, c.shape.rows)?;
        let (c, triangle) =
            if c.shape.order == MatrixOrder::Rows { (c.t(), triangle.flipped()) } else { (c, triangle) };
        let (n, k) = (int(call, "order of C", c.shape.rows)?, int(call, "columns of A", a.shape.columns)?);
        let (c, ldc) = self.target(call, &c)?;
        Ok((n, k, triangle.number(self.binding.vendor()), c, ldc))
    }

    /// What `symm` and `hemm` give to the library.
    #[track_caller]
    fn symmetric_product<T: Scalar>(
        &self,
        call: &'static str,
        side: Side,
        a: Symmetric<'_, T>,
        b: Matrix<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<SymmetricProduct> {
        let (order, a, lda, fill) = self.symmetric(call, &a.matrix, a.triangle)?;
        let (m, n) = (int(call, "rows", c.shape.rows)?, int(call, "columns", c.shape.columns)?);
        same(call, "rows of B and C", b.shape.rows, c.shape.rows)?;
        same(call, "columns of B and C", b.shape.columns, c.shape.columns)?;
        let beside = if side == Side::Left { m } else { n };
        same(call, "order of A and the size beside it", order as usize, beside as usize)?;
        let b = self.operand(call, &b)?;
        let (c, ldc) = self.target(call, &c)?;
        Ok(SymmetricProduct { side: side.number(self.binding.vendor()), fill, m, n, a, lda, b, c, ldc })
    }

    /// A triangular matrix beside a target: where the target lies by rows, the transposed problem.
    #[track_caller]
    fn beside<T: Scalar>(
        &self,
        call: &'static str,
        side: Side,
        Triangular { matrix: a, triangle, diagonal }: Triangular<'_, T>,
        c: MatrixMut<'_, T>,
    ) -> Result<TriangularProduct> {
        let vendor = self.binding.vendor();
        square(call, a.shape.rows, a.shape.columns)?;
        let (side, triangle, a, c) = if c.shape.order == MatrixOrder::Rows {
            (side.flipped(), triangle.flipped(), a.t(), c.t())
        } else {
            (side, triangle, a, c)
        };
        let beside = if side == Side::Left { c.shape.rows } else { c.shape.columns };
        same(call, "order of A and the size beside it", a.shape.rows, beside)?;
        let (m, n) = (int(call, "rows", c.shape.rows)?, int(call, "columns", c.shape.columns)?);
        let (a, fill) = self.triangular(call, &a, triangle)?;
        let (c, ldc) = self.target(call, &c)?;
        Ok(TriangularProduct { side: side.number(vendor), fill, diagonal: diagonal.number(vendor), m, n, a, c, ldc })
    }
}

struct SymmetricProduct {
    side: LibraryChoice,
    fill: LibraryChoice,
    m: Int,
    n: Int,
    a: Address,
    lda: Int,
    b: Operand,
    c: Address,
    ldc: Int,
}

struct TriangularProduct {
    side: LibraryChoice,
    fill: LibraryChoice,
    diagonal: LibraryChoice,
    m: Int,
    n: Int,
    a: Operand,
    c: Address,
    ldc: Int,
}

#[track_caller]
fn same_order(call: &'static str, a: MatrixOrder, b: MatrixOrder) -> Result<()> {
    ensure(call, a == b, || "both matrices must lie by rows, or both by columns".into())
}

/// An operand of a symmetric update.
#[track_caller]
fn unconjugated(call: &'static str, _: ScalarKind, x: Operand) -> Result<()> {
    ensure(call, x.operation != Operation::Conjugate, || "a conjugated operand; the Hermitian update takes one".into())
}

/// An operand of a Hermitian update.
#[track_caller]
fn not_transposed_alone(call: &'static str, kind: ScalarKind, x: Operand) -> Result<()> {
    ensure(call, !kind.is_complex() || x.operation != Operation::Transpose, || {
        "an operand lies by rows without being conjugated".into()
    })
}
