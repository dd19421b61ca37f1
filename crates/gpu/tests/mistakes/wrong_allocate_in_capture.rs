//! Memory allocated while a graph is recorded: the driver would refuse it, or record it.

fn capture(queue: &mut gpu::Queue) {
    let _ = queue.capture(|launcher| {
        let mut buffer = queue.alloc::<f32>(16)?;
        launcher.zero(buffer.all_mut())
    });
}

fn main() {}
