//! GRAPH: from a `Batch` of tokens to rows of logits.
//!
//! Absences: this crate knows no request, no text, no sampling, no file format beyond `weights::Checkpoint`, and
//! decides nothing about who owns a KV block.
#![forbid(unsafe_code)]

mod batch;
mod error;
mod ids;

pub use batch::{Attention, BLOCK_TOKENS, Batch, Limits, SeqRows};
pub use error::Error;
pub use ids::{BlockId, TokenId};
