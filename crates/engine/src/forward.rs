//! What the engine asks of a model: its limits, and one step. A model in this process, one in a worker process and one
//! spread over several devices all fit behind it; the loop sees no difference.

use model::{Attention, BLOCK_TOKENS, Batch, Limits, Model, TokenId};

use crate::protocol::Pooling;

/// Runs one step. A failed step leaves the model usable, unless [`fault`](Self::fault) says otherwise: the engine fails
/// the requests in it and goes on.
pub trait Forward: Send {
    fn capacity(&self) -> Capacity;

    /// Whether a batch may carry choices, which are answered with tokens instead of logits.
    fn chooses(&self) -> bool {
        false
    }

    fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Box<dyn std::error::Error + Send + Sync>>;

    /// Why no step will ever work again (a device that hangs or faulted). The engine then fails every request and ends.
    fn fault(&self) -> Option<String> {
        None
    }

    /// How it makes vectors of texts.
    fn embeds(&self) -> Embeds {
        Embeds { attention: Attention::Causal, pooling: Pooling::Mean, has_head: false }
    }

    /// What a reranker's head makes of the hidden state of the first token.
    fn score(&self, _hidden: &[f32]) -> Option<Vec<f32>> {
        None
    }
}

/// How a model was trained to make a vector of a text.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Embeds {
    pub attention: Attention,
    pub pooling: Pooling,
    /// Whether it can score texts, [`Pooling::Score`].
    pub has_head: bool,
}

/// What a step may hold, fixed when the model was loaded.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Capacity {
    pub n_vocab: usize,
    pub n_ctx: usize,
    pub n_blocks: usize,
    pub max_batch_tokens: usize,
    /// Rows whose logits, and rows whose hidden states, one step may ask for.
    pub max_output_rows: usize,
}

/// What a step gave back, borrowed from the model's own memory.
#[derive(Clone, Debug, Default)]
pub struct Rows<'a> {
    /// `[logits_rows, n_vocab]`; empty where tokens were chosen.
    pub logits: &'a [f32],
    /// `[logits_rows]`, where the batch carried choices; `NOT_NUMBERS` where the logits were not numbers.
    pub chosen: Vec<TokenId>,
    /// `[pool_rows, n_embd]`
    pub hidden: &'a [f32],
}

impl Capacity {
    pub fn n_pool_tokens(&self) -> usize {
        self.n_blocks.saturating_mul(BLOCK_TOKENS)
    }
}

impl Forward for Model {
    fn capacity(&self) -> Capacity {
        let Limits { n_vocab, n_blocks, max_batch_tokens, max_logits_rows } = self.limits();
        let n_ctx = self.config().n_ctx_train;
        Capacity { n_vocab, n_ctx, n_blocks, max_batch_tokens, max_output_rows: max_logits_rows }
    }

    fn chooses(&self) -> bool {
        Model::chooses(self)
    }

    fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Box<dyn std::error::Error + Send + Sync>> {
        let output = Model::forward(self, batch)?;
        let chosen = (0..batch.choices.len()).filter_map(|row_idx| output.token(row_idx)).collect();
        Ok(Rows { logits: output.logits, hidden: output.hidden, chosen })
    }

    fn embeds(&self) -> Embeds {
        let config = self.config();
        let attention = if config.is_encoder() { Attention::Full } else { Attention::Causal };
        let pooling = match config.pooling {
            Some(model::Pooling::First) => Pooling::First,
            Some(model::Pooling::Last) => Pooling::Last,
            Some(model::Pooling::Mean) | None => Pooling::Mean,
        };
        Embeds { attention, pooling, has_head: self.has_head() }
    }

    fn score(&self, hidden: &[f32]) -> Option<Vec<f32>> {
        Model::score(self, hidden)
    }

    fn fault(&self) -> Option<String> {
        Model::fault(self)
    }
}
