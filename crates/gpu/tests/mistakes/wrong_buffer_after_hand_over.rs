//! A buffer used on the queue that gave it away.

fn race(ours: &gpu::Queue, theirs: &gpu::Queue, mut buffer: gpu::Buffer<f32>) -> gpu::Result<()> {
    let _theirs_now = ours.hand_over(buffer, theirs)?;
    ours.launcher().zero(buffer.all_mut())
}

fn main() {}
