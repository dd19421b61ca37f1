//! One child process: its socket, its standard error, and its exit status. Dropping it kills it.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Read},
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{death::DeathCause, frame, supervisor::EngineProgram};

/// Lines of standard error that are kept.
const KEPT_LINES: usize = 20;
const MAX_LINE_BYTES: u64 = 4096;
/// A killed process that is not gone by then sits in its driver; it is not waited for any longer.
const TIME_TO_DIE: Duration = Duration::from_secs(10);
/// What was said last may still be on its way.
const TIME_FOR_STDERR: Duration = Duration::from_millis(200);
/// A child that has not read its commands for this long does not read at all.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Signals that people and service managers send. The kernel sends the first too, when memory runs out.
const SIGKILL: i32 = 9;
const FROM_OUTSIDE: [i32; 5] = [1, 2, 3, SIGKILL, 15];

pub struct Process {
    pub reader: frame::FrameReader<UnixStream>,
    pub born: Instant,
    child: Child,
    tail: Tail,
    /// The system's count of processes killed for memory when this one started.
    n_oom_kills: u64,
    is_reaped: bool,
}

/// The last lines of standard error.
struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    reading: Option<JoinHandle<()>>,
}

impl Process {
    /// The child's standard input is its end of a socket pair. A group of its own keeps Ctrl-C from it.
    pub fn spawn(
        program: &EngineProgram,
        silence: Duration,
        hear: impl Fn(String) + Send + 'static,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(silence))?;
        ours.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let n_oom_kills = n_oom_kills();
        let mut child = Command::new(&program.path)
            .args(&program.args)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let tail = Tail::of(child.stderr.take(), hear);
        let reader = frame::FrameReader::new(ours);
        Ok(Self { reader, born: Instant::now(), child, tail, n_oom_kills, is_reaped: false })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> &UnixStream {
        self.reader.get_ref()
    }

    /// Waits for a process that is about to end by itself, then makes sure.
    pub fn end_within(&mut self, limit: Duration) -> DeathCause {
        match self.wait(limit) {
            Some(status) => self.exited(status),
            None => {
                self.kill();
                DeathCause::Hung("it closed its socket and did not end".to_owned())
            }
        }
    }

    /// Ends it, whatever it does.
    pub fn kill(&mut self) {
        if self.is_reaped {
            return;
        }
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.wait(TIME_TO_DIE);
    }

    pub fn last_words(&mut self) -> Vec<String> {
        self.tail.take()
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let asked = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.is_reaped = true;
                    return Some(status);
                }
                Ok(None) if asked.elapsed() < limit => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                _ => return None,
            }
        }
    }

    fn exited(&self, status: ExitStatus) -> DeathCause {
        let is_oom = status.signal() == Some(SIGKILL) && n_oom_kills() > self.n_oom_kills;
        let is_from_outside = status.signal().is_some_and(|signal| FROM_OUTSIDE.contains(&signal)) && !is_oom;
        let memory = if is_oom { ", out of memory" } else { "" };
        DeathCause::Exited { status: format!("{status}{memory}"), is_from_outside }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Tail {
    fn of(stderr: Option<ChildStderr>, hear: impl Fn(String) + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let read = move |stderr: ChildStderr| {
            let mut stderr = BufReader::new(stderr);
            let mut bytes = Vec::new();
            loop {
                bytes.clear();
                match (&mut stderr).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == KEPT_LINES {
                    kept.pop_front();
                }
                kept.push_back(line.clone());
                drop(kept);
                hear(line);
            }
        };
        let spawn = |stderr| thread::Builder::new().name("stderr".into()).spawn(move || read(stderr)).ok();
        Self { lines, reading: stderr.and_then(spawn) }
    }

    fn take(&mut self) -> Vec<String> {
        let asked = Instant::now();
        let is_reading = || self.reading.as_ref().is_some_and(|reading| !reading.is_finished());
        while is_reading() && asked.elapsed() < TIME_FOR_STDERR {
            thread::sleep(Duration::from_millis(2));
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Processes that the kernel killed because memory ran out, since it started; 0 where it does not say.
fn n_oom_kills() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
