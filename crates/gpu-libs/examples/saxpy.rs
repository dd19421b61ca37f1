//! y = 2 x + y with BLAS, on the first GPU there is.
//!
//!     cargo run -p roci-gpu-libs --example saxpy

use gpu::{Device, Queue, Vendor};
use gpu_libs::blas::Blas;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let blas = Blas::new(&queue)?;

    let x = queue.buffer_from(&[1f32, 2.0, 3.0, 4.0])?;
    let mut y = queue.buffer_from(&[10f32, 20.0, 30.0, 40.0])?;
    blas.axpy(2.0, x.all(), y.all_mut())?;

    let found = queue.read(y.all())?;
    println!("{}: {found:?}", blas.library());
    assert_eq!(found, [12.0, 24.0, 36.0, 48.0]);
    Ok(())
}
