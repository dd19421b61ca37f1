//! `sort_speed [LOG2_KEYS]`: device time of sorting random keys on the first GPU, best of ten. CUB's on the same machine:
//! `nvcc -O3 -arch=native bench/cub_sort.cu -o cub_sort && ./cub_sort [LOG2_KEYS]`.

use gpu::{Device, Queue, Vendor};
use sort::{SortOrder, Sorter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let log2: u32 = std::env::args().nth(1).map_or(Ok(26), |text| text.parse())?;
    let vendor =
        *Vendor::ALL.iter().find(|vendor| Device::count(**vendor).is_ok_and(|n| n > 0)).ok_or("no GPU here")?;
    let device = Device::open(vendor, 0)?;
    let queue = Queue::new(&device)?;
    let sorter = Sorter::new(&device)?;
    let n = 1_usize << log2;
    let mut state = 88_172_645_463_325_252_u64;
    let keys: Vec<u32> = (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u32
        })
        .collect();
    let source = queue.buffer_from(&keys)?;
    let mut sorted = queue.alloc::<u32>(n)?;
    let mut best = [f64::MAX; 2];
    for _ in 0..10 {
        queue.launcher().copy(source.all(), sorted.all_mut())?;
        best[0] = best[0].min(timed(&queue, || sorter.sort(&queue, sorted.all_mut()))?);
        best[1] = best[1].min(timed(&queue, || sorter.argsort(&queue, source.all(), SortOrder::Ascending).map(drop))?);
    }
    let found = queue.read(sorted.all())?;
    assert!(found.is_sorted(), "the result is not sorted");
    for (what, ms) in ["keys", "argsort"].iter().zip(best) {
        println!("{} {what} 2^{log2} u32: {ms:.3} ms, {:.2} Gkeys/s", device.label(), n as f64 / ms / 1e6);
    }
    Ok(())
}

/// Milliseconds of device time.
fn timed(queue: &Queue, work: impl FnOnce() -> gpu::Result<()>) -> gpu::Result<f64> {
    let start = queue.record::<gpu::Timed>()?;
    work()?;
    let end = queue.record::<gpu::Timed>()?;
    queue.wait()?;
    Ok(end.since(&start)?.as_secs_f64() * 1e3)
}
