//! Guessing the next tokens. A guess costs rows of a step and nothing else: each drafted token is compared with the one
//! that the sampler draws at its position, so a wrong drafter changes the speed but never the text.

use batch::{BlockId, Forward, TokenId};

use crate::{protocol::Sampling, sequence::SeqId};

/// Tokens that one sequence may have drafted in a step.
pub const MAX_DRAFT: usize = 16;

/// Proposes tokens for sequences. It lives on the engine's thread, between two steps.
pub trait Drafter: Send {
    /// A draft for each of these sequences, in the same order; an empty one where there is nothing to say. `model` is the
    /// one that they are drafted for.
    fn draft(&mut self, requests: &[DraftRequest], model: &mut dyn Forward) -> Vec<Draft>;

    /// Nothing will be asked about this sequence again.
    fn end(&mut self, seq: SeqId);

    /// Whether asking costs next to nothing. Such a drafter is asked before every step, also when its drafts are not
    /// used, and judged by what came instead.
    fn is_free(&self) -> bool;

    /// Whether it wants to [observe](Self::observe) what the model makes of tokens.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// The hidden states of a sequence's tokens from index `first` on, as the model computes them. Some may be left out, and
    /// some come again.
    fn observe(&mut self, _seq: SeqId, _first: usize, _hidden: &[f32]) {}
}

/// What a drafter is told about a sequence.
#[derive(Copy, Clone, Debug)]
pub struct DraftRequest<'a> {
    pub seq: SeqId,
    /// Prompt and answer so far.
    pub tokens: &'a [TokenId],
    pub n_prompt: usize,
    /// What the client expects the answer to be like; may be empty.
    pub prediction: &'a [TokenId],
    /// How the answer is sampled.
    pub sampling: &'a Sampling,
    /// No more than so many tokens are of use.
    pub max_len: usize,
    /// Where the model keeps what it has computed of the tokens: all but the last.
    pub blocks: &'a [BlockId],
    /// The same in the pool for layers with a window, as [`Batch::window_tables`](batch::Batch::window_tables) has it; empty
    /// where there is no such pool.
    pub window_blocks: &'a [BlockId],
}

/// Tokens that may come next.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub struct Draft {
    pub tokens: Vec<TokenId>,
    pub source: DraftSource,
}

/// What a draft rests on. Drafts of one kind are expected to be as good as those before.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DraftSource {
    /// So many tokens before it agree with a place in the text, which the draft copies.
    Match(usize),
    /// A model's guess.
    Model,
}

impl Default for DraftSource {
    fn default() -> Self {
        Self::Match(0)
    }
}
