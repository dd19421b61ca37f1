//! Checks of memory: copies, slices, the pool, ownership and handing over.

use half::{bf16, f16};

use gpu::{Buffer, Element, Error, Grid, MemoryPool, Queue};

use super::kernels::{self, Add, Spin};
use super::{Bench, Failure, Numbers, Outcome, passed};
use crate::ensure;

pub fn properties(bench: &Bench) -> Result<Outcome, Failure> {
    let p = bench.device.properties();
    ensure!(matches!(p.wave_width, 32 | 64), "wave width {}", p.wave_width);
    ensure!(!p.arch.is_empty() && p.n_multiprocessors > 0, "{p:?}");
    ensure!(p.max_threads_per_block >= 256 && p.max_shared_bytes >= 32 << 10, "{p:?}");
    let memory = bench.device.memory()?;
    ensure!(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes, "{memory:?}");
    let budget = gpu::Budget::read(&bench.device)?;
    ensure!(budget.usable_bytes > 0, "{budget:?}");
    ensure!(p.is_integrated || budget.bound == gpu::Bound::DeviceFree, "{budget:?}");
    let (library, version) = bench.device.driver_version();
    passed(format!(
        "{} {} wave {} CUs {} shared {} mem {:.1}/{:.1} GiB, {library} {version}, {}",
        p.display_name(),
        p.arch,
        p.wave_width,
        p.n_multiprocessors,
        p.max_shared_bytes,
        memory.free_bytes as f64 / 2f64.powi(30),
        memory.total_bytes as f64 / 2f64.powi(30),
        gpu::compiler(bench.device.vendor())?
    ))
}

fn there_and_back<T: Element>(queue: &Queue, make: impl Fn(usize) -> T) -> Result<(), Failure> {
    for n in [0, 1, 3, 255, 256, 4097] {
        let sent: Vec<T> = (0..n).map(&make).collect();
        let back = queue.read(queue.buffer_from(&sent)?.all())?;
        ensure!(sent == back, "{n} of {} came back wrong", T::C_NAME);
    }
    Ok(())
}

pub fn round_trip(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    there_and_back(&queue, |i| i as u8)?;
    there_and_back(&queue, |i| i as i16)?;
    there_and_back(&queue, |i| i as u32 * 77)?;
    there_and_back(&queue, |i| i as u64 * 7_000_000_007)?;
    there_and_back(&queue, |i| i as f32 * 0.5)?;
    there_and_back(&queue, |i| f16::from_f32(i as f32))?;
    there_and_back(&queue, |i| bf16::from_f32(i as f32))?;
    // A part of pinned memory goes up; more room than needed comes down.
    let mut pinned = queue.pinned::<u32>(100)?;
    pinned.iter_mut().enumerate().for_each(|(i, slot)| *slot = i as u32);
    let mut buffer = queue.alloc_zeroed::<u32>(10)?;
    let pinned = queue.upload_part(pinned, 40..50, buffer.all_mut())?.wait()?;
    ensure!(pinned[99] == 99, "the pinned memory that came back is another");
    let pending = queue.download(buffer.all(), queue.pinned::<u32>(16)?)?;
    let got = pending.wait()?;
    ensure!(got[..10] == (40..50).collect::<Vec<u32>>()[..] && got[10..] == [0; 6], "{:?}", &got[..]);
    let too_short = queue.upload(queue.pinned::<u32>(11)?, buffer.all_mut());
    ensure!(matches!(too_short.err(), Some(Error::Bounds { .. })), "11 went into 10");
    // Dropping a copy in flight waits for it.
    drop(queue.download(buffer.all(), queue.pinned::<u32>(10)?)?);
    ensure!(queue.leaks().is_empty(), "{:?}", queue.leaks());
    passed("7 element types, 0 to 4097 elements")
}

pub fn fill_and_copy(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let mut a = queue.alloc::<f32>(1001)?;
    let mut b = queue.alloc::<u8>(1001)?;
    let launcher = queue.launcher();
    launcher.fill(a.all_mut(), 1.5)?;
    launcher.fill(a.slice_mut(3..7)?, -2.0)?;
    launcher.fill(b.all_mut(), 9)?;
    launcher.zero(b.slice_mut(1000..)?)?;
    let mut c = queue.alloc_zeroed::<f32>(8)?;
    launcher.copy(a.slice(..8)?, c.all_mut())?;
    ensure!(queue.read(c.all())? == [1.5, 1.5, 1.5, -2.0, -2.0, -2.0, -2.0, 1.5], "fill or copy went wrong");
    let bytes = queue.read(b.all())?;
    ensure!(bytes[..1000].iter().all(|v| *v == 9) && bytes[1000] == 0, "byte fill");
    let unequal = launcher.copy(a.slice(..9)?, c.all_mut());
    ensure!(matches!(unequal, Err(Error::Bounds { .. })), "9 went into 8");
    passed("")
}

pub fn slices(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let mut y = queue.alloc_zeroed::<f32>(1000)?;
    let steps = queue.buffer_from(&[1.0f32, 10.0])?;
    let launcher = queue.launcher();
    let (left, right) = y.all_mut().split_at(300)?;
    launcher.launch(&small.add, Grid::line(2, 256), &Add { y: left, step: steps.slice(..1)?, n: 300 })?;
    launcher.launch(&small.add, Grid::line(3, 256), &Add { y: right, step: steps.slice(1..)?, n: 700 })?;
    let got = queue.read(y.all())?;
    ensure!(got[..300].iter().all(|v| *v == 1.0) && got[300..].iter().all(|v| *v == 10.0), "split views overlap");
    let bits = queue.read(y.slice(299..301)?.cast::<u32>()?)?;
    ensure!(bits == [1f32.to_bits(), 10f32.to_bits()], "{bits:x?}");
    ensure!(y.slice(999..1001).is_err() && y.all().slice(1001..).is_err(), "a bad range was taken");
    let odd = queue.alloc::<u8>(7)?;
    ensure!(odd.all().cast::<u32>().is_err() && odd.slice(1..5)?.cast::<u32>().is_err(), "a crooked cast was taken");
    passed("")
}

pub fn pool(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let before = bench.device.counters();
    let bytes = MemoryPool::room_for::<f32>(3).unwrap() + MemoryPool::room_for::<u8>(257).unwrap();
    ensure!(bytes == 256 + 512, "room_for is {bytes}");
    let mut pool = queue.pool(bytes)?;
    let mut a: Buffer<f32> = pool.carve(3)?;
    let mut b: Buffer<u8> = pool.carve(257)?;
    ensure!(pool.remaining() == 0 && pool.carve::<u8>(1).is_err(), "the pool gave more than it has");
    ensure!(pool.carve::<u64>(usize::MAX / 4).is_err(), "an overflowing size was taken");
    queue.launcher().fill(b.all_mut(), 7)?;
    queue.launcher().fill(a.all_mut(), 2.0)?;
    drop(pool);
    ensure!(queue.read(a.all())? == [2.0; 3] && queue.read(b.all())? == [7; 257], "carved buffers overlap");
    let cost = bench.device.counters() - before;
    ensure!(cost.allocations == 1, "{} allocations for one pool", cost.allocations);
    passed("one allocation")
}

pub fn out_of_memory(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let total = bench.device.memory()?.total_bytes;
    let error = queue.alloc::<u8>(total * 4).err();
    let Some(Error::OutOfMemory { wanted_bytes, total_bytes, .. }) = error else {
        return Err(Failure(format!("4 times the memory gave {error:?}")));
    };
    ensure!(wanted_bytes == total * 4 && total_bytes == total, "the numbers are wrong");
    ensure!(queue.alloc::<u64>(usize::MAX / 2).is_err(), "an overflowing size was taken");
    ensure!(queue.fault().is_none() && queue.read(queue.buffer_from(&[5u8])?.all())? == [5], "the queue is dead");
    passed("refused with numbers, and the queue lives")
}

pub fn foreign_memory(bench: &Bench) -> Result<Outcome, Failure> {
    let (mut ours, theirs) = (bench.queue()?, bench.queue()?);
    let small = kernels::small(bench)?;
    let mut foreign = theirs.buffer_from(&[1f32; 8])?;
    let step = ours.buffer_from(&[1f32])?;
    let mut own = ours.alloc_zeroed::<f32>(8)?;
    let is_foreign = |result: Result<(), Error>, what: &str| -> Result<(), Failure> {
        ensure!(matches!(result, Err(Error::Foreign { .. })), "{what}: {result:?}");
        Ok(())
    };
    let launcher = ours.launcher();
    let add = Add { y: foreign.all_mut(), step: step.all(), n: 8 };
    is_foreign(launcher.launch(&small.add, Grid::line(1, 256), &add), "launch")?;
    is_foreign(launcher.copy(foreign.all(), own.all_mut()), "copy from")?;
    is_foreign(launcher.copy(own.all(), foreign.all_mut()), "copy to")?;
    is_foreign(launcher.zero(foreign.all_mut()), "zero")?;
    is_foreign(ours.upload(ours.pinned(8)?, foreign.all_mut()).map(drop), "upload")?;
    is_foreign(ours.download(foreign.all(), ours.pinned(8)?).map(drop), "download")?;
    is_foreign(ours.upload(theirs.pinned(8)?, own.all_mut()).map(drop), "foreign pinned memory")?;
    let add = Add { y: foreign.all_mut(), step: step.all(), n: 8 };
    let captured = ours.capture(|l| l.launch(&small.add, Grid::line(1, 256), &add));
    is_foreign(captured.map(drop), "capture")?;
    let graph = ours.capture(|l| l.zero(own.all_mut()))?;
    is_foreign(theirs.replay(&graph), "replay")?;
    ensure!(theirs.read(foreign.all())? == [1.0; 8], "somebody wrote it anyway");
    ensure!(ours.fault().is_none() && theirs.fault().is_none(), "a refusal is no fault");
    passed("refused in 9 places")
}

pub fn hand_over(bench: &Bench) -> Result<Outcome, Failure> {
    let (mut first, second) = (bench.queue()?, bench.queue()?);
    let small = kernels::small(bench)?;
    let rounds = 30_000;
    let mut counter = first.buffer_from(&[1u32])?;
    // Work that takes a while, then the buffer crosses: without the event the copy below would come first.
    let spin = Spin { y: counter.all_mut(), rounds };
    first.launcher().launch(&small.spin, Grid::line(1, 64), &spin)?;
    let mut counter = first.hand_over(counter, &second)?;
    let spin = Spin { y: counter.all_mut(), rounds };
    second.launcher().launch(&small.spin, Grid::line(1, 64), &spin)?;
    let step = |v: u32| v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let want = (0..2 * rounds).fold(1u32, |v, _| step(v));
    ensure!(second.read(counter.all())? == [want], "the second queue did not wait for the first");
    // Memory that a graph of the first queue will write again cannot leave it.
    let mut kept = first.alloc_zeroed::<f32>(4)?;
    let graph = first.capture(|l| l.fill(kept.all_mut(), 3.0))?;
    let refused = first.hand_over(kept, &second).err();
    ensure!(matches!(refused, Some(Error::HandOver { .. })), "{refused:?}");
    drop(graph);
    let mut numbers = Numbers::new(3);
    let sent = numbers.f32s(1000);
    let moved = first.hand_over(first.buffer_from(&sent)?, &second)?;
    ensure!(moved.queue_id() == second.id() && second.read(moved.all())? == sent, "contents changed on the way");
    passed("ordered by an event; refused while a graph holds it")
}
