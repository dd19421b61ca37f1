//! What can go wrong between a checkpoint and its logits.

use weights::Dtype;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Weights(#[from] weights::Error),
    #[error(transparent)]
    Op(#[from] ops::Error),
    #[error("architecture `{name}` is not supported{missing} (supported: {supported})")]
    Architecture { name: String, missing: String, supported: String },
    #[error("`{0}` is missing: it names the family of the model (supported: {1})")]
    NoArchitecture(&'static str, String),
    #[error("this {architecture} model has no multi-token prediction layer")]
    NoNextToken { architecture: &'static str },
    #[error(
        "this is a drafter ({architecture}): it reads another model's keys and values and says nothing by itself\nhint: \
         run the model that it was made for, with --speculate draft=PATH of this one"
    )]
    OnlyDrafts { architecture: &'static str },
    #[error("this drafter does not fit the model: {0}")]
    OtherDrafter(String),
    #[error("this model needs {what}, which roci's GPU kernels do not support yet")]
    NotOnDevice { what: &'static str },
    #[error(
        "keys and values cannot be kept as {dtype} for this model: its heads have {head_dim} numbers, which is no multiple \
         of 32 (f16 takes any)"
    )]
    KvType { dtype: Dtype, head_dim: usize },
    #[error("metadata `{key}`: {what}")]
    Metadata { key: String, what: String },
    #[error("tensor `{name}`: shape {found:?}, the configuration asks for {expected:?}")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{name}`: {what}")]
    Tensor { name: String, what: String },
    #[error("{}: {source}", path.display())]
    InAdapter { path: std::path::PathBuf, source: Box<Error> },
    #[error("this adapter cannot be used: {0}")]
    Adapter(String),
    #[error("this model cannot be written as GGUF: {what}")]
    NotInGguf { what: String },
    #[error("batch: {0}")]
    Batch(String),
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    #[error("needs {needed_bytes} bytes of memory for {what}, the system refused")]
    Memory { what: &'static str, needed_bytes: usize },
}

impl From<batch::InvalidBatch> for Error {
    fn from(invalid: batch::InvalidBatch) -> Self {
        Self::Batch(invalid.0)
    }
}
