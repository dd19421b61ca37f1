//! The second pool in the scheduler, of a model whose layers with a window keep no more than that: who is promised how much
//! of it, what a step takes, and what a sequence gives back when its window has moved on.

use batch::{Attention, BLOCK_TOKENS, BlockId, CachePlace, WindowLimits};
use kept::{Entry, KeptKind, Name};

use super::{KeptNames, Reuse, Scheduler};
use crate::{
    prefix::PrefixIndex,
    sequence::Sequence,
    windows::{EvictedWindow, WindowPool},
};

/// The same block in layers with a window.
pub(super) fn window_of(entry: Entry) -> Entry {
    Entry { name: Name { kind: KeptKind::Window, ..entry.name }, ..entry }
}

impl Scheduler {
    /// For a model that keeps the context of its layers with a window in a pool of their own.
    pub fn with_windows(mut self, limits: Option<WindowLimits>) -> Self {
        self.windows = limits.map(|limits| WindowPool::new(limits, self.limits.n_blocks));
        self
    }

    pub fn windows(&self) -> Option<&WindowPool> {
        self.windows.as_ref()
    }

    /// Tokens of the longest sequence that can run.
    pub fn max_len(&self) -> usize {
        let n_pool = self.pool.n_blocks().saturating_mul(BLOCK_TOKENS);
        self.windows.as_ref().map_or(n_pool, |windows| windows.max_len().min(n_pool))
    }

    /// Whether the pool for windows could ever run this sequence.
    pub(super) fn fits_windows(&self, seq: &Sequence) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.quota(seq) <= windows.pool().n_blocks())
    }

    /// Before a plan: running sequences give back what their windows have left. What is not indexed yet stays until it is,
    /// so that others find it; after a step with drafts a recurrent state may go back to its start.
    pub(super) fn settle_windows(&mut self) {
        let Some(windows) = &mut self.windows else { return };
        let is_published = |seq: &Sequence| self.limits.reuse == Reuse::On && seq.attention == Attention::Causal;
        for seq in self.running.iter_mut().filter(|seq| seq.restore.is_none() && seq.draft_state.is_none()) {
            let n_indexed = if is_published(seq) { seq.chain.n_blocks() } else { usize::MAX };
            let first = windows.first_seen(seq.n_computed).min(n_indexed);
            if seq.attention == Attention::Causal && first > seq.windows.first() {
                // Where others began, or where this prompt ends, others may begin again.
                let n_found = seq.n_found;
                let end_of_prompt = seq.n_prompt.saturating_sub(1) / BLOCK_TOKENS;
                let around_prompt = windows.first_seen(end_of_prompt * BLOCK_TOKENS)..end_of_prompt;
                let is_of_use = |idx: usize| idx < n_found || around_prompt.contains(&idx);
                windows.leave(&mut seq.windows, first, is_of_use);
            }
            let n_promised = windows.quota(seq).min(seq.windows.n_committed()).max(seq.windows.n_held());
            windows.commit(&mut seq.windows, n_promised);
        }
    }

    /// Blocks of windows that a newcomer of rank `idx` lacks: those before it keep one each to grow into, until their
    /// windows are full.
    pub(super) fn lacks_windows(&self, idx: usize, n_promised: usize) -> usize {
        let Some(windows) = &self.windows else { return 0 };
        let grows = |seq: &&Sequence| windows.quota(seq) < windows.most_seen();
        let n_needed = n_promised + self.running[..idx].iter().filter(grows).count();
        n_needed.saturating_sub(windows.n_uncommitted())
    }

    /// Blocks of windows that would be promised to nobody if every running sequence from `idx` on were preempted.
    pub(super) fn n_reclaimable_windows(&self, idx: usize) -> usize {
        self.running[idx..].iter().map(|seq| seq.windows.n_committed()).sum()
    }

    /// Promises a running sequence what it needs to compute its tokens up to `n_tokens`. Says whether there is room.
    pub(super) fn promise_windows(&mut self, idx: usize, n_tokens: usize) -> bool {
        let Some(windows) = &mut self.windows else { return true };
        let seq = &mut self.running[idx];
        let n_held = Sequence::blocks_for(n_tokens).saturating_sub(seq.windows.first());
        let n_needed = n_held.max(windows.quota(seq)).max(seq.windows.n_committed());
        let has_room = n_needed - seq.windows.n_committed() <= windows.n_uncommitted();
        if has_room {
            windows.commit(&mut seq.windows, n_needed);
        }
        has_room
    }

    /// Up to which token a running sequence can compute in the next step, if the others may want `n_spared` blocks.
    pub(super) fn window_end(&self, idx: usize, n_spared: usize) -> usize {
        let Some(windows) = &self.windows else { return usize::MAX };
        let table = &self.running[idx].windows;
        let n_blocks = table.n_committed() + windows.n_uncommitted().saturating_sub(n_spared);
        (table.first() + n_blocks) * BLOCK_TOKENS
    }

    /// Holds the blocks that a step needs to compute a running sequence's tokens up to `n_tokens`; there is room.
    pub(super) fn hold_windows(&mut self, idx: usize, n_tokens: usize) {
        let Some(windows) = &mut self.windows else { return };
        let table = &mut self.running[idx].windows;
        let end = Sequence::blocks_for(n_tokens);
        let n_held = end.saturating_sub(table.first());
        windows.commit(table, n_held.max(table.n_committed()));
        let evicted = windows.extend(table, end);
        evicted.into_iter().for_each(|evicted| spill_window(&self.index, &mut self.kept, evicted));
    }

    /// A newcomer holds what it sees after the blocks that were found, of which the first are in the KV pool.
    pub(super) fn begin_windows(&mut self, seq: &mut Sequence, n_in_pool: usize) {
        let Some(windows) = &mut self.windows else { return };
        let n_promised = windows.quota(seq);
        windows.commit(&mut seq.windows, n_promised);
        let evicted = windows.begin(&mut seq.windows, seq.n_found, &seq.blocks[..n_in_pool]);
        debug_assert!(seq.restore.is_some() || seq.windows.is_whole(), "a hit without its window");
        evicted.into_iter().for_each(|evicted| spill_window(&self.index, &mut self.kept, evicted));
    }

    pub(super) fn leave_windows(&mut self, seq: &mut Sequence) {
        if let Some(windows) = &mut self.windows {
            windows.leave_all(&mut seq.windows);
        }
    }

    /// A block of the KV pool, known as `entry`, is given to somebody else.
    pub(super) fn forget_window(&mut self, block: BlockId, entry: Option<Entry>) {
        let evicted = self.windows.as_mut().and_then(|windows| windows.forget(block));
        if let (Some(evicted), Some(entry), Some(kept)) = (evicted, entry, &mut self.kept) {
            spill(kept, evicted, entry);
        }
    }

    /// The full block of the context at `block_idx` is indexed in `block`: its window goes with it.
    pub(super) fn attach_window(&mut self, idx: usize, block_idx: usize, block: BlockId) {
        let (Some(windows), table) = (&mut self.windows, &self.running[idx].windows) else { return };
        if table.missing().any(|missing| missing == block_idx) {
            return;
        }
        if let Some(window) = table.get(block_idx) {
            windows.attach(block, window);
        }
    }

    /// The next `n` blocks that a sequence's window lacked are in place.
    pub(super) fn windows_restored(&mut self, idx: usize, n: usize) {
        if n == 0 {
            return;
        }
        let seq = &self.running[idx];
        let (blocks, _) = self.index.lookup_after(crate::prefix::Chain::root(seq.adapter), &seq.tokens, seq.n_found);
        for _ in 0..n {
            let Some(windows) = &mut self.windows else { return };
            let Some(block_idx) = windows.restored(&mut self.running[idx].windows) else { return };
            if let Some(block) = blocks.get(block_idx) {
                self.attach_window(idx, block_idx, *block);
            }
        }
    }

    /// The window of an indexed block, if it is worth a copy.
    pub(super) fn window_place(&self, block: BlockId, entry: Entry) -> Option<super::Spill> {
        let windows = self.windows.as_ref()?;
        let window = windows.beside(block).filter(|window| !windows.is_passed(*window))?;
        Some(super::Spill { place: CachePlace::Window(window), entry: window_of(entry) })
    }
}

/// What few would ask for is not worth a copy.
fn spill_window(index: &PrefixIndex, kept: &mut Option<KeptNames>, evicted: EvictedWindow) {
    if let (Some(kept), Some(entry)) = (kept, index.entry(evicted.owner)) {
        spill(kept, evicted, entry);
    }
}

fn spill(kept: &mut KeptNames, evicted: EvictedWindow, entry: Entry) {
    if !evicted.is_passed {
        kept.spill(CachePlace::Window(evicted.window), window_of(entry));
    }
}
