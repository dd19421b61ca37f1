//! Shape and type mistakes that an op refuses before it touches memory, and errors that a GPU returned.

use weights::Dtype;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{op}: {what} has shape {found:?}, expected {expected:?}")]
    Shape { op: &'static str, what: &'static str, found: [usize; 2], expected: [usize; 2] },
    #[error("{op}: {what} is {found}, expected {expected}")]
    Type { op: &'static str, what: &'static str, found: Dtype, expected: &'static str },
    #[error("{op}: {what} holds {found} bytes, its type and shape need {needed}")]
    Bytes { op: &'static str, what: &'static str, found: usize, needed: usize },
    #[error("{op}: {what}")]
    Argument { op: &'static str, what: String },
    /// An op runs where its memory lies; nothing is moved behind the caller's back.
    #[error("{op}: {what} is not in {expected}")]
    Place { op: &'static str, what: &'static str, expected: &'static str },
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
}
