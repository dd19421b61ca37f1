//! RWKV 7's recurrence: each head has a matrix that maps keys to values. It decays, each number of the key by itself;
//! what it knows of the token's key is taken out at a rate of its own, and the token's value is put in.
//!
//! GPUs take many rows of it at once as matrices. CPUs do not: EPYC with AVX-512, two virtual cores of a busy machine,
//! 2026-11-19, 512 tokens of 16 heads of 64 x 64 in turns, chunks of 32 tokens in the form that KDA has took 8.7 ms and
//! token by token 6.5 ms. A head's state is in the first cache, and a chunk needs twice KDA's products.

use gpu::{Kernel, Slice, SliceMut};

use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::ssm_scan::start;
use crate::state_span::{MIN_CHUNK_SLOTS, SCAN_COLUMNS, SpanParts, run_parts, scan_slots};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, StateSpan, StateSpans, View, ViewMut};

const OP: &str = "wkv_scan";
/// The widest head.
pub const MAX_WKV_DIM: usize = 512;
/// `exp(-1/2)`: nothing decays by more than this exponent a token.
const MOST: f32 = 0.606_530_66;
/// A shorter key is not brought to length one.
const SHORTEST: f32 = 1e-12;

gpu::args! {
    pub(crate) struct WkvScan<'a> {
        r: Slice<'a, f32>,
        k: Slice<'a, f32>,
        v: Slice<'a, f32>,
        decay: Slice<'a, f32>,
        rate: Slice<'a, f32>,
        first: Option<Slice<'a, f32>>,
        share: Option<Slice<'a, f32>>,
        removal: Slice<'a, f32>,
        rate_of_key: Slice<'a, f32>,
        bonus_weight: Slice<'a, f32>,
        state: SliceMut<'a, f32>,
        spans: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        bonus: SliceMut<'a, f32>,
        n_heads: u32,
        dim: u32,
        chunk_rows: u32,
    }
}

kernels! {
    pub(crate) struct WkvKernels in "wkv_scan", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[4, 16, 32, 64])
    } {
        wkv_scan: Kernel<WkvScan<'static>> = ["wkv_scan"],
    }
}

kernels! {
    pub(crate) struct WkvChunkKernels in "wkv_chunk", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[16, 32, 64])
    } {
        wkv_chunk: Kernel<WkvScan<'static>> = ["wkv_chunk"],
    }
}

/// The scan's inputs, computed by the layer from its rows; all `[n_rows, n_cols]`, head by head.
#[derive(Copy, Clone)]
pub struct WkvRows<'a> {
    pub r: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    /// Before the sigmoid: how fast each number of the key is forgotten.
    pub decay: View<'a>,
    /// Before the sigmoid: how much of what is known of a key is taken out.
    pub rate: View<'a>,
    /// The first layer's values, and before a sigmoid how much of them the others take.
    pub first: Option<[View<'a>; 2]>,
}

/// Vectors of a layer, `[1, n_cols]` each.
#[derive(Copy, Clone)]
pub struct WkvWeights<'a> {
    /// What keys are multiplied with for finding what is taken out.
    pub removal: View<'a>,
    /// How the rate changes what is put in.
    pub rate_of_key: View<'a>,
    /// How much of a token's own value goes past the state.
    pub bonus: View<'a>,
}

/// What the scan gives, `[n_rows, n_cols]` each.
pub struct WkvOut<'o, 'a> {
    /// What is read of the state.
    pub read: &'o mut ViewMut<'a>,
    /// The token's own value, as much of it as goes past the state.
    pub bonus: &'o mut ViewMut<'a>,
}

/// With `d = unit(removal * k)`, `a = sigmoid(rate)` and `w = exp(-exp(-1/2) sigmoid(decay))`, head by head:
/// `S = S diag(w) - (S d) (a d)^T + v k'^T`, `read = S r`, `bonus = v (r . bonus k')`, where `k' = k (1 + (a - 1) rate_of_key)`
/// and `v` is moved towards the first layer's. `state` is `[n_slots, n_cols * dim]`, keys before values; all f32.
pub fn wkv_scan<'s>(
    exec: Exec,
    dim: usize,
    rows: WkvRows,
    weights: WkvWeights,
    state: &mut ViewMut,
    spans: impl Into<StateSpans<'s>>,
    out: WkvOut,
) -> Result<(), Error> {
    let spans = spans.into();
    let ([n_rows, n_cols], n_slots) = (rows.r.shape, state.shape[0]);
    if dim == 0 || dim > MAX_WKV_DIM || n_cols == 0 || !n_cols.is_multiple_of(dim) {
        return Err(Error::Argument { op: OP, what: format!("{n_cols} columns in heads of {dim}") });
    }
    let shape = [n_rows, n_cols];
    for (name, view) in [("k", rows.k), ("v", rows.v), ("decay", rows.decay), ("rate", rows.rate)] {
        view.expect_shape(OP, name, shape)?;
    }
    for view in rows.first.into_iter().flatten() {
        view.expect_shape(OP, "first", shape)?;
    }
    for (name, view) in
        [("removal", weights.removal), ("rate_of_key", weights.rate_of_key), ("bonus weight", weights.bonus)]
    {
        view.expect_shape(OP, name, [1, n_cols])?;
    }
    state.expect_shape(OP, "state", [n_slots, n_cols * dim])?;
    out.read.expect_shape(OP, "out", shape)?;
    out.bonus.expect_shape(OP, "bonus", shape)?;
    StateSpan::check(OP, spans.host, n_rows, n_slots)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, dim, rows, weights, state, spans, out),
    };
    let first = match rows.first {
        Some([first, share]) => Some((first.f32s(OP, "first")?, share.f32s(OP, "share")?)),
        None => None,
    };
    let scan = WkvHeads {
        dim,
        n_heads: n_cols / dim,
        r: rows.r.f32s(OP, "r")?,
        k: rows.k.f32s(OP, "k")?,
        v: rows.v.f32s(OP, "v")?,
        decay: rows.decay.f32s(OP, "decay")?,
        rate: rows.rate.f32s(OP, "rate")?,
        first,
        removal: weights.removal.f32s(OP, "removal")?,
        rate_of_key: weights.rate_of_key.f32s(OP, "rate_of_key")?,
        bonus_weight: weights.bonus.f32s(OP, "bonus weight")?,
        state: SharedPtr::new(state.f32s(OP, "state")?),
        read: SharedPtr::new(out.read.f32s(OP, "out")?),
        bonus: SharedPtr::new(out.bonus.f32s(OP, "bonus")?),
    };
    // SAFETY: `check` has seen the spans, and the parts of one have different heads.
    unsafe { run_parts(pool, spans.host, n_cols / dim, &scan) };
    Ok(())
}

fn launch(
    gpu: &Gpu,
    dim: usize,
    rows: WkvRows,
    weights: WkvWeights,
    state: &mut ViewMut,
    spans: StateSpans,
    out: WkvOut,
) -> Result<(), Error> {
    if spans.host.is_empty() {
        return Ok(());
    }
    let [n_rows, n_cols] = rows.r.shape;
    let _op = gpu.launcher.op(OP);
    let state_len = (n_cols * dim) as u64;
    let n_spans = spans.host.len() as u64;
    gpu.launcher.count(gpu::Work { bytes: 8 * n_spans * state_len, flops: 9 * n_rows as u64 * state_len });
    let [first, share] = match rows.first {
        Some([first, share]) => [Some(first.device_f32s(OP, "first")?), Some(share.device_f32s(OP, "share")?)],
        None => [None, None],
    };
    let kinds = spans.kinds(gpu);
    let args = WkvScan {
        r: rows.r.device_f32s(OP, "r")?,
        k: rows.k.device_f32s(OP, "k")?,
        v: rows.v.device_f32s(OP, "v")?,
        decay: rows.decay.device_f32s(OP, "decay")?,
        rate: rows.rate.device_f32s(OP, "rate")?,
        first,
        share,
        removal: weights.removal.device_f32s(OP, "removal")?,
        rate_of_key: weights.rate_of_key.device_f32s(OP, "rate_of_key")?,
        bonus_weight: weights.bonus.device_f32s(OP, "bonus weight")?,
        state: state.device_f32s(OP, "state")?,
        spans: spans.on_device(OP)?,
        out: out.read.device_f32s(OP, "out")?,
        bonus: out.bonus.device_f32s(OP, "bonus")?,
        n_heads: count(OP, "heads", n_cols / dim)?,
        dim: count(OP, "columns", dim)?,
        chunk_rows: kinds.chunk_rows,
    };
    let slots = scan_slots(OP, dim)?;
    let grid = spans.grid(OP, n_cols / dim * dim.div_ceil(SCAN_COLUMNS))?;
    if kinds.has_walks {
        let kernels = WkvKernels::get(gpu.kernels, &[slots])?;
        gpu.launcher.launch(&kernels.wkv_scan, grid, &args)?;
    }
    if kinds.has_chunks {
        let kernels = WkvChunkKernels::get(gpu.kernels, &[slots.max(MIN_CHUNK_SLOTS)])?;
        gpu.launcher.launch(&kernels.wkv_chunk, grid, &args)?;
    }
    Ok(())
}

/// What all tasks of one call share.
struct WkvHeads<'a> {
    dim: usize,
    n_heads: usize,
    r: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    rate: &'a [f32],
    first: Option<(&'a [f32], &'a [f32])>,
    removal: &'a [f32],
    rate_of_key: &'a [f32],
    bonus_weight: &'a [f32],
    state: SharedPtr<f32>,
    read: SharedPtr<f32>,
    bonus: SharedPtr<f32>,
}

/// A row of one head as the recurrence takes it.
struct Token {
    /// What the state is multiplied with, and the unit key that it is asked for.
    kept: [f32; MAX_WKV_DIM],
    asked: [f32; MAX_WKV_DIM],
    /// Where what it answers is taken out, where the value is put in, and the value.
    taken: [f32; MAX_WKV_DIM],
    key: [f32; MAX_WKV_DIM],
    value: [f32; MAX_WKV_DIM],
    /// How much of the value goes past the state.
    bonus: f32,
}

impl WkvHeads<'_> {
    #[inline(always)]
    fn prepare(&self, row: usize, head: usize, token: &mut Token) {
        let dim = self.dim;
        let (at, column) = ((row * self.n_heads + head) * dim, head * dim);
        let (k, removal) = (&self.k[at..][..dim], &self.removal[column..][..dim]);
        let mut squares = 0.0_f32;
        for ((asked, k), removal) in token.asked.iter_mut().zip(k).zip(removal) {
            *asked = k * removal;
            squares += *asked * *asked;
        }
        let scale = 1.0 / squares.sqrt().max(SHORTEST);
        token.bonus = 0.0;
        for i in 0..dim {
            let rate = sigmoid(self.rate[at + i]);
            let unit = token.asked[i] * scale;
            let key = k[i] * (1.0 + (rate - 1.0) * self.rate_of_key[column + i]);
            token.asked[i] = unit;
            token.taken[i] = -rate * unit;
            token.kept[i] = exp(-MOST * sigmoid(self.decay[at + i]));
            token.key[i] = key;
            token.bonus += self.r[at + i] * key * self.bonus_weight[column + i];
            let v = self.v[at + i];
            token.value[i] = match self.first {
                Some((first, share)) => v + (first[at + i] - v) * sigmoid(share[at + i]),
                None => v,
            };
        }
    }
}

impl SpanParts for WkvHeads<'_> {
    #[inline(always)]
    unsafe fn part(&self, span: &StateSpan, head: usize) {
        let (dim, n_heads) = (self.dim, self.n_heads);
        let len = dim * dim;
        // SAFETY: a written slot belongs to this span alone, and its heads to different tasks.
        let s = unsafe { self.state.slice((span.to as usize * n_heads + head) * len, len) };
        // SAFETY: a slot that is read is written by nobody else.
        unsafe { start(s, &self.state, span, (n_heads, head)) };
        let zeros = [0.0; MAX_WKV_DIM];
        let mut token = Token { kept: zeros, asked: zeros, taken: zeros, key: zeros, value: zeros, bonus: 0.0 };
        let mut known = zeros;
        let known = &mut known[..dim];
        for row in span.first_row..span.first_row + span.n_rows {
            self.prepare(row, head, &mut token);
            let at = (row * n_heads + head) * dim;
            known.fill(0.0);
            for (s, asked) in s.chunks_exact(dim).zip(&token.asked) {
                s.iter().zip(&mut *known).for_each(|(s, known)| *known += asked * s);
            }
            // SAFETY: rows of spans are disjoint, and each task has a head of its own.
            let (read, bonus) = unsafe { (self.read.slice(at, dim), self.bonus.slice(at, dim)) };
            read.fill(0.0);
            let value = &token.value[..dim];
            for (i, s) in s.chunks_exact_mut(dim).enumerate() {
                let (kept, taken, key, r) = (token.kept[i], token.taken[i], token.key[i], self.r[at + i]);
                for (((s, known), value), read) in s.iter_mut().zip(&*known).zip(value).zip(&mut *read) {
                    *s = *s * kept + known * taken + value * key;
                    *read += r * *s;
                }
            }
            bonus.iter_mut().zip(value).for_each(|(bonus, value)| *bonus = token.bonus * value);
        }
        if let Some(copy) = span.copy {
            // SAFETY: as `s`.
            unsafe { self.state.slice((copy as usize * n_heads + head) * len, len) }.copy_from_slice(s);
        }
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
