//! A row-major product, and the same with a factor seen the other way, which costs nothing.
//!
//!     cargo run -p roci-gpu-libs --example gemm

use gpu::{Device, Queue, Vendor};
use gpu_libs::blas::Blas;
use gpu_libs::{Matrix, MatrixMut};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let blas = Blas::new(&queue)?;

    let a = queue.buffer_from(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?; // [2, 3]
    let b = queue.buffer_from(&[1f32, 0.0, 0.0, 1.0, 1.0, 1.0])?; // [3, 2]
    let mut c = queue.alloc_zeroed::<f32>(4)?; // [2, 2]
    let (av, bv) = (Matrix::rows(a.all(), 2, 3)?, Matrix::rows(b.all(), 3, 2)?);
    blas.gemm(1.0, av, bv, 0.0, MatrixMut::rows(c.all_mut(), 2, 2)?)?;
    assert_eq!(queue.read(c.all())?, [4.0, 5.0, 10.0, 11.0]);

    // Shapes that do not fit are refused before the library is called.
    let wrong = blas.gemm(1.0, av, av, 0.0, MatrixMut::rows(c.all_mut(), 2, 2)?);
    println!("refused: {}", wrong.unwrap_err());
    blas.gemm(1.0, av, av.t(), 0.0, MatrixMut::rows(c.all_mut(), 2, 2)?)?;
    println!("A A^T = {:?}", queue.read(c.all())?);
    Ok(())
}
