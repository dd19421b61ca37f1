//! A sequence as the scheduler sees it: tokens, how many of them the model has computed, and the blocks that hold
//! them. There is no state for "prefill" or "decode": computed tokens catch up with tokens, and that is all.

use batch::{AdapterId, Attention, BLOCK_TOKENS, BlockId, PooledStates, StateId, TokenId};

use crate::{prefix::Chain, protocol::Pooling, scheduler::Arrival, windows::WindowTable};

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

/// A recurrent state is kept at least so often while an answer grows by drafts: they do not reach beyond such a boundary.
pub const DRAFT_BORDER: usize = 4 * BLOCK_TOKENS;

/// Recurrent states of a long prompt are kept every so many tokens.
pub const CHECKPOINT_TOKENS: usize = 32 * BLOCK_TOKENS;

#[derive(Debug)]
pub struct Sequence {
    pub id: SeqId,
    pub rank: Rank,
    /// Its group's place in virtual time, without the priority.
    pub turn: i64,
    pub tokens: Vec<TokenId>,
    pub n_prompt: usize,
    /// Tokens that steps under way will add to `tokens`.
    pub n_pending: usize,
    /// Where the latest of those tokens will be, if a step can take it from there: which of the choices of the step
    /// that was submitted last.
    pub fed_by: Option<u32>,
    /// With so many tokens it is complete, whatever they are.
    pub max_len: usize,
    /// Tokens whose keys and values are in `blocks` once every step under way is done.
    pub n_computed: usize,
    pub blocks: Vec<BlockId>,
    /// What it holds of the pool for layers with a window, where there is one.
    pub windows: WindowTable,
    /// Blocks that it began with, found in the pool or elsewhere.
    pub n_found: usize,
    /// Tokens that may come next, until a step has shown which of them do.
    pub draft: Vec<TokenId>,
    /// Known tokens beside the last one that have to be computed again, since wrong drafts came after them: a recurrent
    /// state is taken back to where it was before the step.
    pub n_again: usize,
    pub wanted: Wanted,
    pub attention: Attention,
    /// Its keys and values are this adapter's.
    pub adapter: Option<AdapterId>,
    /// How far the blocks are known to the prefix index.
    pub chain: Chain,
    /// Prompt tokens found in the prefix index when the sequence first ran; `None` before that.
    pub n_cached_prompt: Option<usize>,
    pub n_preemptions: usize,
    /// Where the model keeps its recurrent state, while it runs.
    pub state: Option<StateId>,
    /// Of a step with drafts under way: where it leaves its state, which is the sequence's if all of them are right.
    pub draft_state: Option<DraftState>,
    /// The block whose checkpoint it starts from, and that checkpoint, until its first step is submitted.
    pub starts_from: Option<(BlockId, StateId)>,
    /// What is copied into its blocks before it computes.
    pub restore: Option<Restore>,
    /// The block of its latest checkpoint among the generated tokens: the next one replaces it.
    pub rolling: Option<BlockId>,
}

/// The slots that a step with drafts writes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DraftState {
    pub state: StateId,
    /// A copy for later sequences, where the drafts end with a block.
    pub checkpoint: Option<StateId>,
}

/// What of a sequence is found outside the pool.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Restore {
    /// Blocks that are in place when it is done, those that were in the pool included.
    pub n_blocks: usize,
    /// Whether the recurrent state at their end comes from outside too.
    pub has_state: bool,
}

/// What is wanted from the model.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Wanted {
    /// Logits after the last token.
    Logits,
    /// Logits after the token of this index and after every later one: a prompt is scored, or an earlier engine's
    /// choices are looked at again.
    LogitsFrom(usize),
    /// Hidden states of these tokens.
    Hidden(Pooling),
}

impl Wanted {
    /// Whether something is wanted of every token.
    pub fn is_every_row(self) -> bool {
        match self {
            Self::Logits => false,
            Self::LogitsFrom(_) => true,
            Self::Hidden(pooling) => pooling.states() == PooledStates::Mean,
        }
    }
}

impl Sequence {
    /// As it arrives: nothing computed, no block held.
    pub fn unscheduled(arrival: Arrival) -> Self {
        let Arrival { id, tokens, n_prompt, max_len, priority: _, group: _, wanted, attention, adapter } = arrival;
        Self {
            id,
            rank: Rank { virtual_turn: 0, id },
            turn: 0,
            tokens,
            n_prompt,
            n_pending: 0,
            fed_by: None,
            max_len,
            n_computed: 0,
            blocks: Vec::new(),
            windows: WindowTable::default(),
            n_found: 0,
            draft: Vec::new(),
            n_again: 0,
            wanted,
            attention,
            adapter,
            chain: Chain::root(adapter),
            n_cached_prompt: None,
            n_preemptions: 0,
            state: None,
            draft_state: None,
            starts_from: None,
            restore: None,
            rolling: None,
        }
    }

    /// Whether its state is worth keeping when this many tokens are computed: at the last full block, where the next
    /// turn of a conversation starts, and from time to time in a long prompt, where others may branch off.
    pub fn is_checkpoint(&self, n_computed: usize) -> bool {
        let is_border = n_computed > 0 && n_computed.is_multiple_of(BLOCK_TOKENS);
        is_border && (n_computed + BLOCK_TOKENS >= self.n_tokens() || n_computed.is_multiple_of(CHECKPOINT_TOKENS))
    }

    /// Tokens up to the next checkpoint, if it has another.
    pub fn n_to_checkpoint(&self) -> usize {
        let last = self.n_tokens().saturating_sub(1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let next = (self.n_computed / CHECKPOINT_TOKENS + 1) * CHECKPOINT_TOKENS;
        let border = if self.n_computed < last { next.min(last) } else { next };
        border - self.n_computed
    }

    /// Known tokens and those under way.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len() + self.n_pending
    }

    pub fn n_remaining(&self) -> usize {
        self.n_tokens() - self.n_computed
    }

    /// Whether it generates: what it lacks is its last token, and what is computed again.
    pub fn lacks_one(&self) -> bool {
        self.n_remaining() == 1 + self.n_again
    }

    /// Whether its remaining tokens can be computed now: all are known, or the last will be where the device finds it.
    /// One that the token under way completes is done.
    pub fn is_ready(&self) -> bool {
        self.restore.is_none() && self.has_all_tokens()
    }

    fn has_all_tokens(&self) -> bool {
        self.n_pending == 0 || self.n_pending == 1 && self.fed_by.is_some() && self.n_tokens() < self.max_len
    }

    /// Whether blocks of known tokens will be published soon: it is still behind, or a step of it is under way.
    pub fn is_filling_blocks(&self) -> bool {
        !self.lacks_one() || self.n_pending > 0
    }

    /// Blocks that `n_tokens` tokens of this sequence need.
    pub fn blocks_for(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }

    /// Leading blocks a prefix hit may supply. The last token is always computed, because its logits are wanted, and it
    /// is computed into a block of its own, because others may read the shared one.
    pub fn max_reused_blocks(&self) -> usize {
        match (self.wanted, self.attention) {
            (Wanted::Hidden(pooling), _) if pooling.states() != PooledStates::Last => 0,
            (Wanted::Logits | Wanted::Hidden(_), Attention::Causal) => {
                self.tokens.len().saturating_sub(1) / BLOCK_TOKENS
            }
            (Wanted::LogitsFrom(first), Attention::Causal) => first / BLOCK_TOKENS,
            _ => 0,
        }
    }

    /// Rows of output that computing `n_tokens` more would take.
    pub fn n_output_rows(&self, n_tokens: usize) -> usize {
        if self.wanted.is_every_row() { n_tokens } else { 1 }
    }
}
