//! What the engine needs from a model: its limits, and steps. The model may be in this process, in a worker process, or
//! spread over several devices; the engine's loop sees no difference.
//!
//! A step has two phases, so that the host can prepare the next one while a device works: `submit` queues it, and
//! `wait` returns its rows. If the host is the device, `submit` does the work.

use crate::{AdapterId, AdapterSource, Attention, BLOCK_TOKENS, Batch, CachePlace, TokenId};
use serde::{Deserialize, Serialize};

/// Why a step failed.
pub type StepError = Box<dyn std::error::Error + Send + Sync>;

/// Runs steps. A failed step leaves the model usable, unless [`fault`](Self::fault) says otherwise: the engine fails
/// the requests in it and continues.
pub trait Forward: Send {
    /// What a step may hold.
    fn capacity(&self) -> Capacity;

    /// Slots of its pool of recurrent states; 0 for a model that keeps nothing but keys and values. A sequence in a
    /// batch needs one.
    fn n_states(&self) -> usize {
        0
    }

    /// The pool for its layers that look back only so far, where they have one of their own. A batch has
    /// [tables](Batch::window_tables) of both pools then.
    fn windows(&self) -> Option<WindowLimits> {
        None
    }

    /// Steps that may be submitted before the oldest is waited for. More than one means that a batch may hold
    /// [fed rows](Batch::fed).
    fn max_in_flight(&self) -> usize {
        1
    }

    /// Whether a batch may carry choices, which are answered with tokens instead of logits.
    fn chooses(&self) -> bool {
        false
    }

    /// Whether a batch may leave its choices to [`choose`](Self::choose).
    fn chooses_later(&self) -> bool {
        false
    }

    /// Whether the bits of a row depend on nothing but the row and its context, whatever else is in the batch.
    fn is_row_invariant(&self) -> bool {
        false
    }

    /// Adapters that may be ready at once; 0: it takes none.
    fn max_adapters(&self) -> usize {
        0
    }

    /// Makes an adapter ready for the steps from now on. Where there is no room, one that is not `in_use` makes way.
    fn load_adapter(&mut self, _adapter: &AdapterSource, _in_use: &[AdapterId]) -> Result<(), StepError> {
        Err("this model was loaded without room for adapters".into())
    }

    /// Bytes that a block, and a recurrent state, take when they are copied out; 0 where that cannot be done.
    fn cache_bytes(&self) -> CacheBytes {
        CacheBytes::default()
    }

    /// Queues a copy of what is in these places after the steps submitted so far. Steps that are submitted later may
    /// overwrite them.
    fn copy_out(&mut self, _places: &[CachePlace]) -> Result<CopyTicket, StepError> {
        Err("this model's cache cannot be copied".into())
    }

    /// What a copy holds, a piece for each place. Copies are asked for in the order they were queued.
    fn copied(&mut self, _ticket: CopyTicket) -> Result<Vec<Vec<u8>>, StepError> {
        Err("this model's cache cannot be copied".into())
    }

    /// Puts what was once copied out into these places, for the steps submitted from now on.
    fn copy_in(&mut self, _pieces: &[(CachePlace, &[u8])]) -> Result<(), StepError> {
        Err("this model's cache cannot be copied".into())
    }

    /// Queues a step. The batch may be changed as soon as this returns.
    fn submit(&mut self, batch: &Batch) -> Result<Ticket, StepError>;

    /// Chooses the tokens of the step that was submitted last, if its batch [leaves them](Batch::chooses_later) to be chosen
    /// later. `batch` is the same once more, now with all adjustments. Of the first `n_unchosen` choices the logits are
    /// given too, behind the others; their tokens mean nothing.
    fn choose(&mut self, _ticket: &Ticket, _batch: &Batch, _n_unchosen: usize) -> Result<(), StepError> {
        Err("this model chooses tokens at once".into())
    }

    /// What a step gave. Steps are waited for in the order they were submitted.
    fn wait(&mut self, ticket: Ticket) -> Result<Rows<'_>, StepError>;

    /// Rows that one step of a drafter takes that reads this model's keys and values; 0 where it has none.
    fn max_draft_rows(&self) -> usize {
        0
    }

    /// Runs a step of that drafter, behind the steps submitted so far. Each row is the last token of a sequence, with the
    /// [hidden state](Batch::hidden) and at the position of the token before, which is the last that this model has computed.
    /// `Rows::hidden` is what the token that comes next would be read with, at the same position.
    fn draft(&mut self, _batch: &Batch) -> Result<Rows<'_>, StepError> {
        Err("no drafter reads this model's keys and values".into())
    }

    /// Why no step will ever work again (a device that hangs or faulted). The engine then fails every request and ends.
    fn fault(&self) -> Option<String> {
        None
    }

    /// How it makes vectors of texts.
    fn embeds(&self) -> Embeds {
        Embeds { attention: Attention::Causal, pooling: Pooling::Mean, head: None }
    }

    /// The output of a reranker's head for the pooled hidden states.
    fn score(&self, _pooled: &[f32]) -> Option<Vec<f32>> {
        None
    }

    /// The vector of a text from its pooled hidden states, where the model has layers of its own for that.
    fn project(&self, _pooled: &[f32]) -> Option<Vec<f32>> {
        None
    }
}

/// A submitted step, to be waited for once.
#[derive(Debug)]
#[must_use = "a step that is not waited for holds up the ones after it"]
pub struct Ticket(pub u64);

/// A queued copy, to be asked for once.
#[derive(Debug)]
#[must_use = "a copy that is not asked for keeps its memory"]
pub struct CopyTicket(pub u64);

/// What copies out of a model's pools take.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct CacheBytes {
    /// Keys and values of one block.
    pub block: usize,
    /// Those of one block of the layers with a window, where these have a pool of their own.
    pub window: usize,
    /// The recurrent state of one sequence.
    pub state: usize,
}

/// A pool of blocks for the layers that look back only so far.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct WindowLimits {
    /// Tokens that a row of these layers sees, itself included.
    pub n_tokens: usize,
    /// Blocks of the pool.
    pub n_blocks: usize,
}

impl CacheBytes {
    /// Of this place.
    pub fn of(&self, place: CachePlace) -> usize {
        match place {
            CachePlace::Block(_) => self.block,
            CachePlace::Window(_) => self.window,
            CachePlace::State(_) => self.state,
        }
    }
}

/// How a model was trained to make a vector of a text.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct Embeds {
    /// Which tokens a token sees.
    pub attention: Attention,
    /// Which hidden states make up the vector.
    pub pooling: Pooling,
    /// Which hidden states its head reads, where it has one to score texts with: [`Pooling::Score`].
    pub head: Option<PooledStates>,
}

/// Hidden states of a text that become one.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum PooledStates {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// Which final hidden states make up the vector of a text.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum Pooling {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
    /// Not a vector but the output of a reranker's head: one score, or one per class. The tokens from `n_first` on
    /// are the second text of a pair, for models that tell them apart.
    Score {
        /// Tokens of the first text.
        n_first: usize,
        /// What the head reads.
        states: PooledStates,
    },
}

impl Pooling {
    /// Which hidden states are wanted for it.
    pub fn states(self) -> PooledStates {
        match self {
            Self::First => PooledStates::First,
            Self::Last => PooledStates::Last,
            Self::Mean => PooledStates::Mean,
            Self::Score { states, .. } => states,
        }
    }
}

/// What a step may hold, fixed when the model was loaded.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Capacity {
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Tokens of the longest context.
    pub n_ctx: usize,
    /// Blocks of the KV pool.
    pub n_blocks: usize,
    /// Rows of one step.
    pub max_batch_tokens: usize,
    /// Rows whose logits, and rows whose hidden states, one step may ask for.
    pub max_output_rows: usize,
}

impl Capacity {
    /// Tokens that the KV pool holds.
    pub fn n_pool_tokens(&self) -> usize {
        self.n_blocks.saturating_mul(BLOCK_TOKENS)
    }
}

/// What a step gave, borrowed from the model's own memory.
#[derive(Clone, Debug, Default)]
pub struct Rows<'a> {
    /// `[n, n_vocab]`: the rows of [`Batch::logits_rows`] that have no choice.
    pub logits: &'a [f32],
    /// One for each of [`Batch::choices`]; `None` where the logits were not numbers.
    pub chosen: Vec<Option<TokenId>>,
    /// One for each choice, where [`Batch::described`] asks for any.
    pub described: Vec<Option<Described>>,
    /// `[pool_rows, n_embd]`, after the last norm.
    pub hidden: &'a [f32],
}

/// Natural logarithms of the probabilities that the model itself gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Described {
    /// Of the chosen token.
    pub logprob: f32,
    /// The best tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}
