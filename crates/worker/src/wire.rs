//! What a supervisor and an engine's process say to each other. The child speaks first, with [`VERSION`]; then it is
//! told what to load, says how that goes, and from then on takes commands and sends events.

use std::time::Duration;

use engine::{Command, Event, KvEvent, Limits, RequestId, Stats};
use serde::{Deserialize, Serialize};

/// Changes with every change of these types or of the engine's protocol.
pub const VERSION: u32 = 7;

/// To the child. `L` says what to load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToChild<L> {
    Load {
        what: L,
        /// Processes that did this work before.
        n_before: u32,
    },
    Commands(Vec<Command>),
}

/// From the child. `R` is what there is to know about what it loaded.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum FromChild<R> {
    Hello {
        version: u32,
        /// Of the program.
        build: String,
    },
    /// What it is doing before it is ready.
    Progress(String),
    Ready {
        about: R,
        limits: Limits,
        patience: StepPatience,
    },
    /// What was asked for cannot be loaded; the process ends.
    Refused(String),
    /// A request takes part in a step for the first time. Sent before that step, which may be the engine's last.
    Started(RequestId),
    /// What happened since the last word. Sent after steps, and at least every [`PULSE`].
    Report(Report),
    /// The engine has ended and cannot go on; so does the process.
    Fault(String),
}

/// Silence of the child lasts no longer than this while it lives.
pub const PULSE: Duration = Duration::from_millis(500);

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub events: Vec<Event>,
    pub stats: Stats,
    /// Changes of the prefix cache, where they are told.
    pub kv_events: Vec<KvEvent>,
    /// Processor time of the child since its start.
    pub cpu_time: Duration,
}

/// How long an engine with work may go without finishing a step before it counts as hung.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepPatience {
    /// While its process uses next to no processor time.
    pub idle: Duration,
    /// While it computes.
    pub busy: Duration,
}
