//! All activations, taken once: nothing is allocated in a step. What a family does not need takes no memory.

use ops::{Arena, Tensor};
use weights::Dtype;

use crate::{Config, Error};

pub struct Scratch {
    /// The residual stream, `[max_rows, n_embd]`.
    pub x: Tensor,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// What attention gives, `[max_rows, q_dim]`.
    pub mixed: Tensor,
    pub work: Work,
    /// Rows that are wanted at the end, `[max_out_rows, ..]`: their stream, their attention, their hidden state.
    pub kept_x: Tensor,
    pub kept_mixed: Tensor,
    pub hidden: Tensor,
    /// The hidden states that pooling asked for, `[max_logits_rows, n_embd]`.
    pub pooled: Tensor,
    /// `[max_logits_rows, n_embd]` and `[max_logits_rows, n_vocab]`
    pub logits_in: Tensor,
    pub logits: Tensor,
    /// `[max_logits_rows, 1]`: tokens, as bits.
    pub chosen: Tensor,
}

/// What the blocks of a layer work in.
pub struct Work {
    /// What a norm makes of the stream, `[max_rows, n_embd]`.
    pub h: Tensor,
    /// What a block gives before it joins the stream, `[max_rows, n_embd]`.
    pub branch: Tensor,
    /// `[max_rows, n_ff]`
    pub gate: Tensor,
    pub up: Tensor,
    /// The expert that every token goes to, `[max_rows, n_ff_shared]`.
    pub shared_gate: Tensor,
    pub shared_up: Tensor,
    /// Scores of experts, `[max_rows, n_experts]`.
    pub router: Tensor,
    pub pairs: Pairs,
    pub compressed: Compressed,
}

/// A row for each expert that a row goes to, `[max_rows * n_used, ..]`.
pub struct Pairs {
    pub x: Tensor,
    pub gate: Tensor,
    pub up: Tensor,
    pub y: Tensor,
    /// Where a device keeps which expert a pair goes to (as bits), and with which weight; `[.., 1]`.
    pub chosen: Tensor,
    pub weights: Tensor,
}

/// Compressed attention.
pub struct Compressed {
    pub q_a: Tensor,
    pub q_a_normed: Tensor,
    pub q_nope: Tensor,
    pub q_rope: Tensor,
    pub kv: Tensor,
    pub kv_normed: Tensor,
    pub k_rope: Tensor,
    /// `[max_rows * n_heads, kv_rank]`, row by row and head by head.
    pub by_row: Tensor,
    pub by_head: Tensor,
    pub nope_by_head: Tensor,
    pub v_by_head: Tensor,
    /// `[max_rows, n_heads * v_dim]`
    pub values: Tensor,
}

/// Either adds up what would be taken, or takes it.
trait Taker {
    type Part;
    fn take(&mut self, shape: [usize; 2]) -> Self::Part;
}

struct Sum {
    padded: fn(usize) -> usize,
    bytes: usize,
}

impl Taker for Sum {
    type Part = ();
    fn take(&mut self, [rows, cols]: [usize; 2]) {
        let bytes = (self.padded)(rows.saturating_mul(cols).saturating_mul(4));
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Taker for &mut Arena {
    type Part = Tensor;
    fn take(&mut self, shape: [usize; 2]) -> Tensor {
        self.carve(Dtype::F32, shape)
    }
}

/// The shapes, in the order the parts are taken.
fn shapes<T: Taker>(config: &Config, max_rows: usize, max_logits_rows: usize, mut taker: T) -> (Vec<T::Part>, T) {
    // Rows for logits and rows for pooling may be different ones.
    let max_kept = (2 * max_logits_rows).min(max_rows);
    let Config { n_embd, n_ff, n_heads, n_rot, .. } = *config;
    let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
    let mut all = vec![
        [max_rows, n_embd],
        [max_rows, q_dim],
        [max_rows, kv_dim],
        [max_rows, kv_dim],
        [max_rows, q_dim],
        [max_kept, n_embd],
        [max_kept, q_dim],
        [max_kept, n_embd],
        [max_logits_rows, n_embd],
        [max_logits_rows, n_embd],
        // An encoder has no logits.
        [if config.is_encoder() { 0 } else { max_logits_rows }, config.n_vocab],
        [max_logits_rows, 1],
    ];
    let (n_experts, n_pairs, n_ff_expert, n_ff_shared) = match config.experts {
        Some(experts) => (experts.n, max_rows * experts.routing.n_used, experts.n_ff, experts.n_ff_shared),
        None => (0, 0, 0, 0),
    };
    all.extend([
        [max_rows, n_embd],
        [max_rows, n_embd],
        [max_rows, n_ff],
        [max_rows, n_ff],
        [max_rows, n_ff_shared],
        [max_rows, n_ff_shared],
        [max_rows, n_experts],
        [n_pairs, n_embd],
        [n_pairs, n_ff_expert],
        [n_pairs, n_ff_expert],
        [n_pairs, n_embd],
        [n_pairs, 1],
        [n_pairs, 1],
    ]);
    let (q_rank, kv_rank, nope, v_dim, rows) = match config.mla {
        Some(mla) => (mla.q_rank.unwrap_or(0), mla.kv_rank, mla.nope_dim, mla.v_dim, max_rows),
        None => (0, 0, 0, 0, 0),
    };
    all.extend([
        [rows, q_rank],
        [rows, q_rank],
        [rows, n_heads * nope],
        [rows, n_heads * n_rot],
        [rows, kv_rank],
        [rows, kv_rank],
        [rows, n_rot],
        [rows * n_heads, kv_rank],
        [rows * n_heads, kv_rank],
        [rows * n_heads, nope],
        [rows * n_heads, v_dim],
        [rows, n_heads * v_dim],
    ]);
    let parts = all.into_iter().map(|shape| taker.take(shape)).collect();
    (parts, taker)
}

impl Scratch {
    pub fn bytes(config: &Config, max_rows: usize, max_logits_rows: usize) -> usize {
        shapes(config, max_rows, max_logits_rows, Sum { padded: Arena::padded, bytes: 0 }).1.bytes
    }

    /// As [`Scratch::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, max_rows: usize, max_logits_rows: usize) -> usize {
        shapes(config, max_rows, max_logits_rows, Sum { padded: Arena::padded_on_device, bytes: 0 }).1.bytes
    }

    pub fn new(config: &Config, max_rows: usize, max_logits_rows: usize) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, max_rows, max_logits_rows);
        let mut arena = Arena::new(needed_bytes).ok_or(Error::Memory { what: "activations", needed_bytes })?;
        Ok(Self::carve(config, max_rows, max_logits_rows, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, max_rows: usize, max_logits_rows: usize, arena: &mut Arena) -> Self {
        let (parts, _) = shapes(config, max_rows, max_logits_rows, arena);
        let mut parts = parts.into_iter();
        let mut next = || parts.next().expect("as many parts as shapes");
        Self {
            x: next(),
            q: next(),
            k: next(),
            v: next(),
            mixed: next(),
            kept_x: next(),
            kept_mixed: next(),
            hidden: next(),
            pooled: next(),
            logits_in: next(),
            logits: next(),
            chosen: next(),
            work: Work {
                h: next(),
                branch: next(),
                gate: next(),
                up: next(),
                shared_gate: next(),
                shared_up: next(),
                router: next(),
                pairs: Pairs { x: next(), gate: next(), up: next(), y: next(), chosen: next(), weights: next() },
                compressed: Compressed {
                    q_a: next(),
                    q_a_normed: next(),
                    q_nope: next(),
                    q_rope: next(),
                    kv: next(),
                    kv_normed: next(),
                    k_rope: next(),
                    by_row: next(),
                    by_head: next(),
                    nope_by_head: next(),
                    v_by_head: next(),
                    values: next(),
                },
            },
        }
    }
}
