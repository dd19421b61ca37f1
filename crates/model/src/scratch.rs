//! All activations, allocated once: no step allocates. What a family does not need takes no memory.

use ops::{Arena, Tensor};
use weights::Dtype;

use crate::{Config, Error, RecurrentKind};

/// A tensor is bound to its shape once, by name, in `lay_out`. `T` is what stands for a tensor: itself, or nothing where
/// only sizes are added up.
pub struct Scratch<T = Tensor> {
    /// The step's tokens, `[max_rows, 1]` as bits, where some come from the step before.
    pub tokens: T,
    /// The residual stream, `[max_rows, n_embd]`.
    pub x: T,
    pub q: T,
    pub k: T,
    pub v: T,
    /// What attention gives, `[max_rows, q_dim]`.
    pub mixed: T,
    /// What attention's output is weighed with, where the family does that, `[max_rows, q_dim]`.
    pub attn_gate: T,
    /// What every layer gets of each token, `[max_rows, n_layers * n_embd_per_layer]`, and a part of it while it is made.
    pub per_layer: T,
    pub per_layer_made: T,
    pub streams: StreamScratch<T>,
    pub recurrent: RecurrentWork<T>,
    pub wkv: WkvWork<T>,
    pub work: LayerScratch<T>,
    pub assistant: AssistantScratch<T>,
    /// Rows that are wanted at the end, `[max_out_rows, ..]`: their stream, their attention, their hidden state.
    pub kept_x: T,
    pub kept_mixed: T,
    pub hidden: T,
    /// The hidden states that pooling asked for, `[max_logits_rows, n_hidden_out]`.
    pub pooled: T,
    /// `[max_logits_rows, n_embd]` and `[max_logits_rows, n_vocab]`
    pub logits_in: T,
    pub logits: T,
    /// `[max_logits_rows, 1]`: tokens, as bits.
    pub chosen: T,
    /// How probable they were, `[max_logits_rows, DESCRIBED_WORDS]` as bits.
    pub described: T,
}

/// The streams beside the first, where there are any.
pub struct StreamScratch<T = Tensor> {
    /// `[max_rows, n_embd]` each.
    pub others: [T; ops::N_STREAMS - 1],
    /// The first as it was predicted, `[max_rows, n_embd]`.
    pub predicted: T,
    /// What decides how they predict each other, `[max_rows, 4]`.
    pub states: T,
}

impl<T> StreamScratch<T> {
    fn lay_out(config: &Config, max_rows: usize, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let rows = if config.laurel_rank.is_some() { max_rows } else { 0 };
        let mut stream = || take([rows, config.n_embd]);
        let (others, predicted) = ([stream(), stream(), stream()], stream());
        Self { others, predicted, states: take([rows, ops::N_STREAMS]) }
    }
}

/// What a drafter works in beside its layers.
pub struct AssistantScratch<T = Tensor> {
    /// The other model's embedding of each token, `[max_rows, n_embd_target]`.
    pub embedded: T,
    /// Hidden states before they are made what the other model's are, `[max_logits_rows, n_embd]`.
    pub pooled: T,
    /// `[max_logits_rows, n_clusters]`
    pub scores: T,
    /// Of one row's clusters: the tokens (as bits), `[1, n_tokens]`, their rows, `[n_tokens, n_embd]`, and what the row
    /// makes of them, `[1, n_tokens]`.
    pub tokens: T,
    pub rows: T,
    pub products: T,
}

impl<T> AssistantScratch<T> {
    fn lay_out(config: &Config, rows: MaxRows, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let width = config.assistant.as_ref().map_or(0, |assistant| assistant.n_embd_target);
        let clusters = config.assistant.as_ref().and_then(|assistant| assistant.clusters);
        let (n_clusters, n_tokens) = clusters.map_or((0, 0), |it| (it.n, it.n_used * (config.n_vocab / it.n)));
        let n_pooled = if width > 0 { rows.logits } else { 0 };
        Self {
            embedded: take([if width > 0 { rows.batch } else { 0 }, width]),
            pooled: take([n_pooled, config.n_embd]),
            scores: take([n_pooled, n_clusters]),
            tokens: take([1, n_tokens]),
            rows: take([n_tokens, config.n_embd]),
            products: take([1, n_tokens]),
        }
    }
}

/// What recurrent layers work in.
pub struct RecurrentWork<T = Tensor> {
    /// The gate, and then what the layer gives before its last product, `[max_rows, inner]`.
    pub gate: T,
    /// What is convolved, and what comes out, `[max_rows, ..]`.
    pub inputs: [T; 3],
    pub convolved: [T; 3],
    /// What the scan gives, `[max_rows, inner]`.
    pub out: T,
    /// Time steps, or what decides how much is forgotten.
    pub forget: T,
    pub beta: T,
    pub low: T,
    pub b: T,
    pub c: T,
    /// `gate` of the rows that are wanted at the end.
    pub kept: T,
}

/// What the first block of RWKV's layers works in, all `[max_rows, n_embd]` but `low`.
pub struct WkvWork<T = Tensor> {
    /// A token mixed with the one before it.
    pub shifted: T,
    pub r: T,
    pub k: T,
    pub v: T,
    pub decay: T,
    pub rate: T,
    pub gate: T,
    /// The values of the first layer, which stay for the others; and how much of them a layer takes.
    pub first: T,
    pub share: T,
    /// What the scan gives.
    pub read: T,
    pub bonus: T,
    /// The few columns of a product.
    pub low: T,
}

/// What the blocks of a layer work in.
pub struct LayerScratch<T = Tensor> {
    /// The normalized stream, `[max_rows, n_embd]`.
    pub h: T,
    /// What a block gives before it joins the stream, `[max_rows, n_embd]`.
    pub branch: T,
    /// The part of `per_layer` that belongs to this layer, and what is made of it, `[max_rows, n_embd_per_layer]`.
    pub layer_part: T,
    pub layer_gate: T,
    /// What stands beside attention, `[max_rows, n_embd]`, and on its way there.
    pub laurel: T,
    pub laurel_low: T,
    /// `[max_rows, n_ff]`
    pub gate: T,
    pub up: T,
    /// The expert that every token goes to, `[max_rows, n_ff_shared]`.
    pub shared_gate: T,
    pub shared_up: T,
    /// Scores of experts, `[max_rows, n_experts]`.
    pub router: T,
    pub pairs: Pairs<T>,
    pub compressed: Compressed<T>,
}

/// A row for each expert that a row goes to, `[max_rows * n_used, ..]`.
pub struct Pairs<T = Tensor> {
    pub x: T,
    pub gate: T,
    pub up: T,
    pub y: T,
    /// Where a device keeps which expert a pair goes to (as bits), and with which weight; `[.., 1]`.
    pub chosen: T,
    pub weights: T,
}

/// Compressed attention.
pub struct Compressed<T = Tensor> {
    pub q_a: T,
    pub q_a_normed: T,
    pub q_nope: T,
    pub q_rope: T,
    pub kv: T,
    pub kv_normed: T,
    pub k_rope: T,
    /// `[max_rows * n_heads, kv_rank]`, row by row and head by head.
    pub by_row: T,
    pub by_head: T,
    pub nope_by_head: T,
    pub v_by_head: T,
    /// `[max_rows, n_heads * v_dim]`
    pub values: T,
    /// Which head's matrix each takes, as bits, where a device multiplies them one by one; `[max_rows * n_heads, 1]`.
    pub heads: T,
    pub index: IndexScratch<T>,
}

/// What chooses the tokens to attend to, where that is not all of them.
pub struct IndexScratch<T = Tensor> {
    /// `[max_rows, n_heads * head_dim]`
    pub q: T,
    /// `[max_rows, head_dim]`
    pub k: T,
    pub k_normed: T,
    /// `[max_rows, n_heads]`
    pub weights: T,
    /// `[some rows, longest context]`
    pub scores: T,
    /// `[max_rows, words]`: a bit for each token of a row's context. Stays for layers without an indexer.
    pub chosen: T,
}

/// Rows whose scores are made together: sixteen of a context of 160,000 tokens take 10 MB.
const SCORED_ROWS: usize = 16;

impl<T> IndexScratch<T> {
    fn lay_out(config: &Config, rows: MaxRows, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let n_tokens = config.indexed_context(rows);
        let max_rows = if config.indexer.is_some() { rows.batch } else { 0 };
        let max_asked = if n_tokens > 0 { max_rows } else { 0 };
        let (n_heads, head_dim) = config.indexer.map_or((0, 0), |indexer| (indexer.n_heads, indexer.head_dim));
        Self {
            q: take([max_asked, n_heads * head_dim]),
            k: take([max_rows, head_dim]),
            k_normed: take([max_rows, head_dim]),
            weights: take([max_asked, n_heads]),
            scores: take([max_asked.min(SCORED_ROWS), n_tokens]),
            chosen: take([max_asked, ops::chosen_words(n_tokens)]),
        }
    }
}

/// Rows that a step may have.
#[derive(Copy, Clone, Debug)]
pub struct MaxRows {
    pub batch: usize,
    /// Rows with logits, and as many for pooling.
    pub logits: usize,
    /// Tokens of the longest context.
    pub context: usize,
}

impl<T> Scratch<T> {
    /// Every tensor with its shape; `take` either adds up what it would need, or takes it.
    fn lay_out(config: &Config, rows: MaxRows, mut take: impl FnMut([usize; 2]) -> T) -> Self {
        // Rows for logits and rows for pooling may be different ones.
        let max_kept = (2 * rows.logits).min(rows.batch);
        let MaxRows { batch: max_rows, logits: max_logits_rows, .. } = rows;
        let n_embd = config.n_embd;
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        // An encoder has no logits.
        let n_logits_rows = if config.is_encoder() { 0 } else { max_logits_rows };
        Self {
            tokens: take([max_rows, 1]),
            x: take([max_rows, n_embd]),
            q: take([max_rows, q_dim]),
            k: take([max_rows, kv_dim]),
            v: take([max_rows, kv_dim]),
            mixed: take([max_rows, q_dim]),
            attn_gate: take(if config.may_gate() { [max_rows, q_dim] } else { [0, 0] }),
            per_layer: take([max_rows, config.n_layers * config.n_embd_per_layer]),
            per_layer_made: take([max_rows, config.n_layers * config.n_embd_per_layer]),
            streams: StreamScratch::lay_out(config, max_rows, &mut take),
            recurrent: RecurrentWork::lay_out(config, max_rows, max_kept, &mut take),
            wkv: WkvWork::lay_out(config, max_rows, &mut take),
            kept_x: take([max_kept, n_embd]),
            kept_mixed: take([max_kept, q_dim]),
            hidden: take([max_kept, n_embd]),
            pooled: take([max_logits_rows, config.n_hidden_out()]),
            logits_in: take([max_logits_rows, n_embd]),
            logits: take([n_logits_rows, config.n_vocab]),
            chosen: take([max_logits_rows, 1]),
            described: take([max_logits_rows, ops::DESCRIBED_WORDS]),
            work: LayerScratch::lay_out(config, rows, &mut take),
            assistant: AssistantScratch::lay_out(config, rows, &mut take),
        }
    }
}

impl<T> RecurrentWork<T> {
    fn lay_out(config: &Config, max_rows: usize, max_kept: usize, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let mut columns = |n_cols: usize| take(if n_cols > 0 { [max_rows, n_cols] } else { [0, 0] });
        let (inner, mut streams) = match &config.recurrent {
            Some(r) if r.kind == RecurrentKind::Wkv => (r.inner, Vec::new()),
            Some(recurrent) => (recurrent.inner, recurrent.streams()),
            None => (0, Vec::new()),
        };
        streams.resize(3, 0);
        let mut convolved = [streams[0], streams[1], streams[2]];
        if let Some(r) = config.recurrent.filter(|recurrent| recurrent.kind == RecurrentKind::SelectiveHeads) {
            // What its scan reads, and B beside C.
            convolved[1..].copy_from_slice(&[inner + 2 * r.state_dim, 2 * r.state_dim]);
        }
        let n_heads = config.recurrent.map_or(0, |recurrent| recurrent.n_heads);
        let (n_forget, n_low, n_states) = match config.recurrent {
            Some(r) if r.kind == RecurrentKind::Selective => (inner, r.dt_rank, r.state_dim),
            Some(r) if r.kind == RecurrentKind::SelectiveHeads => (r.n_heads, r.dt_rank, r.state_dim),
            Some(r) if r.kind == RecurrentKind::ChannelDelta => (inner, r.state_dim, 0),
            Some(r) if r.kind == RecurrentKind::Wkv => (0, 0, 0),
            _ => (n_heads, 0, 0),
        };
        Self {
            gate: columns(inner),
            inputs: [columns(streams[0]), columns(streams[1]), columns(streams[2])],
            convolved: convolved.map(&mut columns),
            out: columns(inner),
            forget: columns(n_forget),
            beta: columns(n_heads),
            low: columns(n_low),
            b: columns(n_states),
            c: columns(n_states),
            kept: take(if inner > 0 { [max_kept, inner] } else { [0, 0] }),
        }
    }
}

impl<T> WkvWork<T> {
    fn lay_out(config: &Config, max_rows: usize, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let found = config.recurrent.filter(|recurrent| recurrent.kind == RecurrentKind::Wkv);
        let n_low = found.map_or(0, |recurrent| recurrent.dt_rank);
        let mut columns = |n_cols: usize| take(if found.is_some() { [max_rows, n_cols] } else { [0, 0] });
        let low = columns(n_low);
        let mut wide = || columns(config.n_embd);
        Self {
            shifted: wide(),
            r: wide(),
            k: wide(),
            v: wide(),
            decay: wide(),
            rate: wide(),
            gate: wide(),
            first: wide(),
            share: wide(),
            read: wide(),
            bonus: wide(),
            low,
        }
    }
}

impl<T> LayerScratch<T> {
    fn lay_out(config: &Config, rows: MaxRows, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let max_rows = rows.batch;
        let Config { n_embd, n_ff, .. } = *config;
        let (n_experts, n_ff_shared) = config.experts.map_or((0, 0), |experts| (experts.n, experts.n_ff_shared));
        Self {
            h: take([max_rows, n_embd]),
            branch: take([max_rows, n_embd]),
            layer_part: take([max_rows, config.n_embd_per_layer]),
            layer_gate: take([max_rows, config.n_embd_per_layer]),
            laurel: take(if config.laurel_rank.is_some() { [max_rows, n_embd] } else { [0, 0] }),
            laurel_low: take([max_rows, config.laurel_rank.unwrap_or(0)]),
            gate: take([max_rows, n_ff]),
            up: take([max_rows, n_ff]),
            shared_gate: take([max_rows, n_ff_shared]),
            shared_up: take([max_rows, n_ff_shared]),
            router: take([max_rows, n_experts]),
            pairs: Pairs::lay_out(config, max_rows, take),
            compressed: Compressed::lay_out(config, rows, take),
        }
    }
}

impl<T> Pairs<T> {
    fn lay_out(config: &Config, max_rows: usize, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let n_embd = config.n_embd;
        let (n_pairs, n_ff) = match config.experts {
            Some(experts) => (max_rows * experts.routing.n_used, experts.n_ff),
            None => (0, 0),
        };
        Self {
            x: take([n_pairs, n_embd]),
            gate: take([n_pairs, n_ff]),
            up: take([n_pairs, n_ff]),
            y: take([n_pairs, n_embd]),
            chosen: take([n_pairs, 1]),
            weights: take([n_pairs, 1]),
        }
    }
}

impl<T> Compressed<T> {
    fn lay_out(config: &Config, max: MaxRows, take: &mut impl FnMut([usize; 2]) -> T) -> Self {
        let Config { n_heads, n_rot, .. } = *config;
        let (q_rank, kv_rank, nope, v_dim, rows) = match config.mla {
            Some(mla) => (mla.q_rank.unwrap_or(0), mla.kv_rank, mla.nope_dim, mla.v_dim, max.batch),
            None => (0, 0, 0, 0, 0),
        };
        Self {
            q_a: take([rows, q_rank]),
            q_a_normed: take([rows, q_rank]),
            q_nope: take([rows, n_heads * nope]),
            q_rope: take([rows, n_heads * n_rot]),
            kv: take([rows, kv_rank]),
            kv_normed: take([rows, kv_rank]),
            k_rope: take([rows, n_rot]),
            by_row: take([rows * n_heads, kv_rank]),
            by_head: take([rows * n_heads, kv_rank]),
            nope_by_head: take([rows * n_heads, nope]),
            v_by_head: take([rows * n_heads, v_dim]),
            values: take([rows, n_heads * v_dim]),
            heads: take([rows * n_heads, 1]),
            index: IndexScratch::lay_out(config, max, take),
        }
    }
}

impl Scratch {
    pub fn bytes(config: &Config, rows: MaxRows) -> usize {
        Self::sum(config, rows, Arena::padded)
    }

    /// As [`Scratch::bytes`], on a device.
    pub fn bytes_on_device(config: &Config, rows: MaxRows) -> usize {
        Self::sum(config, rows, Arena::padded_on_device)
    }

    fn sum(config: &Config, rows: MaxRows, padded: fn(usize) -> usize) -> usize {
        let mut bytes = 0usize;
        Scratch::lay_out(config, rows, |[n_rows, n_cols]| {
            bytes = bytes.saturating_add(padded(n_rows.saturating_mul(n_cols).saturating_mul(4)));
        });
        bytes
    }

    pub fn new(config: &Config, rows: MaxRows) -> Result<Self, Error> {
        let needed_bytes = Self::bytes(config, rows);
        let mut arena = Arena::new(needed_bytes).ok_or(Error::Memory { what: "activations", needed_bytes })?;
        Ok(Self::carve(config, rows, &mut arena))
    }

    /// From an arena that has room for it.
    pub fn carve(config: &Config, rows: MaxRows, arena: &mut Arena) -> Self {
        Self::lay_out(config, rows, |shape| arena.carve(Dtype::F32, shape))
    }
}
