//! What a step leaves for later sequences: full blocks in the prefix index, and the states of recurrent layers at block
//! boundaries, without which such a model cannot use those blocks.

use batch::{Attention, BLOCK_TOKENS, BlockId, StateId};

use super::{Chunk, Reuse, Scheduler};
use crate::{prefix::Registered, sequence::Sequence, state_slots::StateSlots};

impl Scheduler {
    /// Where the state after a chunk is kept, if it is worth it and there is room beside the sequences that may run.
    pub(super) fn slot_for_checkpoint(&mut self, chunk: &Chunk) -> Option<StateId> {
        let is_wanted = self.get(chunk.seq)?.is_checkpoint(chunk.end());
        let n_spared = self.limits.max_running.saturating_sub(self.running.len());
        is_wanted.then(|| self.take_state(n_spared)).flatten()
    }

    /// The step of this chunk failed.
    pub fn abandon(&mut self, chunk: &Chunk) {
        // Beside drafts the sequence holds it.
        let own = chunk.checkpoint.filter(|_| chunk.n_drafted == 0);
        own.into_iter().for_each(|slot| self.states.release(slot));
    }

    /// The step of this chunk is done: makes the blocks it filled known to the prefix index. Its tokens are known by
    /// now, and a sequence that ended in the meantime has left nothing behind.
    pub fn publish(&mut self, chunk: &Chunk) {
        let last_block = self.register(chunk);
        // With drafts it is known later whether the state is that of the sequence.
        if let Some(slot) = chunk.checkpoint.filter(|_| chunk.n_drafted == 0) {
            self.keep_checkpoint(chunk, last_block, slot);
        }
    }

    /// `slot` has the state after a chunk whose last full block is `block`, if that is indexed.
    pub(super) fn keep_checkpoint(&mut self, chunk: &Chunk, block: Option<BlockId>, slot: StateId) {
        let Some(block) = block else { return self.states.release(slot) };
        let is_kept = self.states.store(block, slot);
        // Of an answer only the latest checkpoint is of use; that of its prompt stays, and so do others' checkpoints.
        if let Some(seq) = self.get_mut(chunk.seq).filter(|seq| chunk.first >= seq.n_prompt) {
            let is_own = is_kept || seq.rolling == Some(block);
            let before = std::mem::replace(&mut seq.rolling, is_own.then_some(block));
            before
                .into_iter()
                .filter(|overtaken| *overtaken != block)
                .for_each(|overtaken| self.states.forget(overtaken));
        }
    }

    /// Says which indexed block holds the chunk's last full block, if it is one.
    fn register(&mut self, chunk: &Chunk) -> Option<BlockId> {
        let idx = self.ranks.get(&chunk.seq).and_then(|rank| self.running_idx(*rank))?;
        if self.running[idx].n_preemptions != chunk.n_preemptions {
            return None;
        }
        self.publish_until(idx, chunk.n_certain())
    }

    /// Makes the full blocks of a running sequence's first `n_tokens` tokens known to the prefix index. Says which indexed
    /// block holds the last of them.
    pub(super) fn publish_until(&mut self, idx: usize, n_tokens: usize) -> Option<BlockId> {
        let seq = &mut self.running[idx];
        if self.limits.reuse == Reuse::Off || seq.attention == Attention::Full {
            return None;
        }
        let mut last = None;
        while (self.running[idx].chain.n_blocks() + 1) * BLOCK_TOKENS <= n_tokens {
            let seq = &mut self.running[idx];
            let block_idx = seq.chain.n_blocks();
            let block = seq.blocks[block_idx];
            let tokens = &seq.tokens[block_idx * BLOCK_TOKENS..][..BLOCK_TOKENS];
            let (registered, chain) = self.index.register(seq.chain, tokens, block);
            let mut forgotten = None;
            if let Registered::New { displaced } = registered {
                self.pool.mark_indexed(block);
                if let Some(displaced) = displaced {
                    self.pool.unmark_indexed(displaced);
                    self.states.forget(displaced);
                    // It had the same hash.
                    self.changes.removed(chain.hash());
                }
                forgotten = displaced;
                self.changes.stored(seq.chain, chain, tokens, seq.adapter);
            }
            seq.chain = chain;
            let indexed = match registered {
                Registered::New { .. } => block,
                Registered::Known(other) => other,
            };
            forgotten.into_iter().for_each(|block| self.forget_window(block, None));
            self.attach_window(idx, block_idx, indexed);
            last = Some(indexed);
        }
        last
    }
}

/// A sequence that leaves the device gives back its state and what it was about to start from.
pub(super) fn release_state(states: &mut StateSlots, seq: &mut Sequence) {
    let drafted = seq.draft_state.take().map(|written| (written.state, written.checkpoint));
    let drafted = drafted.into_iter().flat_map(|(state, checkpoint)| [Some(state), checkpoint]).flatten();
    seq.state.take().into_iter().chain(drafted).for_each(|slot| states.release(slot));
    seq.starts_from.take().into_iter().for_each(|(block, _)| states.unpin(block));
    seq.rolling = None;
}
