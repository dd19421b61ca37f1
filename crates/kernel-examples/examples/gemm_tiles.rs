//! A product of matrices by a kernel in Rust on the matrix units of the first GPU there is.
//!
//!     cargo run -p roci-kernel-examples --example gemm_tiles

use gpu::{Device, Queue, Vendor};
use half::f16;
use kernel_examples::RightFactor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let kernels = kernel_examples::load(&device)?;

    let (m, n, k) = (64, 40, 100);
    let a: Vec<f16> = (0..m * k).map(|i| f16::from_f32((i % 7) as f32 - 3.0)).collect();
    let b: Vec<f16> = (0..k * n).map(|i| f16::from_f32((i % 5) as f32 - 2.0)).collect();
    let (on_a, on_b) = (queue.buffer_from(&a)?, queue.buffer_from(&b)?);
    let mut c = queue.alloc::<f32>(m * n)?;
    let shape = [m, n, k].map(|x| x as u32);
    kernel_examples::gemm(
        &kernels,
        &queue.launcher(),
        shape,
        on_a.all(),
        (on_b.all(), RightFactor::Rows),
        c.all_mut(),
    )?;

    let found = queue.read(c.all())?;
    for (i, found) in found.iter().enumerate() {
        // Small integers: their sums are exact.
        let truth: f32 = (0..k).map(|step| a[i / n * k + step].to_f32() * b[step * n + i % n].to_f32()).sum();
        assert_eq!(*found, truth, "row {}, column {}", i / n, i % n);
    }
    println!("{}: a product of {m} x {k} and {k} x {n}, {} numbers right", device.label(), found.len());
    Ok(())
}
