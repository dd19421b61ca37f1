//! Shape and type mistakes an op refuses before it touches memory.

use weights::Dtype;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{op}: {what} has shape {found:?}, expected {expected:?}")]
    Shape { op: &'static str, what: &'static str, found: [usize; 2], expected: [usize; 2] },
    #[error("{op}: {what} is {found}, expected {expected}")]
    Type { op: &'static str, what: &'static str, found: Dtype, expected: &'static str },
    #[error("{op}: {what} holds {found} bytes, its type and shape need {needed}")]
    Bytes { op: &'static str, what: &'static str, found: usize, needed: usize },
    #[error("{op}: {what}")]
    Argument { op: &'static str, what: String },
}
