//! The safetensors container, read by the format's own crate: a length, a JSON header, then the data.
//!
//! One model may lie in several files. Tensors keep the names the files give them.

pub(crate) mod index;
mod reader;

pub(crate) use reader::{is_safetensors, read};
