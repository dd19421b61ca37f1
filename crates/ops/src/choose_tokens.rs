//! Which tokens of its context a row attends to, where an indexer decides that (DeepSeek's sparse attention): every token
//! has a short key, every row a few queries and a weight for each, and the tokens with the best sums of
//! `weight * max(0, query * key)` are chosen. The choice is a bit for each token, which attention reads
//! ([`Shaping::chosen`](crate::Shaping)).

use std::cell::RefCell;

use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;
use half::slice::HalfFloatSliceExt;
use weights::Dtype;

use crate::attention::{QuerySpan, Spans};
use crate::gpu::attention::SPAN_WORDS;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::kv_store::KV_BLOCK;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, Indices, Isa, Pool, View, ViewMut};

const OP: &str = "choose_tokens";
const STORE: &str = "store_index_keys";
const THREADS: u32 = 128;
const CHOOSE_THREADS: u32 = 256;
/// Keys that a block scores at a time.
const KEYS: usize = 32;
/// Blocks that share a row's keys.
const MAX_PARTS: usize = 64;

/// The longest key of an indexer: what a block of the kernel has room for.
pub const MAX_INDEX_DIM: usize = 128;

gpu::args! {
    pub(crate) struct StoreIndexKeys<'a> {
        k: Slice<'a, f32>,
        slots: Slice<'a, u32>,
        pool: SliceMut<'a, u8>,
    }
}

gpu::args! {
    pub(crate) struct IndexScores<'a> {
        q: Slice<'a, f32>,
        weights: Slice<'a, f32>,
        pool: Slice<'a, u8>,
        spans: Slice<'a, u32>,
        tables: Slice<'a, u32>,
        scores: SliceMut<'a, f32>,
        n_spans: u32,
        n_heads: u32,
        first_row: u32,
        n_parts: u32,
        stride: u32,
    }
}

gpu::args! {
    pub(crate) struct ChooseBest<'a> {
        scores: Slice<'a, f32>,
        spans: Slice<'a, u32>,
        chosen: SliceMut<'a, u32>,
        n_spans: u32,
        first_row: u32,
        stride: u32,
        n_words: u32,
        n_best: u32,
    }
}

kernels! {
    pub(crate) struct ChooseKernels in "choose_tokens", overlapping; defines {
        INDEX_DIM: DefineValues::Numbers(&[128]),
        KV_F16: DefineValues::Flag
    } {
        store: Kernel<StoreIndexKeys<'static>> = ["store_index_keys"],
        scores: Kernel<IndexScores<'static>> = ["index_scores"],
        choose: Kernel<ChooseBest<'static>> = ["choose_best"],
    }
}

/// What an indexer asks a context.
#[derive(Copy, Clone)]
pub struct IndexQueries<'a> {
    /// `[n_rows, n_heads * dim]`
    pub q: View<'a>,
    /// `[n_rows, n_heads]`
    pub weights: View<'a>,
    /// `[n_blocks, 16 * dim]`, as [`store_index_keys`] lays them out.
    pub keys: View<'a>,
    pub n_heads: usize,
    /// Tokens that a row chooses; one that sees no more takes all.
    pub n_chosen: usize,
}

/// Words that hold a bit for each of `n_tokens`.
pub fn chosen_words(n_tokens: usize) -> usize {
    n_tokens.div_ceil(32)
}

/// Puts the keys of new tokens, `[n_rows, dim]`, into the pool, `[n_blocks, 16 * dim]` f16 or f32: on a CPU a block is
/// `[dim, 16]`, on a GPU `[16, dim]`. `slots` are as those of [`kv_store`](crate::kv_store()).
pub fn store_index_keys<'s>(
    exec: Exec,
    k: View,
    slots: impl Into<Indices<'s>>,
    pool: &mut ViewMut,
) -> Result<(), Error> {
    let slots = slots.into();
    let [n_rows, dim] = k.shape;
    pool.expect_shape(STORE, "pool", [pool.shape[0], KV_BLOCK * dim])?;
    let n_slots = pool.shape[0] * KV_BLOCK;
    if slots.len() != n_rows || slots.host.iter().any(|slot| *slot as usize >= n_slots) {
        let what = format!("{} slots for {n_rows} rows, in a pool of {n_slots}", slots.len());
        return Err(Error::Argument { op: STORE, what });
    }
    if let Exec::Gpu(gpu) = exec {
        if n_rows == 0 {
            return Ok(());
        }
        let _op = gpu.launcher.op(STORE);
        gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * dim) as u64, flops: 0 });
        let kernels = kernels_of(gpu, STORE, dim, pool.dtype)?;
        let (k, slots) = (k.device_f32s(STORE, "k")?, slots.on_device(STORE, "slots")?);
        let args = StoreIndexKeys { k, slots, pool: pool.device_bytes(STORE, "pool")? };
        return Ok(gpu.launcher.launch(&kernels.store, Grid::line(count(STORE, "rows", n_rows)?, THREADS), &args)?);
    }
    let is_f16 = is_kept_f16(STORE, pool.dtype)?;
    let (k, bytes) = (k.f32s(STORE, "k")?, pool.host_bytes(STORE, "pool")?);
    let place = |slot: u32, d: usize| (slot as usize / KV_BLOCK * dim + d) * KV_BLOCK + slot as usize % KV_BLOCK;
    let numbers = slots.host.iter().zip(k.chunks_exact(dim)).flat_map(|(slot, key)| {
        let slot = *slot;
        key.iter().enumerate().map(move |(d, x)| (place(slot, d), *x))
    });
    if is_f16 {
        let pool: &mut [f16] = bytemuck::cast_slice_mut(bytes);
        numbers.for_each(|(at, x)| pool[at] = f16::from_f32(x));
    } else {
        let pool: &mut [f32] = bytemuck::cast_slice_mut(bytes);
        numbers.for_each(|(at, x)| pool[at] = x);
    }
    Ok(())
}

/// Fills `chosen`, `[n_rows, n_words]` words, for the rows of `spans`: bit `t % 32` of word `t / 32` says whether the row
/// attends to token `t`; bits of tokens that a row does not see mean nothing. `scores`, `[some rows, n_tokens]` with room
/// for the longest context, is worked in.
pub fn choose_tokens<'s>(
    exec: Exec,
    queries: IndexQueries,
    spans: impl Into<Spans<'s>>,
    scores: &mut ViewMut,
    chosen: &mut ViewMut,
) -> Result<(), Error> {
    let spans = spans.into();
    check(&queries, spans.host, scores, chosen)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, &queries, spans, scores, chosen),
    };
    let [n_at_once, stride] = scores.shape;
    let n_words = chosen.shape[1];
    let dim = queries.keys.n_cols() / KV_BLOCK;
    let asked = HostQueries {
        q: queries.q.f32s(OP, "q")?,
        weights: queries.weights.f32s(OP, "weights")?,
        keys: queries.keys.host_bytes(OP, "keys")?,
        is_f16: is_kept_f16(OP, queries.keys.dtype)?,
        n_heads: queries.n_heads,
        dim,
        has_avx2: has_avx2(pool),
    };
    let rows: Vec<(usize, usize, &[u32])> = spans
        .host
        .iter()
        .flat_map(|span| (0..span.n_rows).map(|i| (span.first_row + i, span.first_position + i + 1, span.blocks)))
        .collect();
    let scores = SharedPtr::new(scores.f32s(OP, "scores")?);
    let chosen = SharedPtr::new(bytemuck::cast_slice_mut::<f32, u32>(chosen.f32s(OP, "chosen")?));
    for rows in rows.chunks(n_at_once) {
        pool.run(rows.len(), |i, _| {
            let (row, n, blocks) = rows[i];
            // SAFETY: each task has its row of both; `check` has compared the rows and the context with their shapes.
            let (scores, words) = unsafe { (scores.slice(i * stride, stride), chosen.slice(row * n_words, n_words)) };
            if n <= queries.n_chosen {
                return words[..chosen_words(n)].fill(u32::MAX);
            }
            asked.score(row, n, blocks, scores);
            choose_best(&scores[..n], queries.n_chosen, words);
        });
    }
    Ok(())
}

fn check(queries: &IndexQueries, spans: &[QuerySpan], scores: &ViewMut, chosen: &ViewMut) -> Result<(), Error> {
    let &IndexQueries { q, weights, keys, n_heads, n_chosen } = queries;
    let dim = keys.n_cols() / KV_BLOCK;
    q.expect_shape(OP, "q", [q.n_rows(), n_heads * dim])?;
    weights.expect_shape(OP, "weights", [q.n_rows(), n_heads])?;
    let bad = |what: String| Err(Error::Argument { op: OP, what });
    if n_heads == 0 || dim == 0 || dim > MAX_INDEX_DIM || n_chosen == 0 || keys.n_cols() % KV_BLOCK != 0 {
        return bad(format!("{n_heads} heads of {dim} choose {n_chosen}"));
    }
    let [n_at_once, n_tokens] = scores.shape;
    let mut next_row = 0;
    for span in spans {
        let n_context = span.first_position + span.n_rows;
        if !span.is_causal || span.first_row < next_row || span.first_row + span.n_rows > q.n_rows() {
            return bad(format!("rows {}+{} of {}, in order and causal", span.first_row, span.n_rows, q.n_rows()));
        }
        next_row = span.first_row + span.n_rows;
        if n_at_once == 0 || n_context > n_tokens || chosen_words(n_context) > chosen.shape[1] {
            return bad(format!("a context of {n_context}, room for {n_tokens} and {} words", chosen.shape[1]));
        }
        let is_outside = |block: &&u32| **block as usize >= keys.n_rows();
        if span.blocks.len() * KV_BLOCK < n_context || span.blocks.iter().any(|block| is_outside(&block)) {
            return bad(format!("{} blocks of a pool of {} for {n_context} tokens", span.blocks.len(), keys.n_rows()));
        }
    }
    if chosen.shape[0] < next_row {
        return bad(format!("room for the choices of {} rows, {next_row} are there", chosen.shape[0]));
    }
    Ok(())
}

fn is_kept_f16(op: &'static str, found: Dtype) -> Result<bool, Error> {
    match found {
        Dtype::F16 => Ok(true),
        Dtype::F32 => Ok(false),
        found => Err(Error::Type { op, what: "index keys", found, expected: "F16 or F32" }),
    }
}

fn kernels_of(gpu: &Gpu, op: &'static str, dim: usize, kept: Dtype) -> Result<ChooseKernels, Error> {
    ChooseKernels::get(gpu.kernels, &[count(op, "columns", dim)?, u32::from(is_kept_f16(op, kept)?)])
}

fn launch(
    gpu: &Gpu,
    queries: &IndexQueries,
    spans: Spans,
    scores: &mut ViewMut,
    chosen: &mut ViewMut,
) -> Result<(), Error> {
    let Some(last) = spans.host.last() else { return Ok(()) };
    let n_rows = last.first_row + last.n_rows;
    let words = spans.device.ok_or(Error::Place { op: OP, what: "spans", expected: "device memory" })?.words;
    if spans.host[0].first_row != 0 {
        return Err(Error::Argument { op: OP, what: "a device's spans begin at row 0".to_owned() });
    }
    let dim = queries.keys.n_cols() / KV_BLOCK;
    let n_span_words = SPAN_WORDS * spans.host.len();
    let kernels = kernels_of(gpu, OP, dim, queries.keys.dtype)?;
    let [n_at_once, stride] = scores.shape;
    let n_words = chosen.shape[1];
    let (spans_at, tables) = (words.slice(..n_span_words)?, words.slice(n_span_words..)?);
    let (q, weights) = (queries.q.device_f32s(OP, "q")?, queries.weights.device_f32s(OP, "weights")?);
    let pool = queries.keys.device_bytes(OP, "keys")?;
    let (mut scores, mut chosen) =
        (scores.device_f32s(OP, "scores")?, chosen.device_f32s(OP, "chosen")?.cast::<u32>()?);
    let n_parts = count(OP, "parts", stride.div_ceil(KEYS).clamp(1, MAX_PARTS))?;
    let [n_spans, n_heads] = [spans.host.len(), queries.n_heads].map(|n| n as u32);
    let (stride, n_words, n_best) =
        (count(OP, "tokens", stride)?, count(OP, "words", n_words)?, count(OP, "chosen", queries.n_chosen)?);
    let _op = gpu.launcher.op(OP);
    let n_keys: usize = spans.host.iter().map(|span| span.n_rows * (span.first_position + span.n_rows)).sum();
    gpu.launcher.count(gpu::Work { bytes: 4 * n_keys as u64, flops: 2 * (n_keys * queries.n_heads * dim) as u64 });
    for first in (0..n_rows).step_by(n_at_once) {
        let (n, first_row) = (count(OP, "rows", n_at_once.min(n_rows - first))?, count(OP, "rows", first)?);
        let args = IndexScores {
            q,
            weights,
            pool,
            spans: spans_at,
            tables,
            scores: scores.reborrow(),
            n_spans,
            n_heads,
            first_row,
            n_parts,
            stride,
        };
        let grid = Grid { blocks: [n, n_parts, 1], threads: [THREADS, 1, 1], shared_bytes: 0 };
        gpu.launcher.launch(&kernels.scores, grid, &args)?;
        let (scores, chosen) = (scores.as_slice(), chosen.reborrow());
        let args = ChooseBest { scores, spans: spans_at, chosen, n_spans, first_row, stride, n_words, n_best };
        gpu.launcher.launch(&kernels.choose, Grid::line(n, CHOOSE_THREADS), &args)?;
    }
    Ok(())
}

fn has_avx2(pool: &Pool) -> bool {
    matches!(pool.isa(), Isa::Avx2 | Isa::Avx512 | Isa::Zen4)
}

/// The queries and keys of a call on a CPU.
struct HostQueries<'a> {
    q: &'a [f32],
    weights: &'a [f32],
    keys: &'a [u8],
    is_f16: bool,
    n_heads: usize,
    dim: usize,
    has_avx2: bool,
}

impl HostQueries<'_> {
    /// The scores of tokens `0..n` for one row.
    fn score(&self, row: usize, n: usize, blocks: &[u32], scores: &mut [f32]) {
        let mut panel = [0.0f32; MAX_INDEX_DIM * KV_BLOCK];
        let len = self.dim * KV_BLOCK;
        for (scores, block) in scores[..n].chunks_mut(KV_BLOCK).zip(blocks) {
            let at = *block as usize * len;
            let panel = &mut panel[..len];
            if self.is_f16 {
                let keys: &[f16] = bytemuck::cast_slice(&self.keys[2 * at..2 * (at + len)]);
                keys.convert_to_f32_slice(panel);
            } else {
                panel.copy_from_slice(bytemuck::cast_slice(&self.keys[4 * at..4 * (at + len)]));
            }
            let q = &self.q[row * self.n_heads * self.dim..][..self.n_heads * self.dim];
            let weights = &self.weights[row * self.n_heads..][..self.n_heads];
            let found = match self.has_avx2 {
                // SAFETY: the pool's instruction set has AVX2.
                #[cfg(target_arch = "x86_64")]
                true => unsafe { score_block_avx2(q, weights, panel) },
                _ => score_block(q, weights, panel),
            };
            scores.copy_from_slice(&found[..scores.len()]);
        }
    }
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn score_block_avx2(q: &[f32], weights: &[f32], panel: &[f32]) -> [f32; KV_BLOCK] {
    score_block(q, weights, panel)
}

/// Of sixteen tokens, whose keys are `[dim, 16]`.
#[inline(always)]
fn score_block(q: &[f32], weights: &[f32], panel: &[f32]) -> [f32; KV_BLOCK] {
    let mut scores = [0.0f32; KV_BLOCK];
    for (q, weight) in q.chunks_exact(panel.len() / KV_BLOCK).zip(weights) {
        let mut dots = [0.0f32; KV_BLOCK];
        for (x, keys) in q.iter().zip(panel.as_chunks::<KV_BLOCK>().0) {
            dots.iter_mut().zip(keys).for_each(|(dot, key)| *dot += x * key);
        }
        scores.iter_mut().zip(&dots).for_each(|(score, dot)| *score += weight * dot.max(0.0));
    }
    scores
}

thread_local! {
    /// Tokens in the order they are chosen in, kept between calls; grows once.
    static ORDER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Sets the bits of the best scores; of equal ones the first.
fn choose_best(scores: &[f32], n_chosen: usize, words: &mut [u32]) {
    ORDER.with_borrow_mut(|order| {
        order.clear();
        order.extend(0..scores.len() as u32);
        let by_score = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        let (before, last, _) = order.select_nth_unstable_by(n_chosen - 1, by_score);
        words[..chosen_words(scores.len())].fill(0);
        for token in before.iter().chain([&*last]) {
            words[*token as usize / 32] |= 1 << (token % 32);
        }
    });
}
