//! Threads that compute masks, shared by all engines of the process, and others that compile constraints: a compiler
//! that takes seconds must not hold up masks that take microseconds. Started with the first constraint; few,
//! because the model wants the cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

pub(crate) type MaskJob = Box<dyn FnOnce() + Send>;

/// A nested expression is parsed level by level.
const STACK_BYTES: usize = 64 << 20;

/// Threads that compile.
const N_COMPILERS: usize = 2;

type JobSender = OnceLock<Result<mpsc::Sender<MaskJob>, String>>;

/// Computes a mask on one of the threads, as soon as one is free.
pub(crate) fn run(job: MaskJob) -> Result<(), String> {
    static POOL: JobSender = OnceLock::new();
    let n_threads = || std::thread::available_parallelism().map_or(2, |n| n.get() / 2).clamp(2, 8);
    send(&POOL, "masks", n_threads, job)
}

/// Compiles a constraint on one of the threads for that.
pub(crate) fn compile(job: MaskJob) -> Result<(), String> {
    static POOL: JobSender = OnceLock::new();
    send(&POOL, "constraints", || N_COMPILERS, job)
}

fn send(pool: &JobSender, name: &str, n_threads: impl Fn() -> usize, job: MaskJob) -> Result<(), String> {
    let pool = pool.get_or_init(|| start(name, n_threads())).as_ref().map_err(Clone::clone)?;
    pool.send(job).map_err(|_| "the threads that compute masks are gone".to_owned())
}

fn start(name: &str, n_threads: usize) -> Result<mpsc::Sender<MaskJob>, String> {
    let (jobs, inbox) = mpsc::channel::<MaskJob>();
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..n_threads {
        let inbox = Arc::clone(&inbox);
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let run = move || {
            loop {
                let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = next else { return };
                // llguidance catches its own panics; one that slips through must not take the thread along.
                _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        thread.spawn(run).map_err(|error| format!("cannot start threads to compute masks: {error}"))?;
    }
    Ok(jobs)
}

/// Processor time of the calling thread: what a busy machine takes from it does not count.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
pub(crate) fn thread_time() -> Duration {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
