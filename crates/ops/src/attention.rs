//! Attention over the KV pool: paged, ragged, grouped queries, causal or full.
//!
//! This file has what both machines share: what a batch is, and its checks. The work is in `cpu/attention.rs` and
//! `gpu/attention.rs`.

use std::ops::Range;

use weights::Dtype;

use crate::choose_tokens::chosen_words;
use crate::cpu::attention::{AttentionInput, ChosenTokens, Window, run};
use crate::gpu::attention as launch;
use crate::gpu::attention::DeviceSpans;
use crate::kv_format::KvFormat;
use crate::kv_store::{KV_BLOCK, MAX_HEAD_DIM};
use crate::{Error, Exec, View, ViewMut};

pub(crate) const OP: &str = "attention";

/// One layer's keys and values, laid out as [`kv_store`](crate::kv_store()) does.
#[derive(Copy, Clone)]
pub struct Kv<'a> {
    pub k: View<'a>,
    pub v: View<'a>,
}

/// The query rows of one sequence.
#[derive(Copy, Clone)]
pub struct QuerySpan<'a> {
    pub first_row: usize,
    pub n_rows: usize,
    /// Position of the first row; the others follow.
    pub first_position: usize,
    pub blocks: &'a [u32],
    /// Whether a row sees only what comes before it, or the whole sequence.
    pub is_causal: bool,
}

impl QuerySpan<'_> {
    /// The keys that row `i` of the span sees, counted from the start of the context. A window reaches to both sides
    /// where rows see what follows them.
    pub(crate) fn seen_by(&self, i: usize, window: Option<Window>) -> Range<usize> {
        let (position, n_context) = (self.first_position + i, self.first_position + self.n_rows);
        let start = window.map_or(0, |window| window.n_hidden(position + 1));
        let end = match (self.is_causal, window) {
            (true, _) => position + 1,
            (false, Some(Window::Last(n))) => n_context.min(position.saturating_add(n)),
            (false, _) => n_context,
        };
        start..end
    }
}

/// The spans of a batch; the host's copy is checked, a GPU reads its own.
#[derive(Copy, Clone)]
pub struct Spans<'a> {
    pub host: &'a [QuerySpan<'a>],
    pub device: Option<DeviceSpans<'a>>,
}

impl<'a> From<&'a [QuerySpan<'a>]> for Spans<'a> {
    fn from(host: &'a [QuerySpan<'a>]) -> Self {
        Self { host, device: None }
    }
}

impl<'a, const N: usize> From<&'a [QuerySpan<'a>; N]> for Spans<'a> {
    fn from(host: &'a [QuerySpan<'a>; N]) -> Self {
        Self { host, device: None }
    }
}

impl<'a> From<&'a Vec<QuerySpan<'a>>> for Spans<'a> {
    fn from(host: &'a Vec<QuerySpan<'a>>) -> Self {
        Self { host, device: None }
    }
}

#[derive(Copy, Clone)]
pub struct Heads {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied with, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// What some families do to scores besides scaling them. The default is nothing, and costs nothing.
#[derive(Copy, Clone, Default)]
pub struct Shaping<'a> {
    /// A row sees itself and the tokens before it, this many in all. Where it also sees what follows, it sees as many of
    /// those.
    pub window: Option<usize>,
    /// The window does not slide: a row sees what is before it in its own stretch of that many tokens.
    pub is_chunked: bool,
    /// Scores are bent towards this bound.
    pub softcap: Option<f32>,
    /// `[1, n_heads]` f32: a score for each head that takes its part of the softmax and has no value.
    pub sinks: Option<View<'a>>,
    /// `[1, n_heads]` f32: what a score of each head loses with every token between query and key (ALiBi). Only the
    /// vector kernel does it on a GPU.
    pub slopes: Option<View<'a>>,
    /// `[n_rows, n_words]` words: the tokens that a row attends to, as [`choose_tokens`](crate::choose_tokens()) marks
    /// them; at least one that it sees. Only the vector kernel does it on a GPU.
    pub chosen: Option<View<'a>>,
}

impl Shaping<'_> {
    /// The window as kernels take it: the first bit tells the kinds apart.
    pub(crate) fn window_bits(&self) -> usize {
        self.window.unwrap_or(0) | if self.is_chunked { 1 << 31 } else { 0 }
    }

    pub(crate) fn is_any(&self) -> bool {
        let Self { window, softcap, sinks, slopes, chosen, is_chunked: _ } = self;
        window.is_some() || softcap.is_some() || sinks.is_some() || slopes.is_some() || chosen.is_some()
    }
}

/// The keys and values that are seen, once for each sequence; two products of each query row with them.
fn work(heads: &Heads, dtype: Dtype, spans: &[QuerySpan]) -> gpu::Work {
    let mut work = gpu::Work::default();
    for span in spans {
        let n_context = span.first_position + span.n_rows;
        let n_seen = if span.is_causal { span.first_position + span.n_rows.div_ceil(2) } else { n_context };
        work.bytes +=
            2 * (n_context * heads.n_kv_heads * heads.head_dim / dtype.block_len() * dtype.block_bytes()) as u64;
        work.bytes += (8 * span.n_rows * heads.n_heads * heads.head_dim) as u64;
        work.flops += 4 * (span.n_rows * n_seen * heads.n_heads) as u64 * heads.head_dim as u64;
    }
    work
}

/// `out = softmax(scale * q k^T) v`; `q` and `out` are `[n_rows, n_heads * head_dim]` f32.
pub fn attention<'s>(
    exec: Exec,
    q: View,
    kv: Kv,
    heads: Heads,
    spans: impl Into<Spans<'s>>,
    out: &mut ViewMut,
) -> Result<(), Error> {
    attention_with(exec, q, kv, heads, spans, Shaping::default(), out)
}

/// As [`attention`], with scores shaped.
pub fn attention_with<'s>(
    exec: Exec,
    q: View,
    kv: Kv,
    heads: Heads,
    spans: impl Into<Spans<'s>>,
    shaping: Shaping,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let Spans { host: spans, device } = spans.into();
    check(q, kv, heads, spans, shaping, out)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => {
            let device = device.ok_or(Error::Place { op: OP, what: "spans", expected: "device memory" })?;
            gpu.launcher.count(work(&heads, kv.k.dtype, spans));
            return launch::launch(gpu, q, kv, heads, (spans, device), shaping, out);
        }
    };
    let input = AttentionInput {
        numerics: pool.numerics(),
        q: q.f32s(OP, "q")?,
        k: kv.k.host_bytes(OP, "k")?,
        v: kv.v.host_bytes(OP, "v")?,
        format: KvFormat::of(OP, kv.k.dtype, heads.head_dim)?,
        heads,
        group: heads.n_heads / heads.n_kv_heads,
        n_blocks: kv.k.n_rows() / heads.n_kv_heads,
        window: shaping.window.map(|n| if shaping.is_chunked { Window::Chunk(n) } else { Window::Last(n) }),
        softcap: shaping.softcap,
        sinks: shaping.sinks.map(|sinks| sinks.f32s(OP, "sinks")).transpose()?,
        slopes: shaping.slopes.map(|slopes| slopes.f32s(OP, "slopes")).transpose()?,
        chosen: shaping.chosen.map(ChosenTokens::of).transpose()?,
    };
    run(pool, &input, spans, out.f32s(OP, "out")?);
    Ok(())
}

/// Shapes, types and spans fit together, and no block lies outside the pool.
fn check(q: View, kv: Kv, heads: Heads, spans: &[QuerySpan], shaping: Shaping, out: &ViewMut) -> Result<(), Error> {
    let Heads { n_heads, n_kv_heads, head_dim, .. } = heads;
    let bad = |what: String| Err(Error::Argument { op: OP, what });
    if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) || head_dim == 0 || head_dim > MAX_HEAD_DIM {
        return bad(format!("{n_heads} heads over {n_kv_heads} KV heads of {head_dim}"));
    }
    q.expect_shape(OP, "q", [q.n_rows(), n_heads * head_dim])?;
    out.expect_shape(OP, "out", q.shape)?;
    kv.k.expect_shape(OP, "k", [kv.k.n_rows(), KV_BLOCK * head_dim])?;
    kv.v.expect_shape(OP, "v", kv.k.shape)?;
    KvFormat::of(OP, kv.k.dtype, head_dim)?;
    if kv.k.dtype != kv.v.dtype {
        return Err(Error::Type { op: OP, what: "v", found: kv.v.dtype, expected: "the type of the keys" });
    }
    let n_blocks = kv.k.n_rows() / n_kv_heads;
    for span in spans {
        let n_context = span.first_position + span.n_rows;
        if span.first_row + span.n_rows > q.n_rows() || span.blocks.len() * KV_BLOCK < n_context {
            return bad(format!("rows {}+{} with {} blocks", span.first_row, span.n_rows, span.blocks.len()));
        }
        if let Some(block) = span.blocks.iter().find(|block| **block as usize >= n_blocks) {
            return bad(format!("block {block} of a pool of {n_blocks}"));
        }
    }
    let Shaping { window, is_chunked, softcap, sinks, slopes, chosen } = shaping;
    if window == Some(0)
        || window.is_some_and(|n| n >= 1 << 31)
        || (is_chunked && (window.is_none() || spans.iter().any(|span| !span.is_causal)))
        || softcap.is_some_and(|cap| cap.is_nan() || cap <= 0.0)
    {
        return bad(format!("a window of {window:?}, a cap of {softcap:?}"));
    }
    if let Some(sinks) = sinks {
        sinks.expect_shape(OP, "sinks", [1, n_heads])?;
    }
    if let Some(slopes) = slopes {
        slopes.expect_shape(OP, "slopes", [1, n_heads])?;
    }
    if let Some(chosen) = chosen {
        chosen.expect_shape(OP, "chosen", [q.n_rows(), chosen.n_cols()])?;
        let longest = spans.iter().map(|span| span.first_position + span.n_rows).max().unwrap_or(0);
        if chosen_words(longest) > chosen.n_cols() {
            return bad(format!("choices among {} tokens for a context of {longest}", 32 * chosen.n_cols()));
        }
    }
    Ok(())
}
