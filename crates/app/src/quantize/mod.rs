//! Turning weights into smaller types: which type each tensor takes (`recipe`), how much each column matters
//! (`importance`), and the work itself (`convert`).

pub mod convert;
pub mod importance;
pub mod recipe;

pub use importance::Importance;
pub use recipe::{Mix, Plan};
