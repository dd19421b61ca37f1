//! A BLAS handle without a queue would work on the default stream.

fn blas(queue: &gpu::Queue, workspace: gpu::Buffer<u8>) {
    let _ = gpu::Blas::new(queue, workspace, &[]);
    let _ = gpu::Blas::default();
}

fn main() {}
