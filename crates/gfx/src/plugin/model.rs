//! The command processor: one thread that takes packets from all queues and runs them on the emulator.
//!
//! In the ordinary order queues take turns. With a seed the order is hostile: nothing starts while the host is still
//! adding packets, and then of all that may run the one that the seed puts first does, across queues and, where no barrier
//! bit forbids it, within one. Dispatches use every core; packets run one at a time.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::clock::{self, now_ns};
use super::config::Config;
use super::packet::{Body, Condition, Packet};
use super::queue::Queue;
use super::{QueueInfo, SetEvent, mmio, shutdown};
use crate::emulator::{Emulator, Report};
use crate::error::Error;
use crate::memory::{Live, Memory, Origin};

/// Allocation flags of the kernel driver's interface.
const FLAG_VRAM: u32 = 1;
const FLAG_MMIO: u32 = 1 << 4;
const FLAG_EXECUTABLE: u32 = 1 << 30;
/// `sizeof(amd_signal_t)`.
const SIGNAL_BYTES: u64 = 64;

pub struct Model {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the GPUs of a process have in common: their allocations, and the function that sets an event.
static LIVE: LazyLock<Arc<Live>> = LazyLock::new(Arc::default);
static EVENT: Mutex<Option<(SetEvent, usize)>> = Mutex::new(None);

struct Shared {
    config: Config,
    emulator: Emulator,
    queues: Mutex<Vec<Arc<Queue>>>,
    closed: Condvar,
    is_stopping: AtomicBool,
    n_queues: AtomicU64,
    n_dispatches: AtomicU64,
    n_named: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    pub fn start(config: Config) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            emulator: Emulator::with_memory(
                config.chip,
                config.options,
                Memory::shared(config.options.is_checked, LIVE.clone()),
            )?,
            config,
            queues: Mutex::default(),
            closed: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            n_queues: AtomicU64::new(0),
            n_dispatches: AtomicU64::new(0),
            n_named: AtomicU64::new(0),
        });
        let worker = shared.clone();
        let spawn = std::thread::Builder::new().name("gfx-queues".into()).spawn(move || worker.run());
        let thread = spawn.map_err(|source| Error::Io { path: "a thread for the queues".into(), source })?;
        Ok(Model { shared, thread: Mutex::new(Some(thread)) })
    }

    pub fn set_aperture(&self, base: u64, n_bytes: u64) {
        self.shared.emulator.memory.set_aperture(base, n_bytes);
    }

    pub fn set_event_function(&self, set: SetEvent, data: usize) {
        *lock(&EVENT) = Some((set, data));
    }

    pub fn allocated(&self, start: u64, n_bytes: u64, flags: u32) {
        // Code and its constants are written by the loader; only plain device memory belongs to kernels alone.
        let is_device = flags & FLAG_VRAM != 0 && flags & FLAG_EXECUTABLE == 0;
        let origin = if is_device { Origin::Device } else { Origin::Host };
        // SAFETY: libhsakmt maps the range into the aperture before any packet can name it, and unmaps it only after
        // the host is done with it.
        let id = unsafe { self.shared.emulator.memory.insert(start, n_bytes, origin) };
        if flags & FLAG_MMIO != 0 {
            mmio::announced(start);
        }
        self.shared.log(|| format!("allocation {id}: {start:#x}, {n_bytes} bytes, flags {flags:#x}"));
    }

    pub fn freed(&self, start: u64, n_bytes: u64) {
        // ROCr frees its signals before it destroys their events: whoever sets an event holds this lock and looks first.
        let events = lock(&EVENT);
        self.shared.emulator.memory.release(start);
        drop(events);
        self.shared.log(|| format!("freed {start:#x}, {n_bytes} bytes"));
    }

    pub fn add_queue(&self, info: &QueueInfo) -> Arc<Queue> {
        let id = self.shared.n_queues.fetch_add(1, Ordering::Relaxed) + 1;
        let queue = Arc::new(Queue::new(id, self.shared.emulator.memory.host(0), info));
        self.shared.log(|| {
            format!("queue {id}: ring {:#x}, {} bytes, type {}", info.ring_base, info.ring_bytes, info.queue_type)
        });
        if queue.is_compute && !shutdown::is_making_a_keeper() {
            lock(&self.shared.queues).push(queue.clone());
        } else {
            queue.is_closed.store(true, Ordering::Release); // nobody polls it: its destroyer has nobody to wait for
        }
        queue
    }

    /// Returns when the scheduler will not touch the queue's memory again.
    pub fn remove_queue(&self, queue: &Arc<Queue>) {
        queue.is_closing.store(true, Ordering::Release);
        let mut queues = lock(&self.shared.queues);
        while !queue.is_closed.load(Ordering::Acquire) {
            queues = self.shared.closed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queues);
        self.shared.log(|| format!("queue {} closed", queue.id));
    }
}

/// Host memory that the program locked for its GPUs, or unlocked again. The GPUs use it at its host address.
pub fn locked(start: u64, n_bytes: u64) {
    let all = Memory::shared(false, LIVE.clone());
    // SAFETY: the program promised ROCr that the range stays mapped until it is unlocked.
    unsafe { all.insert(start, n_bytes, Origin::Host) };
}

pub fn unlocked(start: u64) {
    Memory::shared(false, LIVE.clone()).release(start);
}

impl Drop for Model {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// A hostile order: every packet has a place in it that follows from the seed and from which packet it is, whatever else
/// is waiting and however long the host took. So of two packets that may both run, the same one goes first in every run.
struct HostileOrder {
    seed: u64,
}

impl HostileOrder {
    /// `ordinal`: the queue's dispatches before it. Barriers do not count, because the host leaves out those whose
    /// signals it finds done, which is a matter of time.
    fn place(&self, queue: u64, ordinal: u64, is_dispatch: bool) -> u64 {
        let mut x = self.seed;
        for part in [queue, ordinal, is_dispatch as u64] {
            x = (x ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^= x >> 31;
        }
        x
    }
}

/// An event and the allocation its signal lies in, by which its life is known.
#[derive(Copy, Clone)]
struct Event {
    id: u32,
    signal: u64,
    allocation: u64,
}

/// An event whose waiter may have missed the wake-up: libhsakmt tests and sleeps without holding our lock.
struct Kick {
    event: Event,
    since: Instant,
    n_sent: usize,
}

const KICKS: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(10),
];
/// How often the host is looked at while it is waited for. Looks are counted, not the time between them: a process that
/// was stopped meanwhile has not been quiet.
const LOOK: Duration = Duration::from_micros(150);

impl Shared {
    fn log(&self, text: impl FnOnce() -> String) {
        if self.config.is_logged {
            eprintln!("gfx: {}", text());
        }
    }

    fn run(&self) {
        let order = self.config.seed.map(|seed| HostileOrder { seed });
        let mut kicks: Vec<Kick> = Vec::new();
        let mut n_idle = 0u32;
        let mut turn = 0usize;
        // What the host had written when it last was quiet; `None` once it may have been woken since.
        let mut quiet_at = None;
        while !self.is_stopping.load(Ordering::Acquire) {
            let queues = self.live_queues();
            let mut ready = self.ready(&queues, order.is_some());
            if order.is_some() && !ready.is_empty() && quiet_at != Some(n_written(&queues)) {
                quiet_at = Some(self.wait_for_quiet(&queues));
                ready = self.ready(&queues, true);
            }
            if ready.is_empty() {
                n_idle = n_idle.saturating_add(1);
                self.send_kicks(&mut kicks);
                rest(n_idle);
                continue;
            }
            n_idle = 0;
            let chosen = match &order {
                Some(order) => {
                    let place = |(n, index, packet): &(usize, u64, Packet)| {
                        let is_dispatch = matches!(packet.body, Body::Dispatch { .. });
                        order.place(queues[*n].id, queues[*n].ordinal(*index), is_dispatch)
                    };
                    (0..ready.len()).min_by_key(|k| place(&ready[*k])).unwrap_or(0)
                }
                None => {
                    turn = turn.wrapping_add(1);
                    turn % ready.len()
                }
            };
            let (n, index, packet) = ready.swap_remove(chosen);
            if packet.completion != 0 {
                quiet_at = None;
            }
            if let Some(event) = self.carry_out(&queues[n], index, packet) {
                kicks.retain(|k| k.event.id != event.id);
                kicks.push(Kick { event, since: Instant::now(), n_sent: 0 });
            }
        }
    }

    /// Every packet that may run now: queue, index, packet.
    fn ready(&self, queues: &[Arc<Queue>], may_overtake: bool) -> Vec<(usize, u64, Packet)> {
        let mut ready = Vec::new();
        for (n, queue) in queues.iter().enumerate() {
            for (index, packet) in queue.candidates(may_overtake) {
                if self.is_satisfied(&packet.body) {
                    ready.push((n, index, packet));
                }
            }
        }
        ready
    }

    /// Drops queues that are being destroyed and tells their destroyers.
    fn live_queues(&self) -> Vec<Arc<Queue>> {
        let mut queues = lock(&self.queues);
        queues.retain(|q| {
            let is_open = !q.is_closing.load(Ordering::Acquire);
            if !is_open {
                q.is_closed.store(true, Ordering::Release);
                self.closed.notify_all();
            }
            is_open
        });
        queues.clone()
    }

    /// What the host has written when it has added nothing for a while.
    fn wait_for_quiet(&self, queues: &[Arc<Queue>]) -> u64 {
        let n_looks = self.config.quiet.as_micros().div_ceil(LOOK.as_micros());
        let (mut before, mut n_quiet) = (n_written(queues), 0);
        while n_quiet < n_looks {
            std::thread::sleep(LOOK);
            let now = n_written(queues);
            n_quiet = if now == before { n_quiet + 1 } else { 0 };
            before = now;
        }
        before
    }

    /// A signal's value, or zero for no signal.
    fn signal(&self, handle: u64) -> i64 {
        const VALUE: u64 = 8;
        if handle == 0 {
            return 0;
        }
        // SAFETY: packets hold handles of live `amd_signal_t`s in memory mapped into the aperture; `value` is an
        // aligned 64-bit field of it.
        unsafe { AtomicI64::from_ptr((self.emulator.memory.host(handle) + VALUE) as *mut i64) }.load(Ordering::Acquire)
    }

    fn is_satisfied(&self, body: &Body) -> bool {
        match body {
            Body::Barrier { signals, needs_all: true } => signals.iter().all(|s| self.signal(*s) <= 0),
            Body::Barrier { signals, needs_all: false } => {
                signals.iter().all(|s| *s == 0) || signals.iter().any(|s| *s != 0 && self.signal(*s) <= 0)
            }
            Body::BarrierValue { signal, value, mask, condition } => {
                let now = self.signal(*signal) & mask;
                match condition {
                    Condition::Equal => now == *value,
                    Condition::NotEqual => now != *value,
                    Condition::Less => now < *value,
                    Condition::GreaterEqual => now >= *value,
                }
            }
            _ => true,
        }
    }

    /// Runs one packet; the event it set, if any.
    fn carry_out(&self, queue: &Queue, index: u64, packet: Packet) -> Option<Event> {
        let started = now_ns();
        match packet.body {
            Body::Dispatch { kernel, mut launch } => {
                launch.dispatch_id = self.n_dispatches.fetch_add(1, Ordering::Relaxed) + 1;
                let ready = match self.emulator.kernel(kernel) {
                    Ok(ready) => ready,
                    Err(e) => fatal(&format!("{e} (queue {}, dispatch {})", queue.id, launch.dispatch_id)),
                };
                let name = ready.name();
                let is_named = !name.starts_with('?') && !name.starts_with("__amd_rocclr_");
                let n_named = if is_named { self.n_named.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
                if is_named && self.config.hang_at == Some(n_named) {
                    eprintln!("gfx: dispatch {n_named} (`{name}`) hangs, as GFX_HANG_AT asks");
                    queue.is_hung.store(true, Ordering::Relaxed);
                    return None;
                }
                if is_named && self.config.fault_at == Some(n_named) {
                    fatal(&format!("kernel `{name}`: memory access fault at dispatch {n_named}, as GFX_FAULT_AT asks"));
                }
                match self.emulator.dispatch(&ready, launch) {
                    Ok(report) => self.note(queue, n_named, &launch.grid, &report),
                    Err(e) => fatal(&format!("{e} (queue {}, dispatch {})", queue.id, launch.dispatch_id)),
                }
            }
            Body::Unknown { kind, format } => {
                fatal(&format!("queue {}: a packet of unknown type {kind}, format {format}", queue.id))
            }
            _ => self.log(|| format!("queue {} packet {index}: {:?}", queue.id, packet.body)),
        }
        let is_dispatch = matches!(packet.body, Body::Dispatch { .. });
        let event = self.complete(packet.completion, started);
        queue.retire(index, is_dispatch);
        event
    }

    fn note(&self, queue: &Queue, n_named: u64, grid: &[u32; 3], r: &Report) {
        let c = &r.counters;
        self.log(|| {
            format!(
                "queue {} dispatch {n_named} `{}` grid {grid:?}: {} instructions",
                queue.id, r.kernel, c.instructions
            )
        });
        let Some(path) = &self.config.counters else { return };
        let line = super::counters_line(n_named, grid, r);
        if path == "-" {
            eprint!("{line}");
        } else if let Err(e) = append(path, &line) {
            eprintln!("gfx: {path}: {e}");
        }
    }

    /// Completes a signal as the command processor does: times, value, mailbox, event.
    fn complete(&self, handle: u64, started: u64) -> Option<Event> {
        if handle == 0 {
            return None;
        }
        let at = self.emulator.memory.host(handle);
        // SAFETY: a completion signal is a live `amd_signal_t` mapped into the aperture until it completes; the fields
        // below lie at fixed, aligned offsets of that 64-byte structure.
        let (value, mailbox, event, start, end) = unsafe {
            (
                AtomicI64::from_ptr((at + 8) as *mut i64),
                AtomicU64::from_ptr((at + 16) as *mut u64),
                AtomicU32::from_ptr((at + 24) as *mut u32),
                AtomicU64::from_ptr((at + clock::START) as *mut u64),
                AtomicU64::from_ptr((at + clock::END) as *mut u64),
            )
        };
        start.store(started, Ordering::Relaxed);
        end.store(now_ns(), Ordering::Relaxed);
        // The host may free the signal as soon as its value drops: read the rest first.
        let (mailbox, id) = (mailbox.load(Ordering::Relaxed), event.load(Ordering::Relaxed));
        let home = self.emulator.memory.find(handle, handle + SIGNAL_BYTES);
        value.fetch_sub(1, Ordering::SeqCst);
        if id == 0 {
            return None;
        }
        let event = Event { id, signal: handle, allocation: home?.id };
        if mailbox != 0 {
            // SAFETY: the mailbox is a slot of the runtime's event page, which lives as long as the process.
            unsafe { AtomicU64::from_ptr(self.emulator.memory.host(mailbox) as *mut u64) }
                .store(id as u64, Ordering::SeqCst);
        }
        if let Some(delay) = self.config.event_delay {
            std::thread::sleep(delay);
        }
        self.set_event(event);
        Some(event)
    }

    /// Wakes the event's waiters, if it still exists: setting a destroyed one makes libhsakmt abort.
    fn set_event(&self, event: Event) {
        let function = lock(&EVENT);
        let home = self.emulator.memory.find(event.signal, event.signal + SIGNAL_BYTES);
        if let Some((set, data)) = *function
            && home.is_some_and(|a| a.id == event.allocation)
        {
            // SAFETY: libhsakmt gave us this function and its data for exactly this call.
            unsafe { set(data as *mut std::ffi::c_void, event.id) };
        }
    }

    fn send_kicks(&self, kicks: &mut Vec<Kick>) {
        for kick in kicks.iter_mut() {
            if KICKS.get(kick.n_sent).is_some_and(|after| kick.since.elapsed() > *after) {
                self.set_event(kick.event);
                kick.n_sent += 1;
            }
        }
        kicks.retain(|k| k.n_sent < KICKS.len());
    }
}

/// Packets that the host has written, in all queues.
fn n_written(queues: &[Arc<Queue>]) -> u64 {
    queues.iter().map(|q| q.write_index()).sum()
}

/// Polls eagerly at first, then ever more lazily: a model that idles must not burn a core.
fn rest(n_idle: u32) {
    match n_idle {
        0..=50 => std::thread::yield_now(),
        51..=500 => std::thread::sleep(Duration::from_micros(20)),
        _ => std::thread::sleep(Duration::from_micros(200)),
    }
}

fn append(path: &str, line: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// ROCr's answer to a fault on a card: say what happened and end the process.
fn fatal(what: &str) -> ! {
    eprintln!("gfx: {what}");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_of(seed: u64, packets: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut packets = packets.to_vec();
        packets.sort_by_key(|(queue, ordinal)| HostileOrder { seed }.place(*queue, *ordinal, true));
        packets
    }

    #[test]
    fn the_same_seed_gives_the_same_order_whatever_else_waits() {
        let all: Vec<(u64, u64)> = (1..4).flat_map(|queue| (0..20).map(move |n| (queue, n))).collect();
        for seed in [0, 1, 2, 48_151, u64::MAX] {
            let whole = order_of(seed, &all);
            let backwards: Vec<_> = all.iter().rev().copied().collect();
            assert_eq!(whole, order_of(seed, &backwards));
            let some: Vec<_> = all.iter().filter(|(queue, n)| (queue + n) % 3 != 0).copied().collect();
            let kept: Vec<_> = whole.iter().filter(|p| some.contains(p)).copied().collect();
            assert_eq!(order_of(seed, &some), kept, "what is missing moves nothing else");
        }
    }

    #[test]
    fn seeds_differ_and_queues_are_mixed() {
        let all: Vec<(u64, u64)> = (1..3).flat_map(|queue| (0..20).map(move |n| (queue, n))).collect();
        let orders: Vec<_> = (0..50).map(|seed| order_of(seed, &all)).collect();
        assert!(orders.windows(2).all(|pair| pair[0] != pair[1]));
        // Either queue goes first about as often, and neither runs to its end before the other starts.
        let first = orders.iter().filter(|order| order[0].0 == 1).count();
        assert!((10..40).contains(&first), "{first} of 50");
        let changes = |order: &Vec<(u64, u64)>| order.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
        assert!(orders.iter().all(|order| changes(order) > 5));
    }
}
