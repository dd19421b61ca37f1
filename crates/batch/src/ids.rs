//! Ids are types of their own, so that a token can never be used as a block.

use serde::{Deserialize, Serialize};

/// An entry of the model's vocabulary.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Serialize, Deserialize)]
pub struct TokenId(pub u32);

/// A block of [`BLOCK_TOKENS`](crate::BLOCK_TOKENS) tokens in the KV pool.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct BlockId(pub u32);

/// What the pools of a model hold, and can be copied out and in again.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub enum CachePlace {
    /// Keys and values of a block, over all layers that keep theirs in the KV pool.
    Block(BlockId),
    /// Keys and values of a block of the pool for windows, over all its layers.
    Window(BlockId),
    /// The recurrent state in a slot, over all layers.
    State(StateId),
}

/// A slot of the pool of recurrent states.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct StateId(pub u32);
