//! A read-back while a graph is recorded: it would wait for work that has not been given out.

fn capture(queue: &mut gpu::Queue, buffer: &mut gpu::Buffer<f32>) {
    let _ = queue.capture(|launcher| {
        launcher.zero(buffer.all_mut())?;
        queue.read(buffer.all())?;
        Ok::<(), gpu::Error>(())
    });
}

fn main() {}
