//! Places in a model's queue, shared by key: a key may have as many waiting requests as there are places left. So a
//! single key can have half of them, the next one half of the rest, and there is always a place for a key that has
//! none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub struct Shares {
    n_places: usize,
    /// Requests without a first token, by key.
    waiting: Mutex<HashMap<u64, usize>>,
}

/// One place, given back when dropped.
#[derive(Debug)]
pub struct Turn {
    shares: Arc<Shares>,
    key: u64,
}

impl Shares {
    pub fn new(n_places: usize) -> Arc<Self> {
        Arc::new(Self { n_places, waiting: Mutex::default() })
    }

    /// A place for a request of this key, or how many it has.
    pub fn enter(self: &Arc<Self>, key: u64) -> Result<Turn, usize> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let n_free = self.n_places.saturating_sub(waiting.values().sum());
        let n_own = waiting.entry(key).or_default();
        if *n_own >= n_free.max(1) {
            return Err(*n_own);
        }
        *n_own += 1;
        Ok(Turn { shares: Arc::clone(self), key })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waiting = self.shares.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = waiting.get_mut(&self.key) {
            *n -= 1;
            if *n == 0 {
                waiting.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_takes_all() {
        let shares = Shares::new(16);
        let take = |key: u64| std::iter::from_fn(|| shares.enter(key).ok()).collect::<Vec<_>>();
        let first = take(1);
        assert_eq!(first.len(), 8);
        let second = take(2);
        assert_eq!(second.len(), 4);
        assert_eq!(take(3).len(), 2);
        assert_eq!(shares.enter(1).unwrap_err(), 8);
        drop(first);
        assert_eq!(take(1).len(), 6);
        let many: Vec<Turn> = (10..100).map(|key| shares.enter(key).unwrap()).collect();
        assert_eq!(many.len(), 90, "there is one for each");
    }
}
