//! One step's work as plain data, and the trait of what runs it: the boundary between scheduling and arithmetic.
//!
//! Absences: this crate knows no device, no weights, no request and no text. `engine` fills a [`Batch`] and `model`
//! runs it; neither needs the other to be built or tested.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adapter;
mod adjustment;
mod choice;
mod forward;
mod ids;
mod step;

pub use adapter::{AdapterId, AdapterSource};
pub use adjustment::{Adjustment, Penalties};
pub use choice::Choice;
pub use forward::{
    CacheBytes, Capacity, CopyTicket, Described, Embeds, Forward, PooledStates, Pooling, Rows, StepError, Ticket,
    WindowLimits,
};
pub use ids::{BlockId, CachePlace, StateId, TokenId};
pub use step::{Attention, BLOCK_TOKENS, Batch, FedRow, InvalidBatch, SeqRows, SeqState, StepLimits};
