//! The gated delta rule: each head has a matrix of `[key_dim, value_dim]` that maps keys to values. It decays, and then
//! is corrected by what it got wrong about the token's value; the query reads it. The decay is one number a head (gated
//! delta nets) or one for each number of the key (KDA).

use gpu::{Kernel, Slice, SliceMut};

use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::ssm_scan::{softplus, start};
use crate::state_span::{SCAN_COLUMNS, SpanParts, run_parts, scan_slots};
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
    }
}

kernels! {
    pub(crate) struct DeltaKernels in "delta_scan", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[4, 16, 32, 64, 128]),
        BY_CHANNEL: DefineValues::Flag
    } {
        delta_scan: Kernel<DeltaScan<'static>> = ["delta_scan"],
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

/// What a layer makes of its rows before the scan.
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
    let is_by_channel = rows.forget.shape[1] > n_value_heads;
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
    };
    let kernels = DeltaKernels::get(gpu.kernels, &[scan_slots(OP, key_dim)?, u32::from(is_by_channel)])?;
    let grid = spans.grid(OP, n_value_heads * value_dim.div_ceil(SCAN_COLUMNS))?;
    Ok(gpu.launcher.launch(&kernels.delta_scan, grid, &args)?)
}

/// What all tasks of one call share.
struct DeltaHeads<'a> {
    shape: DeltaShape,
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
        let [mut q, mut k, mut decay, mut error] = [[0.0; MAX_DELTA_DIM]; 4];
        let (q, k) = (&mut q[..key_dim], &mut k[..key_dim]);
        let (decay, error) = (&mut decay[..key_dim], &mut error[..value_dim]);
        for row in span.first_row..span.first_row + span.n_rows {
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
        if let Some(copy) = span.copy {
            // SAFETY: as `s`.
            unsafe { self.state.slice((copy as usize * n_value_heads + head) * len, len) }.copy_from_slice(s);
        }
    }
}

impl DeltaHeads<'_> {
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
    let sum: f32 = x.iter().map(|x| x * x).sum();
    let scale = length / (sum + EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
}
