//! SCHEDULE + SAMPLE: sequences, KV blocks, batching and the choice of tokens, as a message machine on its own thread.
//!
//! Absences: this crate knows no text, no tokenizer, no HTTP, no async runtime, no wire format and no device. It talks
//! to a model only through [`Forward`], and to everyone else only through the plain data of [`protocol`].
#![forbid(unsafe_code)]

pub mod block_pool;
pub mod draw;
mod engine;
mod error;
mod forward;
mod handle;
mod mask;
pub mod prefix;
pub mod protocol;
mod request;
mod rows;
pub mod sampler;
mod sampling;
pub mod scheduler;
pub mod sequence;
mod validate;

pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use forward::{Capacity, Embeds, Forward, Rows};
pub use handle::{Closed, Events, Handle, Sink, start, start_with};
pub use mask::{Mask, MaskFactory, TokenSet};
pub use protocol::*;
pub use scheduler::Reuse;
