//! Sorted keys, the order of others, and the largest of them, on the first GPU there is.
//!
//!     cargo run -p roci-sort --example sort

use gpu::{Device, Queue, Vendor};
use sort::{SortOrder, Sorter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Vendor::Amd, 0).or_else(|_| Device::open(Vendor::Nvidia, 0))?;
    let queue = Queue::new(&device)?;
    let sorter = Sorter::new(&device)?;

    let mut keys = queue.buffer_from(&[3.5f32, -1.0, 2.0, -0.0, f32::INFINITY, 0.0])?;
    let order = sorter.argsort(&queue, keys.all(), SortOrder::Descending)?;
    println!("from the largest: {:?}", queue.read(order.all())?);
    assert_eq!(queue.read(order.all())?, [4, 0, 2, 5, 3, 1]);

    sorter.sort(&queue, keys.all_mut())?;
    let sorted = queue.read(keys.all())?;
    println!("sorted: {sorted:?}");
    // -0 stands before 0, as by `total_cmp`.
    assert!(sorted.is_sorted_by(|a, b| a.total_cmp(b).is_le()) && sorted[1].is_sign_negative());
    Ok(())
}
