//! Runs the binary in a home of its own, away from the settings of the machine.

pub use test_support::{Outcome, Roci};
