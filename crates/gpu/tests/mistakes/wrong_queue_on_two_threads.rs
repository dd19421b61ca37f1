//! One queue, two threads that enqueue at once.

fn both(queue: gpu::Queue) {
    std::thread::scope(|scope| {
        scope.spawn(|| queue.wait());
        scope.spawn(|| queue.wait());
    });
}

fn main() {}
