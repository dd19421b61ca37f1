//! ENGINES THAT MAY DIE: an engine in a process of its own, and the supervisor that starts it, watches it, and continues
//! with its requests in the next one.
//!
//! - [`Supervisor::start`] spawns the process and gives an ordinary [`engine::Handle`]: callers see no difference;
//! - [`serve`] is the other end, in the child: it loads what it is told to and runs commands against its engine;
//! - [`wire`] is what they say to each other, in checked and bounded [`frame`]s over a socket pair; no memory is shared;
//! - which requests go on, and which are refused, is decided by [`engine::ledger`].
//!
//! Absences: no model, no file, no text, no log. What is loaded, and what comes back about it, are the caller's types.
#![forbid(unsafe_code)]

#[cfg(unix)]
mod child;
mod death;
pub mod frame;
#[cfg(unix)]
mod life;
#[cfg(unix)]
mod process;
mod status;
#[cfg(unix)]
mod supervisor;
pub mod wire;

#[cfg(unix)]
pub use child::{ChildError, Opened, ProgressSender, serve};
pub use death::{Death, DeathCause};
pub use status::{EngineStatus, Notice, Phase, StatusWatch};
#[cfg(unix)]
pub use supervisor::{EngineProgram, LoadChoice, OnNotice, RestartPolicy, StartError, Supervisor};
