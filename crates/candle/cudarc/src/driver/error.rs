//! What went wrong, in the device layer's words.

use std::sync::Arc;

/// A failed call. cudarc's carries a number; this one says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DriverError {
    reason: Arc<str>,
}

impl DriverError {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into().into() }
    }
}

impl From<gpu::Error> for DriverError {
    fn from(error: gpu::Error) -> Self {
        Self::new(error.to_string())
    }
}
