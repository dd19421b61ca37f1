//! Host memory read before the copy into it is done.

fn download(queue: &gpu::Queue, buffer: &gpu::Buffer<f32>) -> gpu::Result<f32> {
    let pending = queue.download(buffer.all(), queue.pinned(16)?)?;
    Ok(pending[0])
}

fn main() {}
