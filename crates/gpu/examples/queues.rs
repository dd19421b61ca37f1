//! Two queues and a buffer that moves between them: `cargo run -p roci-gpu --example queues`.
//!
//! A buffer belongs to the queue that made it. Using it in another is an error, not a race; `hand_over` is the one way
//! to move it, and orders the work of both queues.

use gpu::{Device, Error, Queue};

fn main() -> gpu::Result<()> {
    let device = Device::first()?;
    let (first, second) = (Queue::new(&device)?, Queue::new(&device)?);
    let buffer = first.buffer_from(&[7u32; 64])?;
    match second.read(buffer.all()) {
        Err(error @ Error::Foreign { .. }) => println!("refused: {error}"),
        other => panic!("a foreign buffer was read: {other:?}"),
    }
    let buffer = first.hand_over(buffer, &second)?;
    assert_eq!(second.read(buffer.all())?, [7; 64]);
    println!("{}: read by the second queue after a hand-over", device.label());
    Ok(())
}
