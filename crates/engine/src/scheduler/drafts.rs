//! Drafted tokens in the scheduler: they get rows and blocks that nobody else needs, and count as computed only when it
//! is known that they are right.
//!
//! Keys and values of wrong drafts are simply overwritten. A recurrent state cannot be: such a sequence computes its
//! drafts from one slot into another. If all were right, the second slot is its state from then on; otherwise the next
//! step starts from the first slot and recomputes the right ones together with its own token.

use batch::{BLOCK_TOKENS, TokenId};

use super::{Chunk, Scheduler, StepBudget, StepPlan};
use crate::sequence::{DRAFT_BORDER, DraftState, SeqId, Wanted};

impl Scheduler {
    /// What may follow the tokens of a sequence. Used in the next step, if there is room.
    pub fn set_draft(&mut self, id: SeqId, draft: Vec<TokenId>) {
        if let Some(seq) = self.get_mut(id) {
            seq.draft = draft;
        }
    }

    /// The step of a chunk with drafted tokens is done, and the first `n_accepted` of them are part of the sequence. The
    /// others leave nothing behind: the next step writes over their keys and values.
    pub fn settle_draft(&mut self, chunk: &Chunk, n_accepted: usize) {
        let Some(seq) = self.get_mut(chunk.seq) else { return };
        seq.draft.clear();
        if seq.n_preemptions != chunk.n_preemptions {
            return;
        }
        // The logits after the last token are always computed in a step to come.
        let n_right = (chunk.n_certain() + n_accepted).min(seq.tokens.len() - 1);
        seq.n_computed = n_right;
        let written = seq.draft_state.take();
        let are_all_right = n_right == chunk.end();
        if written.is_some() && !are_all_right {
            (seq.n_computed, seq.n_again) = (chunk.first, n_right - chunk.first);
        }
        let rank = seq.rank;
        let last_block = self.running_idx(rank).and_then(|idx| self.publish_until(idx, n_right));
        let Some(DraftState { state, checkpoint }) = written else { return };
        if !are_all_right {
            [Some(state), checkpoint].into_iter().flatten().for_each(|slot| self.states.release(slot));
            return;
        }
        let before = self.get_mut(chunk.seq).and_then(|seq| seq.state.replace(state));
        before.into_iter().for_each(|slot| self.states.release(slot));
        if let Some(slot) = checkpoint {
            self.keep_checkpoint(chunk, last_block, slot);
        }
    }

    /// Drafted tokens that a running sequence computes, with blocks for them and a slot for its state where it has one.
    pub(super) fn draft_len(&mut self, idx: usize, n_after: usize, budget: &StepBudget) -> usize {
        if !self.is_recurrent() {
            return self.grow_for_draft(idx, n_after, budget);
        }
        let seq = &self.running[idx];
        let n_to_border = DRAFT_BORDER - 1 - (seq.n_tokens() + DRAFT_BORDER - 1) % DRAFT_BORDER;
        // At first there is no state of its own to go back to.
        let has_state = seq.starts_from.is_none() && seq.n_computed > 0 && seq.draft_state.is_none();
        // Nor is what was scored scored again.
        if !has_state || seq.wanted != Wanted::Logits || seq.draft.is_empty() || n_to_border == 0 {
            return 0;
        }
        self.running[idx].draft.truncate(n_to_border);
        let n_spared = self.limits.max_running.saturating_sub(self.running.len());
        let Some(state) = self.take_state(n_spared) else { return 0 };
        let n_drafted = self.grow_for_draft(idx, n_after, budget);
        if n_drafted == 0 {
            self.states.release(state);
        } else {
            self.running[idx].draft_state = Some(DraftState { state, checkpoint: None });
        }
        n_drafted
    }

    /// Whose drafts turn out wrong gives back what was to be a checkpoint.
    pub(super) fn keep_draft_checkpoints(&mut self, plan: &StepPlan) {
        for chunk in plan.chunks.iter().filter(|chunk| chunk.n_drafted > 0) {
            if let Some(written) = self.get_mut(chunk.seq).and_then(|seq| seq.draft_state.as_mut()) {
                written.checkpoint = chunk.checkpoint;
            }
        }
    }

    /// Blocks for the drafted tokens of a running sequence, as many as there are to spare. `n_after` sequences still
    /// want a row in this step, and perhaps a block: nobody is preempted for a draft.
    fn grow_for_draft(&mut self, idx: usize, n_after: usize, budget: &StepBudget) -> usize {
        let seq = &self.running[idx];
        if seq.n_pending > 0 {
            return 0;
        }
        let to_spare = |n: usize, n_own: usize| n.saturating_sub(n_own + n_after);
        let n_room = to_spare(budget.n_tokens, seq.n_remaining()).min(to_spare(budget.n_rows, 1));
        let n_wanted = seq.draft.len().min(n_room);
        let n_first = seq.n_tokens();
        while self.running[idx].blocks.len() * BLOCK_TOKENS < n_first + n_wanted && self.pool.n_available() > n_after {
            let block = self.take_block();
            self.running[idx].blocks.push(block);
        }
        let n_room = (self.running[idx].blocks.len() * BLOCK_TOKENS).min(self.window_end(idx, n_after));
        n_wanted.min(n_room.saturating_sub(n_first))
    }
}
