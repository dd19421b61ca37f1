//! A stream, taken out of its queue to be passed to some other library.

fn stream(queue: &gpu::Queue) -> gpu::raw::Stream {
    queue.core.shared.stream
}

fn main() {}
