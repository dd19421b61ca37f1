//! Adapters as steps name them. Their files and numbers are the model's concern.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An adapter by what is in it: the same matrices have the same id wherever and whenever they are read.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Serialize, Deserialize)]
pub struct AdapterId(pub u64);

/// An adapter and where to read it from, in case it is not loaded yet.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdapterSource {
    /// What must be found there.
    pub id: AdapterId,
    /// A folder as PEFT writes it, or a GGUF file.
    pub path: PathBuf,
}
