//! Checks of what happens when things go wrong: a hung device, a lost device, a driver that dies. Each
//! runs in a child process, because the device or its context does not come back.

use std::time::{Duration, Instant};

use gpu::discovery::Probe;
use gpu::{Error, Grid, Vendor};

use super::kernels::{self, Spin, Stray};
use super::{Bench, Failure, Outcome, passed};
use crate::ensure;

pub fn discovery(bench: &Bench) -> Result<Outcome, Failure> {
    let (program, arguments) = bench.child.clone();
    let mut probe = Probe::through(program, arguments.into_iter().map(Into::into));
    let (vendor, ordinal) = (bench.device.vendor(), bench.device.ordinal());
    // Generous: a test machine may be busy. The default limits are the product's.
    probe.list_limit = Duration::from_secs(30);
    probe.selftest_limit = Duration::from_secs(120);
    let found = probe.discover();
    let ours = found.devices.iter().find(|found| (found.vendor, found.ordinal) == (vendor, ordinal));
    let Some(ours) = ours else { return Err(Failure(format!("this device is not in {found:?}"))) };
    ensure!(ours.refused.is_none() && ours.arch == bench.device.properties().arch, "{ours:?}");
    ensure!(found.best(Some(vendor)).is_some(), "nothing usable in {found:?}");
    probe.knows_arch(vendor, &ours.arch)?;
    // The name that would abort this process, were it asked here.
    let unknown = probe.knows_arch(vendor, vendor_word(vendor));
    ensure!(unknown.is_err(), "an unknown architecture compiled");
    probe.list_limit = Duration::ZERO;
    let late = probe.list(vendor);
    ensure!(late.as_ref().is_err_and(|e| e.to_string().contains("no answer within")), "{late:?}");
    passed(format!("{ours}"))
}

fn vendor_word(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Amd => "gfx9999",
        Vendor::Nvidia => "sm_999",
    }
}

pub fn stall(bench: &Bench) -> Result<Outcome, Failure> {
    let said = bench.in_child("stall", Duration::from_secs(60))?;
    ensure!(said == "good", "{said}");
    passed("a hang ends in an error within its deadline; memory in flight is leaked and recorded")
}

/// A kernel that runs for far longer than the queue's deadline.
pub fn stall_scene(bench: &Bench) -> Result<(), Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let mut y = queue.buffer_from(&[1u32])?;
    let spare = queue.pinned::<u32>(1)?;
    let dropped = queue.pinned::<u32>(1)?;
    queue.set_deadline(Duration::from_millis(300));
    queue.launcher().launch(&small.spin, Grid::line(1, 64), &Spin { y: y.all_mut(), rounds: 1 << 40 })?;
    let pending = queue.download(y.all(), spare)?;
    let also_pending = queue.download(y.all(), dropped)?;
    let began = Instant::now();
    let first = match pending.wait() {
        Err(error @ Error::Stalled { .. }) => error.to_string(),
        other => return Err(Failure(format!("waiting for it gave {:?}", other.map(|_| "the memory")))),
    };
    // Everything after reports the first error, at once.
    let after = [
        queue.launcher().zero(y.all_mut()).err(),
        queue.wait().err(),
        queue.read(y.all()).err(),
        queue.alloc::<u8>(1).err(),
        queue.record::<gpu::Untimed>().err(),
    ];
    for error in after {
        let words = error.map(|e| e.to_string());
        ensure!(words.as_deref() == Some(&first), "{words:?} instead of {first}");
    }
    drop(also_pending);
    drop(y);
    ensure!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
    let leaks = queue.leaks();
    ensure!(leaks.len() == 3 && leaks.iter().all(|leak| leak.bytes == 4), "{leaks:?}");
    ensure!(bench.device.counters().bytes_leaked == 12, "the counters do not show the leak");
    let began = Instant::now();
    drop(queue);
    ensure!(began.elapsed() < Duration::from_secs(2), "dropping the queue took {:?}", began.elapsed());
    Ok(())
}

pub fn fault(bench: &Bench) -> Result<Outcome, Failure> {
    if bench.device.vendor() == Vendor::Amd {
        return Ok(Outcome::Skipped("AMD's runtime ends the process on a page fault".into()));
    }
    let said = bench.in_child("fault", Duration::from_secs(60))?;
    ensure!(said == "good", "{said}");
    passed("the first fault is what every later call reports")
}

/// A write outside every allocation.
pub fn fault_scene(bench: &Bench) -> Result<(), Failure> {
    let queue = bench.queue()?;
    let small = kernels::small(bench)?;
    let mut y = queue.alloc_zeroed::<u32>(64)?;
    let spare = queue.pinned::<u32>(64)?;
    let offset = 1u64 << 40;
    {
        let launcher = queue.launcher();
        let _op = launcher.op("stray");
        launcher.launch(&small.stray, Grid::line(1, 64), &Stray { y: y.all_mut(), offset })?;
    }
    let pending = queue.download(y.all(), spare);
    let first = match pending.and_then(|pending| pending.wait().map(drop)) {
        Err(Error::Call(error)) => error,
        other => return Err(Failure(format!("a wild write gave {other:?}"))),
    };
    ensure!(matches!(first.status, 700 | 719), "{first:?}");
    ensure!(!first.name.is_empty() && !first.text.is_empty() && first.at.file().ends_with("faults.rs"), "{first:?}");
    let first = Error::Call(first).to_string();
    for error in [queue.launcher().zero(y.all_mut()).err(), queue.wait().err(), queue.alloc::<u8>(1).err()] {
        let words = error.map(|e| e.to_string());
        ensure!(words.as_deref() == Some(&first), "{words:?} instead of {first}");
    }
    drop(y);
    ensure!(!queue.leaks().is_empty(), "memory on a dead device was freed");
    Ok(())
}
