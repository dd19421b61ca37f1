//! What can go wrong, by the crate that noticed it.

/// Why a model could not be opened or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    File(#[from] weights::Error),
    #[error(transparent)]
    Text(#[from] text::Error),
    #[error(transparent)]
    Model(#[from] ::model::Error),
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error("the model has no vocabulary: {0}")]
    NoVocabulary(&'static str),
    #[error("`{0}` is no device: expected cpu, cuda:N or rocm:N")]
    Device(String),
    /// The engine gave up on a request.
    #[error("generation failed: {0}")]
    Failed(String),
}

pub type Result<T> = std::result::Result<T, Error>;
