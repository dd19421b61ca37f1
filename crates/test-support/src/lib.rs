//! What the integration tests of several crates share: skips with a reason, files that `./check` fetches, golden data,
//! the GPUs of this machine, and `roci` as a child process with a client for its server.
//!
//! What it is not: a place for one crate's own helpers, or for anything a program would use. Nothing but tests depends
//! on it, and it depends on no crate of ours except, with the feature `gpu`, the device layer.
#![forbid(unsafe_code)]

pub mod fetched;
pub mod golden;
#[cfg(feature = "gpu")]
pub mod gpus;
mod random;
mod roci;
mod server;
mod share;
mod skip;
pub mod standin;

pub use random::Random;
pub use roci::{Outcome, Roci, built_program};
pub use server::{Answer, Server};
pub use share::share;
pub use skip::{is_required, skip};
