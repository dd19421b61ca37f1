//! Worker threads for workgroups: started once, woken per dispatch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct WorkerState {
    job: Option<Job>,
    turn: u64,
    n_busy: usize,
    is_closing: bool,
}

#[derive(Default)]
struct SharedPool {
    state: Mutex<WorkerState>,
    start: Condvar,
    idle: Condvar,
}

impl SharedPool {
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Pool {
    shared: Arc<SharedPool>,
    workers: Vec<JoinHandle<()>>,
    /// One dispatch at a time has the workers.
    turn: Mutex<()>,
}

impl Pool {
    /// `n_threads` counts the caller too.
    pub fn new(n_threads: usize) -> Self {
        let shared = Arc::new(SharedPool::default());
        let workers = (1..n_threads)
            .filter_map(|n| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("gfx-{n}")).spawn(move || work(&shared)).ok()
            })
            .collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job` on every thread at once, the caller's included, and returns when all are done.
    pub fn run(&self, job: Job) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = self.shared.lock();
            state.job = Some(job.clone());
            state.turn += 1;
            state.n_busy = self.workers.len();
        }
        self.shared.start.notify_all();
        job();
        let mut state = self.shared.lock();
        while state.n_busy > 0 {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.job = None;
    }
}

fn work(shared: &SharedPool) {
    let mut seen = 0;
    loop {
        let job = {
            let mut state = shared.lock();
            while state.turn == seen && !state.is_closing {
                state = shared.start.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closing {
                return;
            }
            seen = state.turn;
            state.job.clone()
        };
        if let Some(job) = job {
            // A panic is an emulator bug; it must not leave the dispatcher waiting for ever.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job()));
        }
        let mut state = shared.lock();
        state.n_busy -= 1;
        if state.n_busy == 0 {
            shared.idle.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.start.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
