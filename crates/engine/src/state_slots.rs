//! Who owns which slot of the pool of recurrent states: one slot for each running sequence, the rest for checkpoints. A
//! checkpoint is the state at the end of an indexed KV block, so that a prefix hit can continue from there. It is
//! evicted with its block, or as the least recently used one when a slot is needed. This module only decides ownership;
//! the bytes are the model's. The scheduler is its only caller.

use std::collections::HashMap;

use batch::{BlockId, StateId};

#[derive(Debug, Default)]
pub struct StateSlots {
    free: Vec<StateId>,
    /// By the block at whose end they stand.
    checkpoints: HashMap<BlockId, StateCheckpoint>,
    /// Counts uses.
    now: u64,
    n_slots: usize,
}

#[derive(Debug)]
struct StateCheckpoint {
    slot: StateId,
    /// Sequences that will start from it in a step that is not submitted yet.
    n_readers: usize,
    last_used: u64,
    /// Its block means something else by now: nobody finds it any more.
    is_stale: bool,
}

impl StateSlots {
    pub fn new(n_slots: usize) -> Self {
        // Popped from the back: low ids first.
        Self { free: (0..n_slots as u32).rev().map(StateId).collect(), n_slots, ..Self::default() }
    }

    /// Slots in all; 0 where the model has no recurrent state.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    pub fn n_checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// A slot, if need be that of the least recently used checkpoint; `None` where every slot is held. Leaves at least
    /// `n_spared` that can be taken.
    pub fn take(&mut self, n_spared: usize) -> Option<StateId> {
        self.take_from(n_spared).map(|(slot, _)| slot)
    }

    /// As [`take`](Self::take), and at the end of which block the checkpoint stood that made way.
    pub fn take_from(&mut self, n_spared: usize) -> Option<(StateId, Option<BlockId>)> {
        let n_idle = self.checkpoints.values().filter(|checkpoint| checkpoint.n_readers == 0).count();
        if self.free.len() + n_idle <= n_spared {
            return None;
        }
        if let Some(slot) = self.free.pop() {
            return Some((slot, None));
        }
        let idle = self.checkpoints.iter().filter(|(_, checkpoint)| checkpoint.n_readers == 0);
        let (&block, _) = idle.min_by_key(|(_, checkpoint)| checkpoint.last_used)?;
        self.checkpoints.remove(&block).map(|checkpoint| (checkpoint.slot, Some(block)))
    }

    pub fn release(&mut self, slot: StateId) {
        debug_assert!(!self.free.contains(&slot), "state {} was released twice", slot.0);
        self.free.push(slot);
    }

    /// Where the state at the end of a block is, if it is known.
    pub fn checkpoint(&self, block: BlockId) -> Option<StateId> {
        self.checkpoints.get(&block).filter(|checkpoint| !checkpoint.is_stale).map(|checkpoint| checkpoint.slot)
    }

    /// The most leading blocks of these that a checkpoint covers.
    pub fn n_covered(&self, blocks: &[BlockId]) -> usize {
        let is_there = |block: &BlockId| self.checkpoint(*block).is_some();
        blocks.iter().rposition(is_there).map_or(0, |idx| idx + 1)
    }

    /// The checkpoint at the end of a block is about to be read: it stays until [`unpin`](Self::unpin).
    pub fn pin(&mut self, block: BlockId) -> Option<StateId> {
        self.now += 1;
        let checkpoint = self.checkpoints.get_mut(&block)?;
        checkpoint.n_readers += 1;
        checkpoint.last_used = self.now;
        Some(checkpoint.slot)
    }

    pub fn unpin(&mut self, block: BlockId) {
        let Some(checkpoint) = self.checkpoints.get_mut(&block) else { return };
        checkpoint.n_readers = checkpoint.n_readers.saturating_sub(1);
        if checkpoint.n_readers == 0 && checkpoint.is_stale {
            self.forget(block);
        }
    }

    /// `slot` holds the state at the end of an indexed block. Says whether it is kept: a block has one checkpoint.
    pub fn store(&mut self, block: BlockId, slot: StateId) -> bool {
        self.now += 1;
        match self.checkpoints.get_mut(&block) {
            // Equal tokens have equal states.
            Some(known) if !known.is_stale => {
                known.last_used = self.now;
                self.release(slot);
                false
            }
            // Its readers start from the old state, which the block no longer stands for.
            Some(_) => {
                self.release(slot);
                false
            }
            None => {
                let checkpoint = StateCheckpoint { slot, n_readers: 0, last_used: self.now, is_stale: false };
                self.checkpoints.insert(block, checkpoint);
                true
            }
        }
    }

    /// The block is indexed no more, or its checkpoint has been overtaken.
    pub fn forget(&mut self, block: BlockId) {
        let Some(checkpoint) = self.checkpoints.get_mut(&block) else { return };
        if checkpoint.n_readers > 0 {
            checkpoint.is_stale = true;
            return;
        }
        let slot = checkpoint.slot;
        self.checkpoints.remove(&block);
        self.release(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_lives_until_its_slot_is_needed() {
        let mut slots = StateSlots::new(3);
        let running = slots.take(0).unwrap();
        for block in [7, 8] {
            let slot = slots.take(0).unwrap();
            slots.store(BlockId(block), slot);
        }
        assert_eq!(slots.n_covered(&[BlockId(1), BlockId(7), BlockId(9)]), 2);
        assert_eq!(slots.pin(BlockId(7)), Some(StateId(1)));
        // 8 is the only one that nobody reads; of two idle ones the older goes.
        assert_eq!(slots.take(1), None);
        assert_eq!(slots.take(0), Some(StateId(2)));
        assert_eq!(slots.n_covered(&[BlockId(8)]), 0);
        assert_eq!(slots.take(0), None);
        slots.forget(BlockId(7));
        assert_eq!((slots.n_covered(&[BlockId(7)]), slots.take(0)), (0, None));
        slots.unpin(BlockId(7));
        assert_eq!(slots.take(0), Some(StateId(1)));
        slots.release(running);
        assert_eq!(slots.take(0), Some(running));
    }

    #[test]
    fn a_block_keeps_its_first_checkpoint() {
        let mut slots = StateSlots::new(2);
        let first = slots.take(0).unwrap();
        assert!(slots.store(BlockId(7), first));
        let second = slots.take(0).unwrap();
        assert!(!slots.store(BlockId(7), second), "the block has one, which is another's");
        assert_eq!(slots.pin(BlockId(7)), Some(first));
        assert_eq!(slots.take(0), Some(second), "it was given back");
    }
}
