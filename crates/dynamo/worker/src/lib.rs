//! A worker for NVIDIA Dynamo: tokens in, tokens out, over a [`rocinante::Model`].
//!
//! Dynamo's frontend tokenizes, renders chat templates, parses tool calls and turns tokens into text; its router chooses a
//! worker by load and by what the workers' prefix caches hold. What is left is [`RociEngine`]: one model, its requests,
//! and the changes of its cache. The engine runs in a process of its own, as under `roci serve`, so that a GPU that fails
//! costs a pause and no request.
//!
//! What it does not do: adapters, several answers to one prompt, and splitting prompts and answers between workers. A
//! constraint is sized before it is compiled, but not tried in a process of its own first, as `roci serve` does.

mod cache;
mod engine;
mod failure;
mod load;
mod request;
mod stream;

pub use crate::engine::{EngineArgs, Isolation, RociEngine};
