//! The prefix index: from the hash of a full block, chained with the hashes of all blocks before it, to the KV block
//! that holds it. The hash only finds an entry; the entry's tokens and its parent entry are compared as well, so a
//! collision costs a miss but never gives a wrong prefix. The pool decides who owns blocks.

use std::collections::HashMap;

use batch::{AdapterId, BLOCK_TOKENS, BlockId, TokenId};
use kept::{Entry, KeptKind, PrefixKey};

use crate::draw::mix;

#[derive(Debug)]
pub struct PrefixIndex {
    entries: HashMap<u64, CachedBlock>,
    /// The hash under which a block is indexed, by block id.
    hashes: Vec<Option<u64>>,
    next_serial: u64,
    hash_block: fn(u64, &[TokenId]) -> u64,
}

#[derive(Debug)]
struct CachedBlock {
    serial: u64,
    /// Serial of the entry of the block before. Serials are never used twice, so an equal serial means that the whole
    /// chain down to the first token was compared when that parent was registered.
    parent: u64,
    /// Its tokens, and how it is found once it has left the pool.
    entry: Entry,
    block: BlockId,
}

/// A place in the index: after which chain of full blocks the next one comes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Chain {
    hash: u64,
    serial: u64,
    n_blocks: usize,
    key: PrefixKey,
}

impl Chain {
    pub const ROOT: Self = Self { hash: 0, serial: 0, n_blocks: 0, key: PrefixKey::ROOT };

    /// Where the sequences of an adapter begin: its keys and values cannot be shared.
    pub fn root(adapter: Option<AdapterId>) -> Self {
        match adapter {
            // Serials of entries count up from 1 and never get this large.
            Some(AdapterId(id)) => {
                Self { hash: mix(id), serial: id | 1 << 63, n_blocks: 0, key: PrefixKey::root(adapter) }
            }
            None => Self::ROOT,
        }
    }

    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// What its last block is kept under.
    pub fn key(&self) -> PrefixKey {
        self.key
    }

    /// Of its last block and everything before it.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// What registering a block did.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Registered {
    /// The block is indexed now; `displaced` held an unreachable or colliding entry and is indexed no more.
    New { displaced: Option<BlockId> },
    /// The same prefix is indexed in another block already.
    Known(BlockId),
}

impl PrefixIndex {
    pub fn new(n_blocks: usize) -> Self {
        Self::with_hash(n_blocks, hash_block)
    }

    /// With another hash function; tests pass a bad one.
    pub fn with_hash(n_blocks: usize, hash_block: fn(u64, &[TokenId]) -> u64) -> Self {
        Self { entries: HashMap::new(), hashes: vec![None; n_blocks], next_serial: 1, hash_block }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The longest indexed prefix of `tokens`, in full blocks, and at most `max_blocks` of them.
    pub fn lookup(&self, tokens: &[TokenId], max_blocks: usize) -> (Vec<BlockId>, Chain) {
        self.lookup_after(Chain::ROOT, tokens, max_blocks)
    }

    /// As [`lookup`](Self::lookup), after another root.
    pub fn lookup_after(&self, root: Chain, tokens: &[TokenId], max_blocks: usize) -> (Vec<BlockId>, Chain) {
        let (mut blocks, mut chain) = (Vec::new(), root);
        for tokens in tokens.chunks_exact(BLOCK_TOKENS).take(max_blocks) {
            let hash = (self.hash_block)(chain.hash, tokens);
            let Some(entry) = self.entries.get(&hash).filter(|entry| entry.is(chain.serial, tokens)) else { break };
            blocks.push(entry.block);
            chain = Chain { hash, serial: entry.serial, n_blocks: chain.n_blocks + 1, key: entry.entry.name.key };
        }
        (blocks, chain)
    }

    /// Makes a computed full block known. Returns the chain that ends with it.
    pub fn register(&mut self, chain: Chain, tokens: &[TokenId], block: BlockId) -> (Registered, Chain) {
        let tokens: [TokenId; BLOCK_TOKENS] = tokens.try_into().expect("only full blocks are registered");
        let hash = (self.hash_block)(chain.hash, &tokens);
        let entry = Entry::after(chain.key, tokens, KeptKind::Block, chain.n_blocks + 1);
        let next = |serial| Chain { hash, serial, n_blocks: chain.n_blocks + 1, key: entry.name.key };
        if let Some(entry) = self.entries.get(&hash).filter(|entry| entry.is(chain.serial, &tokens)) {
            return (Registered::Known(entry.block), next(entry.serial));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let displaced = self.entries.insert(hash, CachedBlock { serial, parent: chain.serial, entry, block });
        if let Some(entry) = &displaced {
            self.hashes[entry.block.0 as usize] = None;
        }
        self.hashes[block.0 as usize] = Some(hash);
        (Registered::New { displaced: displaced.map(|entry| entry.block) }, next(serial))
    }

    /// The pool has given this block to someone else. Says under which hash it was known, and what it was.
    pub fn forget(&mut self, block: BlockId) -> Option<(u64, Entry)> {
        let hash = self.hashes[block.0 as usize].take()?;
        self.entries.remove(&hash).map(|cached| (hash, cached.entry))
    }

    /// What an indexed block is.
    pub fn entry(&self, block: BlockId) -> Option<Entry> {
        let hash = self.hashes[block.0 as usize]?;
        self.entries.get(&hash).map(|cached| cached.entry)
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.hashes[block.0 as usize].is_some()
    }
}

impl CachedBlock {
    fn is(&self, parent: u64, tokens: &[TokenId]) -> bool {
        self.parent == parent && self.entry.tokens == *tokens
    }
}

fn hash_block(parent: u64, tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(mix(parent ^ 0x517c_c1b7_2722_0a95), |hash, token| mix(hash ^ u64::from(token.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(seed: u32, n_blocks: usize) -> Vec<TokenId> {
        (0..(n_blocks * BLOCK_TOKENS) as u32).map(|i| TokenId(seed * 1000 + i)).collect()
    }

    fn register_all(index: &mut PrefixIndex, tokens: &[TokenId], first_block: u32) -> Vec<Registered> {
        let mut chain = Chain::ROOT;
        let blocks = tokens.chunks_exact(BLOCK_TOKENS).enumerate();
        blocks
            .map(|(i, tokens)| {
                let registered;
                (registered, chain) = index.register(chain, tokens, BlockId(first_block + i as u32));
                registered
            })
            .collect()
    }

    #[test]
    fn the_longest_full_prefix_is_found() {
        let mut index = PrefixIndex::new(16);
        let a = tokens(1, 3);
        register_all(&mut index, &a, 0);
        let check = |tokens: &[TokenId], max, expected: &[u32]| {
            let (blocks, chain) = index.lookup(tokens, max);
            assert_eq!(blocks.iter().map(|b| b.0).collect::<Vec<_>>(), expected);
            assert_eq!(chain.n_blocks(), expected.len());
        };
        check(&a, 9, &[0, 1, 2]);
        check(&a, 2, &[0, 1]);
        check(&a[..40], 9, &[0, 1]);
        check(&a[..15], 9, &[]);
        check(&a[16..], 9, &[]);
        let mut b = a.clone();
        b[20] = TokenId(7);
        check(&b, 9, &[0]);
    }

    #[test]
    fn adapters_do_not_share_prefixes() {
        let mut index = PrefixIndex::new(16);
        let a = tokens(1, 2);
        register_all(&mut index, &a, 0);
        let roots = [1, 2].map(|id| Chain::root(Some(AdapterId(id))));
        assert_eq!(index.lookup_after(roots[0], &a, 9).0, []);
        let (_, chain) = index.register(roots[0], &a[..BLOCK_TOKENS], BlockId(4));
        index.register(chain, &a[BLOCK_TOKENS..], BlockId(5));
        assert_eq!(index.lookup_after(roots[0], &a, 9).0, [BlockId(4), BlockId(5)]);
        assert_eq!(index.lookup_after(roots[1], &a, 9).0, []);
        assert_eq!(index.lookup(&a, 9).0, [BlockId(0), BlockId(1)]);
    }

    #[test]
    fn the_same_prefix_twice_keeps_the_first_block() {
        let mut index = PrefixIndex::new(16);
        let a = tokens(1, 2);
        register_all(&mut index, &a, 0);
        let again = register_all(&mut index, &a, 5);
        assert_eq!(again, [Registered::Known(BlockId(0)), Registered::Known(BlockId(1))]);
        assert_eq!(index.len(), 2);
    }

    #[test]
    fn a_block_after_a_forgotten_one_is_unreachable_until_registered_again() {
        let mut index = PrefixIndex::new(16);
        let a = tokens(1, 2);
        register_all(&mut index, &a, 0);
        index.forget(BlockId(0));
        assert_eq!(index.lookup(&a, 9).0, []);
        let again = register_all(&mut index, &a, 5);
        assert_eq!(again[1], Registered::New { displaced: Some(BlockId(1)) });
        assert_eq!(index.lookup(&a, 9).0, [BlockId(5), BlockId(6)]);
        assert!(!index.contains(BlockId(1)));
    }

    #[test]
    fn a_hash_that_always_collides_never_gives_a_wrong_prefix() {
        let mut index = PrefixIndex::with_hash(16, |_, _| 42);
        let (a, b) = (tokens(1, 2), tokens(2, 2));
        register_all(&mut index, &a[..16], 0);
        assert_eq!(index.lookup(&a, 9).0, [BlockId(0)]);
        assert_eq!(index.lookup(&b, 9).0, []);
        assert_eq!(register_all(&mut index, &b[..16], 3), [Registered::New { displaced: Some(BlockId(0)) }]);
        assert_eq!(index.lookup(&a, 9).0, []);
        // The second block of `b` displaces the first: a chain whose parent is gone is not found.
        register_all(&mut index, &b, 3);
        assert_eq!(index.lookup(&b, 9).0, []);
    }
}
