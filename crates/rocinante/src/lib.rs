//! Large language models in a Rust program: open a model, stream its answer, chat, embed.
//!
//! ```
//! use rocinante::{Message, Model, Request};
//!
//! # fn main() -> rocinante::Result<()> {
//! # let Some(path) = std::env::var_os("ROCI_SMOLLM2") else { return Ok(()) };
//! let model = Model::open(path)?; // a GGUF file, or a folder with safetensors
//! let question = [Message::new("user", "What is the capital of France?")];
//! let mut answer = model.chat(&question, Request { max_tokens: 24, ..Request::default() })?;
//! for piece in &mut answer {
//!     print!("{}", piece?);
//! }
//! println!("\n{} tokens", answer.usage().n_generated);
//! # assert!(answer.usage().n_generated > 0);
//! # Ok(())
//! # }
//! ```
//!
//! A small face over `engine` and `text`, with nothing of its own but the wiring: the same engine serves `roci run` and
//! `roci serve`. What it does not know: names of models, downloads (`roci pull`), HTTP, terminals.

#![forbid(unsafe_code)]

mod answer;
mod error;
pub mod files;
mod mask_pool;
pub mod masks;
mod model;

pub use crate::answer::{Answer, Request};
pub use crate::error::{Error, Result};
pub use crate::model::{Model, Options, device};
pub use ::model::DeviceChoice;
pub use engine::{FinishReason, Sampling, Usage};
pub use text::constraint::Constraint;
pub use text::{Message, RenderOptions};
