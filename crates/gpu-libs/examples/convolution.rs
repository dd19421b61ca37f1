//! A circular convolution by the convolution theorem: forward, multiply, back.
//!
//!     cargo run -p roci-gpu-libs --example convolution

use gpu::{Device, Queue, Vendor};
use gpu_libs::blas::{Blas, Side};
use gpu_libs::fft::{ComplexFft, Direction, FftLayout};
use gpu_libs::{Matrix, MatrixMut};
use num_complex::Complex32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let blas = Blas::new(&queue)?;

    let n = 8;
    let forward = ComplexFft::<f32>::new(&queue, Direction::Forward, FftLayout::dense(&[n])?)?;
    let inverse = ComplexFft::<f32>::new(&queue, Direction::Inverse, FftLayout::dense(&[n])?)?;
    let real = |list: [f32; 8]| list.map(|x| Complex32::new(x, 0.0));
    let mut signal = queue.buffer_from(&real([1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]))?;
    let mut filter = queue.buffer_from(&real([0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))?;
    forward.run_in_place(signal.all_mut())?;
    forward.run_in_place(filter.all_mut())?;

    // A diagonal matrix times a column multiplies element by element.
    let mut product = queue.alloc_zeroed::<Complex32>(n)?;
    let column = Matrix::columns(signal.all(), n, 1)?;
    blas.dgmm(Side::Left, column, filter.all(), MatrixMut::columns(product.all_mut(), n, 1)?)?;
    inverse.run_in_place(product.all_mut())?;
    blas.scal(Complex32::new(1.0 / n as f32, 0.0), product.all_mut())?;

    let found: Vec<f32> = queue.read(product.all())?.iter().map(|z| z.re).collect();
    println!("{found:.3?}");
    let truth = [0.5, 1.5, 2.5, 3.5, 2.0, 0.0, 0.0, 0.0];
    assert!(found.iter().zip(truth).all(|(x, y)| (x - y).abs() < 1e-5));
    Ok(())
}
