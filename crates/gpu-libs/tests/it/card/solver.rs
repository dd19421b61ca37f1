//! rocSOLVER and cuSOLVER against nalgebra.

use gpu_libs::blas::Triangle;
use gpu_libs::solver::{Solver, Vectors};
use gpu_libs::{Error, Matrix, MatrixBatch, MatrixBatchMut, MatrixMut};
use nalgebra::{DMatrix, DVector};

use super::{close, matrix, on_each, read, refused, upload};

const N: usize = 8;
const F64: f64 = 1e-12;

type System = (DMatrix<f64>, DMatrix<f64>);

fn well_conditioned(seed: u64) -> DMatrix<f64> {
    matrix(seed, N, N) + DMatrix::identity(N, N) * 4.0
}

#[test]
fn systems_and_inverses() {
    on_each(|queue| {
        let solver = Solver::new(queue)?;
        let (a, b) = (well_conditioned(80), matrix(81, N, 3));
        let (mut da, mut db) = (upload(queue, a.as_slice()), upload(queue, b.as_slice()));
        solver.solve(MatrixMut::columns(da.all_mut(), N, N)?, MatrixMut::columns(db.all_mut(), N, 3)?)?;
        close(&read(queue, db.all()), a.clone().lu().solve(&b).unwrap().as_slice(), F64);
        let mut da = upload(queue, a.as_slice());
        solver.inverse(MatrixMut::columns(da.all_mut(), N, N)?)?;
        close(&read(queue, da.all()), a.clone().try_inverse().unwrap().as_slice(), F64);
        // A singular matrix is an error that says so.
        let mut zero = upload(queue, &[0f64; N * N]);
        let mut pivots = upload(queue, &[0i32; N]);
        let error = solver.lu(MatrixMut::columns(zero.all_mut(), N, N)?, pivots.all_mut()).unwrap_err();
        assert!(matches!(&error, Error::Numeric { .. }) && error.to_string().contains("singular"), "{error}");
        Ok(())
    });
}

#[test]
fn cholesky_and_qr() {
    on_each(|queue| {
        let solver = Solver::new(queue)?;
        let root = well_conditioned(82);
        let a = &root * root.transpose();
        let b = matrix(83, N, 2);
        let (mut da, mut db) = (upload(queue, a.as_slice()), upload(queue, b.as_slice()));
        solver.cholesky(Triangle::Lower, MatrixMut::columns(da.all_mut(), N, N)?)?;
        let cholesky = a.clone().cholesky().unwrap();
        let found = DMatrix::from_vec(N, N, read(queue, da.all())).lower_triangle();
        close(found.as_slice(), cholesky.l().as_slice(), F64);
        let factor = Matrix::columns(da.all(), N, N)?;
        solver.solve_cholesky(Triangle::Lower, factor, MatrixMut::columns(db.all_mut(), N, 2)?)?;
        close(&read(queue, db.all()), cholesky.solve(&b).as_slice(), 1e-10);
        let mut bad = upload(queue, (-&a).as_slice());
        let error = solver.cholesky(Triangle::Lower, MatrixMut::columns(bad.all_mut(), N, N)?).unwrap_err();
        assert!(error.to_string().contains("not positive definite"), "{error}");
        // Q R: the product is A and Q's columns are orthonormal, whatever the signs.
        let tall = matrix(84, 9, 4);
        let mut da = upload(queue, tall.as_slice());
        let mut tau = upload(queue, &[0f64; 4]);
        solver.qr(MatrixMut::columns(da.all_mut(), 9, 4)?, tau.all_mut())?;
        let r = DMatrix::from_vec(9, 4, read(queue, da.all())).rows(0, 4).upper_triangle();
        solver.q(MatrixMut::columns(da.all_mut(), 9, 4)?, tau.all())?;
        let q = DMatrix::from_vec(9, 4, read(queue, da.all()));
        close((&q * &r).as_slice(), tall.as_slice(), F64);
        close((q.transpose() * &q).as_slice(), DMatrix::<f64>::identity(4, 4).as_slice(), F64);
        Ok(())
    });
}

#[test]
fn singular_values_and_eigenvalues() {
    on_each(|queue| {
        let solver = Solver::new(queue)?;
        let a = matrix(85, 7, 4);
        let mut da = upload(queue, a.as_slice());
        let (mut s, mut u, mut vh) =
            (upload(queue, &[0f64; 4]), upload(queue, &[0f64; 28]), upload(queue, &[0f64; 16]));
        let (du, dv) = (MatrixMut::columns(u.all_mut(), 7, 4)?, MatrixMut::columns(vh.all_mut(), 4, 4)?);
        solver.svd(MatrixMut::columns(da.all_mut(), 7, 4)?, s.all_mut(), du, dv)?;
        let s = read(queue, s.all());
        close(&s, a.singular_values().as_slice(), F64);
        let u = DMatrix::from_vec(7, 4, read(queue, u.all()));
        let vh = DMatrix::from_vec(4, 4, read(queue, vh.all()));
        close((u * DMatrix::from_diagonal(&DVector::from_vec(s)) * vh).as_slice(), a.as_slice(), F64);
        let a = matrix(86, N, N);
        let a = &a + a.transpose();
        let (mut da, mut values) = (upload(queue, a.as_slice()), upload(queue, &[0f64; N]));
        solver.eigen(Vectors::All, Triangle::Upper, MatrixMut::columns(da.all_mut(), N, N)?, values.all_mut())?;
        let values = read(queue, values.all());
        let mut truth: Vec<f64> = a.symmetric_eigenvalues().iter().copied().collect();
        truth.sort_by(f64::total_cmp);
        close(&values, &truth, F64);
        let vectors = DMatrix::from_vec(N, N, read(queue, da.all()));
        close(
            (&a * &vectors).as_slice(),
            (&vectors * DMatrix::from_diagonal(&DVector::from_vec(values))).as_slice(),
            F64,
        );
        Ok(())
    });
}

#[test]
fn batches() {
    on_each(|queue| {
        let solver = Solver::new(queue)?;
        let systems: Vec<_> = (0..3).map(|i| (well_conditioned(90 + i), matrix(95 + i, N, 1))).collect();
        let all = |pick: &dyn Fn(&System) -> Vec<f64>| systems.iter().flat_map(pick).collect::<Vec<_>>();
        let mut a = upload(queue, &all(&|s| s.0.as_slice().to_vec()));
        let mut b = upload(queue, &all(&|s| s.1.as_slice().to_vec()));
        let mut pivots = upload(queue, &[0i32; 3 * N]);
        let batch = MatrixBatchMut::new(MatrixMut::columns(a.all_mut(), N, N)?, 3, N * N)?;
        solver.lu_batched(batch, pivots.all_mut())?;
        let factors = MatrixBatch::new(Matrix::columns(a.all(), N, N)?, 3, N * N)?;
        let right = MatrixBatchMut::new(MatrixMut::columns(b.all_mut(), N, 1)?, 3, N)?;
        solver.solve_lu_batched(factors, pivots.all(), right)?;
        close(&read(queue, b.all()), &all(&|s| s.0.clone().lu().solve(&s.1).unwrap().as_slice().to_vec()), F64);
        let squares = all(&|s| (&s.0 * s.0.transpose()).as_slice().to_vec());
        let mut a = upload(queue, &squares);
        let batch = MatrixBatchMut::new(MatrixMut::columns(a.all_mut(), N, N)?, 3, N * N)?;
        solver.cholesky_batched(Triangle::Lower, batch)?;
        for (found, square) in read(queue, a.all()).chunks(N * N).zip(squares.chunks(N * N)) {
            let truth = DMatrix::from_column_slice(N, N, square).cholesky().unwrap();
            close(DMatrix::from_column_slice(N, N, found).lower_triangle().as_slice(), truth.l().as_slice(), F64);
        }
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        let solver = Solver::new(queue)?;
        let other = gpu::Queue::new(queue.device())?;
        let (mut a, mut b) = (upload(queue, &[1f32; 16]), upload(queue, &[1f32; 16]));
        let mut foreign = upload(&other, &[1f32; 16]);
        let mut pivots = upload(queue, &[0i32; 3]);
        let wrong = solver.lu(MatrixMut::columns(a.all_mut(), 4, 4)?, pivots.all_mut());
        refused(wrong, "3 pivots, 4 wanted");
        let wrong = solver.cholesky(Triangle::Lower, MatrixMut::rows(a.all_mut(), 4, 4)?);
        refused(wrong, "must lie by columns");
        let wrong = solver.cholesky(Triangle::Lower, MatrixMut::columns(foreign.all_mut(), 4, 4)?);
        refused(wrong, "belongs to queue");
        let right = MatrixMut::columns(b.all_mut(), 3, 2)?;
        refused(solver.solve_cholesky(Triangle::Lower, Matrix::columns(a.all(), 4, 4)?, right), "B has 3 rows");
        Ok(())
    });
}
