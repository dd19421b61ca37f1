//! How an engine's process ended, and what that says about the requests it was computing.

use std::{fmt, time::Duration};

use engine::ledger::Blame;

/// The end of one process, with everything that may explain it.
#[derive(Clone, PartialEq, Debug)]
pub struct Death {
    pub ending: DeathCause,
    /// Its last lines on standard error, which may name files: for operators, not for clients.
    pub stderr: Vec<String>,
    /// What it was doing.
    pub activity: String,
    /// How long it lived.
    pub age: Duration,
}

/// Why it is gone.
#[derive(Clone, PartialEq, Debug)]
pub enum DeathCause {
    /// By itself or by a signal.
    Exited { status: String, is_from_outside: bool },
    /// It was killed because nothing moved.
    Hung(String),
    /// It said that its device or its engine is lost.
    Fault(String),
    /// It said something that nobody may say.
    Protocol(String),
    /// What it was to load could not be loaded any more.
    Refused(String),
    /// There was no process to begin with.
    NotStarted(String),
}

impl Death {
    pub fn blame(&self) -> Blame {
        match self.ending {
            DeathCause::Exited { is_from_outside: true, .. } | DeathCause::NotStarted(_) | DeathCause::Refused(_) => {
                Blame::Nobody
            }
            _ => Blame::Running,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ending {
            DeathCause::Exited { status, is_from_outside: false } => write!(f, "the engine's process died ({status})")?,
            DeathCause::Exited { status, is_from_outside: true } => {
                write!(f, "the engine's process was ended from outside ({status})")?;
            }
            DeathCause::Hung(why) => write!(f, "the engine hung and was killed ({why})")?,
            DeathCause::Fault(why) => write!(f, "the engine failed: {why}")?,
            DeathCause::Protocol(why) => write!(f, "the engine's process sent nonsense and was killed ({why})")?,
            DeathCause::Refused(why) => write!(f, "the model could not be loaded again: {why}")?,
            DeathCause::NotStarted(why) => write!(f, "the engine's process could not be started: {why}")?,
        }
        write!(f, ", {}", self.activity)
    }
}
