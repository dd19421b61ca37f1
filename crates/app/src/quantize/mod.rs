//! Turning weights into smaller types: which type each tensor takes (`recipe`), how much each column matters
//! (`importance`), the work itself (`convert`), and safetensors turned into GGUF first (`export`).

pub mod convert;
pub mod export;
pub mod importance;
pub mod recipe;

pub use importance::Importance;
pub use recipe::{Mix, Plan};
