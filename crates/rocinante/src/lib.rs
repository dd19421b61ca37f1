//! Large language models in a Rust program: open a model, stream its answer, chat, embed, rerank.
//!
//! ```no_run
//! use rocinante::{Message, Model, Request};
//!
//! fn main() -> rocinante::Result<()> {
//!     rocinante::answer_if_asked(); // GPUs are looked for through a child of this program
//!     let model = Model::open("model.gguf")?; // or a folder of safetensors
//!     let question = [Message::new("user", "What is the capital of France?")];
//!     for text in model.chat(&question, Request::default())?.texts() {
//!         print!("{}", text?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! This is the runtime under `roci run`, `roci serve` and every other command that loads a model:
//!
//! - [`ModelFiles`] opens GGUF and safetensors alike: tokenizer, chat template, tool and reasoning format;
//! - [`Options`] and [`LoadPlan`]: the device ([`Device`], with `auto` and what it refused), the context, the steps, and
//!   the memory they take, decided before anything is loaded;
//! - [`Model`] is loaded, behind its engine, which is a thread or, with [`Options::process`], a process of its own;
//! - [`Answer`] is a stream of [`AnswerEvent`]s: text, reasoning, tool calls, tokens, usage; blocking or async;
//! - [`quantize`] makes weights smaller, for a file or while loading.
//!
//! What it does not know: names of models, downloads (`roci pull`), HTTP, terminals, an async executor.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adapter;
mod answer;
mod device;
mod error;
#[cfg(unix)]
mod fault;
pub mod files;
mod host_memory;
mod human;
pub mod ids;
mod keep;
mod load_plan;
mod mailbox;
mod mask_pool;
pub mod masks;
mod memory_plan;
mod model;
mod model_files;
mod model_summary;
mod options;
#[cfg(unix)]
mod process;
pub mod quantize;
mod request;
mod speculate;
mod splitter;
mod template;
mod text_forms;
mod vectors;
mod whole;

pub use crate::adapter::Adapter;
pub use crate::answer::{Answer, AnswerEvent, AnswerStream, AnswerUsage, Finish, Finished, Next};
pub use crate::device::{ChosenDevice, Device, answer_if_asked, device_names, model_memory};
pub use crate::error::{Error, Result};
pub use crate::host_memory::{HostMemory, peak_bytes};
pub use crate::human::{counted, human_bytes};
pub use crate::keep::Keep;
pub use crate::load_plan::{LoadPlan, Schedule};
pub use crate::masks::ConstraintGuard;
pub use crate::memory_plan::{DeviceMemory, MemoryFit, MemoryKind, NoRoom};
pub use crate::model::Model;
pub use crate::model_files::{ModelFiles, ModelInfo, describe_loading, stored_bytes};
pub use crate::options::{Options, Scheduling, StepSizes, WindowUse, Workload, n_cores};
#[cfg(unix)]
pub use crate::process::{EngineProcess, serve_engine};
pub use crate::request::Request;
pub use crate::speculate::Speculate;
pub use crate::splitter::{Piece, Splitter, TokenLogprob};
pub use crate::template::{ControlTokens, Prompt, Template};
pub use crate::text_forms::{SearchSide, TextForms};
pub use crate::vectors::{PendingVector, encode_pair};
pub use crate::whole::{ToolCall, WholeAnswer};
pub use ::model::{AdapterLimits, BlasUse, CompileProgress, DeviceChoice, KvType, TokenId, Watch};
pub use engine::{Drafted, FailureKind, Sampling, Timings};
pub use kept::{Error as SessionError, Session};
pub use text::constraint::Constraint;
pub use text::{Message, RenderOptions};
#[cfg(unix)]
pub use worker::ChildError;
pub use worker::{EngineStatus, Notice as EngineNotice, Phase as EnginePhase};
