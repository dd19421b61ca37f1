//! Copies that overlap with the program's own work: `cargo run -p roci-gpu --example copies`.
//!
//! A copy takes pinned memory by value and gives it back once it is done, so bytes in flight cannot be looked at.

use gpu::{Device, Queue};

fn main() -> gpu::Result<()> {
    let device = Device::first()?;
    let queue = Queue::new(&device)?;
    let mut numbers = queue.pinned::<u32>(1 << 16)?;
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = i as u32;
    }
    let mut there = queue.alloc::<u32>(numbers.len())?;
    let going = queue.upload(numbers, there.all_mut())?;
    let coming = queue.download(there.all(), queue.pinned::<u32>(there.len())?)?;
    println!("{}: two copies enqueued", device.label());
    // The program is free to do something else here.
    let sent = going.wait()?;
    let back = coming.wait()?;
    assert_eq!(sent[..], back[..]);
    println!("{} numbers went there and back", back.len());
    Ok(())
}
