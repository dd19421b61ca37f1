//! The recurrence of Mamba 2: each head has a matrix `h` of `[state_dim, head_dim]`, which decays by one number a token and
//! takes up `B` times `x`; `C` reads it. All rows of a sequence are one call, so a prompt passes the other ops as a matrix.

use gpu::{Kernel, Slice, SliceMut};

use crate::cpu::chunk_product::{RowMatrix, add_product};
use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::state_span::{
    CHUNK, MIN_CHUNK_SLOTS, SCAN_COLUMNS, SpanParts, SpanPiece, pieces, run_parts, runs_chunks, scan_slots,
};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, StateSpan, StateSpans, View, ViewMut};

const OP: &str = "ssm_scan";

gpu::args! {
    pub(crate) struct SsmScan<'a> {
        xbc: Slice<'a, f32>,
        dt: Slice<'a, f32>,
        a: Slice<'a, f32>,
        d: Slice<'a, f32>,
        dt_bias: Slice<'a, f32>,
        state: SliceMut<'a, f32>,
        spans: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_heads: u32,
        head_dim: u32,
        state_dim: u32,
        n_groups: u32,
        chunk_rows: u32,
    }
}

kernels! {
    pub(crate) struct SsmKernels in "ssm_scan", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[4, 16, 32, 64])
    } {
        ssm_scan: Kernel<SsmScan<'static>> = ["ssm_scan"],
    }
}

kernels! {
    pub(crate) struct SsmChunkKernels in "ssm_chunk", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[16, 32, 64])
    } {
        ssm_chunk: Kernel<SsmScan<'static>> = ["ssm_chunk"],
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SsmShape {
    pub n_heads: usize,
    pub head_dim: usize,
    pub state_dim: usize,
    /// Neighbouring heads share `B` and `C`.
    pub n_groups: usize,
}

/// The scan's inputs, computed by the layer from its rows.
#[derive(Copy, Clone)]
pub struct SsmRows<'a> {
    /// `[n_rows, n_heads * head_dim + 2 * n_groups * state_dim]`: x, B, C.
    pub xbc: View<'a>,
    /// `[n_rows, n_heads]`, before softplus.
    pub dt: View<'a>,
}

/// The numbers of a layer, `[1, n_heads]` each.
#[derive(Copy, Clone)]
pub struct SsmWeights<'a> {
    /// Below zero: how fast a head forgets.
    pub a: View<'a>,
    /// What goes past the state.
    pub d: View<'a>,
    pub dt_bias: View<'a>,
}

/// With `dt = softplus(dt + dt_bias)`: `h = exp(dt * a) * h + dt * B x`, `out = C h + d * x`. `state` is
/// `[n_slots, n_heads * state_dim * head_dim]`, `out` `[n_rows, n_heads * head_dim]`; all f32.
pub fn ssm_scan<'s>(
    exec: Exec,
    shape: SsmShape,
    rows: SsmRows,
    weights: SsmWeights,
    state: &mut ViewMut,
    spans: impl Into<StateSpans<'s>>,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let spans = spans.into();
    let SsmShape { n_heads, head_dim, state_dim, n_groups } = shape;
    let SsmRows { xbc, dt } = rows;
    let (n_rows, n_slots, inner) = (xbc.shape[0], state.shape[0], n_heads * head_dim);
    if n_groups == 0 || !n_heads.is_multiple_of(n_groups) || head_dim * state_dim == 0 {
        return Err(Error::Argument { op: OP, what: format!("{shape:?}") });
    }
    xbc.expect_shape(OP, "xbc", [n_rows, inner + 2 * n_groups * state_dim])?;
    dt.expect_shape(OP, "dt", [n_rows, n_heads])?;
    for (what, view) in [("a", weights.a), ("d", weights.d), ("dt_bias", weights.dt_bias)] {
        view.expect_shape(OP, what, [1, n_heads])?;
    }
    state.expect_shape(OP, "state", [n_slots, inner * state_dim])?;
    out.expect_shape(OP, "out", [n_rows, inner])?;
    StateSpan::check(OP, spans.host, n_rows, n_slots)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, shape, rows, weights, state, spans, out),
    };
    let scan = SsmHeads {
        shape,
        runs_chunks: runs_chunks(pool),
        xbc: xbc.f32s(OP, "xbc")?,
        dt: dt.f32s(OP, "dt")?,
        a: weights.a.f32s(OP, "a")?,
        d: weights.d.f32s(OP, "d")?,
        dt_bias: weights.dt_bias.f32s(OP, "dt_bias")?,
        state: SharedPtr::new(state.f32s(OP, "state")?),
        out: SharedPtr::new(out.f32s(OP, "out")?),
    };
    // SAFETY: `check` has seen the spans, and the parts of one have different heads.
    unsafe { run_parts(pool, spans.host, n_heads, &scan) };
    Ok(())
}

fn launch(
    gpu: &Gpu,
    shape: SsmShape,
    rows: SsmRows,
    weights: SsmWeights,
    state: &mut ViewMut,
    spans: StateSpans,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let SsmShape { n_heads, head_dim, state_dim, n_groups } = shape;
    if spans.host.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let state_len = (n_heads * head_dim * state_dim) as u64;
    let (n_spans, n_rows) = (spans.host.len() as u64, rows.xbc.shape[0] as u64);
    gpu.launcher.count(gpu::Work { bytes: 8 * n_spans * state_len, flops: 5 * n_rows * state_len });
    let kinds = spans.kinds(gpu);
    let args = SsmScan {
        xbc: rows.xbc.device_f32s(OP, "xbc")?,
        dt: rows.dt.device_f32s(OP, "dt")?,
        a: weights.a.device_f32s(OP, "a")?,
        d: weights.d.device_f32s(OP, "d")?,
        dt_bias: weights.dt_bias.device_f32s(OP, "dt_bias")?,
        state: state.device_f32s(OP, "state")?,
        spans: spans.on_device(OP)?,
        out: out.device_f32s(OP, "out")?,
        n_heads: count(OP, "heads", n_heads)?,
        head_dim: count(OP, "columns", head_dim)?,
        state_dim: count(OP, "states", state_dim)?,
        n_groups: count(OP, "groups", n_groups)?,
        chunk_rows: kinds.chunk_rows,
    };
    let slots = scan_slots(OP, state_dim)?;
    let grid = spans.grid(OP, n_heads * head_dim.div_ceil(SCAN_COLUMNS))?;
    if kinds.has_walks {
        let kernels = SsmKernels::get(gpu.kernels, &[slots])?;
        gpu.launcher.launch(&kernels.ssm_scan, grid, &args)?;
    }
    if kinds.has_chunks {
        let kernels = SsmChunkKernels::get(gpu.kernels, &[slots.max(MIN_CHUNK_SLOTS)])?;
        gpu.launcher.launch(&kernels.ssm_chunk, grid, &args)?;
    }
    Ok(())
}

/// What all tasks of one call share.
struct SsmHeads<'a> {
    shape: SsmShape,
    runs_chunks: bool,
    xbc: &'a [f32],
    dt: &'a [f32],
    a: &'a [f32],
    d: &'a [f32],
    dt_bias: &'a [f32],
    state: SharedPtr<f32>,
    out: SharedPtr<f32>,
}

impl SpanParts for SsmHeads<'_> {
    #[inline(always)]
    unsafe fn part(&self, span: &StateSpan, head: usize) {
        let SsmShape { n_heads, head_dim, state_dim, .. } = self.shape;
        let len = head_dim * state_dim;
        // SAFETY: a written slot belongs to this span alone, and its heads to different tasks.
        let h = unsafe { self.state.slice((span.to as usize * n_heads + head) * len, len) };
        // SAFETY: a slot that is read is written by nobody else; `start` copies also where both are one.
        unsafe { start(h, &self.state, span, (n_heads, head)) };
        let mut work = None;
        for SpanPiece { rows, is_chunk } in pieces(span, self.runs_chunks) {
            // SAFETY: the caller's promise; the span has the rows.
            unsafe {
                match is_chunk {
                    true => self.chunk(rows, head, h, work.get_or_insert_with(|| SsmChunk::new(state_dim, head_dim))),
                    false => self.walk(rows, head, h),
                }
            }
        }
        if let Some(copy) = span.copy {
            // SAFETY: as `h`.
            unsafe { self.state.slice((copy as usize * n_heads + head) * len, len) }.copy_from_slice(h);
        }
    }
}

impl SsmHeads<'_> {
    /// Some rows, token by token.
    ///
    /// # Safety
    /// As [`SpanParts::part`], of a span that has the rows.
    #[inline(always)]
    unsafe fn walk(&self, rows: std::ops::Range<usize>, head: usize, h: &mut [f32]) {
        let SsmShape { n_heads, head_dim, state_dim, n_groups } = self.shape;
        let (inner, group) = (n_heads * head_dim, head / (n_heads / n_groups));
        let width = inner + 2 * n_groups * state_dim;
        for row in rows {
            let xbc = &self.xbc[row * width..][..width];
            let x = &xbc[head * head_dim..][..head_dim];
            let b = &xbc[inner + group * state_dim..][..state_dim];
            let c = &xbc[inner + (n_groups + group) * state_dim..][..state_dim];
            let dt = softplus(self.dt[row * n_heads + head] + self.dt_bias[head]);
            let decay = exp(dt * self.a[head]);
            // SAFETY: rows of spans are disjoint, and each task has a head of its own.
            let out = unsafe { self.out.slice(row * inner + head * head_dim, head_dim) };
            out.iter_mut().zip(x).for_each(|(out, x)| *out = self.d[head] * x);
            for (n, h) in h.chunks_exact_mut(head_dim).enumerate() {
                let (taken, read) = (dt * b[n], c[n]);
                h.iter_mut().zip(x).zip(&mut *out).for_each(|((h, x), out)| {
                    *h = *h * decay + taken * x;
                    *out += read * *h;
                });
            }
        }
    }
}

/// What a chunk of one head needs besides the state.
struct SsmChunk {
    /// `[state_dim, CHUNK]`: each token's `dt B` as a column.
    b_columns: Vec<f32>,
    /// `[CHUNK, CHUNK]`: products of `C` and `dt B`.
    products: Vec<f32>,
    /// `[CHUNK, head_dim]`
    out: Vec<f32>,
}

impl SsmChunk {
    fn new(state_dim: usize, head_dim: usize) -> Self {
        Self {
            b_columns: vec![0.0; state_dim * CHUNK],
            products: vec![0.0; CHUNK * CHUNK],
            out: vec![0.0; CHUNK * head_dim],
        }
    }
}

impl SsmHeads<'_> {
    /// Some rows at once. With `g` the sum of the decays' logarithms since the chunk's start, the state after token i is
    /// `exp(g_i) h + sum over j <= i of exp(g_i - g_j) dt_j B_j x_j`: all of it products of matrices.
    ///
    /// # Safety
    /// As [`SpanParts::part`], of a span that has the rows.
    #[inline(always)]
    unsafe fn chunk(&self, rows: std::ops::Range<usize>, head: usize, h: &mut [f32], work: &mut SsmChunk) {
        let SsmShape { n_heads, head_dim, state_dim, n_groups } = self.shape;
        let (n, inner, group) = (rows.len(), n_heads * head_dim, head / (n_heads / n_groups));
        let width = inner + 2 * n_groups * state_dim;
        let xbc = &self.xbc[rows.start * width..rows.end * width];
        let part = |first: usize, n_cols| RowMatrix { numbers: &xbc[first..], stride: width, n_rows: n, n_cols };
        let x = part(head * head_dim, head_dim);
        let b = part(inner + group * state_dim, state_dim);
        let c = part(inner + (n_groups + group) * state_dim, state_dim);
        let (mut logs, mut dts) = ([0.0_f32; CHUNK], [0.0_f32; CHUNK]);
        let mut log = 0.0;
        for (i, row) in rows.clone().enumerate() {
            dts[i] = softplus(self.dt[row * n_heads + head] + self.dt_bias[head]);
            log += dts[i] * self.a[head];
            logs[i] = log;
        }
        let SsmChunk { b_columns, products, out } = work;
        for (d, column) in b_columns.chunks_exact_mut(CHUNK).enumerate() {
            let b = (0..n).map(|i| dts[i] * b.numbers[i * b.stride + d]);
            column[..n].iter_mut().zip(b).for_each(|(to, b)| *to = b);
            column[n..].fill(0.0);
        }
        let (products, out) = (&mut products[..n * CHUNK], &mut out[..n * head_dim]);
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(c, RowMatrix::dense(b_columns, CHUNK), 0.0, products) };
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(c, RowMatrix::dense(h, head_dim), 0.0, out) };
        for (i, products) in products.chunks_exact_mut(CHUNK).enumerate() {
            products.iter_mut().zip(&logs).for_each(|(product, before)| *product *= exp(logs[i] - before));
            let decay = exp(logs[i]);
            let (of_x, out) = (&x.numbers[i * x.stride..][..head_dim], &mut out[i * head_dim..][..head_dim]);
            out.iter_mut().zip(of_x).for_each(|(out, x)| *out = decay * *out + self.d[head] * x);
            products[i + 1..].fill(0.0);
        }
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe { add_product(RowMatrix { numbers: products, stride: CHUNK, n_rows: n, n_cols: n }, x, 1.0, out) };
        for (row, found) in rows.zip(out.chunks_exact(head_dim)) {
            // SAFETY: rows of spans are disjoint, and each task has a head of its own.
            unsafe { self.out.slice(row * inner + head * head_dim, head_dim) }.copy_from_slice(found);
        }
        let mut left = [0.0_f32; CHUNK];
        left[..n].iter_mut().zip(&logs).for_each(|(left, before)| *left = exp(log - before));
        for column in b_columns.chunks_exact_mut(CHUNK) {
            column.iter_mut().zip(&left).for_each(|(b, left)| *b *= left);
        }
        // SAFETY: chunks run where the CPU has AVX2 and FMA.
        unsafe {
            add_product(RowMatrix { numbers: b_columns, stride: CHUNK, n_rows: state_dim, n_cols: n }, x, exp(log), h)
        };
    }
}

/// Fills `h`, part `part` of `n_parts` equal ones of slot `span.to`, with the same part of the state it starts from.
///
/// # Safety
/// No other task writes that part of `span.from`.
#[inline(always)]
pub(crate) unsafe fn start(h: &mut [f32], state: &SharedPtr<f32>, span: &StateSpan, (n_parts, part): (usize, usize)) {
    match span.from {
        None => h.fill(0.0),
        Some(slot) if slot == span.to => {}
        Some(slot) => {
            // SAFETY: the caller's promise; the slots differ, so the parts do not overlap.
            let from = unsafe { state.slice((slot as usize * n_parts + part) * h.len(), h.len()) };
            h.copy_from_slice(from);
        }
    }
}

/// `ln(1 + e^x)`
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // Beyond, the sum is the power alone in f32.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
