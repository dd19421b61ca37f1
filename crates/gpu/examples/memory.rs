//! One allocation, cut into buffers: `cargo run -p roci-gpu --example memory`.
//!
//! Allocating is slow and may wait for the device. A pool allocates once; taking from it is arithmetic.

use gpu::{Budget, Device, MemoryPool, Queue};

fn main() -> gpu::Result<()> {
    let device = Device::first()?;
    let budget = Budget::read(&device)?;
    println!("{}: {} MiB can be used", device.label(), budget.usable_bytes >> 20);
    let queue = Queue::new(&device)?;
    let sizes = [1000, 20, 3];
    let mut pool = queue.pool(sizes.iter().filter_map(|n| MemoryPool::room_for::<f32>(*n)).sum())?;
    let before = device.counters();
    let buffers = sizes.map(|n| pool.carve::<f32>(n));
    for (buffer, n) in buffers.into_iter().zip(sizes) {
        assert_eq!(buffer?.len(), n);
    }
    println!("3 buffers, {} allocations", (device.counters() - before).allocations);
    Ok(())
}
