//! rocSPARSE and cuSPARSE against nalgebra's dense matrices.

use gpu::{Queue, Vendor};
use gpu_libs::blas::{Diagonal, Triangle};
use gpu_libs::sparse::{Sparse, SparseFormat, SparseMatrix};
use gpu_libs::{Error, Matrix, MatrixMut};
use nalgebra::{Complex, DMatrix};

use super::{by_columns, by_rows, close, matrix, on_each, read, refused, upload};

const F32: f64 = 2e-6;

/// A matrix in which about a third of the elements are not zero, and all of the diagonal.
fn thin(seed: u64, rows: usize, columns: usize) -> DMatrix<f64> {
    let full = matrix(seed, rows, columns);
    DMatrix::from_fn(rows, columns, |i, j| match (i, j) {
        _ if i == j => 2.0 + full[(i, j)],
        _ if full[(i, j)] > 0.3 => full[(i, j)],
        _ => 0.0,
    })
}

/// Offsets, columns and values, row after row.
fn rows_of(a: &DMatrix<f64>) -> (Vec<i32>, Vec<i32>, Vec<f32>) {
    let (mut offsets, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in a.row_iter() {
        for (j, x) in row.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            indices.push(j as i32);
            values.push(*x as f32);
        }
        offsets.push(indices.len() as i32);
    }
    (offsets, indices, values)
}

fn csr(queue: &Queue, a: &DMatrix<f64>) -> gpu_libs::Result<SparseMatrix<f32>> {
    let (offsets, indices, values) = rows_of(a);
    SparseMatrix::csr(queue, a.ncols(), &offsets, &indices, &values)
}

fn dense(queue: &Queue, sparse: &Sparse, a: &SparseMatrix<f32>) -> gpu_libs::Result<Vec<f32>> {
    let mut to = queue.alloc_zeroed::<f32>(a.n_rows() * a.n_columns())?;
    sparse.to_dense(a, MatrixMut::rows(to.all_mut(), a.n_rows(), a.n_columns())?)?;
    Ok(read(queue, to.all()))
}

#[test]
fn products_with_vectors_in_every_format() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let a = thin(100, 12, 8);
        let (x, y) = (matrix(101, 8, 1), matrix(102, 12, 1));
        let truth = &a * &x * 2.0 - &y;
        let by_row = csr(queue, &a)?;
        let (offsets, indices, values) = rows_of(&a.transpose());
        let by_column = SparseMatrix::csc(queue, 12, &offsets, &indices, &values)?;
        let listed = sparse.csr_to_coo(&by_row)?;
        let block: Vec<f32> = (0..6)
            .flat_map(|i| (0..4).map(move |j| (i, j)))
            .flat_map(|(i, j)| by_rows(&a.view((2 * i, 2 * j), (2, 2)).into_owned()))
            .collect();
        let offsets: Vec<i32> = (0..=6).map(|i| 4 * i).collect();
        let indices: Vec<i32> = (0..24).map(|i| i % 4).collect();
        let blocks = SparseMatrix::bsr(queue, 8, 2, &offsets, &indices, &block)?;
        let dx = upload(queue, &by_columns(&x));
        for a in [&by_row, &by_column, &listed, &blocks] {
            let mut dy = upload(queue, &by_columns(&y));
            match sparse.spmv(2.0, a, dx.all(), -1.0, dy.all_mut()) {
                // cuSPARSE has products of blocks with matrices only.
                Err(gpu_libs::Error::Call { .. })
                    if queue.device().vendor() == gpu::Vendor::Nvidia
                        && matches!(a.format(), SparseFormat::Bsr { .. }) =>
                {
                    continue;
                }
                done => done?,
            }
            close(&read(queue, dy.all()), truth.as_slice(), F32);
        }
        Ok(())
    });
}

#[test]
fn products_with_matrices() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let (a, b, right) = (thin(103, 7, 9), thin(104, 9, 5), matrix(105, 9, 4));
        let (da, db) = (csr(queue, &a)?, csr(queue, &b)?);
        let (rows, mut c) = (upload(queue, &by_rows(&right)), upload(queue, &[0f32; 28]));
        let view = Matrix::rows(rows.all(), 9, 4)?;
        sparse.spmm(1.0, &da, view, 0.0, MatrixMut::rows(c.all_mut(), 7, 4)?)?;
        close(&read(queue, c.all()), &by_rows(&(&a * &right)), F32);
        let product = sparse.spgemm(0.5, &da, &db)?;
        assert_eq!((product.n_rows(), product.n_columns(), product.format()), (7, 5, SparseFormat::Csr));
        close(&dense(queue, &sparse, &product)?, &by_rows(&(&a * &b * 0.5)), F32);
        Ok(())
    });
}

#[test]
fn triangular_systems() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let (a, b) = (thin(106, 10, 10), matrix(107, 10, 1));
        let (da, db, mut x) = (csr(queue, &a)?, upload(queue, &by_columns(&b)), upload(queue, &[0f32; 10]));
        sparse.spsv(Triangle::Lower, Diagonal::Stored, 1.0, &da, db.all(), x.all_mut())?;
        let truth = a.lower_triangle().solve_lower_triangular(&b).unwrap();
        close(&read(queue, x.all()), truth.as_slice(), 1e-5);
        Ok(())
    });
}

#[test]
fn conversions() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let a = thin(108, 6, 9);
        let da = csr(queue, &a)?;
        assert_eq!(dense(queue, &sparse, &da)?, by_rows(&a));
        let coo = sparse.csr_to_coo(&da)?;
        assert_eq!(dense(queue, &sparse, &coo)?, by_rows(&a));
        let back = sparse.coo_to_csr(&coo)?;
        assert_eq!(read(queue, back.offsets()), read(queue, da.offsets()));
        let csc = sparse.csr_to_csc(&da)?;
        let (offsets, indices, values) = rows_of(&a.transpose());
        assert_eq!(read(queue, csc.offsets()), offsets);
        assert_eq!(read(queue, csc.indices()), indices);
        assert_eq!(read(queue, csc.values()), values);
        Ok(())
    });
}

/// From dense and back, in every format that the libraries make one in; blocks and back.
#[test]
fn conversions_from_dense_and_of_blocks() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let a = thin(109, 6, 8);
        let (by_row, by_column) = (upload(queue, &by_rows(&a)), upload(queue, &by_columns(&a)));
        for view in [Matrix::rows(by_row.all(), 6, 8)?, Matrix::columns(by_column.all(), 6, 8)?] {
            for format in [SparseFormat::Coo, SparseFormat::Csr, SparseFormat::Csc] {
                let made = sparse.from_dense(view, format)?;
                let n = a.iter().filter(|x| **x != 0.0).count();
                assert_eq!((made.format(), made.len(), made.n_rows(), made.n_columns()), (format, n, 6, 8));
                assert_eq!(dense(queue, &sparse, &made)?, by_rows(&a));
            }
        }
        let csr = csr(queue, &a)?;
        let back = sparse.csc_to_csr(&sparse.csr_to_csc(&csr)?)?;
        assert_eq!(back.format(), SparseFormat::Csr);
        assert_eq!(read(queue, back.offsets()), read(queue, csr.offsets()));
        assert_eq!(read(queue, back.indices()), read(queue, csr.indices()));
        assert_eq!(read(queue, back.values()), read(queue, csr.values()));
        let blocks = match sparse.csr_to_bsr(&csr, 2) {
            // CUDA 13 no longer has it.
            Err(Error::Unsupported { .. }) if queue.device().vendor() == Vendor::Nvidia => return Ok(()),
            blocks => blocks?,
        };
        assert_eq!((blocks.format(), blocks.n_rows(), blocks.n_columns()), (SparseFormat::Bsr { block: 2 }, 6, 8));
        let values = read(queue, blocks.values());
        let (offsets, indices) = (read(queue, blocks.offsets()), read(queue, blocks.indices()));
        for (i, places) in offsets.windows(2).enumerate() {
            for place in places[0] as usize..places[1] as usize {
                for (at, x) in values[4 * place..4 * place + 4].iter().enumerate() {
                    let (row, column) = (2 * i + at / 2, 2 * indices[place] as usize + at % 2);
                    assert_eq!(*x, a[(row, column)] as f32, "{row}, {column}");
                }
            }
        }
        assert_eq!(dense(queue, &sparse, &sparse.bsr_to_csr(&blocks)?)?, by_rows(&a));
        refused(sparse.csr_to_bsr(&csr, 5), "6 x 8 in blocks of 5");
        let view = Matrix::rows(by_row.all(), 6, 8)?;
        refused(sparse.from_dense(view, SparseFormat::Bsr { block: 2 }), "csr_to_bsr follows");
        refused(sparse.bsr_to_csr(&csr), "a matrix in Csr");
        Ok(())
    });
}

/// Dense factors beside every format.
#[test]
fn products_with_matrices_in_every_format() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let (a, right) = (thin(110, 6, 8), matrix(111, 8, 5));
        let (rows, truth) = (upload(queue, &by_rows(&right)), by_rows(&(&a * &right * 0.5)));
        let csr = csr(queue, &a)?;
        let mut all = vec![sparse.csr_to_coo(&csr)?, sparse.csr_to_csc(&csr)?];
        // One block of 2 x 2 after another, zeros included.
        let whole = DMatrix::from_fn(6, 8, |i, j| a[(i, j)]);
        let blocks = (0..12).flat_map(|b| (0..4).map(move |at| (2 * (b / 4) + at / 2, 2 * (b % 4) + at % 2)));
        let values: Vec<f32> = blocks.map(|(i, j)| whole[(i, j)] as f32).collect();
        let indices: Vec<i32> = (0..12).map(|b| b % 4).collect();
        all.push(SparseMatrix::bsr(queue, 8, 2, &[0, 4, 8, 12], &indices, &values)?);
        for a in &all {
            let mut c = upload(queue, &[77f32; 30]);
            let view = Matrix::rows(rows.all(), 8, 5)?;
            match sparse.spmm(0.5, a, view, 0.0, MatrixMut::rows(c.all_mut(), 6, 5)?) {
                // cuSPARSE's older versions multiply no blocks.
                Err(Error::Call { name, .. }) if name.ends_with("NOT_SUPPORTED") => continue,
                done => done?,
            }
            close(&read(queue, c.all()), &truth, F32);
        }
        Ok(())
    });
}

/// Upper triangles, ones on the diagonal, COO, and complex numbers.
#[test]
fn triangular_systems_of_every_kind() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        let (a, b) = (thin(112, 10, 10), matrix(113, 10, 1));
        let da = csr(queue, &a)?;
        let coo = sparse.csr_to_coo(&da)?;
        let db = upload(queue, &by_columns(&b));
        let mut ones = a.upper_triangle();
        ones.fill_diagonal(1.0);
        for (diagonal, upper) in [(Diagonal::Stored, a.upper_triangle()), (Diagonal::Ones, ones)] {
            for matrix in [&da, &coo] {
                let mut x = upload(queue, &[0f32; 10]);
                sparse.spsv(Triangle::Upper, diagonal, 1.0, matrix, db.all(), x.all_mut())?;
                let truth = upper.solve_upper_triangular(&b).unwrap();
                close(&read(queue, x.all()), truth.as_slice(), 1e-5);
            }
        }
        let (offsets, indices, values) = rows_of(&a);
        let i = Complex::new(0.0, 1.0);
        let turned: Vec<Complex<f64>> = values.iter().map(|x| i * f64::from(*x)).collect();
        let da = SparseMatrix::csr(queue, 10, &offsets, &indices, &turned)?;
        let right: Vec<Complex<f64>> = b.iter().map(|x| Complex::new(*x, 0.0)).collect();
        let (db, mut x) = (upload(queue, &right), upload(queue, &[Complex::new(0.0f64, 0.0); 10]));
        sparse.spsv(Triangle::Lower, Diagonal::Stored, i, &da, db.all(), x.all_mut())?;
        let narrow = DMatrix::from_fn(10, 10, |i, j| f64::from(a[(i, j)] as f32));
        let truth = narrow.lower_triangle().solve_lower_triangular(&b).unwrap();
        let found = read(queue, x.all());
        close(&found.iter().map(|z| z.re).collect::<Vec<_>>(), truth.as_slice(), 1e-12);
        assert!(found.iter().all(|z| z.im.abs() < 1e-12));
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        let sparse = Sparse::new(queue)?;
        refused(SparseMatrix::csr(queue, 3, &[0, 1, 2], &[0, 3], &[1f32, 2.0]), "index 3 is not below 3");
        refused(SparseMatrix::csr(queue, 3, &[0, 2, 1], &[0, 1], &[1f32, 2.0]), "must rise");
        refused(SparseMatrix::csr(queue, 3, &[0, 1, 2], &[0, -1], &[1f32, 2.0]), "index -1");
        refused(SparseMatrix::coo(queue, [2, 2], &[1, 0], &[0, 1], &[1f32, 2.0]), "not sorted");
        let a = SparseMatrix::csr(queue, 3, &[0, 1, 2], &[0, 2], &[1f32, 2.0])?;
        let (x, mut y) = (upload(queue, &[1f32; 3]), upload(queue, &[1f32; 3]));
        refused(sparse.spmv(1.0, &a, x.all(), 0.0, y.all_mut()), "rows of A and length of y: 2 and 3");
        let other = Queue::new(queue.device())?;
        let foreign = upload(&other, &[1f32; 3]);
        refused(sparse.spmv(1.0, &a, foreign.all(), 0.0, y.slice_mut(..2)?), "belongs to queue");
        Ok(())
    });
}
