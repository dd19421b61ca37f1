//! Changes of the prefix cache, for routers that send a request to the server where its prefix is cached. The engine's
//! thread writes after each step and never waits; one reader takes what there is. A reader that falls too far behind
//! finds [`KvEvent::Cleared`] instead of what it missed: it may then know of less than is cached, but never of more.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use batch::{AdapterId, BLOCK_TOKENS, TokenId};
use serde::{Deserialize, Serialize};

use crate::prefix::Chain;

/// Blocks in events that nobody has taken yet; a million tokens.
const MAX_BLOCKS: usize = 1 << 16;

/// A change of the prefix cache. Hashes name blocks of [`BLOCK_TOKENS`] tokens together with everything before them.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum KvEvent {
    /// These blocks follow one another, the first after `parent`; `None`: they begin a sequence.
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<TokenId>,
        adapter: Option<AdapterId>,
    },
    Removed {
        hashes: Vec<u64>,
    },
    /// Nothing that was stored is there any more.
    Cleared,
}

impl KvEvent {
    fn n_blocks(&self) -> usize {
        match self {
            Self::Stored { tokens, .. } => tokens.len() / BLOCK_TOKENS,
            Self::Removed { hashes } => hashes.len(),
            Self::Cleared => 1,
        }
    }
}

/// The changes of one step, as the scheduler makes them. Empty unless somebody wants to know.
#[derive(Debug, Default)]
pub struct CacheChanges(Option<Vec<KvEvent>>);

impl CacheChanges {
    /// From now on, changes are kept until they are taken.
    pub fn record(&mut self) {
        self.0.get_or_insert_default();
    }

    pub fn take(&mut self) -> Vec<KvEvent> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A block that ends `chain` is known, after `parent`. Blocks in a row are one event.
    pub(crate) fn stored(&mut self, parent: Chain, chain: Chain, block: &[TokenId], adapter: Option<AdapterId>) {
        let Some(events) = &mut self.0 else { return };
        let parent = (parent.n_blocks() > 0).then(|| parent.hash());
        match events.last_mut() {
            Some(KvEvent::Stored { hashes, tokens, .. }) if parent.is_some() && hashes.last().copied() == parent => {
                hashes.push(chain.hash());
                tokens.extend(block);
            }
            _ => {
                events.push(KvEvent::Stored { hashes: vec![chain.hash()], parent, tokens: block.to_vec(), adapter });
            }
        }
    }

    pub(crate) fn removed(&mut self, hash: u64) {
        let Some(events) = &mut self.0 else { return };
        match events.last_mut() {
            Some(KvEvent::Removed { hashes }) => hashes.push(hash),
            _ => events.push(KvEvent::Removed { hashes: vec![hash] }),
        }
    }
}

/// Events on their way to a reader; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct KvLog(Arc<SharedLog>);

#[derive(Debug, Default)]
struct SharedLog {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogState {
    events: Vec<KvEvent>,
    n_blocks: usize,
    is_closed: bool,
}

impl KvLog {
    /// Appends events. Where they are too many, all that were not taken are dropped.
    pub fn push(&self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.n_blocks += events.iter().map(KvEvent::n_blocks).sum::<usize>();
        if events.contains(&KvEvent::Cleared) || state.n_blocks > MAX_BLOCKS {
            // What was stored before is gone, or will not be told.
            let last_clear = events.iter().rposition(|event| *event == KvEvent::Cleared);
            state.events = vec![KvEvent::Cleared];
            state.events.extend(last_clear.map(|at| events[at + 1..].to_vec()).unwrap_or_default());
            state.n_blocks = state.events.iter().map(KvEvent::n_blocks).sum();
        } else {
            state.events.extend(events);
        }
        drop(state);
        self.0.changed.notify_one();
    }

    /// No more events come.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_one();
    }

    /// What there is now.
    pub fn take(&self) -> Vec<KvEvent> {
        let mut state = self.lock();
        state.n_blocks = 0;
        std::mem::take(&mut state.events)
    }

    /// Waits for events, but no longer than this; `None`: there are no more.
    pub fn wait(&self, limit: Duration) -> Option<Vec<KvEvent>> {
        let is_quiet = |state: &mut LogState| state.events.is_empty() && !state.is_closed;
        let waited = self.0.changed.wait_timeout_while(self.lock(), limit, is_quiet);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.events.is_empty() && state.is_closed {
            return None;
        }
        state.n_blocks = 0;
        Some(std::mem::take(&mut state.events))
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(n_blocks: usize) -> KvEvent {
        let tokens = vec![TokenId(7); n_blocks * BLOCK_TOKENS];
        KvEvent::Stored { hashes: (0..n_blocks as u64).collect(), parent: None, tokens, adapter: None }
    }

    #[test]
    fn a_reader_gets_everything_in_order() {
        let log = KvLog::default();
        log.push(vec![stored(2)]);
        log.push(vec![KvEvent::Removed { hashes: vec![1] }, stored(1)]);
        assert_eq!(log.wait(Duration::ZERO), Some(vec![stored(2), KvEvent::Removed { hashes: vec![1] }, stored(1)]));
        assert_eq!(log.wait(Duration::ZERO), Some(vec![]));
        log.push(vec![stored(1)]);
        log.close();
        assert_eq!(log.wait(Duration::ZERO), Some(vec![stored(1)]));
        assert_eq!(log.wait(Duration::ZERO), None);
    }

    #[test]
    fn a_slow_reader_hears_that_everything_is_gone() {
        let log = KvLog::default();
        for _ in 0..=MAX_BLOCKS / 1024 {
            log.push(vec![stored(1024)]);
        }
        log.push(vec![stored(1)]);
        assert_eq!(log.take(), [KvEvent::Cleared, stored(1)]);
    }

    #[test]
    fn what_comes_before_a_clear_is_not_told() {
        let log = KvLog::default();
        log.push(vec![stored(3)]);
        log.push(vec![stored(1), KvEvent::Cleared, stored(2)]);
        assert_eq!(log.take(), [KvEvent::Cleared, stored(2)]);
    }
}
