//! Who owns which block of the pool for layers with a window, where these have one. A sequence holds the blocks that its
//! next token sees and gives back those that its window has left; a block that is full stays beside the indexed block of
//! the KV pool with the same tokens for as long as there is room, so that a prefix hit can go on from there.
//!
//! Room is promised, not only given: a running sequence is committed to as many blocks as its window may come to take, or
//! as it holds at the moment if a step under way needs more, and the commitments never exceed the pool. So a block is
//! always there when a sequence that runs needs one. The scheduler is the only caller.

use std::collections::VecDeque;

use batch::{BLOCK_TOKENS, BlockId, WindowLimits};

use crate::{
    block_pool::{BlockPool, Provenance},
    sequence::Sequence,
};

#[derive(Debug)]
pub struct WindowPool {
    pool: BlockPool,
    /// Tokens that are seen, the token itself included.
    n_tokens: usize,
    /// Of each block of the KV pool, while it is indexed: the block of this pool with the same tokens.
    beside: Vec<Option<BlockId>>,
    /// The same the other way round.
    owners: Vec<Option<BlockId>>,
    n_committed: usize,
}

/// The blocks that a running sequence holds: some that follow each other in its context.
#[derive(Debug, Default)]
pub struct WindowTable {
    /// Which block of the context the first of them is.
    first: usize,
    blocks: VecDeque<BlockId>,
    /// The sequence's part of what is promised.
    n_committed: usize,
    /// Blocks of the context that are still to be copied in, ascending.
    missing: VecDeque<usize>,
}

/// What a taken block held until now: the tokens of this block of the KV pool.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct EvictedWindow {
    pub owner: BlockId,
    pub window: BlockId,
    /// Few will ask for it.
    pub is_passed: bool,
}

impl WindowTable {
    pub fn first(&self) -> usize {
        self.first
    }

    /// The block of the context after the last that is held.
    pub fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    pub fn n_held(&self) -> usize {
        self.blocks.len()
    }

    pub fn n_committed(&self) -> usize {
        self.n_committed
    }

    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.iter().copied()
    }

    pub fn missing(&self) -> impl Iterator<Item = usize> {
        self.missing.iter().copied()
    }

    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// Where a block of the context is, if it is held.
    pub fn get(&self, idx: usize) -> Option<BlockId> {
        self.blocks.get(idx.checked_sub(self.first)?).copied()
    }

    /// For each of the first `n_blocks` of the context: its block, or for those that are not seen any more one that is.
    pub fn write(&self, n_blocks: usize, table: &mut Vec<BlockId>) {
        table.clear();
        let unseen = self.blocks.front().copied().unwrap_or(BlockId(0));
        table.extend((0..n_blocks).map(|idx| self.get(idx).unwrap_or(unseen)));
    }
}

/// Blocks that a window of so many tokens takes wherever it stands, and one for what is drafted.
pub fn most_seen(n_tokens: usize) -> usize {
    (n_tokens.max(BLOCK_TOKENS + 1) - 1).div_ceil(BLOCK_TOKENS) + 2
}

impl WindowPool {
    /// Beside a KV pool of `n_blocks` blocks.
    pub fn new(limits: WindowLimits, n_blocks: usize) -> Self {
        Self {
            pool: BlockPool::new(limits.n_blocks),
            // A whole block is always held before the one that is being filled: what stands for blocks that are not seen
            // any more must hold numbers.
            n_tokens: limits.n_tokens.max(BLOCK_TOKENS + 1),
            beside: vec![None; n_blocks],
            owners: vec![None; limits.n_blocks],
            n_committed: 0,
        }
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn n_committed(&self) -> usize {
        self.n_committed
    }

    /// Blocks that nobody is promised.
    pub fn n_uncommitted(&self) -> usize {
        self.pool.n_blocks() - self.n_committed
    }

    /// Which block of the context is the first that a token after `n_tokens` others sees.
    pub fn first_seen(&self, n_tokens: usize) -> usize {
        (n_tokens + 1).saturating_sub(self.n_tokens) / BLOCK_TOKENS
    }

    /// Blocks of the longest sequence's window.
    pub fn most_seen(&self) -> usize {
        most_seen(self.n_tokens)
    }

    /// Blocks that a sequence of so many tokens is promised.
    pub fn quota(&self, seq: &Sequence) -> usize {
        let n_all = Sequence::blocks_for(seq.n_tokens());
        match seq.attention {
            batch::Attention::Causal => n_all.min(self.most_seen()),
            batch::Attention::Full => n_all,
        }
    }

    /// Tokens of the longest sequence that this pool can run alone.
    pub fn max_len(&self) -> usize {
        let n_blocks = self.pool.n_blocks();
        if n_blocks >= self.most_seen() { usize::MAX } else { n_blocks * BLOCK_TOKENS }
    }

    pub fn commit(&mut self, table: &mut WindowTable, n_blocks: usize) {
        self.n_committed = self.n_committed - table.n_committed + n_blocks;
        table.n_committed = n_blocks;
        debug_assert!(self.n_committed <= self.pool.n_blocks(), "more is promised than there is");
    }

    /// The block beside an indexed one.
    pub fn beside(&self, block: BlockId) -> Option<BlockId> {
        self.beside[block.0 as usize]
    }

    /// Whether few will ask for a block.
    pub fn is_passed(&self, window: BlockId) -> bool {
        self.pool.n_refs(window) == 0 && self.pool.is_passed(window)
    }

    /// Holds what is seen after a prefix hit of `n_blocks` blocks: blocks that are in the pool, or new ones that are still
    /// to be copied in. Says what the new ones held.
    pub fn begin(&mut self, table: &mut WindowTable, n_blocks: usize, found: &[BlockId]) -> Vec<EvictedWindow> {
        let first = self.first_seen(n_blocks * BLOCK_TOKENS);
        let known: Vec<Option<BlockId>> =
            (first..n_blocks).map(|idx| found.get(idx).and_then(|block| self.beside(*block))).collect();
        // Held before others are taken, so that taking cannot evict them.
        known.iter().flatten().for_each(|window| self.pool.share(*window));
        table.first = first;
        let mut evicted = Vec::new();
        for (at, window) in known.into_iter().enumerate() {
            let window = window.unwrap_or_else(|| {
                table.missing.push_back(first + at);
                self.take(&mut evicted)
            });
            table.blocks.push_back(window);
        }
        evicted
    }

    /// Holds the blocks of the context up to `end`. Says what they held.
    pub fn extend(&mut self, table: &mut WindowTable, end: usize) -> Vec<EvictedWindow> {
        let mut evicted = Vec::new();
        while table.end() < end {
            let window = self.take(&mut evicted);
            table.blocks.push_back(window);
        }
        evicted
    }

    /// Gives back the blocks of the context before `first`. `is_of_use` says which of them others may well ask for.
    pub fn leave(&mut self, table: &mut WindowTable, first: usize, is_of_use: impl Fn(usize) -> bool) {
        while table.first < first {
            let Some(window) = table.blocks.pop_front() else { return };
            if is_of_use(table.first) {
                self.pool.release(window)
            } else {
                self.pool.release_passed(window)
            }
            table.first += 1;
        }
    }

    /// Gives back everything, the last block first.
    pub fn leave_all(&mut self, table: &mut WindowTable) {
        self.commit(table, 0);
        table.blocks.drain(..).rev().for_each(|window| self.pool.release(window));
        *table = WindowTable::default();
    }

    /// The block of the context at `idx` is copied in.
    pub fn restored(&mut self, table: &mut WindowTable) -> Option<usize> {
        table.missing.pop_front()
    }

    /// A block that is held has the tokens of an indexed block of the KV pool. One that has its window keeps it.
    pub fn attach(&mut self, block: BlockId, window: BlockId) {
        if self.beside(block).is_some() || self.owners[window.0 as usize].is_some() {
            return;
        }
        self.beside[block.0 as usize] = Some(window);
        self.owners[window.0 as usize] = Some(block);
        self.pool.mark_indexed(window);
    }

    /// A block of the KV pool is indexed no more. Says what stood beside it.
    pub fn forget(&mut self, block: BlockId) -> Option<EvictedWindow> {
        let window = self.beside[block.0 as usize].take()?;
        self.owners[window.0 as usize] = None;
        let evicted = EvictedWindow { owner: block, window, is_passed: self.is_passed(window) };
        self.pool.unmark_indexed(window);
        Some(evicted)
    }

    fn take(&mut self, evicted: &mut Vec<EvictedWindow>) -> BlockId {
        let taken = self.pool.take().expect("no more than was promised");
        let window = taken.block;
        if taken.provenance == Provenance::Evicted
            && let Some(owner) = self.owners[window.0 as usize].take()
        {
            self.beside[owner.0 as usize] = None;
            evicted.push(EvictedWindow { owner, window, is_passed: self.pool.is_passed(window) });
        }
        window
    }

    /// The two sides agree with each other and with the pool. Walks both pools: for tests.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let n_beside = self.beside.iter().flatten().count();
        for (window, owner) in self.owners.iter().enumerate() {
            let window = BlockId(window as u32);
            let is_known = owner.is_some_and(|owner| self.beside(owner) == Some(window));
            if is_known != owner.is_some() || is_known != self.pool.is_indexed(window) {
                return Err(format!("block {} of the windows: {owner:?}", window.0));
            }
        }
        let n_owned = self.owners.iter().flatten().count();
        if n_beside == n_owned { Ok(()) } else { Err(format!("{n_beside} windows beside, {n_owned} owned")) }
    }
}
