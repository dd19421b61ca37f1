//! The gated delta rule: each head has a matrix of `[key_dim, value_dim]` that maps keys to values. For each token it
//! decays, is corrected by its error on the token's value, and is read by the query. There is one decay per head (gated
//! delta nets) or one for each number of the key (KDA).

use gpu::{Kernel, Slice, SliceMut};

use crate::cpu::chunk_product::{RowMatrix, add_product};
use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::ssm_scan::{softplus, start};
use crate::state_span::{
    CHUNK, MIN_CHUNK_SLOTS, SCAN_COLUMNS, SpanParts, SpanPiece, pieces, run_parts, runs_chunks, scan_slots,
};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, StateSpan, StateSpans, View, ViewMut};

const OP: &str = "delta_scan";
/// Under the root of a key's length.
const EPS: f32 = 1e-6;
/// The widest key or value of a head.
pub const MAX_DELTA_DIM: usize = 512;

gpu::args! {
    pub(crate) struct DeltaScan<'a> {
        q: Slice<'a, f32>,
        k: Slice<'a, f32>,
        v: Slice<'a, f32>,
        forget: Slice<'a, f32>,
        beta: Slice<'a, f32>,
        forget_bias: Slice<'a, f32>,
        a: Slice<'a, f32>,
        state: SliceMut<'a, f32>,
        spans: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_key_heads: u32,
        n_heads: u32,
        key_dim: u32,
        value_dim: u32,
        is_tiled: u32,
        chunk_rows: u32,
    }
}

kernels! {
    pub(crate) struct DeltaKernels in "delta_scan", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[4, 16, 32, 64]),
        BY_CHANNEL: DefineValues::Flag
    } {
        delta_scan: Kernel<DeltaScan<'static>> = ["delta_scan"],
    }
}

kernels! {
    pub(crate) struct DeltaChunkKernels in "delta_chunk", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[16, 32, 64]),
        BY_CHANNEL: DefineValues::Flag
    } {
        delta_chunk: Kernel<DeltaScan<'static>> = ["delta_chunk"],
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DeltaShape {
    pub n_key_heads: usize,
    pub n_value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub order: HeadOrder,
}

/// Which key head serves a value head, where there are more of those.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum HeadOrder {
    /// Neighbours share one.
    Grouped,
    /// They take turns.
    Tiled,
}

/// The scan's inputs, computed by the layer from its rows.
#[derive(Copy, Clone)]
pub struct DeltaRows<'a> {
    /// `[n_rows, n_key_heads * key_dim]`; brought to length one here.
    pub q: View<'a>,
    pub k: View<'a>,
    /// `[n_rows, n_value_heads * value_dim]`
    pub v: View<'a>,
    /// `[n_rows, n_value_heads]`, or as many for each number of the key; before softplus.
    pub forget: View<'a>,
    /// `[n_rows, n_value_heads]`, before the sigmoid: how much of the error is corrected.
    pub beta: View<'a>,
    /// `[1, ..]`, added to `forget`.
    pub forget_bias: View<'a>,
    /// `[1, n_value_heads]`, below zero: how fast a head forgets.
    pub a: View<'a>,
}

/// `S *= exp(a * softplus(forget + bias))`, `S += k (sigmoid(beta) * (v - S k))`, `out = S q / sqrt(key_dim)`, head by head.
/// `state` is `[n_slots, n_value_heads * key_dim * value_dim]`, `out` `[n_rows, n_value_heads * value_dim]`; all f32.
pub fn delta_scan<'s>(
    exec: Exec,
    shape: DeltaShape,
    rows: DeltaRows,
    state: &mut ViewMut,
    spans: impl Into<StateSpans<'s>>,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let spans = spans.into();
    let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, .. } = shape;
    let (n_rows, n_slots, n_forget) = (rows.q.shape[0], state.shape[0], rows.forget.shape[1]);
    let is_good = n_key_heads > 0 && n_value_heads.is_multiple_of(n_key_heads) && n_value_heads > 0;
    let per_head = n_forget.checked_div(n_value_heads).unwrap_or(0);
    if !is_good
        || key_dim.max(value_dim) > MAX_DELTA_DIM
        || key_dim * value_dim == 0
        || ![1, key_dim].contains(&per_head)
    {
        return Err(Error::Argument { op: OP, what: format!("{shape:?} with {n_forget} gates") });
    }
    rows.q.expect_shape(OP, "q", [n_rows, n_key_heads * key_dim])?;
    rows.k.expect_shape(OP, "k", [n_rows, n_key_heads * key_dim])?;
    rows.v.expect_shape(OP, "v", [n_rows, n_value_heads * value_dim])?;
    rows.forget.expect_shape(OP, "forget", [n_rows, n_value_heads * per_head])?;
    rows.forget_bias.expect_shape(OP, "forget_bias", [1, n_value_heads * per_head])?;
    rows.beta.expect_shape(OP, "beta", [n_rows, n_value_heads])?;
    rows.a.expect_shape(OP, "a", [1, n_value_heads])?;
    state.expect_shape(OP, "state", [n_slots, n_value_heads * key_dim * value_dim])?;
    out.expect_shape(OP, "out", [n_rows, n_value_heads * value_dim])?;
    StateSpan::check(OP, spans.host, n_rows, n_slots)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, shape, rows, state, spans, out),
    };
    let scan = DeltaHeads {
        shape,
        runs_chunks: runs_chunks(pool),
        per_head,
        q: rows.q.f32s(OP, "q")?,
        k: rows.k.f32s(OP, "k")?,
        v: rows.v.f32s(OP, "v")?,
        forget: rows.forget.f32s(OP, "forget")?,
        forget_bias: rows.forget_bias.f32s(OP, "forget_bias")?,
        beta: rows.beta.f32s(OP, "beta")?,
        a: rows.a.f32s(OP, "a")?,
        state: SharedPtr::new(state.f32s(OP, "state")?),
        out: SharedPtr::new(out.f32s(OP, "out")?),
    };
    // SAFETY: `check` has seen the spans, and the parts of one have different heads.
    unsafe { run_parts(pool, spans.host, n_value_heads, &scan) };
    Ok(())
}

fn launch(
    gpu: &Gpu,
    shape: DeltaShape,
    rows: DeltaRows,
    state: &mut ViewMut,
    spans: StateSpans,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, order } = shape;
    if spans.host.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let state_len = (n_value_heads * key_dim * value_dim) as u64;
    let (n_spans, n_rows) = (spans.host.len() as u64, rows.q.shape[0] as u64);
    gpu.launcher.count(gpu::Work { bytes: 8 * n_spans * state_len, flops: 7 * n_rows * state_len });
    let is_by_channel = u32::from(rows.forget.shape[1] > n_value_heads);
    let kinds = spans.kinds(gpu);
    let args = DeltaScan {
        q: rows.q.device_f32s(OP, "q")?,
        k: rows.k.device_f32s(OP, "k")?,
        v: rows.v.device_f32s(OP, "v")?,
        forget: rows.forget.device_f32s(OP, "forget")?,
        beta: rows.beta.device_f32s(OP, "beta")?,
        forget_bias: rows.forget_bias.device_f32s(OP, "forget_bias")?,
        a: rows.a.device_f32s(OP, "a")?,
        state: state.device_f32s(OP, "state")?,
        spans: spans.on_device(OP)?,
        out: out.device_f32s(OP, "out")?,
        n_key_heads: count(OP, "heads", n_key_heads)?,
        n_heads: count(OP, "heads", n_value_heads)?,
        key_dim: count(OP, "columns", key_dim)?,
        value_dim: count(OP, "columns", value_dim)?,
        is_tiled: u32::from(order == HeadOrder::Tiled),
        chunk_rows: kinds.chunk_rows,
    };
    let slots = scan_slots(OP, key_dim)?;
    let grid = spans.grid(OP, n_value_heads * value_dim.div_ceil(SCAN_COLUMNS))?;
    if kinds.has_walks {
        let kernels = DeltaKernels::get(gpu.kernels, &[slots, is_by_channel])?;
        gpu.launcher.launch(&kernels.delta_scan, grid, &args)?;
    }
    if kinds.has_chunks {
        let kernels = DeltaChunkKernels::get(gpu.kernels, &[slots.max(MIN_CHUNK_SLOTS), is_by_channel])?;
        gpu.launcher.launch(&kernels.delta_chunk, grid, &args)?;
    }
    Ok(())
}

/// What all tasks of one call share.
struct DeltaHeads<'a> {
    shape: DeltaShape,
    runs_chunks: bool,
    /// Numbers of `forget` to a head.
    per_head: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    forget: &'a [f32],
    forget_bias: &'a [f32],
    beta: &'a [f32],
    a: &'a [f32],
    state: SharedPtr<f32>,
    out: SharedPtr<f32>,
}

impl SpanParts for DeltaHeads<'_> {
    #[inline(always)]
    unsafe fn part(&self, span: &StateSpan, head: usize) {
        let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, order } = self.shape;
        let len = key_dim * value_dim;
        let key_head = match order {
            HeadOrder::Grouped => head / (n_value_heads / n_key_heads),
            HeadOrder::Tiled => head % n_key_heads,
        };
        // SAFETY: a written slot belongs to this span alone, and its heads to different tasks.
        let s = unsafe { self.state.slice((span.to as usize * n_value_heads + head) * len, len) };
        // SAFETY: a slot that is read is written by nobody else.
        unsafe { start(s, &self.state, span, (n_value_heads, head)) };
        let mut work = None;
        for SpanPiece { rows, is_chunk } in pieces(span, self.runs_chunks) {
            // SAFETY: the caller's promise; the span has the rows.
            unsafe {
                if !is_chunk {
                    self.walk(rows, (head, key_head), s);
                    continue;
                }
                let work = work.get_or_insert_with(|| DeltaChunk::new(key_dim, value_dim, self.per_head));
                match self.per_head {
                    1 => self.chunk::<false>(rows, (head, key_head), s, work),
                    _ if self.sum_logs(rows.clone(), head, &mut work.logs) => {
                        self.chunk::<true>(rows, (head, key_head), s, work);
                    }
                    // So much is forgotten that one factor would be too large and the other too small.
                    _ => self.walk(rows, (head, key_head), s),
                }
            }
        }
        if let Some(copy) = span.copy {
            // SAFETY: as `s`.
            unsafe { self.state.slice((copy as usize * n_value_heads + head) * len, len) }.copy_from_slice(s);
        }
    }
}

/// What a chunk of one head needs besides the state.
struct DeltaChunk {
    /// `[CHUNK, key_dim]`, of decays by channel: the sums of their logarithms since the chunk's start.
    logs: Vec<f32>,
    /// `[2 * CHUNK, key_dim]`: keys, then queries.
    kq: Vec<f32>,
    /// `[key_dim, CHUNK]`: keys as columns.
    k_columns: Vec<f32>,
    /// `[2 * CHUNK, CHUNK]`: products of keys and of queries with keys.
    products: Vec<f32>,
    /// `[2 * CHUNK, value_dim]`: what keys and queries read of the state before the chunk.
    read: Vec<f32>,
    /// `[CHUNK, value_dim]`: what each token corrects.
    errors: Vec<f32>,
}

impl DeltaChunk {
    fn new(key_dim: usize, value_dim: usize, per_head: usize) -> Self {
        Self {
            logs: vec![0.0; if per_head > 1 { CHUNK * key_dim } else { 0 }],
            kq: vec![0.0; 2 * CHUNK * key_dim],
            k_columns: vec![0.0; key_dim * CHUNK],
            products: vec![0.0; 2 * CHUNK * CHUNK],
            read: vec![0.0; 2 * CHUNK * value_dim],
            errors: vec![0.0; CHUNK * value_dim],
        }
    }
}

impl DeltaHeads<'_> {
    /// Some rows, token by token.
    ///
    /// # Safety
    /// As [`SpanParts::part`], of a span that has the rows.
    #[inline(always)]
    unsafe fn walk(&self, rows: std::ops::Range<usize>, (head, key_head): (usize, usize), s: &mut [f32]) {
        let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, .. } = self.shape;
        let [mut q, mut k, mut decay, mut error] = [[0.0; MAX_DELTA_DIM]; 4];
        let (q, k) = (&mut q[..key_dim], &mut k[..key_dim]);
        let (decay, error) = (&mut decay[..key_dim], &mut error[..value_dim]);
        for row in rows {
            let key_at = (row * n_key_heads + key_head) * key_dim;
            unit(&self.q[key_at..][..key_dim], 1.0 / (key_dim as f32).sqrt(), q);
            unit(&self.k[key_at..][..key_dim], 1.0, k);
            self.decays(row, head, decay);
            let v = &self.v[(row * n_value_heads + head) * value_dim..][..value_dim];
            let beta = 1.0 / (1.0 + exp(-self.beta[row * n_value_heads + head]));
            // What the decayed state knows of this key.
            error.fill(0.0);
            for ((s, decay), k) in s.chunks_exact_mut(value_dim).zip(&*decay).zip(&*k) {
                s.iter_mut().zip(&mut *error).for_each(|(s, error)| {
                    *s *= decay;
                    *error += k * *s;
                });
            }
            error.iter_mut().zip(v).for_each(|(error, v)| *error = beta * (v - *error));
            // SAFETY: rows of spans are disjoint, and each task has a head of its own.
            let out = unsafe { self.out.slice((row * n_value_heads + head) * value_dim, value_dim) };
            out.fill(0.0);
            for ((s, q), k) in s.chunks_exact_mut(value_dim).zip(&*q).zip(&*k) {
                s.iter_mut().zip(&*error).zip(&mut *out).for_each(|((s, error), out)| {
                    *s += k * error;
                    *out += q * *s;
                });
            }
        }
    }

    /// The logarithms of decays by channel, summed up; whether their powers stay in a range that loses nothing.
    #[inline(always)]
    fn sum_logs(&self, rows: std::ops::Range<usize>, head: usize, logs: &mut [f32]) -> bool {
        /// Powers of it and of its opposite are far from the ends of f32, and a sum of this size keeps enough bits.
        const MOST: f32 = -30.0;
        let (n, first) = (self.per_head, head * self.per_head);
        let n_gates = self.shape.n_value_heads * n;
        let mut lowest = 0.0_f32;
        for (i, row) in rows.enumerate() {
            let (before, now) = logs.split_at_mut(i * n);
            let gates = &self.forget[row * n_gates + first..][..n];
            for (d, ((log, gate), bias)) in now.iter_mut().zip(gates).zip(&self.forget_bias[first..]).enumerate() {
                let before = if i > 0 { before[(i - 1) * n + d] } else { 0.0 };
                *log = before + self.a[head] * softplus(gate + bias);
                lowest = lowest.min(*log);
            }
        }
        lowest > MOST
    }

    /// Some rows at once. With `g` the sum of the decays' logarithms since the chunk's start, the state after token i is
    /// `exp(g_i) S + sum over j <= i of exp(g_i - g_j) k_j e_j`, so the errors `e` follow one from the other with the
    /// products of keys, and all else is products of matrices. Decays by channel go into the factors: `exp(g_i)` into the
    /// queries and keys that read, `exp(-g_j)` into the keys that were written; [`Self::sum_logs`] has made their sums.
    ///
    /// # Safety
    /// As [`SpanParts::part`], of a span that has the rows.
    #[inline(always)]
    unsafe fn chunk<const BY_CHANNEL: bool>(
        &self,
        rows: std::ops::Range<usize>,
        (head, key_head): (usize, usize),
        s: &mut [f32],
        work: &mut DeltaChunk,
    ) {
        let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, .. } = self.shape;
        let n = rows.len();
        let DeltaChunk { logs: channel_logs, kq, k_columns, products, read, errors } = work;
        let kq = &mut kq[..2 * n * key_dim];
        let (keys, queries) = kq.split_at_mut(n * key_dim);
        let mut logs = [0.0_f32; CHUNK];
        let mut log = 0.0;
        for (i, row) in rows.clone().enumerate() {
            let key_at = (row * n_key_heads + key_head) * key_dim;
            unit(&self.k[key_at..][..key_dim], 1.0, &mut keys[i * key_dim..][..key_dim]);
            let length = 1.0 / (key_dim as f32).sqrt();
            unit(&self.q[key_at..][..key_dim], length, &mut queries[i * key_dim..][..key_dim]);
            if !BY_CHANNEL {
                log += self.a[head] * softplus(self.forget[row * n_value_heads + head] + self.forget_bias[head]);
                logs[i] = log;
            }
        }
        for (d, column) in k_columns.chunks_exact_mut(CHUNK).enumerate() {
            column[..n].iter_mut().enumerate().for_each(|(i, to)| *to = keys[i * key_dim + d]);
            column[n..].fill(0.0);
        }
        if BY_CHANNEL {
            for (i, logs) in channel_logs.chunks_exact(key_dim).take(n).enumerate() {
                let (key, query) = (&mut keys[i * key_dim..][..key_dim], &mut queries[i * key_dim..][..key_dim]);
                for (d, ((key, query), log)) in key.iter_mut().zip(query).zip(logs).enumerate() {
                    let decay = exp(*log);
                    (*key, *query) = (*key * decay, *query * decay);
                    k_columns[d * CHUNK + i] *= exp(-log);
                }
            }
        }
        let kq = RowMatrix::dense(kq, key_dim);
        let products = &mut products[..2 * n * CHUNK];
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(kq, RowMatrix::dense(k_columns, CHUNK), 0.0, products) };
        let read = &mut read[..2 * n * value_dim];
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(kq, RowMatrix::dense(s, value_dim), 0.0, read) };
        let (of_keys, of_queries) = read.split_at_mut(n * value_dim);
        let (key_products, query_products) = products.split_at_mut(n * CHUNK);
        for (i, row) in rows.clone().enumerate() {
            let beta = 1.0 / (1.0 + exp(-self.beta[row * n_value_heads + head]));
            let (mut by_key, mut by_query) = ([0.0_f32; CHUNK], [0.0_f32; CHUNK]);
            let pairs = key_products[i * CHUNK..][..CHUNK].iter().zip(&query_products[i * CHUNK..][..CHUNK]);
            for (j, (key, query)) in pairs.enumerate() {
                let decay = if BY_CHANNEL { 1.0 } else { exp(logs[i] - logs[j]) };
                by_key[j] = -beta * decay * key;
                by_query[j] = decay * query;
            }
            by_query[i + 1..].fill(0.0);
            query_products[i * CHUNK..][..CHUNK].copy_from_slice(&by_query);
            let decay = if BY_CHANNEL { 1.0 } else { exp(logs[i]) };
            let v = &self.v[(row * n_value_heads + head) * value_dim..][..value_dim];
            let (before, error) = errors.split_at_mut(i * value_dim);
            let error = &mut error[..value_dim];
            let known = &of_keys[i * value_dim..][..value_dim];
            error.iter_mut().zip(v).zip(known).for_each(|((error, v), known)| *error = beta * (v - decay * known));
            let by_key = RowMatrix { numbers: &by_key, stride: CHUNK, n_rows: 1, n_cols: i };
            // SAFETY: chunks run where the CPU has AVX2 and FMA.
            unsafe { add_product(by_key, RowMatrix::dense(before, value_dim), 1.0, error) };
            of_queries[i * value_dim..][..value_dim].iter_mut().for_each(|read| *read *= decay);
        }
        let errors = RowMatrix::dense(&errors[..n * value_dim], value_dim);
        let by_query = RowMatrix { numbers: query_products, stride: CHUNK, n_rows: n, n_cols: n };
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(by_query, errors, 1.0, of_queries) };
        for (row, read) in rows.zip(of_queries.chunks_exact(value_dim)) {
            // SAFETY: rows of spans are disjoint, and each task has a head of its own.
            let out = unsafe { self.out.slice((row * n_value_heads + head) * value_dim, value_dim) };
            out.copy_from_slice(read);
        }
        if BY_CHANNEL {
            let last = &channel_logs[(n - 1) * key_dim..][..key_dim];
            for ((column, row), log) in k_columns.chunks_exact_mut(CHUNK).zip(s.chunks_exact_mut(value_dim)).zip(last) {
                let decay = exp(*log);
                column.iter_mut().chain(row).for_each(|x| *x *= decay);
            }
        } else {
            let mut left = [0.0_f32; CHUNK];
            left[..n].iter_mut().zip(&logs).for_each(|(left, before)| *left = exp(log - before));
            for column in k_columns.chunks_exact_mut(CHUNK) {
                column.iter_mut().zip(&left).for_each(|(k, left)| *k *= left);
            }
        }
        let k_columns = RowMatrix { numbers: k_columns, stride: CHUNK, n_rows: key_dim, n_cols: n };
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(k_columns, errors, if BY_CHANNEL { 1.0 } else { exp(log) }, s) };
    }

    /// What each row of the head's matrix is multiplied with.
    #[inline(always)]
    fn decays(&self, row: usize, head: usize, decay: &mut [f32]) {
        let first = head * self.per_head;
        let n_gates = self.shape.n_value_heads * self.per_head;
        let gate = |i: usize| {
            let forget = self.forget[row * n_gates + first + i] + self.forget_bias[first + i];
            exp(self.a[head] * softplus(forget))
        };
        match self.per_head {
            1 => decay.fill(gate(0)),
            _ => decay.iter_mut().enumerate().for_each(|(i, decay)| *decay = gate(i)),
        }
    }
}

/// `x` brought to this length.
#[inline(always)]
fn unit(x: &[f32], length: f32, out: &mut [f32]) {
    // Side by side, so that the compiler can use vectors.
    let mut sums = [0.0_f32; 8];
    let eights = x.chunks_exact(8);
    let rest: f32 = eights.remainder().iter().map(|x| x * x).sum();
    eights.for_each(|eight| sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x * x));
    let scale = length / (sums.iter().sum::<f32>() + rest + EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
}
