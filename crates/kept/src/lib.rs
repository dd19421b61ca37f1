//! Where the keys, values and recurrent states of a context go when the pool needs their blocks: to host memory, to a
//! folder on disk, or into a session file. Everything is found by its [`Name`], which stands for a block of tokens
//! together with all tokens before it. It is returned only if it is intact and was made by the same model and build.
//!
//! Absences: this crate knows no model, no device, no scheduler and no request. It is handed bytes, and returns the
//! same bytes or nothing.
#![forbid(unsafe_code)]

mod disk;
mod error;
mod host;
mod name;
mod recency;
mod record;
mod session;
mod store;

pub use disk::MAX_UNWRITTEN_BYTES;
pub use error::{Error, Result};
pub use name::{Identity, KeptKind, Name, PrefixKey};
pub use record::Entry;
pub use session::{Session, SessionFile, SessionWriter};
pub use store::{BlockStore, Sizes, StoreCounters, StoreOptions};
