//! What the engine asks of a model: its limits, and one step. A model in this process, one in a worker process and one
//! spread over several devices all fit behind it; the loop sees no difference.

use model::{BLOCK_TOKENS, Batch, Limits, Model};

/// Runs one step. A failed step leaves the model usable, unless [`fault`](Self::fault) says otherwise: the engine fails
/// the requests in it and goes on.
pub trait Forward: Send {
    fn capacity(&self) -> Capacity;

    fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Box<dyn std::error::Error + Send + Sync>>;

    /// Why no step will ever work again (a device that hangs or faulted). The engine then fails every request and ends.
    fn fault(&self) -> Option<String> {
        None
    }
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
#[derive(Copy, Clone, Debug)]
pub struct Rows<'a> {
    /// `[logits_rows, n_vocab]`
    pub logits: &'a [f32],
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

    fn forward(&mut self, batch: &Batch) -> Result<Rows<'_>, Box<dyn std::error::Error + Send + Sync>> {
        let output = Model::forward(self, batch)?;
        Ok(Rows { logits: output.logits, hidden: output.hidden })
    }

    fn fault(&self) -> Option<String> {
        Model::fault(self)
    }
}
