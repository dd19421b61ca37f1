//! The CPU's threads: a small pool for regions of some ten microseconds.
//!
//! A decode step on a small model has about 200 parallel regions; a general work-stealing pool's wake-ups cost more
//! than the work in them. Here the workers spin between regions and go to sleep only when a step is long over, so an
//! idle engine uses no CPU. The caller is thread 0 and works too. Tasks are taken from one counter, so that a slow
//! thread does not hold the others up.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

use crate::isa::Isa;

/// Turns of the spin loop before a worker sleeps: about half a millisecond, longer than any gap inside a step.
const SPINS_BEFORE_SLEEP: u32 = 20_000;

pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    isa: Isa,
    /// Regions are run one at a time; a second caller waits its turn.
    turn: Mutex<()>,
}

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

struct Shared {
    /// Counts regions; a worker runs when it sees a number it has not served.
    epoch: AtomicU32,
    next_task: AtomicUsize,
    n_running: AtomicUsize,
    n_sleeping: AtomicUsize,
    has_panicked: AtomicBool,
    is_closing: AtomicBool,
    region: UnsafeCell<Region>,
}

#[derive(Copy, Clone)]
struct Region {
    n_tasks: usize,
    body: *const (dyn Fn(usize, usize) + Sync),
}

// SAFETY: `region` is written only by the caller that holds `turn`, while `n_running` is zero, and is published to the
// workers by the release store of `epoch`. `body` points at a closure that outlives the region, because `run` does not
// return before every worker has left it.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer in `region` is never used outside a region.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `n_threads` threads, the caller included, with the instruction set found on this machine.
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::detect())
    }

    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            next_task: AtomicUsize::new(0),
            n_running: AtomicUsize::new(0),
            n_sleeping: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            region: UnsafeCell::new(Region { n_tasks: 0, body: &(|_, _| ()) }),
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
        Self { shared, workers, isa, turn: Mutex::new(()) }
    }

    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `body(task_idx, thread_idx)` once for every task and returns when all are done. A panic in a task is
    /// raised again here, after every thread has left the region.
    pub fn run(&self, n_tasks: usize, body: impl Fn(usize, usize) + Sync) {
        if n_tasks <= 1 || self.workers.is_empty() {
            for task_idx in 0..n_tasks {
                body(task_idx, 0);
            }
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        let body: &(dyn Fn(usize, usize) + Sync) = &body;
        // SAFETY: only the lifetime changes. The pointer is used inside this region alone, and `leave_region` below
        // waits for every worker before `body` goes out of scope, also when a task panics.
        let body: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: no worker reads `region` now: the last region ended with `n_running` at zero.
        unsafe { *shared.region.get() = Region { n_tasks, body } };
        shared.next_task.store(0, Ordering::Relaxed);
        shared.n_running.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.n_sleeping.load(Ordering::SeqCst) > 0 {
            for worker in &self.workers {
                worker.thread.unpark();
            }
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(0)));
        shared.leave_region();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.has_panicked.swap(false, Ordering::Relaxed), "a task panicked on a worker thread");
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

impl Shared {
    fn work(&self, thread_idx: usize) {
        let mut served = 0;
        loop {
            let epoch = self.wait_for_epoch_after(served);
            if self.is_closing.load(Ordering::Relaxed) {
                return;
            }
            served = epoch;
            if catch_unwind(AssertUnwindSafe(|| self.take_tasks(thread_idx))).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            self.n_running.fetch_sub(1, Ordering::Release);
        }
    }

    fn wait_for_epoch_after(&self, served: u32) -> u32 {
        let mut n_spins = 0;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != served {
                return epoch;
            }
            std::hint::spin_loop();
            n_spins += 1;
            if n_spins == SPINS_BEFORE_SLEEP {
                n_spins = 0;
                // Sequentially consistent with the caller's add and load: one of the two sees the other.
                self.n_sleeping.fetch_add(1, Ordering::SeqCst);
                if self.epoch.load(Ordering::SeqCst) == served {
                    thread::park();
                }
                self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn take_tasks(&self, thread_idx: usize) {
        // SAFETY: written before `epoch` was raised, and not again before this thread leaves the region.
        let Region { n_tasks, body } = unsafe { *self.region.get() };
        loop {
            let task_idx = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task_idx >= n_tasks {
                return;
            }
            // SAFETY: `body` lives until `run` has seen every thread leave.
            unsafe { (*body)(task_idx, thread_idx) };
        }
    }

    fn leave_region(&self) {
        let mut n_spins = 0_u32;
        while self.n_running.load(Ordering::Acquire) > 0 {
            n_spins += 1;
            if n_spins.is_multiple_of(SPINS_BEFORE_SLEEP) {
                // More threads than cores: let the one that is still at work have this core.
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
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
