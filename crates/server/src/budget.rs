//! A number of bytes that requests share. It has two parts, so that those who want little never wait behind those who
//! want much: waiting is in order, and one that waits for megabytes would hold up everyone after it.

use super::error::{ApiError, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The part that is kept for small wants is one of so many.
const SMALL_PART: usize = 4;

#[derive(Clone, Debug)]
pub struct BodyBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    n_bytes: usize,
    /// In which it is given out.
    unit: usize,
    /// The largest want that is small.
    small_bytes: usize,
}

impl BodyBudget {
    pub fn new(n_bytes: usize, unit: usize, small_bytes: usize) -> Self {
        let n_units = n_bytes / unit;
        let small = Arc::new(Semaphore::new(n_units / SMALL_PART));
        let large = Arc::new(Semaphore::new(n_units - n_units / SMALL_PART));
        Self { small, large, n_bytes, unit, small_bytes }
    }

    /// What is given out now.
    pub fn used_bytes(&self) -> usize {
        self.n_bytes - (self.small.available_permits() + self.large.available_permits()) * self.unit
    }

    /// A part of it, as soon as there is enough. One who wants more than there is gets all.
    pub async fn take(&self, n_bytes: usize, time: Duration) -> Result<OwnedSemaphorePermit> {
        let n_units = self.n_bytes / self.unit;
        let (lane, most) = match n_bytes <= self.small_bytes {
            true => (&self.small, n_units / SMALL_PART),
            false => (&self.large, n_units - n_units / SMALL_PART),
        };
        let n_units = n_bytes.div_ceil(self.unit).min(most);
        let permit = Arc::clone(lane).acquire_many_owned(u32::try_from(n_units).unwrap_or(u32::MAX));
        match tokio::time::timeout(time, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::busy("too many large requests are being processed", 5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_wants_do_not_wait_behind_large_ones() {
        let (budget, time) = (BodyBudget::new(1 << 20, 1 << 10, 16 << 10), Duration::from_millis(50));
        let all = budget.take(10 << 20, time).await.unwrap();
        let mut waiting = std::pin::pin!(budget.take(512 << 10, Duration::from_secs(60)));
        assert!(tokio::time::timeout(time, &mut waiting).await.is_err(), "there is nothing left for it");
        let small = budget.take(16 << 10, time).await.expect("kept for small wants");
        assert_eq!(budget.used_bytes(), (768 << 10) + (16 << 10));
        drop((all, small));
        drop(waiting.await.unwrap());
        assert_eq!(budget.used_bytes(), 0);
    }
}
