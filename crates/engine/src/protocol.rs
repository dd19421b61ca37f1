//! The engine's inputs and outputs as plain data: no channel, no reference, no closure, so that the same values can
//! cross a process boundary. [`Submit`] has everything that a sequence needs to continue elsewhere: randomness is a
//! function of (seed, position), and penalties and masks are rebuilt from the tokens.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use batch::{AdapterId, AdapterSource, Attention, TokenId};
pub use batch::{PooledStates, Pooling};
pub use kept::SessionFile;

pub use crate::sampling::{Dry, Mirostat, Sampling, Stage, Xtc};

/// The caller's name for a request. Two requests in flight may not share one.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    Submit(Submit),
    Embed(VectorRequest),
    Cancel(RequestId),
    Stats,
    /// Ends every request in flight with [`FinishReason::Cancelled`], then the engine's thread.
    Shutdown,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Submit {
    pub id: RequestId,
    pub prompt: Vec<TokenId>,
    /// Tokens an earlier engine made for this request; generation continues after them as it would have there.
    pub generated: Vec<TokenId>,
    pub sampling: Sampling,
    /// Counts the tokens in `generated` too.
    pub max_tokens: usize,
    /// Generation ends after one of these; the stop token itself is sent as the last [`Event::Token`].
    pub stop_tokens: Vec<TokenId>,
    /// `Some(n)`: report the log-probability of each token and of the n most probable ones.
    pub logprobs: Option<usize>,
    /// Report the prompt's tokens as [`Submit::logprobs`] asks, in one [`Event::Prompt`] before the first token; with
    /// `max_tokens` 0 nothing else is computed. Such a prompt is not taken from the prefix index.
    pub prompt_logprobs: bool,
    /// Report how much of the prompt is computed, in an [`Event::Progress`] after each step but the last.
    pub progress: bool,
    /// Higher goes first. One point is worth [`AGING_TURNS`](crate::scheduler::AGING_TURNS) turns.
    pub priority: i32,
    /// Requests of one group (a user, a key) take turns with those of other groups.
    pub group: u64,
    /// Handed to the mask factory as it is.
    pub constraint: Option<String>,
    /// What changes the model for this request.
    pub adapter: Option<AdapterSource>,
    /// Tokens that may be drafted for one step, where the engine speculates; `None` leaves it to the engine, 0 is never.
    pub max_draft: Option<usize>,
    /// A text that the answer is expected to be like: what is looked up for drafts first.
    pub prediction: Vec<TokenId>,
    /// Where the context of the prompt is written, as far as it is in the pool, before anything is computed. With
    /// `max_tokens` 0 that is all.
    pub session: Option<SessionFile>,
}

impl Submit {
    /// A greedy request with defaults for the rest.
    pub fn new(id: RequestId, prompt: Vec<TokenId>, max_tokens: usize) -> Self {
        Self {
            id,
            prompt,
            generated: Vec::new(),
            sampling: Sampling::default(),
            max_tokens,
            stop_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: false,
            progress: false,
            priority: 0,
            group: 0,
            constraint: None,
            adapter: None,
            max_draft: None,
            prediction: Vec::new(),
            session: None,
        }
    }
}

/// A request for one vector instead of tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VectorRequest {
    pub id: RequestId,
    pub tokens: Vec<TokenId>,
    pub pooling: Pooling,
    /// `Full` for encoders; such a request runs in one step and must fit one batch.
    pub attention: Attention,
    pub normalize: Normalize,
    pub priority: i32,
    pub group: u64,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum Normalize {
    None,
    /// To Euclidean length 1.
    Unit,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event {
    Token {
        id: RequestId,
        /// Counts all generated tokens, those of an earlier engine included.
        index: usize,
        token: TokenId,
        /// Natural logarithm of the probability the model gave this token, before penalties, bias, mask and
        /// truncation. NaN unless [`Submit::logprobs`] asked for it.
        logprob: f32,
        /// The most probable tokens by the same measure, best first.
        top: Vec<(TokenId, f32)>,
    },
    /// So many of the prompt's tokens are computed, or were in the prefix index.
    Progress {
        id: RequestId,
        n_computed: usize,
        n_prompt: usize,
    },
    /// The prompt's tokens from the second on: nothing comes before the first.
    Prompt {
        id: RequestId,
        tokens: Vec<Scored>,
    },
    Vector {
        id: RequestId,
        vector: Vec<f32>,
        usage: Usage,
    },
    Finished {
        id: RequestId,
        reason: FinishReason,
        usage: Usage,
    },
    Failed {
        id: RequestId,
        kind: FailureKind,
        error: String,
    },
    Stats(Box<Stats>),
}

impl Event {
    /// No further event of the same request follows.
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Token { .. } | Self::Progress { .. } | Self::Prompt { .. })
    }

    /// Of the request it belongs to.
    pub fn id(&self) -> Option<RequestId> {
        match self {
            Self::Token { id, .. }
            | Self::Progress { id, .. }
            | Self::Prompt { id, .. }
            | Self::Vector { id, .. }
            | Self::Finished { id, .. }
            | Self::Failed { id, .. } => Some(*id),
            Self::Stats(_) => None,
        }
    }

    pub(crate) fn set_id(&mut self, new: RequestId) {
        match self {
            Self::Token { id, .. }
            | Self::Progress { id, .. }
            | Self::Prompt { id, .. }
            | Self::Vector { id, .. }
            | Self::Finished { id, .. }
            | Self::Failed { id, .. } => *id = new,
            Self::Stats(_) => {}
        }
    }
}

/// A token that was given, with what [`Event::Token`] says of one that was chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scored {
    pub token: TokenId,
    pub logprob: f32,
    pub top: Vec<(TokenId, f32)>,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token was generated.
    Stop,
    /// `max_tokens` is reached.
    Length,
    /// The context, or the whole block pool, is full.
    Context,
    Cancelled,
}

/// What a caller can branch on; the text is in [`Event::Failed`].
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum FailureKind {
    /// The request itself is wrong.
    Request,
    /// The constraint could not be built, or allows no token.
    Constraint,
    /// The model gave logits or states that are not numbers.
    Numeric,
    /// The forward pass failed; the same request may work again.
    Forward,
}

#[derive(Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    pub n_prompt: usize,
    /// Prompt tokens that were not computed because their blocks were in the prefix index.
    pub n_cached_prompt: usize,
    /// Includes the tokens of an earlier engine.
    pub n_generated: usize,
    pub n_preemptions: usize,
    /// By the engine that ended it.
    pub drafted: Drafted,
    pub timings: Timings,
}

/// What speculation did. Drafted tokens change the speed of an answer and nothing else.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Drafted {
    /// Steps that had drafted tokens, counted for each sequence.
    pub n_drafts: u64,
    /// Tokens that were drafted.
    pub n_tokens: u64,
    /// Of those, tokens that became part of an answer.
    pub n_accepted: u64,
}

impl Drafted {
    /// Without what was there before.
    pub fn since(self, before: Self) -> Self {
        Self {
            n_drafts: self.n_drafts.saturating_sub(before.n_drafts),
            n_tokens: self.n_tokens.saturating_sub(before.n_tokens),
            n_accepted: self.n_accepted.saturating_sub(before.n_accepted),
        }
    }
}

impl std::ops::AddAssign for Drafted {
    fn add_assign(&mut self, other: Self) {
        self.n_drafts += other.n_drafts;
        self.n_tokens += other.n_tokens;
        self.n_accepted += other.n_accepted;
    }
}

#[derive(Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timings {
    /// From submission to the first step.
    pub queue: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// From submission to the first token.
    pub ttft: Duration,
}

/// Rows of a step, at most, for each count of [`Stats::n_steps_by_rows`] but the last.
pub const STEP_BOUNDS: [usize; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// The engine between two steps, and its counters since the start.
#[derive(Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    pub n_running: usize,
    /// Not yet started, and preempted.
    pub n_waiting: usize,
    pub n_blocks: usize,
    /// Blocks that a sequence holds.
    pub n_blocks_held: usize,
    /// Blocks that nobody holds and the prefix index still knows.
    pub n_blocks_cached: usize,
    /// Blocks of the pool for layers with a window, where these have one, and those of them that a sequence holds.
    pub n_window_blocks: usize,
    pub n_window_blocks_held: usize,
    pub n_steps: u64,
    pub n_preemptions: u64,
    /// Rows sent through the model.
    pub n_tokens_computed: u64,
    /// Tokens taken from the prefix index instead.
    pub n_tokens_cached: u64,
    pub n_tokens_generated: u64,
    /// Steps by their rows: as many as the first of [`STEP_BOUNDS`], the second and so on, and more than the last.
    pub n_steps_by_rows: [u64; STEP_BOUNDS.len() + 1],
    /// Adapters of running requests, and of waiting ones; each once.
    pub running_adapters: Vec<AdapterId>,
    pub waiting_adapters: Vec<AdapterId>,
    pub n_finished: u64,
    pub n_failed: u64,
    pub drafted: Drafted,
    pub masks: MaskWaits,
    /// Rows of logits that the model gave back, instead of choosing a token by itself.
    pub n_logits_read: u64,
    pub kept: Kept,
}

/// What steps had to do with masks that were not known when they were submitted.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MaskWaits {
    /// Rows whose mask was computed while the device computed the step.
    pub n_rows: u64,
    /// Of those, rows that the step went on without.
    pub n_late: u64,
    /// How long the engine waited for them.
    pub wait: Duration,
}

impl MaskWaits {
    /// Without what was there before.
    pub fn since(self, before: Self) -> Self {
        Self {
            n_rows: self.n_rows.saturating_sub(before.n_rows),
            n_late: self.n_late.saturating_sub(before.n_late),
            wait: self.wait.saturating_sub(before.wait),
        }
    }
}

impl std::ops::AddAssign for MaskWaits {
    fn add_assign(&mut self, other: Self) {
        self.n_rows += other.n_rows;
        self.n_late += other.n_late;
        self.wait += other.wait;
    }
}

impl Stats {
    /// Of the pool that is fuller: how much of it sequences hold, from 0 to 1.
    pub fn kv_used_ratio(&self) -> f64 {
        let ratio = |n_held: usize, n_blocks: usize| n_held as f64 / n_blocks.max(1) as f64;
        let windows = ratio(self.n_window_blocks_held, self.n_window_blocks);
        ratio(self.n_blocks_held, self.n_blocks).max(windows)
    }
}

/// What is kept outside the pool.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    pub sizes: kept::Sizes,
    pub counters: kept::StoreCounters,
}
