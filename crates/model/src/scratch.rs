//! All activations, taken once: nothing is allocated in a step.

use ops::{Arena, Tensor};
use weights::Dtype;

use crate::{Config, Error};

pub struct Scratch {
    /// The residual stream, `[max_rows, n_embd]`.
    pub x: Tensor,
    /// What a norm makes of it.
    pub h: Tensor,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// What attention gives, `[max_rows, q_dim]`.
    pub mixed: Tensor,
    /// `[max_rows, n_ff]`
    pub gate: Tensor,
    pub up: Tensor,
    /// Rows that are wanted at the end, `[max_out_rows, ..]`: their stream, their attention, their hidden state.
    pub kept_x: Tensor,
    pub kept_mixed: Tensor,
    pub hidden: Tensor,
    /// The hidden states that pooling asked for, `[max_logits_rows, n_embd]`.
    pub pooled: Tensor,
    /// `[max_logits_rows, n_embd]` and `[max_logits_rows, n_vocab]`
    pub logits_in: Tensor,
    pub logits: Tensor,
}

impl Scratch {
    fn shapes(config: &Config, max_rows: usize, max_logits_rows: usize) -> [[usize; 2]; 14] {
        // Rows for logits and rows for pooling may be different ones.
        let max_kept = (2 * max_logits_rows).min(max_rows);
        [
            [max_rows, config.n_embd],
            [max_rows, config.n_embd],
            [max_rows, config.q_dim()],
            [max_rows, config.kv_dim()],
            [max_rows, config.kv_dim()],
            [max_rows, config.q_dim()],
            [max_rows, config.n_ff],
            [max_rows, config.n_ff],
            [max_kept, config.n_embd],
            [max_kept, config.q_dim()],
            [max_kept, config.n_embd],
            [max_logits_rows, config.n_embd],
            [max_logits_rows, config.n_embd],
            [max_logits_rows, config.n_vocab],
        ]
    }

    pub fn bytes(config: &Config, max_rows: usize, max_logits_rows: usize) -> usize {
        let shapes = Self::shapes(config, max_rows, max_logits_rows);
        shapes.into_iter().fold(0, |sum: usize, shape| sum.saturating_add(Arena::bytes_for(Dtype::F32, shape)))
    }

    /// As [`Scratch::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, max_rows: usize, max_logits_rows: usize) -> usize {
        let shapes = Self::shapes(config, max_rows, max_logits_rows);
        shapes
            .into_iter()
            .map(|[rows, cols]| Arena::padded_on_device(rows.saturating_mul(cols).saturating_mul(4)))
            .sum()
    }

    pub fn new(config: &Config, max_rows: usize, max_logits_rows: usize) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, max_rows, max_logits_rows);
        let mut arena = Arena::new(needed_bytes).ok_or(Error::Memory { what: "activations", needed_bytes })?;
        Ok(Self::carve(config, max_rows, max_logits_rows, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, max_rows: usize, max_logits_rows: usize, arena: &mut Arena) -> Self {
        let [x, h, q, k, v, mixed, gate, up, kept_x, kept_mixed, hidden, pooled, logits_in, logits] =
            Self::shapes(config, max_rows, max_logits_rows).map(|shape| arena.carve(Dtype::F32, shape));
        Self { x, h, q, k, v, mixed, gate, up, kept_x, kept_mixed, hidden, pooled, logits_in, logits }
    }
}
