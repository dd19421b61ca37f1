//! Tokens to text and back: tokenizer, incremental detokenizer, stop strings, chat templates, constrained output, and
//! answers split into reasoning, text and tool calls.
//!
//! What this crate does not know and must never learn: files and file formats (a [`Vocab`] is plain data
//! that the caller fills), devices, models, logits, requests, HTTP, async. It reads no clock except when a
//! chat template itself asks for the date.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod answer;
mod bpe;
mod byte_level;
mod charsmap;
mod chat_template;
pub mod constraint;
mod detokenizer;
mod error;
mod families;
mod longest_match;
mod plamo;
mod pre_tokenizer;
mod prefixes;
mod python;
mod sentence_piece;
mod special;
mod stop;
mod tokenizer;
mod tokenizer_json;
mod unigram;
mod vocab;
mod vocab_of_json;
mod word_piece;

pub use chat_template::{ChatTemplate, DEFAULT_TEMPLATE, Message, RenderOptions};
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::{Ends, Specials, Tokenizer, unshield};
pub use tokenizer_json::JsonConfig;
pub use vocab::Vocab;

/// What this crate's fallible functions return.
pub type Result<T> = std::result::Result<T, Error>;
