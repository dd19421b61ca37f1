//! Host memory written while the device still reads it.

fn upload(queue: &gpu::Queue, mut host: gpu::Pinned<f32>, buffer: &mut gpu::Buffer<f32>) -> gpu::Result<()> {
    let pending = queue.upload(host, buffer.all_mut())?;
    host[0] = 2.0;
    pending.wait().map(drop)
}

fn main() {}
