//! Contexts that are kept outside the pool: which of the evicted blocks and states are worth copying, and which are
//! copied back for a sequence with the same prefix. The scheduler knows only their names; the engine copies.

use std::collections::HashSet;

use batch::{AdapterId, BLOCK_TOKENS, BlockId, CachePlace, StateId, TokenId};
use kept::{Entry, KeptKind, Name, PrefixKey};

use super::{Scheduler, windowing::window_of};
use crate::{
    prefix::Chain,
    sequence::{Restore, SeqId, Sequence},
};

/// What may be found outside the pool, and what is on its way there.
#[derive(Debug, Default)]
pub struct KeptNames {
    names: HashSet<Name>,
    spills: Vec<Spill>,
}

/// What is about to leave the pool: its place is overwritten by the next step that has it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Spill {
    pub place: CachePlace,
    pub entry: Entry,
}

/// What a running sequence needs next from outside.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct RestorePlan {
    pub seq: SeqId,
    /// Its next blocks, in order.
    pub blocks: Vec<(BlockId, Entry)>,
    /// Blocks of its window, in order.
    pub windows: Vec<(BlockId, Entry)>,
    /// Its state, with the last of the blocks.
    pub state: Option<(StateId, Entry)>,
}

impl KeptNames {
    /// This is available, or will be as soon as it has left the pool.
    pub fn insert(&mut self, name: Name) {
        self.names.insert(name);
    }

    pub fn remove(&mut self, name: &Name) {
        self.names.remove(name);
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.names.contains(name)
    }

    /// What the plans since the last call push out of the pool.
    pub fn take_spills(&mut self) -> Vec<Spill> {
        std::mem::take(&mut self.spills)
    }
}

/// The full blocks of a text in order, without looking whether anybody has them.
fn entries(adapter: Option<AdapterId>, tokens: &[TokenId]) -> impl Iterator<Item = Entry> {
    let blocks = tokens.as_chunks::<BLOCK_TOKENS>().0.iter().enumerate();
    blocks.scan(PrefixKey::root(adapter), |parent, (idx, tokens)| {
        let entry = Entry::after(*parent, *tokens, KeptKind::Block, idx + 1);
        *parent = entry.name.key;
        Some(entry)
    })
}

/// The state at the end of a block.
fn state_of(entry: Entry) -> Entry {
    Entry { name: Name { kind: KeptKind::State, ..entry.name }, ..entry }
}

impl Scheduler {
    /// From now on, what leaves the pool is reported, and what `names` has can be restored.
    pub fn keep(&mut self, names: impl IntoIterator<Item = Name>) {
        self.kept = Some(KeptNames { names: names.into_iter().collect(), spills: Vec::new() });
    }

    /// From now on, what leaves the pool is gone, and what sequences wait for is computed.
    pub fn stop_keeping(&mut self) {
        self.kept = None;
        let waiting: Vec<SeqId> = self.running.iter().filter(|seq| seq.restore.is_some()).map(|seq| seq.id).collect();
        waiting.into_iter().for_each(|seq| self.restore_failed(seq));
    }

    pub fn kept(&mut self) -> Option<&mut KeptNames> {
        self.kept.as_mut()
    }

    /// The blocks of the pool that a sequence begins with, and what more of its beginning is kept elsewhere.
    pub(super) fn find_prefix(&self, seq: &Sequence, max_blocks: usize) -> (Vec<BlockId>, Chain, Option<Restore>) {
        let root = Chain::root(seq.adapter);
        let (blocks, chain) = self.index.lookup_after(root, &seq.tokens, max_blocks);
        let has = |name: Name| self.kept.as_ref().is_some_and(|kept| kept.contains(&name));
        let n_found = blocks.len();
        if self.windows.is_some() {
            return self.find_windowed(seq, max_blocks, (blocks, chain), has);
        }
        if self.is_recurrent() {
            return self.find_recurrent(seq, max_blocks, blocks, chain, has);
        }
        if self.kept.is_none() {
            return (blocks, chain, None);
        }
        let tokens = &seq.tokens[n_found * BLOCK_TOKENS..];
        let mut key = chain.key();
        let more = tokens.as_chunks::<BLOCK_TOKENS>().0.iter().take(max_blocks - n_found).take_while(|tokens| {
            key = key.then(*tokens);
            has(Name { key, kind: KeptKind::Block })
        });
        let n_blocks = n_found + more.count();
        (blocks, chain, (n_blocks > n_found).then_some(Restore { n_blocks, has_state: false }))
    }

    /// Keys and values without the state are of no use: the beginning ends at the last state there is.
    fn find_recurrent(
        &self,
        seq: &Sequence,
        max_blocks: usize,
        blocks: Vec<BlockId>,
        chain: Chain,
        has: impl Fn(Name) -> bool,
    ) -> (Vec<BlockId>, Chain, Option<Restore>) {
        let n_covered = self.states.n_covered(&blocks);
        let n_found = blocks.len();
        let mut restore = None;
        if self.kept.is_some() {
            let reachable = entries(seq.adapter, &seq.tokens)
                .take(max_blocks)
                .enumerate()
                .take_while(|(idx, entry)| *idx < n_found || has(entry.name));
            let last = reachable.filter(|(_, entry)| has(state_of(*entry).name)).last();
            let n_blocks = last.map_or(0, |(idx, _)| idx + 1);
            restore = (n_blocks > n_covered).then_some(Restore { n_blocks, has_state: true });
        }
        let n_reused = restore.map_or(n_covered, |restore| restore.n_blocks.min(n_found));
        if n_reused == n_found {
            return (blocks, chain, restore);
        }
        let (blocks, chain) = self.index.lookup_after(Chain::root(seq.adapter), &seq.tokens, n_reused);
        (blocks, chain, restore)
    }

    /// Nor are they without the last window's blocks of the other pool: the beginning ends where all of those are there, and
    /// the state too where the model has one.
    fn find_windowed(
        &self,
        seq: &Sequence,
        max_blocks: usize,
        (blocks, chain): (Vec<BlockId>, Chain),
        has: impl Fn(Name) -> bool,
    ) -> (Vec<BlockId>, Chain, Option<Restore>) {
        let Some(windows) = &self.windows else { return (blocks, chain, None) };
        let n_found = blocks.len();
        // The blocks beside a window without a gap, up to here.
        let (mut n_beside, mut n_blocks, mut has_state, mut is_in_pool) = (0, 0, false, true);
        let mut n_beside_in_pool = 0;
        let mut note = |n: usize, in_pool: [bool; 2], elsewhere: [bool; 2]| {
            n_beside = if in_pool[0] || elsewhere[0] { n_beside + 1 } else { 0 };
            n_beside_in_pool = if in_pool[0] { n_beside_in_pool + 1 } else { 0 };
            let n_seen = n - windows.first_seen(n * BLOCK_TOKENS);
            if n_beside >= n_seen && (in_pool[1] || elsewhere[1]) {
                (n_blocks, has_state) = (n, !in_pool[1]);
                is_in_pool = n <= n_found && n_beside_in_pool >= n_seen && in_pool[1];
            }
        };
        let in_pool = |idx: usize| match blocks.get(idx) {
            Some(block) => {
                let has_state = !self.is_recurrent() || self.states.checkpoint(*block).is_some();
                [windows.beside(*block).is_some(), has_state]
            }
            None => [false, !self.is_recurrent()],
        };
        if self.kept.is_some() {
            let reachable = entries(seq.adapter, &seq.tokens).take(max_blocks).enumerate();
            for (idx, entry) in reachable.take_while(|(idx, entry)| *idx < n_found || has(entry.name)) {
                note(idx + 1, in_pool(idx), [has(window_of(entry).name), has(state_of(entry).name)]);
            }
        } else {
            (0..n_found).for_each(|idx| note(idx + 1, in_pool(idx), [false; 2]));
        }
        let restore = (!is_in_pool).then_some(Restore { n_blocks, has_state });
        if n_blocks >= n_found {
            return (blocks, chain, restore);
        }
        let (blocks, chain) = self.index.lookup_after(Chain::root(seq.adapter), &seq.tokens, n_blocks);
        (blocks, chain, restore)
    }

    /// A slot for a state. The checkpoint that makes way is told.
    pub(super) fn take_state(&mut self, n_spared: usize) -> Option<StateId> {
        let (slot, from) = self.states.take_from(n_spared)?;
        if let (Some(kept), Some(entry)) = (&mut self.kept, from.and_then(|block| self.index.entry(block))) {
            kept.spill(CachePlace::State(slot), state_of(entry));
        }
        Some(slot)
    }

    /// A block of the index, with the state at its end, is given to somebody else.
    pub(super) fn spill_block(&mut self, block: BlockId, entry: Entry) {
        let Some(kept) = &mut self.kept else { return };
        kept.spill(CachePlace::Block(block), entry);
        if let Some(slot) = self.states.checkpoint(block) {
            kept.spill(CachePlace::State(slot), state_of(entry));
        }
    }

    /// Whether sequences wait for what is kept elsewhere.
    pub fn is_restoring(&self) -> bool {
        self.running.iter().any(|seq| seq.restore.is_some())
    }

    /// What the best-ranked sequence that waits for it needs next, up to `max_blocks` blocks.
    pub fn next_restore(&self, max_blocks: usize) -> Option<RestorePlan> {
        let seq = self.running.iter().find(|seq| seq.restore.is_some())?;
        let restore = seq.restore?;
        let (mut key, first) = (seq.chain.key(), seq.chain.n_blocks());
        let all = seq.tokens.as_chunks::<BLOCK_TOKENS>().0;
        let end = restore.n_blocks.min(first + max_blocks.max(1));
        let entry = |idx: usize| {
            let entry = Entry::after(key, all[idx], KeptKind::Block, idx + 1);
            key = entry.name.key;
            (seq.blocks[idx], entry)
        };
        let blocks: Vec<(BlockId, Entry)> = (first..end).map(entry).collect();
        let n_room = max_blocks.max(1).saturating_sub(blocks.len());
        // After the blocks, since those stand beside them in the index.
        let missing = seq.windows.missing().take(if end == restore.n_blocks { n_room } else { 0 });
        let missing: Vec<usize> = missing.collect();
        let first_missing = missing.first().copied().unwrap_or(usize::MAX);
        let all_entries: Vec<Entry> = entries(seq.adapter, &seq.tokens)
            .take(missing.last().map_or(0, |last| last + 1))
            .skip(first_missing)
            .collect();
        let window = |idx: &usize| Some((seq.windows.get(*idx)?, window_of(*all_entries.get(idx - first_missing)?)));
        let windows: Vec<(BlockId, Entry)> = missing.iter().map_while(window).collect();
        let has_all_windows = windows.len() == seq.windows.missing().count();
        let is_last = end == restore.n_blocks && has_all_windows && restore.has_state;
        let state = seq.state.filter(|_| is_last).and_then(|slot| {
            // The last block may have been in the pool, or have come with an earlier piece.
            let last = blocks.last().map(|(_, entry)| *entry);
            let last = last.or_else(|| entries(seq.adapter, &seq.tokens).nth(end.checked_sub(1)?));
            Some((slot, state_of(last?)))
        });
        Some(RestorePlan { seq: seq.id, blocks, windows, state })
    }

    /// The plan's blocks, and its state if it has one, are in place.
    pub fn restored(&mut self, plan: &RestorePlan) {
        let idx = self.ranks.get(&plan.seq).and_then(|rank| self.running_idx(*rank));
        let Some(idx) = idx.filter(|&idx| self.running[idx].restore.is_some()) else { return };
        let seq = &mut self.running[idx];
        let n_tokens = plan.blocks.len() * BLOCK_TOKENS;
        seq.n_computed += n_tokens;
        if seq.n_preemptions == 0 {
            seq.n_cached_prompt = Some(seq.n_computed.min(seq.n_prompt));
        }
        let n_computed = seq.n_computed;
        self.n_tokens_cached += n_tokens as u64;
        self.publish_until(idx, n_computed);
        self.windows_restored(idx, plan.windows.len());
        let seq = &mut self.running[idx];
        let is_done = |restore: Restore| n_computed >= restore.n_blocks * BLOCK_TOKENS && seq.windows.is_whole();
        if seq.restore.is_some_and(is_done) {
            seq.restore = None;
        }
    }

    /// Some of what a sequence waited for is not there: it goes back to the queue, and begins with what is.
    pub fn restore_failed(&mut self, id: SeqId) {
        let idx = self.ranks.get(&id).and_then(|rank| self.running_idx(*rank));
        let Some(idx) = idx else { return };
        let mut seq = self.running.remove(idx);
        self.take_off(&mut seq);
        if let Some(n_cached) = seq.n_cached_prompt.take_if(|_| seq.n_preemptions == 0) {
            // As one that never ran.
            self.n_new += 1;
            self.n_tokens_cached = self.n_tokens_cached.saturating_sub(n_cached as u64);
        }
        self.waiting.insert(seq.rank, seq);
    }

    /// Indexed blocks that nobody uses at the moment and the states at their ends, the beginnings of texts first.
    pub fn idle_places(&self) -> Vec<Spill> {
        let mut places = Vec::new();
        for block in self.pool.idle_blocks() {
            let Some(entry) = self.index.entry(block) else { continue };
            places.push(Spill { place: CachePlace::Block(block), entry });
            places.extend(self.window_place(block, entry));
            let slot = self.states.checkpoint(block);
            places.extend(slot.map(|slot| Spill { place: CachePlace::State(slot), entry: state_of(entry) }));
        }
        places
    }

    /// Where the beginning of a text is in the pool.
    pub fn places_of(&self, adapter: Option<AdapterId>, tokens: &[TokenId]) -> Vec<Spill> {
        let (blocks, _) = self.index.lookup_after(Chain::root(adapter), tokens, usize::MAX);
        let mut places = Vec::new();
        for (block, entry) in blocks.into_iter().zip(entries(adapter, tokens)) {
            places.push(Spill { place: CachePlace::Block(block), entry });
            places.extend(self.window_place(block, entry));
            let slot = self.states.checkpoint(block);
            places.extend(slot.map(|slot| Spill { place: CachePlace::State(slot), entry: state_of(entry) }));
        }
        places
    }
}

impl KeptNames {
    pub(super) fn spill(&mut self, place: CachePlace, entry: Entry) {
        self.names.insert(entry.name);
        self.spills.push(Spill { place, entry });
    }
}
