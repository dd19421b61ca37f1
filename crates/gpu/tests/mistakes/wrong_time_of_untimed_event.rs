//! A time read from an event that never took one.

fn time(queue: &gpu::Queue) -> gpu::Result<std::time::Duration> {
    let start = queue.record::<gpu::Untimed>()?;
    queue.record::<gpu::Untimed>()?.since(&start)
}

fn main() {}
