//! Causal depthwise convolution over the rows of each sequence: every column has its own few weights, and the last
//! inputs of a sequence are its state.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::state_span::{SpanParts, run_parts};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, StateSpan, StateSpans, View, ViewMut};

const OP: &str = "conv1d";
/// Columns that one task takes: a few cache lines of every row.
const COLUMNS: usize = 256;

const THREADS: u32 = 256;
/// Rows of a block on a GPU, if the state has no more.
const MIN_CHUNK: usize = 16;

gpu::args! {
    pub(crate) struct Conv1d<'a> {
        x: Slice<'a, f32>,
        weight: Slice<'a, f32>,
        bias: Option<Slice<'a, f32>>,
        state: SliceMut<'a, f32>,
        spans: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_cols: u32,
        n_taps: u32,
        chunk: u32,
        is_silu: u32,
    }
}

kernels! {
    pub(crate) struct ConvKernels in "conv1d", overlapping {
        conv1d: Kernel<Conv1d<'static>> = ["conv1d"],
    }
}

/// What is done with the sums.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ConvOutput {
    Plain,
    Silu,
}

/// What a layer knows of its convolution.
#[derive(Copy, Clone)]
pub struct ConvFilter<'a> {
    /// `[n_taps, n_cols]`
    pub weight: View<'a>,
    /// `[1, n_cols]`
    pub bias: Option<View<'a>>,
    pub output: ConvOutput,
}

/// `out[r] = act(bias + sum over k of weight[k] * x[r + k + 1 - n_taps])`, column by column. `x` and `out` are
/// `[n_rows, n_cols]`, `state` is `[n_slots, (n_taps - 1) * n_cols]` with the oldest input first; all f32.
pub fn conv1d<'s>(
    exec: Exec,
    x: View,
    filter: ConvFilter,
    state: &mut ViewMut,
    spans: impl Into<StateSpans<'s>>,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let spans = spans.into();
    let ConvFilter { weight, bias, output } = filter;
    let ([n_rows, n_cols], [n_taps, _]) = (x.shape, weight.shape);
    weight.expect_shape(OP, "weight", [n_taps, n_cols])?;
    out.expect_shape(OP, "out", [n_rows, n_cols])?;
    let n_slots = state.shape[0];
    if n_taps < 2 || n_cols == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_taps} taps over {n_cols} columns") });
    }
    let n_before = n_taps - 1;
    state.expect_shape(OP, "state", [n_slots, n_before * n_cols])?;
    StateSpan::check(OP, spans.host, n_rows, n_slots)?;
    if let Some(bias) = bias {
        bias.expect_shape(OP, "bias", [1, n_cols])?;
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, x, filter, state, spans, out),
    };
    let (x, weight) = (x.f32s(OP, "x")?, weight.f32s(OP, "weight")?);
    let bias = bias.map(|bias| bias.f32s(OP, "bias")).transpose()?;
    let (state, out) = (SharedPtr::new(state.f32s(OP, "state")?), SharedPtr::new(out.f32s(OP, "out")?));
    let conv = ConvColumns { x, weight, bias, output, n_cols, n_taps, state, out };
    // SAFETY: `check` has seen the spans, and the parts of one have different columns.
    unsafe { run_parts(pool, spans.host, n_cols.div_ceil(COLUMNS), &conv) };
    Ok(())
}

fn launch(
    gpu: &Gpu,
    x: View,
    filter: ConvFilter,
    state: &mut ViewMut,
    spans: StateSpans,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let ConvFilter { weight, bias, output } = filter;
    let ([n_rows, n_cols], n_taps) = (x.shape, weight.shape[0]);
    if spans.host.is_empty() {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * n_cols) as u64, flops: 2 * (n_rows * n_cols * n_taps) as u64 });
    // The block of the first rows alone reads the old state.
    let chunk = (n_taps - 1).next_power_of_two().max(MIN_CHUNK);
    let longest = spans.host.iter().map(|span| span.n_rows).max().unwrap_or(1);
    let n_blocks = count(OP, "columns", n_cols.div_ceil(THREADS as usize))?;
    let blocks = [n_blocks, count(OP, "spans", spans.host.len())?, count(OP, "rows", longest.div_ceil(chunk))?];
    let args = Conv1d {
        x: x.device_f32s(OP, "x")?,
        weight: weight.device_f32s(OP, "weight")?,
        bias: bias.map(|bias| bias.device_f32s(OP, "bias")).transpose()?,
        state: state.device_f32s(OP, "state")?,
        spans: spans.on_device(OP)?,
        out: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        n_taps: count(OP, "taps", n_taps)?,
        chunk: chunk as u32,
        is_silu: u32::from(output == ConvOutput::Silu),
    };
    let grid = Grid { blocks, threads: [THREADS, 1, 1], shared_bytes: 0 };
    Ok(gpu.launcher.launch(&ConvKernels::get(gpu.kernels, &[])?.conv1d, grid, &args)?)
}

/// What all tasks of one call share.
struct ConvColumns<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    output: ConvOutput,
    n_cols: usize,
    n_taps: usize,
    state: SharedPtr<f32>,
    out: SharedPtr<f32>,
}

impl SpanParts for ConvColumns<'_> {
    #[inline(always)]
    unsafe fn part(&self, span: &StateSpan, part: usize) {
        let cols = part * COLUMNS..((part + 1) * COLUMNS).min(self.n_cols);
        let (n_cols, n_before, width) = (self.n_cols, self.n_taps - 1, cols.len());
        let zeros = [0.0_f32; COLUMNS];
        // The input `i` rows after the oldest one of the state.
        let input = |i: usize| -> &[f32] {
            match (i.checked_sub(n_before), span.from) {
                (Some(row), _) => &self.x[(span.first_row + row) * n_cols..][cols.clone()],
                // SAFETY: a slot that is read is written by no other span, and other tasks of this one have other columns.
                (None, Some(slot)) => unsafe {
                    self.state.slice((slot as usize * n_before + i) * n_cols + cols.start, width)
                },
                (None, None) => &zeros[..width],
            }
        };
        for row in 0..span.n_rows {
            // SAFETY: rows of spans are disjoint, and other tasks of this one have other columns.
            let out = unsafe { self.out.slice((span.first_row + row) * n_cols + cols.start, width) };
            match self.bias {
                Some(bias) => out.copy_from_slice(&bias[cols.clone()]),
                None => out.fill(0.0),
            }
            for tap in 0..self.n_taps {
                let weight = &self.weight[tap * n_cols..][cols.clone()];
                out.iter_mut().zip(weight).zip(input(row + tap)).for_each(|((out, w), x)| *out += w * x);
            }
            if self.output == ConvOutput::Silu {
                out.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x));
            }
        }
        // The copy first, and oldest inputs first: a state that moves onto itself is read before it is overwritten.
        for slot in [span.copy, Some(span.to)].into_iter().flatten() {
            for i in 0..n_before {
                let source = input(span.n_rows + i).as_ptr();
                let at = (slot as usize * n_before + i) * n_cols + cols.start;
                // SAFETY: a written slot belongs to this span alone. Source and destination may be the same row.
                unsafe { std::ptr::copy(source, self.state.slice(at, width).as_mut_ptr(), width) };
            }
        }
    }
}
