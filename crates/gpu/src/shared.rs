//! What a queue and everything made by it hold together: the stream, the first fault, the deadline,
//! the event pool, and the record of memory given up. Kept alive by every buffer, event and graph,
//! so that none of them can outlive its stream.

use std::ffi::{c_int, c_void};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::{self, Meter};
use crate::device::Device;
use crate::driver::{Driver, Reply};
use crate::error::{Error, Result};
use crate::queue::QueueId;
use crate::raw::{self, Address};
use crate::vendor::{EVENT_NO_TIMING, STATUS_NOT_READY, STREAM_NON_BLOCKING};

/// A wait polls without sleeping for this long (a decode step is over by then on most cards) ...
const SPIN: Duration = Duration::from_millis(10);
/// ... and then sleeps between polls, so that a long wait costs no core.
const NAP: Duration = Duration::from_micros(50);
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

pub(crate) struct QueueShared {
    pub id: QueueId,
    pub device: Device,
    pub stream: raw::Stream,
    fault: OnceLock<Error>,
    /// An error met in a `Drop`, for the next call to report.
    late: Mutex<Option<Error>>,
    deadline_ms: AtomicU64,
    pub capturing: AtomicBool,
    /// Memory dropped during a capture, when the driver refuses to free it.
    deferred: Mutex<Vec<Block>>,
    /// Idle events: without timing, with timing.
    events: [Mutex<Vec<raw::Event>>; 2],
    leaks: Mutex<Vec<Leak>>,
}

/// Memory that the layer gave up instead of waiting for a dead device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leak {
    /// What kind of thing it was.
    pub what: &'static str,
    /// Its size.
    pub bytes: usize,
}

/// Memory to give back.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    Device { address: Address, bytes: usize },
    Host { at: *mut c_void, bytes: usize },
}

// SAFETY: a block is the sole owner of its memory, and both vendors free from any thread.
unsafe impl Send for Block {}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    Off,
    On,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QueueShared {
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        device.make_current()?;
        let mut stream = raw::Stream::NULL;
        // SAFETY: a valid out pointer. Non-blocking: it never waits for the default stream.
        device.check(unsafe { device.driver().stream_create(&mut stream, STREAM_NON_BLOCKING) })?;
        assert!(stream != raw::Stream::NULL, "the null stream is the default stream, which this layer never uses");
        Ok(Self {
            id: QueueId(NEXT.fetch_add(1, Ordering::Relaxed)),
            device: device.clone(),
            stream,
            fault: OnceLock::new(),
            late: Mutex::new(None),
            deadline_ms: AtomicU64::new(DEFAULT_DEADLINE.as_millis() as u64),
            capturing: AtomicBool::new(false),
            deferred: Mutex::default(),
            events: Default::default(),
            leaks: Mutex::default(),
        })
    }

    pub fn driver(&self) -> &'static Driver {
        self.device.driver()
    }

    pub fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    pub fn leaks(&self) -> Vec<Leak> {
        lock(&self.leaks).clone()
    }

    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline_ms.store(deadline.as_millis().min(u128::from(u64::MAX)) as u64, Ordering::Relaxed);
    }

    /// The driver, if the queue is alive: the first fault, or an error a `Drop` met, comes first.
    #[track_caller]
    pub fn ready(&self) -> Result<&'static Driver> {
        if let Some(first) = self.fault.get() {
            return Err(first.clone());
        }
        if let Some(late) = lock(&self.late).take() {
            return Err(late);
        }
        self.device.make_current()?;
        Ok(self.driver())
    }

    /// As `ready`, for what the driver refuses while a capture is open.
    #[track_caller]
    pub fn ready_outside_capture(&self, what: &str) -> Result<&'static Driver> {
        if self.capturing.load(Ordering::Relaxed) {
            let at = Location::caller();
            return Err(Error::Capture { why: format!("{what} inside a capture would never happen on replay"), at });
        }
        self.ready()
    }

    /// Turn an answer into a result. A fault is kept: it is what every later call reports.
    #[track_caller]
    pub fn judge(&self, reply: Reply<c_int>) -> Result<()> {
        self.judge_op(reply, None)
    }

    #[track_caller]
    pub fn judge_op(&self, reply: Reply<c_int>, op: Option<&'static str>) -> Result<()> {
        let Err(error) = self.device.check(reply) else { return Ok(()) };
        let error = error.during(op);
        if !self.device.vendor().is_fault(reply.value) {
            return Err(error);
        }
        Err(self.poison(error))
    }

    /// Mark the queue dead, unless it already is; the answer is the first fault either way.
    pub fn poison(&self, error: Error) -> Error {
        self.fault.get_or_init(|| error).clone()
    }

    /// Keep an error that a `Drop` met for the next call.
    pub fn keep_late(&self, error: Error) {
        lock(&self.late).get_or_insert(error);
    }

    /// Poll until done. Past the deadline the queue is poisoned: a hang must not spread to the host.
    #[track_caller]
    pub fn wait_until(&self, what: &str, poll: impl Fn(&Driver) -> Reply<c_int>) -> Result<()> {
        let driver = self.ready_outside_capture("a wait")?;
        counters::add(&Meter::of(self.device.vendor()).waits, 1);
        let began = Instant::now();
        loop {
            let reply = poll(driver);
            if reply.value != STATUS_NOT_READY {
                return self.judge(reply);
            }
            let waited = began.elapsed();
            if waited.as_millis() as u64 >= self.deadline_ms.load(Ordering::Relaxed) {
                return Err(self.poison(Error::Stalled {
                    device: self.device.label().to_owned(),
                    what: what.to_owned(),
                    waited_ms: waited.as_millis() as u64,
                    at: Location::caller(),
                }));
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Wait until everything enqueued so far is done. An event, not the stream's own state: another
    /// thread may go on enqueueing while this one drops a buffer.
    #[track_caller]
    pub fn wait_so_far(&self, what: &str) -> Result<()> {
        let driver = self.ready_outside_capture("a wait")?;
        let event = self.take_event(Timing::Off)?;
        // SAFETY: an event and a stream of this device, both alive in `self`.
        self.judge(unsafe { driver.event_record(event, self.stream) })?;
        // SAFETY: as above.
        let done = self.wait_until(what, |driver| unsafe { driver.event_query(event) });
        self.give_event(event, Timing::Off);
        done
    }

    #[track_caller]
    pub fn take_event(&self, timing: Timing) -> Result<raw::Event> {
        if let Some(event) = lock(&self.events[timing as usize]).pop() {
            return Ok(event);
        }
        let driver = self.ready()?;
        let mut event = raw::Event::NULL;
        let flags = if timing == Timing::On { 0 } else { EVENT_NO_TIMING };
        // SAFETY: a valid out pointer.
        self.judge(unsafe { driver.event_create(&mut event, flags) })?;
        Ok(event)
    }

    pub fn give_event(&self, event: raw::Event, timing: Timing) {
        lock(&self.events[timing as usize]).push(event);
    }

    pub fn leak(&self, what: &'static str, bytes: usize) {
        counters::add(&Meter::of(self.device.vendor()).bytes_leaked, bytes);
        lock(&self.leaks).push(Leak { what, bytes });
    }

    /// Free memory once nothing enqueued can touch it any more. The driver's own free waits for the
    /// device without a limit, so the layer waits first, with one, and gives the memory up past it.
    pub fn release(&self, block: Block) {
        if self.capturing.load(Ordering::Relaxed) {
            lock(&self.deferred).push(block);
            return;
        }
        let freed = self.wait_so_far("work that uses memory being freed").and_then(|()| {
            let driver = self.ready()?;
            self.judge(match block {
                // SAFETY: the block came from this driver's allocator, is owned by value and freed once; the queue
                // has done all it was given before, and nobody else was ever given the address.
                Block::Device { address, .. } => unsafe { driver.free(address) },
                // SAFETY: as above, and no copy of it is in flight.
                Block::Host { at, .. } => unsafe { driver.host_free(at) },
            })
        });
        if let Err(error) = freed {
            let (what, bytes) = match block {
                Block::Device { bytes, .. } => ("device memory", bytes),
                Block::Host { bytes, .. } => ("pinned host memory", bytes),
            };
            self.leak(what, bytes);
            if self.fault.get().is_none() {
                self.keep_late(error);
            }
        }
    }

    /// After a capture: free what was dropped during it.
    pub fn release_deferred(&self) {
        let blocks = std::mem::take(&mut *lock(&self.deferred));
        blocks.into_iter().for_each(|block| self.release(block));
    }
}

impl Drop for QueueShared {
    fn drop(&mut self) {
        if self.wait_so_far("the last work of a queue").is_err() {
            // Destroying the stream or its events would wait for the device; the process may still exit.
            return;
        }
        let driver = self.driver();
        for pool in &self.events {
            for event in lock(pool).drain(..) {
                // SAFETY: pooled events are owned by the pool alone, and the stream is idle.
                let _ = unsafe { driver.event_destroy(event) };
            }
        }
        // SAFETY: the last owner of the stream is being dropped.
        let _ = unsafe { driver.stream_destroy(self.stream) };
    }
}
