//! Constraints come from anybody, and one that takes too much of the compiler must cost one request, not the server.
//! So each is first compiled by a child process, this same program, with bounds on memory and time that the kernel
//! enforces. Only what the child survives is compiled here. The child answers in `main`, before anything else.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use text::constraint::{self, Constraint, Refusal};

const ASK: &str = "ROCI_CONSTRAINT_PROBE";
/// Lines of an answer: the first says that it began.
const BEGAN: &str = "roci-constraint began";
const FINE: &str = "roci-constraint fine";
const WRONG: &str = "roci-constraint wrong ";

/// Address space of the child: its code, the compiler's stack of 256 MiB, and as much again for the constraint.
#[cfg(unix)]
const MAX_BYTES: u64 = 768 << 20;
/// Seconds of processor time.
#[cfg(unix)]
const MAX_CPU_S: u64 = 5;
/// On a machine that is busy with other things.
const MAX_WALL: Duration = Duration::from_secs(20);
/// Children at once; the others wait.
const MAX_CHILDREN: usize = 2;

/// Whether a constraint can be compiled within bounds, and why not. Blocks.
pub fn check(constraint: &Constraint) -> Result<(), Refusal> {
    if *constraint == Constraint::Json {
        return Ok(());
    }
    let _turn = ProbeTurn::take(MAX_WALL)?;
    match ask(&constraint.to_spec()) {
        ProbeOutcome::Fine => Ok(()),
        ProbeOutcome::Wrong(why) => Err(Refusal::Wrong(why)),
        ProbeOutcome::Died(status) => {
            Err(Refusal::Wrong(format!("it takes too much memory or time to compile ({status})")))
        }
        // Processor time is bounded by itself: what is late had to wait for others.
        ProbeOutcome::Late => Err(Refusal::Busy(format!("it was not compiled within {} s", MAX_WALL.as_secs()))),
        ProbeOutcome::Unavailable(why) => {
            static IS_TOLD: AtomicBool = AtomicBool::new(false);
            if !IS_TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!(why, "constraints are compiled without a process to try them out in");
            }
            Ok(())
        }
    }
}

enum ProbeOutcome {
    Fine,
    Wrong(String),
    Died(ExitStatus),
    Late,
    /// The child never began.
    Unavailable(String),
}

/// A place among the children.
struct ProbeTurn;

static N_CHILDREN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl ProbeTurn {
    fn take(limit: Duration) -> Result<Self, Refusal> {
        let n = N_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = FREED.wait_timeout_while(n, limit, |n| *n >= MAX_CHILDREN);
        let (mut n, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(Refusal::Busy("too many others are being compiled; please try again".to_owned()));
        }
        *n += 1;
        Ok(Self)
    }
}

impl Drop for ProbeTurn {
    fn drop(&mut self) {
        *N_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

fn ask(spec: &str) -> ProbeOutcome {
    let child = program().and_then(|program| {
        let mut command = Command::new(program);
        // Nothing of this process's environment matters to it, and backtraces would only take time.
        command.env_clear().env(ASK, "1");
        for name in ["LD_LIBRARY_PATH", "PATH"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return ProbeOutcome::Unavailable(error.to_string()),
    };
    let answer = converse(&mut child, spec);
    if answer.is_none() {
        // It may be gone already.
        let _ = child.kill();
    }
    let status = child.wait();
    match (answer, status) {
        (None, _) => ProbeOutcome::Late,
        (Some(ProbeAnswer::Fine), _) => ProbeOutcome::Fine,
        (Some(ProbeAnswer::Wrong(why)), _) => ProbeOutcome::Wrong(why),
        (Some(ProbeAnswer::Silence { has_begun: true }), Ok(status)) => ProbeOutcome::Died(status),
        (Some(ProbeAnswer::Silence { .. }), status) => {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            ProbeOutcome::Unavailable(format!("the process did not begin: {status}"))
        }
    }
}

/// Works also when the file was replaced since the start.
fn program() -> std::io::Result<std::path::PathBuf> {
    let link = std::path::Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

enum ProbeAnswer {
    Fine,
    Wrong(String),
    Silence { has_begun: bool },
}

/// `None`: it took too long.
fn converse(child: &mut Child, spec: &str) -> Option<ProbeAnswer> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let start = Instant::now();
    let (sender, lines) = mpsc::channel();
    std::thread::scope(|scope| {
        if let Some(mut stdin) = stdin {
            // It ends early where it refuses what it reads.
            scope.spawn(move || drop(stdin.write_all(spec.as_bytes())));
        }
        if let Some(stdout) = stdout {
            scope.spawn(move || {
                let lines = BufReader::new(stdout.take(64 << 10)).lines();
                lines.map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
            });
        }
        let mut has_begun = false;
        let answer = loop {
            match lines.recv_timeout(MAX_WALL.saturating_sub(start.elapsed())) {
                Ok(line) if line == BEGAN => has_begun = true,
                Ok(line) if line == FINE => break Some(ProbeAnswer::Fine),
                Ok(line) => {
                    if let Some(why) = line.strip_prefix(WRONG) {
                        break Some(ProbeAnswer::Wrong(why.to_owned()));
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => break None,
                Err(mpsc::RecvTimeoutError::Disconnected) => break Some(ProbeAnswer::Silence { has_begun }),
            }
        };
        if answer.is_none() {
            // Its pipes close, and the threads above end.
            let _ = child.kill();
        }
        answer
    })
}

/// If this process was started to try out a constraint: does so and exits. Called first in `main`.
pub fn answer_if_asked() {
    if std::env::var_os(ASK).is_none() {
        return;
    }
    set_bounds();
    say(BEGAN);
    let mut spec = String::new();
    let read = std::io::stdin().read_to_string(&mut spec).map_err(|error| error.to_string());
    let outcome = read.and_then(|_| {
        let constraint = Constraint::from_spec(&spec).map_err(|error| error.to_string())?;
        constraint::try_out(&constraint).map_err(|error| error.to_string())
    });
    match outcome {
        Ok(()) => say(FINE),
        Err(why) => say(&format!("{WRONG}{}", shorten(&why))),
    }
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// One line that fits into an error.
fn shorten(text: &str) -> String {
    let line = text.replace(['\n', '\r'], " ");
    let line = line.strip_prefix("the constraint cannot be used: ").unwrap_or(&line);
    match line.char_indices().nth(2_000) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(unix)]
fn set_bounds() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = |n| Rlimit { current: Some(n), maximum: Some(n) };
    for (resource, n) in [(Resource::As, MAX_BYTES), (Resource::Cpu, MAX_CPU_S), (Resource::Core, 0)] {
        // A system that refuses leaves the bound on time that the parent keeps.
        let _ = setrlimit(resource, limit(n));
    }
}

#[cfg(not(unix))]
fn set_bounds() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    /// Who finds all children busy did nothing wrong, and may come back.
    #[test]
    fn a_full_prober_is_no_mistake_of_the_client() {
        let turns: Vec<ProbeTurn> = (0..MAX_CHILDREN).map(|_| ProbeTurn::take(MAX_WALL).unwrap()).collect();
        let refused = ProbeTurn::take(Duration::from_millis(1)).err().unwrap();
        assert!(matches!(refused, Refusal::Busy(_)));
        let error = ApiError::from(rocinante::Error::from(text::Error::from(refused)));
        assert_eq!((error.status.as_u16(), error.retry_after_s), (503, Some(5)));
        let wrong = ApiError::from(rocinante::Error::from(text::Error::from(Refusal::Wrong("no".into()))));
        assert_eq!(wrong.status.as_u16(), 400);
        drop(turns);
        assert!(ProbeTurn::take(Duration::ZERO).is_ok());
    }
}
