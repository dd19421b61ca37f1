//! The CPU's threads: a small pool for regions of some ten microseconds.
//!
//! A decode step on a small model has about 200 parallel regions; a general work-stealing pool's wake-ups cost more
//! than the work in them. Here the workers spin between regions and go to sleep only when a step is long over, so an
//! idle engine uses no CPU. The caller is thread 0 and works too. A region ends when its tasks are done, not when every
//! worker has looked in: on a busy machine a worker without a core holds nobody up.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

use crate::{Isa, Numerics};

/// Turns of the spin loop before a worker sleeps: about half a millisecond, longer than any gap inside a step.
const SPINS_BEFORE_SLEEP: u32 = 20_000;
/// Turns before the caller, out of tasks, yields its core to the thread that holds the last one.
const SPINS_BEFORE_YIELD: u32 = 2_000;

pub struct Pool {
    shared: Arc<PoolState>,
    workers: Vec<Worker>,
    isa: Isa,
    numerics: Numerics,
    /// Regions are run one at a time; a second caller waits its turn.
    turn: Mutex<()>,
}

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

struct PoolState {
    /// Tasks that nobody has taken, in the low half; the region's number, so that an old value never looks like a
    /// new one, in the high half.
    tickets: AtomicU64,
    n_tasks: AtomicUsize,
    n_done: AtomicUsize,
    n_sleeping: AtomicUsize,
    has_panicked: AtomicBool,
    is_closing: AtomicBool,
    body: UnsafeCell<*const (dyn Fn(usize, usize) + Sync)>,
}

const UNTAKEN: u64 = u32::MAX as u64;

// SAFETY: `body` is written only by the caller that holds `turn`, while no task is untaken or running, and is published
// by the release store of `tickets`. A thread reads it only while it holds a task of that region; the region does not
// end, and so the closure lives, until that task is counted as done.
unsafe impl Sync for PoolState {}
// SAFETY: as above; the raw pointer is never used outside a region.
unsafe impl Send for PoolState {}

impl Pool {
    /// A pool of `n_threads` threads, the caller included, with the instruction set found on this machine.
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::detect())
    }

    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        let shared = Arc::new(PoolState {
            tickets: AtomicU64::new(0),
            n_tasks: AtomicUsize::new(0),
            n_done: AtomicUsize::new(0),
            n_sleeping: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            body: UnsafeCell::new(&(|_, _| ())),
        });
        let workers = (1..n_threads.max(1))
            .map_while(|thread_idx| {
                let shared = Arc::clone(&shared);
                let work = move || shared.work(thread_idx);
                // A refused thread leaves a smaller pool, which is slower and still right.
                let handle = thread::Builder::new().name(format!("ops-{thread_idx}")).spawn(work).ok()?;
                Some(Worker { thread: handle.thread().clone(), handle: Some(handle) })
            })
            .collect();
        Self { shared, workers, isa, numerics: Numerics::default(), turn: Mutex::new(()) }
    }

    /// The same pool, with kernels of this order of sums.
    pub fn with_numerics(mut self, numerics: Numerics) -> Self {
        self.numerics = numerics;
        self
    }

    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Runs `body(task_idx, thread_idx)` once for every task and returns when all are done. A panic in a task is
    /// raised again here, after every task has ended.
    pub fn run(&self, n_tasks: usize, body: impl Fn(usize, usize) + Sync) {
        if n_tasks <= 1 || self.workers.is_empty() {
            for task_idx in 0..n_tasks {
                body(task_idx, 0);
            }
            return;
        }
        assert!(n_tasks as u64 <= UNTAKEN, "{n_tasks} tasks in one region");
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        let body: &(dyn Fn(usize, usize) + Sync) = &body;
        // SAFETY: only the lifetime changes. The pointer is used for tasks of this region alone, and this function does
        // not return before all of them are done, also when one panics.
        let body: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: no task of the last region is left, so nobody reads `body` now.
        unsafe { *shared.body.get() = body };
        shared.n_tasks.store(n_tasks, Ordering::Relaxed);
        shared.n_done.store(0, Ordering::Relaxed);
        let region = (shared.tickets.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        shared.tickets.store(region | n_tasks as u64, Ordering::SeqCst);
        if shared.n_sleeping.load(Ordering::SeqCst) > 0 {
            for worker in &self.workers {
                worker.thread.unpark();
            }
        }
        shared.take_tasks(0);
        shared.wait_until_done(n_tasks);
        assert!(!shared.has_panicked.swap(false, Ordering::Relaxed), "a task of a parallel region panicked");
    }

    /// Splits `0..n_items` into runs of at least `min_items`, a few per thread so that they balance.
    pub fn run_ranges(&self, n_items: usize, min_items: usize, body: impl Fn(std::ops::Range<usize>, usize) + Sync) {
        let n_parts = if self.n_threads() == 1 { 1 } else { self.n_threads() * 4 };
        let step = n_items.div_ceil(n_parts).max(min_items).max(1);
        self.run(n_items.div_ceil(step), |task_idx, thread_idx| {
            let start = task_idx * step;
            body(start..(start + step).min(n_items), thread_idx);
        });
    }
}

impl PoolState {
    fn work(&self, thread_idx: usize) {
        let mut n_spins = 0;
        while !self.is_closing.load(Ordering::Relaxed) {
            if self.tickets.load(Ordering::Acquire) & UNTAKEN > 0 {
                self.take_tasks(thread_idx);
                n_spins = 0;
            }
            std::hint::spin_loop();
            n_spins += 1;
            if n_spins == SPINS_BEFORE_SLEEP {
                n_spins = 0;
                self.sleep();
            }
        }
    }

    /// Sequentially consistent with the caller's store and load: one of the two sees the other.
    fn sleep(&self) {
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        if self.tickets.load(Ordering::SeqCst) & UNTAKEN == 0 && !self.is_closing.load(Ordering::SeqCst) {
            thread::park();
        }
        self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes and runs tasks until none is left.
    fn take_tasks(&self, thread_idx: usize) {
        let mut seen = self.tickets.load(Ordering::Acquire);
        while seen & UNTAKEN > 0 {
            if let Err(now) = self.tickets.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Acquire) {
                seen = now;
                continue;
            }
            // This thread holds a task, so its region cannot end: `n_tasks` and `body` are that region's.
            let task_idx = self.n_tasks.load(Ordering::Relaxed) - (seen & UNTAKEN) as usize;
            let task = AssertUnwindSafe(|| {
                // SAFETY: the closure lives until this task is counted as done.
                unsafe { (**self.body.get())(task_idx, thread_idx) }
            });
            if catch_unwind(task).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            self.n_done.fetch_add(1, Ordering::Release);
            seen = self.tickets.load(Ordering::Acquire);
        }
    }

    fn wait_until_done(&self, n_tasks: usize) {
        let mut n_spins = 0_u32;
        while self.n_done.load(Ordering::Acquire) < n_tasks {
            n_spins += 1;
            if n_spins.is_multiple_of(SPINS_BEFORE_YIELD) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for n_threads in [1, 2, 3, 8] {
            let pool = Pool::new(n_threads);
            for n_tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_tasks, |task_idx, thread_idx| {
                    assert!(thread_idx < n_threads);
                    counts[task_idx].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(64, |task_idx, _| assert_ne!(task_idx, 33))));
            assert!(outcome.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(10, |task_idx, _| _ = sum.fetch_add(task_idx, Ordering::Relaxed));
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn ranges_cover_everything() {
        let pool = Pool::new(2);
        let seen = Mutex::new(vec![0; 1001]);
        pool.run_ranges(1001, 16, |range, _| range.for_each(|i| seen.lock().unwrap()[i] += 1));
        assert!(seen.into_inner().unwrap().iter().all(|&n| n == 1));
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            while pool.shared.n_sleeping.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let sum = AtomicUsize::new(0);
            pool.run(100, |_, _| _ = sum.fetch_add(1, Ordering::Relaxed));
            assert_eq!(sum.into_inner(), 100);
        }
    }
}
