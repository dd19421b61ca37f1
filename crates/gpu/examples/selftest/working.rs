//! Checks of work: launch shapes, events, graphs, cost, threads and profiling.

use gpu::{DebugSync, Error, Grid, Launcher, Profiling, Queue, Timed};

use super::kernels::{self, Add, Reverse, Small, Spin};
use super::{Bench, Failure, Outcome, passed};
use crate::ensure;

pub fn launch_bounds(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let (mut y, step) = (queue.alloc_zeroed::<f32>(4)?, queue.buffer_from(&[1f32])?);
    let most = bench.device.properties().max_shared_bytes;
    let shapes = [
        (Grid::line(0, 256), "no blocks"),
        (Grid::line(1, 0), "no threads"),
        (Grid::line(1, 512), "more threads than launch bounds"),
        (Grid { blocks: [1, 1, 1], threads: [16, 16, 2], shared_bytes: 0 }, "more threads in three axes"),
        (Grid::plane(1, 1 << 20, 64), "more blocks in y than the device takes"),
        (Grid::line(1, 64).shared(most + 1), "more shared memory than there is"),
    ];
    let before = bench.device.counters();
    for (grid, what) in shapes {
        if grid.blocks[1] <= bench.device.properties().max_grid[1] && what.contains("in y") {
            continue;
        }
        let result = queue.launcher().launch(&small.add, grid, &Add { y: y.all_mut(), step: step.all(), n: 4 });
        ensure!(matches!(result, Err(Error::Launch { .. })), "{what}: {result:?}");
    }
    ensure!((bench.device.counters() - before).launches == 0, "a bad shape reached the driver");
    queue.launcher().launch(&small.add, Grid::line(1, 256), &Add { y: y.all_mut(), step: step.all(), n: 4 })?;
    ensure!(queue.read(y.all())? == [1.0; 4], "the queue is broken after a refusal");
    passed("6 bad shapes refused before the driver")
}

pub fn shared_memory(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let x: Vec<f32> = (0..192).map(|i| i as f32).collect();
    let (from, mut to) = (queue.buffer_from(&x)?, queue.alloc_zeroed::<f32>(192)?);
    // The most a block may have: above NVIDIA's default of 48 KiB, a kernel must opt in.
    let bytes = bench.device.properties().max_shared_bytes;
    let args = Reverse { x: from.all(), y: to.all_mut(), words: bytes / 4 };
    queue.launcher().launch(&small.reverse, Grid::line(3, 64).shared(bytes), &args)?;
    let want: Vec<f32> = (0..192).map(|i| (i / 64 * 64 + 63 - i % 64) as f32).collect();
    ensure!(queue.read(to.all())? == want, "shared memory came back wrong");
    passed(format!("{bytes} bytes"))
}

pub fn events(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let mut y = queue.buffer_from(&[1u32])?;
    let mut spin = |rounds| -> Result<std::time::Duration, Failure> {
        let start = queue.record::<Timed>()?;
        queue.launcher().launch(&small.spin, Grid::line(1, 64), &Spin { y: y.all_mut(), rounds })?;
        let stop = queue.record::<Timed>()?;
        let took = stop.since(&start)?;
        ensure!(stop.is_done()? && start.is_done()?, "timed but not done");
        Ok(took)
    };
    let (short, long) = (spin(100)?, spin(20_000)?);
    // A software model of a GPU keeps no device clock; silicon always does.
    let has_clock = !long.is_zero();
    ensure!(long > short || !has_clock, "20,000 rounds took {long:?}, 100 took {short:?}");
    let before = bench.device.counters();
    for _ in 0..5 {
        spin(1)?;
    }
    ensure!((bench.device.counters() - before).events_created == 0, "events are not pooled");
    let other = bench.queue()?;
    let (ours, theirs) = (queue.record::<Timed>()?, other.record::<Timed>()?);
    ensure!(matches!(ours.since(&theirs), Err(Error::Foreign { .. })), "times of two queues were subtracted");
    passed(if has_clock {
        format!("{short:?} and {long:?}")
    } else {
        "this device keeps no clock: times not checked".into()
    })
}

/// Three additions: what the graph checks capture.
fn add_three(l: &Launcher<'_>, small: &Small, y: &mut gpu::Buffer<f32>, step: &gpu::Buffer<f32>) -> gpu::Result<()> {
    let n = y.len() as u32;
    for _ in 0..3 {
        let args = Add { y: y.all_mut(), step: step.all(), n };
        l.launch(&small.add, Grid::line(n.div_ceil(256), 256), &args)?;
    }
    Ok(())
}

pub fn graph(bench: &Bench) -> Result<Outcome, Failure> {
    let mut queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let (mut y, mut step) = (queue.alloc_zeroed::<f32>(777)?, queue.buffer_from(&[0.5f32])?);
    let mut copy = queue.alloc_zeroed::<f32>(777)?;
    let graph = queue.capture(|l| {
        add_three(l, &small, &mut y, &step)?;
        l.copy(y.all(), copy.all_mut())
    })?;
    ensure!(graph.n_nodes() == 4, "{} nodes", graph.n_nodes());
    ensure!(queue.read(y.all())? == [0.0; 777], "capturing ran the work");
    for _ in 0..4 {
        queue.replay(&graph)?;
    }
    ensure!(queue.read(copy.all())? == [6.0; 777], "4 replays of 3 additions of 0.5");
    // State at a fixed address changes between replays.
    let mut next = queue.pinned::<f32>(1)?;
    next[0] = 10.0;
    let next = queue.upload(next, step.all_mut())?;
    queue.replay(&graph)?;
    next.wait()?;
    ensure!(queue.read(copy.all())? == [36.0; 777], "the replay did not see the new state");
    passed("4 nodes, 5 replays")
}

pub fn graph_keeps_memory(bench: &Bench) -> Result<Outcome, Failure> {
    let mut queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let mut out = queue.alloc_zeroed::<f32>(256)?;
    let graph = {
        let mut y = queue.alloc_zeroed::<f32>(256)?;
        let step = queue.buffer_from(&[2f32])?;
        let before = bench.device.counters();
        let graph = queue.capture(|l| {
            add_three(l, &small, &mut y, &step)?;
            l.copy(y.all(), out.all_mut())
        })?;
        drop((y, step));
        ensure!((bench.device.counters() - before).frees == 0, "memory a graph names was freed");
        graph
    };
    // New allocations would land in the freed memory, if it had been.
    let _other = queue.buffer_from(&[9f32; 256])?;
    queue.replay(&graph)?;
    queue.replay(&graph)?;
    ensure!(queue.read(out.all())? == [12.0; 256], "a replay used memory that was gone");
    let before = bench.device.counters();
    drop(graph);
    ensure!((bench.device.counters() - before).frees == 2, "dropping the graph frees what only it held");
    passed("")
}

pub fn graph_errors(bench: &Bench) -> Result<Outcome, Failure> {
    let mut queue = bench.queue()?;
    let mut y = queue.alloc_zeroed::<f32>(4)?;
    let empty = queue.capture(|_| Ok::<(), Error>(()));
    ensure!(matches!(empty.as_ref().err(), Some(Error::Capture { .. })), "an empty capture gave a graph");
    let failed = queue.capture(|l| {
        l.zero(y.all_mut())?;
        Err::<(), Failure>(Failure("the op's own words".into()))
    });
    ensure!(failed.err().is_some_and(|f| f.0.contains("own words")), "the closure's error was lost");
    // A wait, and memory dropped, in the middle of a capture.
    let (gone, kept) = (queue.alloc_zeroed::<f32>(64)?, queue.alloc_zeroed::<f32>(64)?);
    let pending = queue.download(kept.all(), queue.pinned::<f32>(64)?)?;
    queue.wait()?;
    let before = bench.device.counters();
    let mut waited = None;
    let graph = queue.capture(|l| {
        drop(gone);
        waited = Some(pending.wait().map(drop));
        l.fill(y.all_mut(), 4.0)
    })?;
    ensure!(matches!(waited, Some(Err(Error::Capture { .. }))), "waiting in a capture gave {waited:?}");
    ensure!((bench.device.counters() - before).frees == 1, "memory dropped in a capture is freed after it");
    queue.replay(&graph)?;
    ensure!(queue.read(y.all())? == [4.0; 4] && queue.fault().is_none(), "the queue is broken after all that");
    passed("")
}

pub fn step_cost(bench: &Bench) -> Result<Outcome, Failure> {
    let mut queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let (mut y, step) = (queue.alloc_zeroed::<f32>(100)?, queue.buffer_from(&[1f32])?);
    let graph = queue.capture(|l| add_three(l, &small, &mut y, &step))?;
    let mut host = Some(queue.pinned::<f32>(100)?);
    let mut one_step = |queue: &Queue| -> Result<(), Failure> {
        queue.replay(&graph)?;
        host = Some(queue.download(y.all(), host.take().expect("put back below"))?.wait()?);
        Ok(())
    };
    one_step(&queue)?;
    let before = bench.device.counters();
    for _ in 0..10 {
        one_step(&queue)?;
    }
    let cost = bench.device.counters() - before;
    ensure!(cost.allocations + cost.host_allocations + cost.frees + cost.host_frees == 0, "{cost:?}");
    ensure!((cost.graph_launches, cost.launches, cost.read_backs, cost.waits) == (10, 0, 10, 10), "{cost:?}");
    ensure!((cost.bytes_to_host, cost.bytes_to_device, cost.events_created) == (4000, 0, 0), "{cost:?}");
    ensure!(host.expect("put back")[0] == 33.0, "11 steps of 3");
    passed("10 steps: 10 graph launches, 10 read-backs, 10 waits, no allocation")
}

pub fn threads(bench: &Bench) -> Result<Outcome, Failure> {
    // A queue and its buffers move to another thread; several queues work at once.
    let small = kernels::small(bench)?;
    let mut rooms = Vec::new();
    for _ in 0..4 {
        let queue = bench.queue()?;
        let (y, step) = (queue.alloc_zeroed::<f32>(300)?, queue.buffer_from(&[1f32])?);
        rooms.push((queue, y, step));
    }
    let results: Vec<Result<Vec<f32>, Error>> = std::thread::scope(|scope| {
        let start = |(queue, mut y, step): (Queue, gpu::Buffer<f32>, gpu::Buffer<f32>)| {
            let small = &small;
            scope.spawn(move || {
                for _ in 0..5 {
                    add_three(&queue.launcher(), small, &mut y, &step)?;
                }
                queue.read(y.all())
            })
        };
        let handles: Vec<_> = rooms.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    });
    for result in results {
        ensure!(result? == [15.0; 300], "a thread's sums are wrong");
    }
    passed("4 queues on 4 threads")
}

pub fn profile(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let (mut y, step) = (queue.alloc_zeroed::<f32>(300)?, queue.buffer_from(&[1f32])?);
    queue.set_profiling(Profiling::EachOp);
    let ranges = queue.show_ranges();
    {
        let launcher = queue.launcher();
        let _outer = launcher.op("layer");
        for name in ["add", "again"] {
            let _op = launcher.op(name);
            add_three(&launcher, &small, &mut y, &step)?;
        }
    }
    let profile = queue.take_profile()?;
    let names: Vec<&str> = profile.iter().map(|op| op.name).collect();
    ensure!(names == ["add", "again", "layer"], "{names:?}");
    ensure!(profile[2].time >= profile[0].time, "a part took longer than the whole: {profile:?}");
    queue.set_profiling(Profiling::Off);
    ensure!(queue.take_profile()?.is_empty(), "spans were kept after profiling was turned off");
    passed(match ranges {
        Ok(()) => "with profiler ranges".into(),
        Err(error) => format!("no profiler ranges: {error}").chars().take(70).collect::<String>(),
    })
}

pub fn debug_sync(bench: &Bench) -> Result<Outcome, Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let (mut y, step) = (queue.alloc_zeroed::<f32>(300)?, queue.buffer_from(&[1f32])?);
    queue.wait()?;
    queue.set_debug_sync(DebugSync::EachOp);
    let before = bench.device.counters();
    add_three(&queue.launcher(), &small, &mut y, &step)?;
    ensure!((bench.device.counters() - before).waits == 3, "it does not wait after each op");
    queue.set_debug_sync(DebugSync::Off);
    let before = bench.device.counters();
    add_three(&queue.launcher(), &small, &mut y, &step)?;
    ensure!((bench.device.counters() - before).waits == 0, "it still waits");
    passed("")
}
