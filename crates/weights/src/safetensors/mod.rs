//! The safetensors container, read by the format's own crate: a length, a JSON header, then the data.
//!
//! One model may lie in several files. Tensors keep the names the files give them; what a quantiser packed into several
//! tensors becomes one (`packed`).

pub(crate) mod index;
mod packed;
mod reader;

pub(crate) use reader::{is_safetensors, read};
