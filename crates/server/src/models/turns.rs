//! Whose turn it is in memory, where not all models that are asked for fit. Loads queue in the order in which their
//! models were asked for. The one at the head has the model that was loaded first finish what it has begun and take
//! nothing new, and goes on doing so when requests give up, because those come back. Every request has a deadline of
//! its own; a load is abandoned only if nobody has wanted its model for a while.

use super::{ApiError, Registry, Result, ServedModel};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::MutexGuard;

/// How often a load that waits looks whether anybody still wants its model.
const LOOK: Duration = Duration::from_secs(1);
/// How often it looks for room.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(50);
/// When requests that were refused are to come back.
const COME_BACK_S: u64 = 5;

/// How models take turns.
#[derive(Copy, Clone, Debug)]
pub struct TurnLimits {
    /// A request waits this long for its model before it is told to come back. Time in which a model is being loaded
    /// does not count.
    pub wait: Duration,
    /// A model in use stays at least this long before it has to make room.
    pub turn: Duration,
}

impl Registry {
    /// The turn of a load; `None`: nobody wants its model any more.
    pub(super) async fn wait_for_turn(&self, entry: &ServedModel) -> Option<MutexGuard<'_, ()>> {
        // One future all the time: it keeps its place in the queue.
        let mut lock = std::pin::pin!(self.turn.lock());
        loop {
            match tokio::time::timeout(LOOK, &mut lock).await {
                Ok(turn) => return Some(turn),
                Err(_) if entry.is_wanted() => {}
                Err(_) => return None,
            }
        }
    }

    /// Drops models that nobody uses, least recently used first, until `entry` fits. Whoever holds the lock that this
    /// returns may load it.
    pub(super) async fn make_room(&self, entry: &ServedModel) -> Result<MutexGuard<'_, ()>> {
        loop {
            let change = self.change.lock().await;
            if self.n_engines() < self.max_loaded {
                return Ok(change);
            }
            let entries = self.known();
            let can_leave = |entry: &ServedModel| entry.is_idle() && !entry.is_awaited(self.turns.turn);
            let oldest = entries.iter().filter(|entry| can_leave(entry)).min_by_key(|entry| entry.last_used());
            if let Some(entry) = oldest {
                if let Some(unloading) = entry.unload_if_idle() {
                    tracing::info!(model = entry.name, "unloaded to make room");
                    let _ = unloading.await;
                }
                continue;
            }
            if !entry.is_wanted() {
                return Err(self.no_room());
            }
            let longest = entries.iter().filter(|entry| entry.is_in_use()).min_by_key(|entry| entry.loaded_at());
            if let Some(entry) = longest.filter(|entry| entry.loaded_at().elapsed() >= self.turns.turn) {
                entry.is_leaving.store(true, Ordering::Release);
            }
            drop(change);
            tokio::time::sleep(LOOK_FOR_ROOM).await;
        }
    }

    pub(super) fn no_room(&self) -> ApiError {
        let text = format!("{} in use and no more fit", rocinante::counted(self.max_loaded, "model"));
        ApiError::busy(text, COME_BACK_S)
    }
}
