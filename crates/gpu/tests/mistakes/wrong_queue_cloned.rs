//! A second handle to the same stream.

fn twice(queue: &gpu::Queue) -> gpu::Queue {
    queue.clone()
}

fn main() {}
