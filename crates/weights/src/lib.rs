//! From a file to weights: the name, type, shape and bytes of each tensor, and the file's metadata.
//!
//! Everything goes through `Checkpoint`; behind it `gguf` and `safetensors` read the containers, `source` finds the
//! files that a path means and `hub` the small ones beside them. `Bytes` owns what tensors point into, `Dtype` holds the
//! block layouts as numbers.
//!
//! Absences: this crate knows no device, no arithmetic (a block's bytes stay packed; `ops` decodes them), no model
//! family (which keys and tensors a model needs is `model`'s business), no network and no tokenizer.

#![warn(missing_docs)]

mod bytes;
mod checkpoint;
mod dtype;
mod error;
pub mod gguf;
mod hub;
mod metadata;
mod safetensors;
mod source;
mod tensor;
mod value;

pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, FileFormat, Unsupported};
pub use dtype::{BlockLayout, Dtype, ggml_layout};
pub use error::{Error, Result};
pub use gguf::GgufWriter;
pub use hub::HubFiles;
pub use metadata::Metadata;
pub use tensor::Tensor;
pub use value::{Array, Value};
