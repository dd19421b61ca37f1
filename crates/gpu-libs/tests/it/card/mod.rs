//! Every library on every GPU that is here, against references of other people's making.

mod blas;
mod blas_compact;
mod blas_lt;
mod collectives;
mod dnn;
mod fft;
mod rand;
mod solver;
mod sparse;

use gpu::{Buffer, Element, Queue, Slice};
use gpu_libs::{Error, Result};
use nalgebra::DMatrix;
use test_support::Random;

/// Runs `test` with a queue of each GPU. A library that is not installed skips it there, unless
/// `ROCI_REQUIRE_LIBRARIES=1`.
fn on_each(test: impl Fn(&Queue) -> Result<()>) {
    for device in test_support::gpus::open() {
        let queue = Queue::new(&device).unwrap();
        match test(&queue) {
            Ok(()) => {}
            Err(Error::Gpu(error @ gpu::Error::NoLibrary { .. })) => {
                test_support::skip(&format!("on {device:?}: {error}"), "ROCI_REQUIRE_LIBRARIES");
            }
            Err(error) => panic!("{device:?}: {error}"),
        }
    }
}

fn numbers(seed: u64, n: usize) -> Vec<f64> {
    Random::new(seed).numbers(n).into_iter().map(f64::from).collect()
}

/// A matrix of numbers in -1..1.
fn matrix(seed: u64, rows: usize, columns: usize) -> DMatrix<f64> {
    DMatrix::from_vec(rows, columns, numbers(seed, rows * columns))
}

/// Row after row, as f32.
fn by_rows(matrix: &DMatrix<f64>) -> Vec<f32> {
    matrix.transpose().iter().map(|x| *x as f32).collect()
}

/// Column after column, as f32.
fn by_columns(matrix: &DMatrix<f64>) -> Vec<f32> {
    matrix.iter().map(|x| *x as f32).collect()
}

fn upload<T: Element>(queue: &Queue, contents: &[T]) -> Buffer<T> {
    queue.buffer_from(contents).unwrap()
}

fn read<T: Element>(queue: &Queue, slice: Slice<'_, T>) -> Vec<T> {
    queue.read(slice).unwrap()
}

#[track_caller]
fn close<T: Copy + Into<f64>, U: Copy + Into<f64>>(found: &[T], truth: &[U], bound: f64) {
    let (found, truth) = (found.iter().map(|x| (*x).into()), truth.iter().map(|x| (*x).into()));
    let error = test_support::golden::relative_error(found, truth);
    assert!(error <= bound, "off by {error:.2e} of the norm, allowed {bound:.0e}");
}

/// Refused before the library was called, with these words.
#[track_caller]
fn refused<T>(result: Result<T>, words: &str) {
    let error = result.err().expect("this must be refused");
    let is_ours =
        matches!(error, Error::Shape { .. } | Error::Gpu(gpu::Error::Foreign { .. } | gpu::Error::Bounds { .. }));
    assert!(is_ours && error.to_string().contains(words), "{error}");
}
