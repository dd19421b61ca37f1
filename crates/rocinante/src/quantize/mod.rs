//! Turning weights into smaller types: which type each tensor takes (`recipe`), how much each column matters
//! (`importance`), the work itself (`convert`), and safetensors turned into GGUF first (`export`).

pub mod convert;
mod export;
mod importance;
mod recipe;

pub use export::as_gguf;
pub use importance::{Column, Importance};
pub use recipe::{Mix, TypePlan};
