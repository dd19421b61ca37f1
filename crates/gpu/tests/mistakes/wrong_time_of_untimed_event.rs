//! A time read from an event that never took one.

fn time(queue: &gpu::Queue) -> gpu::Result<std::time::Duration> {
    let start = queue.record::<gpu::Order>()?;
    queue.record::<gpu::Order>()?.since(&start)
}

fn main() {}
