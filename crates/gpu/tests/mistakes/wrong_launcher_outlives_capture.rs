//! The launcher of a capture, kept for later.

fn keep(queue: &mut gpu::Queue) {
    let mut kept = None;
    let _ = queue.capture(|launcher| {
        kept = Some(launcher);
        Ok::<(), gpu::Error>(())
    });
}

fn main() {}
