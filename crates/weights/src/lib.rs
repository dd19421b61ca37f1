//! From a file to weights: the name, type, shape and bytes of each tensor, and the file's metadata.
//!
//! `Checkpoint` is the one face; `gguf` reads and writes the container behind it, `Bytes` owns what tensors point
//! into, `Dtype` holds the block layouts as numbers.
//!
//! Absences: this crate knows no device, no arithmetic (a block's bytes stay packed; `ops` decodes them), no model
//! family (which keys and tensors a model needs is `model`'s business), no network and no tokenizer. It reads one
//! file: models split over several files and safetensors are not read yet.

mod bytes;
mod checkpoint;
mod dtype;
mod error;
pub mod gguf;
mod metadata;
mod tensor;
mod value;

pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, Unsupported};
pub use dtype::{BlockLayout, Dtype, ggml_layout};
pub use error::{Error, Result};
pub use gguf::GgufWriter;
pub use metadata::Metadata;
pub use tensor::Tensor;
pub use value::{Array, Value};
