//! Who owns which KV block: reference counts, a free list, and the blocks that nobody holds but the prefix index still
//! knows, in the order of their release. Only this module decides ownership; it never sees a token, a hash or the bytes
//! of a block. The scheduler is its only caller.

use batch::BlockId;

/// Marks the end of the list of idle blocks.
const NONE: u32 = u32::MAX;
/// Of the idle blocks, one part in this many is kept of those that were passed.
const PASSED_SHARE: usize = 4;

#[derive(Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    /// Idle blocks: indexed, referenced by nobody.
    idle: IdleList,
    /// Those among them that their holder had passed: blocks of a window that moved on, which few will ask for.
    passed: IdleList,
}

/// Oldest first; an intrusive list, so that a prefix hit takes a block out of the middle in constant time.
#[derive(Clone, Debug)]
struct IdleList {
    oldest: u32,
    newest: u32,
    n: usize,
}

impl IdleList {
    const EMPTY: Self = Self { oldest: NONE, newest: NONE, n: 0 };
}

#[derive(Clone, Debug)]
struct Slot {
    n_refs: u32,
    is_indexed: bool,
    /// Its last holder had passed it.
    is_passed: bool,
    older: u32,
    newer: u32,
}

/// A block handed out by [`BlockPool::take`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Taken {
    pub block: BlockId,
    pub provenance: Provenance,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Provenance {
    Free,
    /// The block held an indexed prefix until now: the index must forget it.
    Evicted,
}

impl BlockPool {
    pub fn new(n_blocks: usize) -> Self {
        let n_blocks = n_blocks.min(NONE as usize);
        let slot = Slot { n_refs: 0, is_indexed: false, is_passed: false, older: NONE, newer: NONE };
        Self {
            slots: vec![slot; n_blocks],
            // Popped from the back: low ids first.
            free: (0..n_blocks as u32).rev().map(BlockId).collect(),
            idle: IdleList::EMPTY,
            passed: IdleList::EMPTY,
        }
    }

    pub fn n_blocks(&self) -> usize {
        self.slots.len()
    }

    /// Blocks that [`take`](Self::take) can hand out: free ones, and idle ones it may evict.
    pub fn n_available(&self) -> usize {
        self.free.len() + self.n_idle()
    }

    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    pub fn n_idle(&self) -> usize {
        self.idle.n + self.passed.n
    }

    pub fn n_refs(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].n_refs
    }

    pub fn is_indexed(&self, block: BlockId) -> bool {
        self.slots[block.0 as usize].is_indexed
    }

    /// A block with one reference and no index entry, or `None` when every block is held.
    pub fn take(&mut self) -> Option<Taken> {
        let taken = if let Some(block) = self.free.pop() {
            Taken { block, provenance: Provenance::Free }
        } else if let Some(block) = self.to_evict() {
            self.unlink(block);
            self.slots[block.0 as usize].is_indexed = false;
            Taken { block, provenance: Provenance::Evicted }
        } else {
            return None;
        };
        self.slots[taken.block.0 as usize].n_refs = 1;
        Some(taken)
    }

    /// The oldest idle block. What was passed goes first, as long as it is a quarter of all: a long text must not push out
    /// the ends of the others.
    fn to_evict(&self) -> Option<BlockId> {
        let is_passed = self.passed.n > 0 && PASSED_SHARE * self.passed.n >= self.n_idle();
        let oldest = if is_passed { self.passed.oldest } else { self.idle.oldest };
        (oldest != NONE).then_some(BlockId(oldest))
    }

    /// One more reference to a block that is held or idle: a prefix hit.
    pub fn share(&mut self, block: BlockId) {
        let slot = &self.slots[block.0 as usize];
        assert!(slot.n_refs > 0 || slot.is_indexed, "block {} is free and cannot be shared", block.0);
        if slot.n_refs == 0 {
            self.unlink(block);
        }
        self.slots[block.0 as usize].n_refs += 1;
    }

    /// One reference less. The last one leaves the block idle when it is indexed, free when it is not.
    pub fn release(&mut self, block: BlockId) {
        self.release_to(block, false);
    }

    /// As [`release`](Self::release), of a block that has become of little use to others.
    pub fn release_passed(&mut self, block: BlockId) {
        self.release_to(block, true);
    }

    /// Whether who held it last had passed it.
    pub fn is_passed(&self, block: BlockId) -> bool {
        self.slots[block.0 as usize].is_passed
    }

    fn release_to(&mut self, block: BlockId, is_passed: bool) {
        let slot = &mut self.slots[block.0 as usize];
        assert!(slot.n_refs > 0, "block {} was released more often than taken", block.0);
        slot.n_refs -= 1;
        if slot.n_refs > 0 {
            return;
        }
        slot.is_passed = is_passed;
        if slot.is_indexed { self.link_newest(block) } else { self.free.push(block) }
    }

    /// The index now knows this (held) block.
    pub fn mark_indexed(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        assert!(slot.n_refs > 0, "block {} is indexed while nobody holds it", block.0);
        slot.is_indexed = true;
    }

    /// The index has dropped this block; an idle one becomes free.
    pub fn unmark_indexed(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        assert!(slot.is_indexed, "block {} was not indexed", block.0);
        slot.is_indexed = false;
        if slot.n_refs == 0 {
            self.unlink(block);
            self.free.push(block);
        }
    }

    /// Indexed blocks that nobody holds and nobody passed, the one that was released last first.
    pub fn idle_blocks(&self) -> impl Iterator<Item = BlockId> {
        let mut at = self.idle.newest;
        std::iter::from_fn(move || {
            let block = (at != NONE).then_some(BlockId(at))?;
            at = self.slots[at as usize].older;
            Some(block)
        })
    }

    fn list_of(&mut self, block: BlockId) -> (&mut IdleList, &mut [Slot]) {
        let list = if self.slots[block.0 as usize].is_passed { &mut self.passed } else { &mut self.idle };
        (list, &mut self.slots)
    }

    fn link_newest(&mut self, block: BlockId) {
        let (list, slots) = self.list_of(block);
        let older = list.newest;
        let slot = &mut slots[block.0 as usize];
        (slot.older, slot.newer) = (older, NONE);
        match older {
            NONE => list.oldest = block.0,
            older => slots[older as usize].newer = block.0,
        }
        list.newest = block.0;
        list.n += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let (list, slots) = self.list_of(block);
        let Slot { older, newer, .. } = slots[block.0 as usize];
        match older {
            NONE => list.oldest = newer,
            older => slots[older as usize].newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => slots[newer as usize].older = older,
        }
        list.n -= 1;
    }

    /// Every block is in exactly one state, and the lists agree with the counts. Walks the whole pool: for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut is_free = vec![false; self.slots.len()];
        for block in &self.free {
            if std::mem::replace(&mut is_free[block.0 as usize], true) {
                return Err(format!("block {} is twice in the free list", block.0));
            }
        }
        let mut is_idle = vec![false; self.slots.len()];
        for (list, is_passed) in [(&self.idle, false), (&self.passed, true)] {
            let (mut at, mut n_idle) = (list.oldest, 0);
            while at != NONE {
                if std::mem::replace(&mut is_idle[at as usize], true) || self.slots[at as usize].is_passed != is_passed
                {
                    return Err(format!("block {at} is twice among the idle blocks, or in the wrong list"));
                }
                n_idle += 1;
                at = self.slots[at as usize].newer;
            }
            if n_idle != list.n {
                return Err(format!("{n_idle} idle blocks, counted as {}", list.n));
            }
        }
        for (idx, slot) in self.slots.iter().enumerate() {
            let expected = (slot.n_refs == 0 && !slot.is_indexed, slot.n_refs == 0 && slot.is_indexed);
            if (is_free[idx], is_idle[idx]) != expected {
                return Err(format!("block {idx}: {slot:?} but free {} idle {}", is_free[idx], is_idle[idx]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_idle_block_is_evicted_first_and_a_hit_saves_it() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<_> = (0..3).map(|_| pool.take().unwrap().block).collect();
        assert_eq!(pool.take(), None);
        for &block in &blocks {
            pool.mark_indexed(block);
            pool.release(block);
        }
        assert_eq!((pool.n_free(), pool.n_idle()), (0, 3));
        pool.share(blocks[0]);
        pool.check().unwrap();
        assert_eq!(pool.take(), Some(Taken { block: blocks[1], provenance: Provenance::Evicted }));
        pool.release(blocks[0]);
        assert_eq!(pool.take().unwrap().block, blocks[2]);
        assert_eq!(pool.take().unwrap().block, blocks[0]);
        assert_eq!(pool.n_available(), 0);
        pool.check().unwrap();
    }

    #[test]
    fn unindexed_blocks_go_back_to_the_free_list() {
        let mut pool = BlockPool::new(2);
        let a = pool.take().unwrap().block;
        pool.share(a);
        pool.release(a);
        assert_eq!((pool.n_refs(a), pool.n_free()), (1, 1));
        pool.mark_indexed(a);
        pool.release(a);
        assert_eq!(pool.n_idle(), 1);
        pool.unmark_indexed(a);
        assert_eq!((pool.n_idle(), pool.n_free()), (0, 2));
        pool.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_double_release_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let a = pool.take().unwrap().block;
        pool.release(a);
        pool.release(a);
    }

    #[test]
    fn what_was_passed_goes_first_but_for_a_quarter() {
        let mut pool = BlockPool::new(8);
        let blocks: Vec<_> = (0..8).map(|_| pool.take().unwrap().block).collect();
        blocks.iter().for_each(|&block| pool.mark_indexed(block));
        blocks[..4].iter().for_each(|&block| pool.release(block));
        blocks[4..].iter().for_each(|&block| pool.release_passed(block));
        pool.check().unwrap();
        // 4 of 8, 3 of 7 and 2 of 6 are a quarter or more; then an end goes, and 1 of 4 is a quarter again.
        let taken: Vec<_> = (0..8).map(|_| pool.take().unwrap().block.0).collect();
        assert_eq!(taken, [4, 5, 6, 0, 7, 1, 2, 3]);
        pool.check().unwrap();
    }
}
