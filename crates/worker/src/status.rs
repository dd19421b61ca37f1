//! What others may know about an engine's process while it is watched: for logs, metrics and readiness.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::death::Death;

/// A look at the state of a supervised engine; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct StatusWatch(Arc<Mutex<EngineStatus>>);

#[derive(Clone, PartialEq, Debug, Default)]
pub struct EngineStatus {
    pub phase: Phase,
    pub pid: Option<u32>,
    /// Processes that died, for whatever reason.
    pub n_deaths: u64,
    /// Requests that went on in another process, counted once for each death.
    pub n_resumed: u64,
    /// Requests that were refused because two processes broke down computing them.
    pub n_refused: u64,
    /// Another thing is loaded now than at first, because that died too often.
    pub has_fallen_back: bool,
    /// Why the last one died.
    pub last_death: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub enum Phase {
    /// With what it is doing.
    Loading(String),
    #[default]
    Running,
    /// The next process starts after this time.
    Waiting(Duration),
    /// It died too often, and is not started again.
    Unavailable(String),
    /// It was shut down.
    Ended,
}

/// Something an operator should know.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    Progress(String),
    /// A line of the child's standard error.
    Stderr(String),
    Died {
        death: Death,
        n_kept: usize,
        n_refused: usize,
        /// Until the next start.
        wait: Duration,
    },
    /// A new process has taken over this many requests.
    Resumed {
        n_requests: usize,
        after: Duration,
    },
    /// The first thing to load is given up for the other.
    FellBack,
    Unavailable(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Progress(text) | Self::Stderr(text) => f.write_str(text),
            Self::Died { death, n_kept, n_refused, wait } => {
                write!(f, "{death}; {n_kept} requests go on in a new one")?;
                if *n_refused > 0 {
                    write!(f, ", {n_refused} refused")?;
                }
                match wait.is_zero() {
                    true => Ok(()),
                    false => write!(f, ", which starts in {:.1} s", wait.as_secs_f64()),
                }
            }
            Self::Resumed { n_requests, after } => {
                write!(f, "a new engine took over {n_requests} requests after {:.2} s", after.as_secs_f64())
            }
            Self::FellBack => f.write_str("it died too often and is loaded in another way"),
            Self::Unavailable(why) => f.write_str(why),
        }
    }
}

impl StatusWatch {
    pub fn status(&self) -> EngineStatus {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EngineStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
