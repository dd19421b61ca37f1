//! A sequence as the scheduler sees it: tokens, how many of them the model has computed, and the blocks that hold
//! them. There is no state for "prefill" or "decode": computed tokens catch up with tokens, and that is all.

use model::{Attention, BLOCK_TOKENS, BlockId, TokenId};

use crate::{prefix::Chain, protocol::Pooling, scheduler::Arrival};

/// The engine's own name for a request, in order of arrival; never used twice.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct SeqId(pub u64);

/// Who goes first: the smaller rank. Fixed at arrival, so that the order of two sequences never changes and the first
/// of all always makes progress.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub struct Rank {
    /// The turn given at arrival, less the turns the priority is worth.
    pub virtual_turn: i64,
    pub id: SeqId,
}

#[derive(Debug)]
pub struct Sequence {
    pub id: SeqId,
    pub rank: Rank,
    /// Its group's place in virtual time, without the priority.
    pub turn: i64,
    pub tokens: Vec<TokenId>,
    pub n_prompt: usize,
    /// Tokens whose keys and values are in `blocks`.
    pub n_computed: usize,
    pub blocks: Vec<BlockId>,
    pub output: Output,
    pub attention: Attention,
    /// How far the blocks are known to the prefix index.
    pub chain: Chain,
    /// Prompt tokens found in the prefix index when the sequence first ran; `None` before that.
    pub n_cached_prompt: Option<usize>,
    pub n_preemptions: usize,
}

/// What is wanted from the model.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Output {
    /// Logits after the last token.
    Logits,
    /// Logits after the token of this index and after every later one: a prompt is scored, or an earlier engine's
    /// choices are looked at again.
    LogitsFrom(usize),
    /// Hidden states of these tokens.
    Hidden(Pooling),
}

impl Sequence {
    /// As it arrives: nothing computed, no block held.
    pub fn unscheduled(arrival: Arrival) -> Self {
        let Arrival { id, tokens, n_prompt, priority: _, group: _, output, attention } = arrival;
        Self {
            id,
            rank: Rank { virtual_turn: 0, id },
            turn: 0,
            tokens,
            n_prompt,
            n_computed: 0,
            blocks: Vec::new(),
            output,
            attention,
            chain: Chain::ROOT,
            n_cached_prompt: None,
            n_preemptions: 0,
        }
    }

    pub fn n_remaining(&self) -> usize {
        self.tokens.len() - self.n_computed
    }

    /// Blocks that `n_tokens` tokens of this sequence need.
    pub fn blocks_for(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }

    /// Leading blocks a prefix hit may supply. The last token is always computed, because its logits are wanted, and it
    /// is computed into a block of its own, because others may read the shared one.
    pub fn max_reused_blocks(&self) -> usize {
        match (self.output, self.attention) {
            (Output::Logits | Output::Hidden(Pooling::Last), Attention::Causal) => {
                self.tokens.len().saturating_sub(1) / BLOCK_TOKENS
            }
            (Output::LogitsFrom(first), Attention::Causal) => first / BLOCK_TOKENS,
            _ => 0,
        }
    }

    /// Rows of output that computing `n_tokens` more would take.
    pub fn n_output_rows(&self, n_tokens: usize) -> usize {
        match self.output {
            Output::Hidden(Pooling::Mean) | Output::LogitsFrom(_) => n_tokens,
            _ => 1,
        }
    }
}
