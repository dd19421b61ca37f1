//! Tokens to text and back: tokenizer, incremental detokenizer, stop strings, chat templates.
//!
//! What this crate does not know and must never learn: files and file formats (a [`Vocab`] is plain data
//! that the caller fills), devices, models, logits, requests, HTTP, async. It reads no clock except when a
//! chat template itself asks for the date.

#![forbid(unsafe_code)]

mod byte_level;
mod chat_template;
mod detokenizer;
mod error;
mod pre_tokenizer;
mod python;
mod special;
mod stop;
mod tokenizer;
mod vocab;

pub use chat_template::{ChatTemplate, DEFAULT_TEMPLATE, Message, RenderOptions};
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use pre_tokenizer::adds_bos_by_default;
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::{Ends, Specials, Tokenizer};
pub use vocab::Vocab;

/// What this crate's fallible functions return.
pub type Result<T> = std::result::Result<T, Error>;
