//! Drafted tokens in the scheduler: they get rows and blocks that nobody else needs, and count as computed only when it
//! is known that they belong to the sequence.

use batch::{BLOCK_TOKENS, TokenId};

use super::{Chunk, Scheduler, StepBudget};
use crate::sequence::SeqId;

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
        seq.n_computed = (chunk.n_certain() + n_accepted).min(seq.tokens.len() - 1);
        let (n_computed, rank) = (seq.n_computed, seq.rank);
        if let Some(idx) = self.running_idx(rank) {
            self.publish_until(idx, n_computed);
        }
    }

    /// Blocks for the drafted tokens of a running sequence, as many as there are to spare. `n_after` sequences still
    /// want a row in this step, and perhaps a block: nobody is preempted for a draft.
    pub(super) fn grow_for_draft(&mut self, idx: usize, n_after: usize, budget: &StepBudget) -> usize {
        let seq = &self.running[idx];
        if seq.n_pending > 0 {
            return 0;
        }
        let to_spare = |n: usize| n.saturating_sub(1 + n_after);
        let n_wanted = seq.draft.len().min(to_spare(budget.n_tokens)).min(to_spare(budget.n_rows));
        let n_first = seq.n_computed + 1;
        while self.running[idx].blocks.len() * BLOCK_TOKENS < n_first + n_wanted && self.pool.n_available() > n_after {
            let block = self.take_block();
            self.running[idx].blocks.push(block);
        }
        n_wanted.min(self.running[idx].blocks.len() * BLOCK_TOKENS - n_first)
    }
}
