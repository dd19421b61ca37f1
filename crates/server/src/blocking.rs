//! Work that takes longer than a few milliseconds, such as tokenizing a long text or writing to the store, is done on
//! threads of its own: those that serve connections answer everyone else meanwhile.

use super::error::{ApiError, Result};

/// Runs it there and waits for it. It runs to its end even if nobody waits any more.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
}
