//! One step's work as plain data, and the trait of whoever runs it: the border between scheduling and arithmetic.
//!
//! Absences: this crate knows no device, no weights, no request and no text. `engine` fills a [`Batch`], `model` runs it;
//! neither needs the other to be built or tested.
#![forbid(unsafe_code)]

mod choice;
mod forward;
mod ids;
mod step;

pub use choice::Choice;
pub use forward::{Capacity, Embeds, Forward, Pooling, Rows, StepError, Ticket};
pub use ids::{BlockId, TokenId};
pub use step::{Attention, BLOCK_TOKENS, Batch, FedRow, InvalidBatch, SeqRows, StepLimits};
