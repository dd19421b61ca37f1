//! The engine: it schedules sequences, KV blocks and batches, samples tokens, and runs on a thread of its own that is
//! driven by messages.
//!
//! Absences: this crate knows no text, no tokenizer, no HTTP, no async runtime, no wire format, no model and no device.
//! It talks to a model only through [`Forward`], and to everyone else only through the plain data of [`protocol`].
#![forbid(unsafe_code)]

pub mod block_pool;
mod drafter;
pub mod draw;
mod engine;
mod error;
mod handle;
mod keeping;
mod kv_log;
pub mod ledger;
mod mask;
mod masking;
pub mod prefix;
pub mod protocol;
mod request;
mod rows;
pub mod sampler;
mod sampling;
pub mod scheduler;
pub mod sequence;
mod speculation;
pub mod state_slots;
mod step;
mod validate;
pub mod windows;

pub use batch::{AdapterId, AdapterSource, Capacity, Embeds, Forward, Rows, StepError, Ticket};
pub use drafter::{Draft, DraftRequest, DraftSource, Drafter, MAX_DRAFT};
pub use engine::{Engine, EngineOptions, ReplyTo};
pub use error::{Error, Result};
pub use handle::{
    Closed, EngineMessage, Events, Handle, Helpers, Limits, QueueSlot, SharedStats, Sink, start, start_helped,
    start_speculating, start_with,
};
pub use kv_log::{CacheChanges, KvEvent, KvLog};
pub use mask::{Mask, MaskFactory, TokenSet};
pub use protocol::*;
pub use scheduler::Reuse;
pub use speculation::{AssistantDrafter, DraftLength, DraftModel, Drafting, Lookup, NextToken};
