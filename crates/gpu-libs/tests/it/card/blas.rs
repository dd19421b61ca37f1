//! rocBLAS and cuBLAS against nalgebra.

use gpu::Queue;
use gpu_libs::blas::{Band, Blas, Diagonal, Side, Symmetric, Triangle, Triangular};
use gpu_libs::{Matrix, MatrixBatch, MatrixBatchMut, MatrixMut, Vector, VectorMut};
use half::{bf16, f16};
use nalgebra::{Complex, DMatrix, DVector};

use super::{by_columns, by_rows, close, matrix, numbers, on_each, read, refused, upload};

const F32: f64 = 2e-6;
const F64: f64 = 1e-14;

type Complex32 = Complex<f32>;
type Factors = (DMatrix<f64>, DMatrix<f64>);

#[test]
fn vectors() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let n = 131;
        let (x, y) = (numbers(1, n), numbers(2, n));
        let (vx, vy) = (DVector::from_vec(x.clone()), DVector::from_vec(y.clone()));
        let (dx, mut dy) = (upload(queue, &x), upload(queue, &y));
        blas.axpy(0.5, dx.all(), dy.all_mut())?;
        let sum = &vx * 0.5 + &vy;
        close(&read(queue, dy.all()), sum.as_slice(), F64);
        close(&[blas.dot(dx.all(), dy.all())?], &[vx.dot(&sum)], 1e-12);
        close(&[blas.nrm2(dx.all())?], &[vx.norm()], F64);
        close(&[blas.asum(dx.all())?], &[vx.lp_norm(1)], F64);
        assert_eq!(blas.iamax(dx.all())?, Some(vx.iamax()));
        assert_eq!(blas.iamin(dx.all())?, Some(vx.abs().imin()));
        blas.scal(-2.0, dy.all_mut())?;
        close(&read(queue, dy.all()), (sum.clone() * -2.0).as_slice(), F64);
        // Every third of the one into every second of the other.
        let mut target = upload(queue, &vec![0.0; n]);
        blas.copy(Vector::strided(dx.all(), 40, 3)?, VectorMut::strided(target.all_mut(), 40, 2)?)?;
        let found = read(queue, target.all());
        assert!((0..40).all(|i| found[2 * i] == x[3 * i] && found[2 * i + 1] == 0.0));
        blas.swap(target.all_mut(), dy.all_mut())?;
        close(&read(queue, target.all()), (sum * -2.0).as_slice(), F64);
        Ok(())
    });
}

#[test]
fn complex_vectors_and_rotations() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let pairs = |seed| -> Vec<Complex32> {
            numbers(seed, 94).chunks(2).map(|p| Complex32::new(p[0] as f32, p[1] as f32)).collect()
        };
        let (x, y) = (DVector::from_vec(pairs(3)), DVector::from_vec(pairs(4)));
        let (dx, dy) = (upload(queue, x.as_slice()), upload(queue, y.as_slice()));
        let parts = |z: Complex32| [z.re, z.im];
        close(&parts(blas.dotc(dx.all(), dy.all())?), &parts(x.dotc(&y)), F32);
        close(&parts(blas.dot(dx.all(), dy.all())?), &parts(x.dot(&y)), F32);
        close(&[blas.nrm2(dx.all())?], &[x.norm()], F32);
        // A Givens rotation of (3, 4): r = 5 and the second component vanishes.
        let rotation = blas.rotg(3.0f64, 4.0)?;
        close(&[rotation.r.abs(), rotation.cosine.abs(), rotation.sine.abs()], &[5.0, 0.6, 0.8], F64);
        let (mut a, mut b) = (upload(queue, &[3.0f64, 1.0]), upload(queue, &[4.0f64, 2.0]));
        blas.rot(a.all_mut(), b.all_mut(), rotation.cosine, rotation.sine)?;
        let (a, b) = (read(queue, a.all()), read(queue, b.all()));
        assert!((a[0] - rotation.r).abs() < 1e-14 && b[0].abs() < 1e-14, "{a:?} {b:?}");
        // A modified rotation zeroes the second component as well.
        let parameters = blas.rotmg(1.0f64, 1.0, 3.0, 4.0)?;
        let (mut a, mut b) = (upload(queue, &[3.0f64]), upload(queue, &[4.0f64]));
        blas.rotm(a.all_mut(), b.all_mut(), parameters)?;
        assert!(read(queue, b.all())[0].abs() < 1e-14);
        Ok(())
    });
}

#[test]
fn matrices_and_vectors() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let (a, x, y) = (matrix(5, 7, 11), matrix(6, 11, 1), matrix(7, 7, 1));
        let (rows, columns) = (upload(queue, &by_rows(&a)), upload(queue, &by_columns(&a)));
        let dx = upload(queue, &by_columns(&x));
        let truth = &a * &x * 2.0 - &y;
        let transposed = a.transpose() * &y;
        let dy0 = upload(queue, &by_columns(&y));
        for view in [Matrix::rows(rows.all(), 7, 11)?, Matrix::columns(columns.all(), 7, 11)?] {
            let mut dy = upload(queue, &by_columns(&y));
            blas.gemv(2.0, view, dx.all(), -1.0, dy.all_mut())?;
            close(&read(queue, dy.all()), truth.as_slice(), F32);
            let mut back = upload(queue, &[0f32; 11]);
            blas.gemv(1.0, view.t(), dy0.all(), 0.0, back.all_mut())?;
            close(&read(queue, back.all()), transposed.as_slice(), F32);
        }
        let outer = &a + &y * x.transpose() * 0.5;
        let mut target = upload(queue, &by_rows(&a));
        blas.ger(0.5, dy0.all(), dx.all(), MatrixMut::rows(target.all_mut(), 7, 11)?)?;
        close(&read(queue, target.all()), &by_rows(&outer), F32);
        // A band matrix: one diagonal below, two above.
        let full = DMatrix::from_fn(6, 6, |i, j| if j + 1 >= i && j <= i + 2 { (1 + i * 6 + j) as f64 } else { 0.0 });
        let bands =
            DMatrix::from_fn(4, 6, |d, j| (j + d).checked_sub(2).filter(|i| *i < 6).map_or(0.0, |i| full[(i, j)]));
        let (db, dv) = (upload(queue, &by_columns(&bands)), upload(queue, &[1f32, -1.0, 2.0, 0.5, -2.0, 3.0]));
        let mut dy = upload(queue, &[0f32; 6]);
        let band = Band { n_rows: 6, n_below: 1, n_above: 2 };
        blas.gbmv(1.0, Matrix::columns(db.all(), 4, 6)?, band, dv.all(), 0.0, dy.all_mut())?;
        let v = DVector::from_vec(vec![1.0, -1.0, 2.0, 0.5, -2.0, 3.0]);
        close(&read(queue, dy.all()), (&full * &v).as_slice(), F32);
        Ok(())
    });
}

#[test]
fn symmetric_and_triangular() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let n = 9;
        let a = matrix(8, n, n) + DMatrix::identity(n, n) * 4.0;
        let symmetric = DMatrix::from_fn(n, n, |i, j| if i >= j { a[(i, j)] } else { a[(j, i)] });
        let lower = a.lower_triangle();
        let x = matrix(9, n, 1);
        let (rows, columns) = (upload(queue, &by_rows(&a)), upload(queue, &by_columns(&a)));
        let dx = upload(queue, &by_columns(&x));
        for view in [Matrix::rows(rows.all(), n, n)?, Matrix::columns(columns.all(), n, n)?] {
            let mut y = upload(queue, &vec![0f32; n]);
            blas.symv(Triangle::Lower, 1.0, view, dx.all(), 0.0, y.all_mut())?;
            close(&read(queue, y.all()), (&symmetric * &x).as_slice(), F32);
            let mut y = upload(queue, &by_columns(&x));
            blas.trmv(Triangle::Lower, Diagonal::Stored, view, y.all_mut())?;
            close(&read(queue, y.all()), (&lower * &x).as_slice(), F32);
            blas.trsv(Triangle::Lower, Diagonal::Stored, view, y.all_mut())?;
            close(&read(queue, y.all()), x.as_slice(), 1e-5);
            // The transpose of a lower triangle is an upper one.
            let mut y = upload(queue, &by_columns(&x));
            blas.trmv(Triangle::Upper, Diagonal::Stored, view.t(), y.all_mut())?;
            close(&read(queue, y.all()), (lower.transpose() * &x).as_slice(), F32);
        }
        let b = matrix(10, n, 4);
        let mut solved = upload(queue, &by_rows(&b));
        let target = MatrixMut::rows(solved.all_mut(), n, 4)?;
        let a_columns = Matrix::columns(columns.all(), n, n)?;
        let triangle = Triangular { matrix: a_columns, triangle: Triangle::Lower, diagonal: Diagonal::Stored };
        blas.trsm(Side::Left, 1.0, triangle, target)?;
        let truth = lower.solve_lower_triangular(&b).unwrap();
        close(&read(queue, solved.all()), &by_rows(&truth), 1e-5);
        let db = upload(queue, &by_rows(&b));
        let mut product = upload(queue, &vec![0f32; n * 4]);
        let (b_rows, target) = (Matrix::rows(db.all(), n, 4)?, MatrixMut::rows(product.all_mut(), n, 4)?);
        blas.trmm(Side::Left, 1.0, triangle, b_rows, target)?;
        close(&read(queue, product.all()), &by_rows(&(&lower * &b)), F32);
        let target = MatrixMut::rows(product.all_mut(), n, 4)?;
        let of_one_triangle = Symmetric { matrix: a_columns, triangle: Triangle::Lower };
        blas.symm(Side::Left, 1.0, of_one_triangle, b_rows, 0.0, target)?;
        close(&read(queue, product.all()), &by_rows(&(&symmetric * &b)), F32);
        let mut square = upload(queue, &vec![0f32; n * n]);
        blas.syrk(Triangle::Upper, 1.0, b_rows, 0.0, MatrixMut::rows(square.all_mut(), n, n)?)?;
        close(&read(queue, square.all()), &by_rows(&(&b * b.transpose()).upper_triangle()), F32);
        Ok(())
    });
}

#[test]
fn products_of_every_order() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let (m, n, k) = (5, 9, 7);
        let (a, b, c) = (matrix(11, m, k), matrix(12, k, n), matrix(13, m, n));
        let truth = &a * &b * 1.5 + &c * 0.5;
        let (ar, ac) = (upload(queue, &by_rows(&a)), upload(queue, &by_columns(&a)));
        let (br, bc) = (upload(queue, &by_rows(&b)), upload(queue, &by_columns(&b)));
        for av in [Matrix::rows(ar.all(), m, k)?, Matrix::columns(ac.all(), m, k)?] {
            for bv in [Matrix::rows(br.all(), k, n)?, Matrix::columns(bc.all(), k, n)?] {
                let mut cr = upload(queue, &by_rows(&c));
                blas.gemm(1.5, av, bv, 0.5, MatrixMut::rows(cr.all_mut(), m, n)?)?;
                close(&read(queue, cr.all()), &by_rows(&truth), F32);
                let mut cc = upload(queue, &by_columns(&c));
                blas.gemm(1.5, av, bv, 0.5, MatrixMut::columns(cc.all_mut(), m, n)?)?;
                close(&read(queue, cc.all()), &by_columns(&truth), F32);
            }
        }
        // The transpose by geam, and a part of a larger matrix as an operand.
        let mut turned = upload(queue, &vec![0f32; m * k]);
        let (view, target) = (Matrix::rows(ar.all(), m, k)?, MatrixMut::rows(turned.all_mut(), k, m)?);
        blas.geam(1.0, view.t(), 0.0, view.t(), target)?;
        assert_eq!(read(queue, turned.all()), by_columns(&a));
        let corner = Matrix::rows(br.all(), 5, 3)?.with_step(n)?;
        let mut small = upload(queue, &[0f32; 15]);
        let wide = Matrix::rows(ar.all(), m, 5)?.with_step(k)?;
        blas.gemm(1.0, wide, corner, 0.0, MatrixMut::rows(small.all_mut(), m, 3)?)?;
        close(&read(queue, small.all()), &by_rows(&(a.columns(0, 5) * b.view((0, 0), (5, 3)))), F32);
        Ok(())
    });
}

#[test]
fn batches_and_complex_products() {
    on_each(|queue| {
        let blas = Blas::with_workspace(queue, queue.alloc(1 << 20)?)?;
        let batch: Vec<_> = (0..3).map(|i| (matrix(20 + i, 4, 6), matrix(30 + i, 6, 5))).collect();
        let join = |pick: &dyn Fn(&Factors) -> Vec<f32>| batch.iter().flat_map(pick).collect::<Vec<_>>();
        let (a, b) = (upload(queue, &join(&|p| by_rows(&p.0))), upload(queue, &join(&|p| by_columns(&p.1))));
        let truth = join(&|p| by_rows(&(&p.0 * &p.1)));
        let mut c = upload(queue, &[0f32; 60]);
        let av = MatrixBatch::new(Matrix::rows(a.all(), 4, 6)?, 3, 24)?;
        let bv = MatrixBatch::new(Matrix::columns(b.all(), 6, 5)?, 3, 30)?;
        blas.gemm_strided_batched(1.0, av, bv, 0.0, MatrixBatchMut::new(MatrixMut::rows(c.all_mut(), 4, 5)?, 3, 20)?)?;
        close(&read(queue, c.all()), &truth, F32);
        let mut parts: Vec<_> = (0..3).map(|_| upload(queue, &[0f32; 20])).collect();
        let a_list: Vec<_> = (0..3).map(|i| Matrix::rows(a.slice(24 * i..).unwrap(), 4, 6).unwrap()).collect();
        let b_list: Vec<_> = (0..3).map(|i| Matrix::columns(b.slice(30 * i..).unwrap(), 6, 5).unwrap()).collect();
        let targets = parts.iter_mut().map(|c| MatrixMut::rows(c.all_mut(), 4, 5).unwrap()).collect();
        blas.gemm_batched(1.0, &a_list, &b_list, 0.0, targets)?;
        for (part, truth) in parts.iter().zip(truth.chunks(20)) {
            close(&read(queue, part.all()), truth, F32);
        }
        let complex = |seed, rows, columns| {
            let (re, im) = (matrix(seed, rows, columns), matrix(seed + 1, rows, columns));
            DMatrix::from_fn(rows, columns, |i, j| Complex32::new(re[(i, j)] as f32, im[(i, j)] as f32))
        };
        let (a, b) = (complex(40, 6, 4), complex(42, 6, 5));
        let (da, db) = (upload(queue, a.as_slice()), upload(queue, b.as_slice()));
        let mut dc = upload(queue, &[Complex32::default(); 20]);
        let (av, bv) = (Matrix::columns(da.all(), 6, 4)?, Matrix::columns(db.all(), 6, 5)?);
        let one = Complex32::new(1.0, 0.0);
        blas.gemm(one, av.h(), bv, Complex32::default(), MatrixMut::columns(dc.all_mut(), 4, 5)?)?;
        let flat = |m: &[Complex32]| m.iter().flat_map(|z| [z.re, z.im]).collect::<Vec<_>>();
        close(&flat(&read(queue, dc.all())), &flat((a.adjoint() * b).as_slice()), F32);
        refused(blas.gemm(one, av.h(), bv, one, MatrixMut::rows(dc.all_mut(), 4, 5)?), "conjugates only");
        Ok(())
    });
}

#[test]
fn short_numbers() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let n = 16;
        let whole = |seed| numbers(seed, n * n).iter().map(|x| (x * 4.0).round()).collect::<Vec<f64>>();
        let (a, b) = (whole(50), whole(51));
        let truth = DMatrix::from_row_slice(n, n, &a) * DMatrix::from_row_slice(n, n, &b);
        macro_rules! product {
            ($factor:ty, $product:ty, $convert:expr, $zero:expr, $one:expr, $none:expr) => {{
                let convert = |list: &[f64]| list.iter().map(|x| $convert(*x)).collect::<Vec<$factor>>();
                let (da, db) = (upload(queue, &convert(&a)), upload(queue, &convert(&b)));
                let mut dc = upload::<$product>(queue, &[$zero; 256]);
                let av = MatrixBatch::new(Matrix::rows(da.all(), n, n)?, 1, 0)?;
                let bv = MatrixBatch::new(Matrix::rows(db.all(), n, n)?, 1, 0)?;
                let cv = MatrixBatchMut::new(MatrixMut::rows(dc.all_mut(), n, n)?, 1, 0)?;
                blas.gemm_mixed($one, av, bv, $none, cv)?;
                let found: Vec<f64> = read(queue, dc.all()).into_iter().map(f64::from).collect();
                // Small whole numbers are exact in each of these types.
                assert_eq!(DMatrix::from_row_slice(n, n, &found), truth, "{}", stringify!($factor -> $product));
            }};
        }
        product!(f16, f32, f16::from_f64, 0.0, 1.0, 0.0);
        product!(f16, f16, f16::from_f64, f16::ZERO, 1.0, 0.0);
        product!(bf16, f32, bf16::from_f64, 0.0, 1.0, 0.0);
        product!(i8, i32, |x: f64| x as i8, 0, 1, 0);
        Ok(())
    });
}

#[test]
fn two_handles_on_two_queues_at_once() {
    on_each(|queue| {
        let device = queue.device().clone();
        Blas::new(queue)?;
        let work = |seed: u64| {
            let queue = Queue::new(&device).unwrap();
            let blas = Blas::new(&queue).unwrap();
            let a = matrix(seed, 12, 12);
            let da = upload(&queue, &by_rows(&a));
            let mut x = upload(&queue, &by_rows(&a));
            let mut truth = a.clone();
            for _ in 0..4 {
                let mut y = upload(&queue, &[0f32; 144]);
                let (av, xv) = (Matrix::rows(da.all(), 12, 12).unwrap(), Matrix::rows(x.all(), 12, 12).unwrap());
                blas.gemm(0.5, av, xv, 0.0, MatrixMut::rows(y.all_mut(), 12, 12).unwrap()).unwrap();
                truth = &a * truth * 0.5;
                x = y;
            }
            close(&read(&queue, x.all()), &by_rows(&truth), 1e-5);
        };
        std::thread::scope(|scope| {
            for seed in [60, 61] {
                scope.spawn(move || work(seed));
            }
        });
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        let blas = Blas::new(queue)?;
        let other = Queue::new(queue.device())?;
        let (x, mut y) = (upload(queue, &[1f32; 12]), upload(queue, &[1f32; 12]));
        let (foreign, mut foreign_target) = (upload(&other, &[1f32; 12]), upload(&other, &[1f32; 12]));
        refused(blas.axpy(1.0, foreign.all(), y.all_mut()), "belongs to queue");
        refused(blas.axpy(1.0, x.all(), foreign_target.all_mut()), "belongs to queue");
        refused(blas.axpy(1.0, x.slice(..11)?, y.all_mut()), "lengths of x and y: 11 and 12");
        refused(Matrix::rows(x.all(), 4, 4), "does not fit into 12");
        refused(Matrix::rows(x.all(), 2, 4)?.with_step(3), "cannot be 3 elements apart");
        refused(Vector::strided(x.all(), 7, 2), "7 elements, 2 apart, in 12");
        let (a, b) = (Matrix::rows(x.all(), 3, 4)?, Matrix::rows(foreign.all(), 4, 3)?);
        refused(blas.gemm(1.0, a, a, 0.0, MatrixMut::rows(y.all_mut(), 3, 4)?), "inner sizes");
        refused(blas.gemm(1.0, a, b, 0.0, MatrixMut::rows(y.all_mut(), 3, 3)?), "belongs to queue");
        let overlap = MatrixBatchMut::new(MatrixMut::rows(y.all_mut(), 2, 3)?, 2, 3);
        refused(overlap, "would overlap");
        refused(Blas::with_workspace(queue, other.alloc(1 << 20)?), "belongs to queue");
        let square = Matrix::rows(x.all(), 3, 4)?;
        let wrong = blas.trsv(Triangle::Upper, Diagonal::Ones, square, y.all_mut());
        refused(wrong, "is not square");
        Ok(())
    });
}
