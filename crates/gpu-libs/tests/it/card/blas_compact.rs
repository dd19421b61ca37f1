//! Bands, packed triangles and Hermitian updates for all four kinds of numbers, against nalgebra in complex f64.

use gpu::{Buffer, Queue};
use gpu_libs::blas::{Blas, Diagonal, Operation, Side, Symmetric, Triangle, Triangular};
use gpu_libs::{Matrix, MatrixMut, Result, Scalar};
use nalgebra::{Complex, DMatrix};

use super::{numbers, on_each, read, refused, upload};

type C = Complex<f64>;

trait Number: Scalar {
    const BOUND: f64;
    fn of(z: C) -> Self;
    fn real(x: f64) -> Self::Real;
    fn to(self) -> C;
}

macro_rules! kinds {
    ($($ty:ty, $bound:expr, $of:expr, $real:expr, $to:expr;)*) => {$(
        impl Number for $ty {
            const BOUND: f64 = $bound;
            fn of(z: C) -> Self { $of(z) }
            fn real(x: f64) -> Self::Real { $real(x) }
            fn to(self) -> C { $to(self) }
        }
    )*};
}

kinds! {
    f32, 2e-6, |z: C| z.re as f32, |x| x as f32, |x: f32| C::new(x.into(), 0.0);
    f64, 1e-14, |z: C| z.re, |x| x, |x: f64| C::new(x, 0.0);
    Complex<f32>, 2e-6, |z: C| Complex::new(z.re as f32, z.im as f32), |x| x as f32,
        |z: Complex<f32>| C::new(z.re.into(), z.im.into());
    C, 1e-14, |z| z, |x| x, |z| z;
}

/// Numbers that the kind holds.
fn matrix<T: Number>(seed: u64, rows: usize, columns: usize) -> DMatrix<C> {
    let parts = numbers(seed, 2 * rows * columns);
    DMatrix::from_iterator(rows, columns, parts.chunks(2).map(|z| T::of(C::new(z[0], z[1])).to()))
}

/// Hermitian, or symmetric for real numbers, with `n_above` diagonals above the main one.
fn hermitian<T: Number>(seed: u64, n: usize, n_above: usize) -> DMatrix<C> {
    let a = matrix::<T>(seed, n, n);
    let whole = (&a + a.adjoint()) * C::new(0.5, 0.0) + DMatrix::identity(n, n) * C::new(3.0, 0.0);
    DMatrix::from_fn(n, n, |i, j| if i.abs_diff(j) <= n_above { whole[(i, j)] } else { C::new(0.0, 0.0) })
}

fn put<T: Number>(queue: &Queue, a: &[C]) -> Buffer<T> {
    upload(queue, &a.iter().map(|z| T::of(*z)).collect::<Vec<T>>())
}

#[track_caller]
fn check<T: Number>(queue: &Queue, found: &Buffer<T>, truth: &[C]) {
    let flat = |z: C| [z.re, z.im];
    let found: Vec<f64> = read(queue, found.all()).into_iter().flat_map(|x| flat(x.to())).collect();
    let truth: Vec<f64> = truth.iter().flat_map(|z| flat(*z)).collect();
    super::close(&found, &truth, T::BOUND);
}

/// One triangle column after column.
fn packed(a: &DMatrix<C>, triangle: Triangle) -> Vec<C> {
    let n = a.nrows();
    let rows = |j: usize| if triangle == Triangle::Upper { 0..j + 1 } else { j..n };
    (0..n).flat_map(|j| rows(j).map(move |i| a[(i, j)])).collect()
}

/// The `k` diagonals beside the main one of one triangle, and the main one, as BLAS stores them.
fn bands(a: &DMatrix<C>, triangle: Triangle, k: usize) -> Vec<C> {
    let n = a.nrows();
    let at = |d: usize, j: usize| match triangle {
        Triangle::Upper => (j + d).checked_sub(k).map(|i| a[(i, j)]),
        Triangle::Lower => (j + d < n).then(|| a[(j + d, j)]),
    };
    (0..n).flat_map(|j| (0..=k).map(move |d| at(d, j).unwrap_or(C::new(77.0, 0.0)))).collect()
}

/// One triangle of a matrix with zeros in the other.
fn triangle_of(a: &DMatrix<C>, triangle: Triangle) -> DMatrix<C> {
    if triangle == Triangle::Upper { a.upper_triangle() } else { a.lower_triangle() }
}

const TRIANGLES: [Triangle; 2] = [Triangle::Upper, Triangle::Lower];
const N: usize = 7;

fn hermitian_products<T: Number>(queue: &Queue) -> Result<()> {
    let blas = Blas::new(queue)?;
    let (x, y) = (matrix::<T>(300, N, 1), matrix::<T>(301, N, 1));
    let (alpha, beta) = (T::of(C::new(0.5, 0.25)), T::of(C::new(-1.0, 0.5)));
    let dx = put::<T>(queue, x.as_slice());
    for triangle in TRIANGLES {
        let a = hermitian::<T>(302, N, 2);
        let truth = &a * &x * alpha.to() + &y * beta.to();
        let (mut dy, diagonals) = (put::<T>(queue, y.as_slice()), put::<T>(queue, &bands(&a, triangle, 2)));
        let view = Matrix::columns(diagonals.all(), 3, N)?;
        blas.hbmv(triangle, alpha, view, dx.all(), beta, dy.all_mut())?;
        check(queue, &dy, truth.as_slice());
        let (mut dy, whole) = (put::<T>(queue, y.as_slice()), put::<T>(queue, &packed(&a, triangle)));
        blas.hpmv(triangle, alpha, whole.all(), dx.all(), beta, dy.all_mut())?;
        check(queue, &dy, truth.as_slice());
        // The same matrix in full.
        let (mut dy, whole) = (put::<T>(queue, y.as_slice()), put::<T>(queue, a.as_slice()));
        blas.hemv(triangle, alpha, Matrix::columns(whole.all(), N, N)?, dx.all(), beta, dy.all_mut())?;
        check(queue, &dy, truth.as_slice());
        let (b, c) = (matrix::<T>(303, N, 3), matrix::<T>(304, N, 3));
        let (db, mut dc) = (put::<T>(queue, b.as_slice()), put::<T>(queue, c.as_slice()));
        let (va, vb) = (Matrix::columns(whole.all(), N, N)?, Matrix::columns(db.all(), N, 3)?);
        let va = Symmetric { matrix: va, triangle };
        blas.hemm(Side::Left, alpha, va, vb, beta, MatrixMut::columns(dc.all_mut(), N, 3)?)?;
        check(queue, &dc, (&a * &b * alpha.to() + &c * beta.to()).as_slice());
    }
    Ok(())
}

fn hermitian_updates<T: Number>(queue: &Queue) -> Result<()> {
    let blas = Blas::new(queue)?;
    let (x, y) = (matrix::<T>(310, N, 1), matrix::<T>(311, N, 1));
    let (dx, dy) = (put::<T>(queue, x.as_slice()), put::<T>(queue, y.as_slice()));
    let (alpha, real) = (T::of(C::new(0.5, 0.25)), 0.75);
    for triangle in TRIANGLES {
        let a = hermitian::<T>(312, N, N);
        let one = &a + &x * x.adjoint() * C::new(real, 0.0);
        let two = &a + &x * y.adjoint() * alpha.to() + &y * x.adjoint() * alpha.to().conj();
        let mut da = put::<T>(queue, &packed(&a, triangle));
        blas.hpr(triangle, T::real(real), dx.all(), da.all_mut())?;
        check(queue, &da, &packed(&one, triangle));
        let mut da = put::<T>(queue, &packed(&a, triangle));
        blas.hpr2(triangle, alpha, dx.all(), dy.all(), da.all_mut())?;
        check(queue, &da, &packed(&two, triangle));
        // Only one triangle is written: the other one keeps what it had.
        let other = |updated: &DMatrix<C>| {
            let is_written = |i: usize, j: usize| if triangle == Triangle::Upper { i <= j } else { i >= j };
            DMatrix::from_fn(N, N, |i, j| if is_written(i, j) { updated[(i, j)] } else { a[(i, j)] })
        };
        let mut da = put::<T>(queue, a.as_slice());
        blas.her(triangle, T::real(real), dx.all(), MatrixMut::columns(da.all_mut(), N, N)?)?;
        check(queue, &da, other(&one).as_slice());
        let mut da = put::<T>(queue, a.as_slice());
        blas.her2(triangle, alpha, dx.all(), dy.all(), MatrixMut::columns(da.all_mut(), N, N)?)?;
        check(queue, &da, other(&two).as_slice());
        let (f, g) = (matrix::<T>(313, N, 4), matrix::<T>(314, N, 4));
        let (df, dg, mut da) =
            (put::<T>(queue, f.as_slice()), put::<T>(queue, g.as_slice()), put::<T>(queue, a.as_slice()));
        let (vf, vg) = (Matrix::columns(df.all(), N, 4)?, Matrix::columns(dg.all(), N, 4)?);
        blas.her2k(triangle, alpha, vf, vg, T::real(real), MatrixMut::columns(da.all_mut(), N, N)?)?;
        let product = &f * g.adjoint() * alpha.to();
        check(queue, &da, other(&(&product + product.adjoint() + &a * C::new(real, 0.0))).as_slice());
    }
    Ok(())
}

fn triangles<T: Number>(queue: &Queue) -> Result<()> {
    let blas = Blas::new(queue)?;
    let x = matrix::<T>(320, N, 1);
    for triangle in TRIANGLES {
        for operation in [Operation::None, Operation::Transpose, Operation::Conjugate] {
            let a = triangle_of(&hermitian::<T>(321, N, 2), triangle);
            let seen = match operation {
                Operation::None => a.clone(),
                Operation::Transpose => a.transpose(),
                Operation::Conjugate => a.adjoint(),
            };
            let truth = &seen * &x;
            let (diagonals, whole) = (put::<T>(queue, &bands(&a, triangle, 2)), put::<T>(queue, &packed(&a, triangle)));
            let view = Matrix::columns(diagonals.all(), 3, N)?;
            let mut dx = put::<T>(queue, x.as_slice());
            blas.tbmv(triangle, operation, Diagonal::Stored, view, dx.all_mut())?;
            check(queue, &dx, truth.as_slice());
            blas.tbsv(triangle, operation, Diagonal::Stored, view, dx.all_mut())?;
            check(queue, &dx, x.as_slice());
            blas.tpmv(triangle, operation, Diagonal::Stored, whole.all(), dx.all_mut())?;
            check(queue, &dx, truth.as_slice());
            blas.tpsv(triangle, operation, Diagonal::Stored, whole.all(), dx.all_mut())?;
            check(queue, &dx, x.as_slice());
        }
    }
    Ok(())
}

#[test]
fn hermitian_matrices() {
    on_each(|queue| {
        hermitian_products::<f32>(queue)?;
        hermitian_products::<f64>(queue)?;
        hermitian_products::<Complex<f32>>(queue)?;
        hermitian_products::<C>(queue)
    });
}

#[test]
fn updates_of_hermitian_matrices() {
    on_each(|queue| {
        hermitian_updates::<f32>(queue)?;
        hermitian_updates::<f64>(queue)?;
        hermitian_updates::<Complex<f32>>(queue)?;
        hermitian_updates::<C>(queue)
    });
}

#[test]
fn triangular_bands_and_packed_triangles() {
    on_each(|queue| {
        triangles::<f32>(queue)?;
        triangles::<f64>(queue)?;
        triangles::<Complex<f32>>(queue)?;
        triangles::<C>(queue)
    });
}

/// The functions that have no meaning of their own for complex numbers elsewhere in these tests.
#[test]
fn full_matrices_of_every_kind() {
    fn of<T: Number>(queue: &Queue) -> Result<()> {
        let blas = Blas::new(queue)?;
        let (a, b, c) = (matrix::<T>(330, N, 4), matrix::<T>(331, 4, 5), matrix::<T>(332, N, 5));
        let (alpha, beta) = (T::of(C::new(0.5, 0.25)), T::of(C::new(-1.0, 0.5)));
        let (da, db, mut dc) =
            (put::<T>(queue, a.as_slice()), put::<T>(queue, b.as_slice()), put::<T>(queue, c.as_slice()));
        let (va, vb) = (Matrix::columns(da.all(), N, 4)?, Matrix::columns(db.all(), 4, 5)?);
        blas.gemm(alpha, va, vb, beta, MatrixMut::columns(dc.all_mut(), N, 5)?)?;
        check(queue, &dc, (&a * &b * alpha.to() + &c * beta.to()).as_slice());
        let x = matrix::<T>(333, 4, 1);
        let (dx, mut dy) = (put::<T>(queue, x.as_slice()), put::<T>(queue, &[C::new(0.0, 0.0); N]));
        blas.gemv(alpha, va, dx.all(), T::ZERO, dy.all_mut())?;
        check(queue, &dy, (&a * &x * alpha.to()).as_slice());
        // A triangular system of many right sides, and back.
        let whole = hermitian::<T>(334, N, N);
        let (lower, right) = (whole.lower_triangle(), matrix::<T>(335, N, 3));
        let (dl, mut dr) = (put::<T>(queue, whole.as_slice()), put::<T>(queue, right.as_slice()));
        let (view, to) = (Matrix::columns(dl.all(), N, N)?, MatrixMut::columns(dr.all_mut(), N, 3)?);
        let view = Triangular { matrix: view, triangle: Triangle::Lower, diagonal: Diagonal::Stored };
        blas.trsm(Side::Left, T::ONE, view, to)?;
        check(queue, &dr, lower.clone().lu().solve(&right).unwrap().as_slice());
        let (from, mut product) = (Matrix::columns(dr.all(), N, 3)?, put::<T>(queue, right.as_slice()));
        let to = MatrixMut::columns(product.all_mut(), N, 3)?;
        blas.trmm(Side::Left, alpha, view, from, to)?;
        check(queue, &product, (&right * alpha.to()).as_slice());
        Ok(())
    }
    on_each(|queue| {
        of::<f32>(queue)?;
        of::<f64>(queue)?;
        of::<Complex<f32>>(queue)?;
        of::<C>(queue)
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let (a, x) = (upload(queue, &[0f32; 5]), upload(queue, &[0f32; 3]));
        let mut y = upload(queue, &[0f32; 3]);
        let wrong = blas.hpmv(Triangle::Upper, 1.0, a.all(), x.all(), 0.0, y.all_mut());
        refused(wrong, "5 packed elements for order 3");
        let rows = Matrix::rows(x.all(), 1, 3)?;
        let wrong = blas.tbmv(Triangle::Upper, Operation::None, Diagonal::Stored, rows, y.all_mut());
        refused(wrong, "must lie by columns");
        let columns = Matrix::columns(a.all(), 1, 5)?;
        let wrong = blas.tbmv(Triangle::Upper, Operation::None, Diagonal::Stored, columns, y.all_mut());
        refused(wrong, "order of A and length of x: 5 and 3");
        let other = Queue::new(queue.device())?;
        let mut foreign = upload(&other, &[0f32; 6]);
        refused(blas.hpr(Triangle::Upper, 1.0, x.all(), foreign.all_mut()), "belongs to queue");
        Ok(())
    });
}
