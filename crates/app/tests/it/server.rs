//! A running `roci serve`, and a client with no library between it and the wire.

pub use test_support::{Answer, Server};
