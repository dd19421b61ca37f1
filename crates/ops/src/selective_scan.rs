//! The recurrence of the first Mamba: every column has a state of its own, which decays by as many numbers as it has and
//! takes up `B` times the column; `C` reads it.

use gpu::{Kernel, Slice, SliceMut};

use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::ssm_scan::softplus;
use crate::state_span::{SCAN_COLUMNS, SpanParts, run_parts, scan_slots};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, StateSpan, StateSpans, View, ViewMut};

const OP: &str = "selective_scan";
/// Columns that one task takes.
const COLUMNS: usize = 64;

gpu::args! {
    pub(crate) struct SelectiveScan<'a> {
        x: Slice<'a, f32>,
        dt: Slice<'a, f32>,
        b: Slice<'a, f32>,
        c: Slice<'a, f32>,
        a: Slice<'a, f32>,
        d: Slice<'a, f32>,
        state: SliceMut<'a, f32>,
        spans: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_cols: u32,
        state_dim: u32,
    }
}

kernels! {
    pub(crate) struct SelectiveKernels in "selective_scan", overlapping; defines {
        SLOTS: DefineValues::Numbers(&[4, 16, 32, 64])
    } {
        selective_scan: Kernel<SelectiveScan<'static>> = ["selective_scan"],
    }
}

/// The scan's inputs, computed by the layer from its rows.
#[derive(Copy, Clone)]
pub struct Selected<'a> {
    /// `[n_rows, n_cols]`
    pub x: View<'a>,
    /// `[n_rows, n_cols]`, before softplus.
    pub dt: View<'a>,
    /// `[n_rows, state_dim]`
    pub b: View<'a>,
    /// `[n_rows, state_dim]`
    pub c: View<'a>,
}

/// `h[n] = exp(dt * a[n]) * h[n] + dt * b[n] * x`, `out = sum over n of c[n] * h[n] + d * x`, column by column. `a` is
/// `[state_dim, n_cols]`, below zero, `d` `[1, n_cols]`, `state` `[n_slots, state_dim * n_cols]`; all f32.
pub fn selective_scan<'s>(
    exec: Exec,
    selected: Selected,
    a: View,
    d: View,
    state: &mut ViewMut,
    spans: impl Into<StateSpans<'s>>,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let spans = spans.into();
    let Selected { x, dt, b, c } = selected;
    let ([n_rows, n_cols], state_dim, n_slots) = (x.shape, b.shape[1], state.shape[0]);
    dt.expect_shape(OP, "dt", [n_rows, n_cols])?;
    b.expect_shape(OP, "b", [n_rows, state_dim])?;
    c.expect_shape(OP, "c", [n_rows, state_dim])?;
    a.expect_shape(OP, "a", [state_dim, n_cols])?;
    d.expect_shape(OP, "d", [1, n_cols])?;
    state.expect_shape(OP, "state", [n_slots, state_dim * n_cols])?;
    out.expect_shape(OP, "out", [n_rows, n_cols])?;
    StateSpan::check(OP, spans.host, n_rows, n_slots)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, selected, [a, d], state, spans, out),
    };
    let scan = SelectiveColumns {
        x: x.f32s(OP, "x")?,
        dt: dt.f32s(OP, "dt")?,
        b: b.f32s(OP, "b")?,
        c: c.f32s(OP, "c")?,
        a: a.f32s(OP, "a")?,
        d: d.f32s(OP, "d")?,
        n_cols,
        state_dim,
        state: SharedPtr::new(state.f32s(OP, "state")?),
        out: SharedPtr::new(out.f32s(OP, "out")?),
    };
    // SAFETY: `check` has seen the spans, and the parts of one have different columns.
    unsafe { run_parts(pool, spans.host, n_cols.div_ceil(COLUMNS), &scan) };
    Ok(())
}

fn launch(
    gpu: &Gpu,
    selected: Selected,
    [a, d]: [View; 2],
    state: &mut ViewMut,
    spans: StateSpans,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let Selected { x, dt, b, c } = selected;
    let ([n_rows, n_cols], state_dim) = (x.shape, b.shape[1]);
    if spans.host.is_empty() || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let (n_spans, state_len) = (spans.host.len() as u64, (n_cols * state_dim) as u64);
    gpu.launcher.count(gpu::Work { bytes: 8 * n_spans * state_len, flops: 6 * n_rows as u64 * state_len });
    let args = SelectiveScan {
        x: x.device_f32s(OP, "x")?,
        dt: dt.device_f32s(OP, "dt")?,
        b: b.device_f32s(OP, "b")?,
        c: c.device_f32s(OP, "c")?,
        a: a.device_f32s(OP, "a")?,
        d: d.device_f32s(OP, "d")?,
        state: state.device_f32s(OP, "state")?,
        spans: spans.on_device(OP)?,
        out: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        state_dim: count(OP, "states", state_dim)?,
    };
    let kernels = SelectiveKernels::get(gpu.kernels, &[scan_slots(OP, state_dim)?])?;
    Ok(gpu.launcher.launch(&kernels.selective_scan, spans.grid(OP, n_cols.div_ceil(SCAN_COLUMNS))?, &args)?)
}

/// What all tasks of one call share.
struct SelectiveColumns<'a> {
    x: &'a [f32],
    dt: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    a: &'a [f32],
    d: &'a [f32],
    n_cols: usize,
    state_dim: usize,
    state: SharedPtr<f32>,
    out: SharedPtr<f32>,
}

impl SpanParts for SelectiveColumns<'_> {
    #[inline(always)]
    unsafe fn part(&self, span: &StateSpan, part: usize) {
        let cols = part * COLUMNS..((part + 1) * COLUMNS).min(self.n_cols);
        let (n_cols, n_states, width) = (self.n_cols, self.state_dim, cols.len());
        let place = |slot: u32, n: usize| (slot as usize * n_states + n) * n_cols + cols.start;
        for n in 0..n_states {
            // SAFETY: a written slot belongs to this span alone, a read one is written by no other, and other tasks of this
            // span have other columns.
            let h = unsafe { self.state.slice(place(span.to, n), width) };
            match span.from {
                None => h.fill(0.0),
                Some(slot) if slot == span.to => {}
                // SAFETY: as above; the slots differ.
                Some(slot) => h.copy_from_slice(unsafe { self.state.slice(place(slot, n), width) }),
            }
        }
        let mut dt = [0.0_f32; COLUMNS];
        for row in span.first_row..span.first_row + span.n_rows {
            let x = &self.x[row * n_cols..][cols.clone()];
            dt.iter_mut().zip(&self.dt[row * n_cols..][cols.clone()]).for_each(|(dt, raw)| *dt = softplus(*raw));
            let dt = &dt[..width];
            // SAFETY: rows of spans are disjoint, and other tasks of this one have other columns.
            let out = unsafe { self.out.slice(row * n_cols + cols.start, width) };
            out.iter_mut().zip(x).zip(&self.d[cols.clone()]).for_each(|((out, x), d)| *out = d * x);
            for n in 0..n_states {
                let (taken, read) = (self.b[row * n_states + n], self.c[row * n_states + n]);
                let a = &self.a[n * n_cols..][cols.clone()];
                // SAFETY: as above.
                let h = unsafe { self.state.slice(place(span.to, n), width) };
                for i in 0..width {
                    h[i] = exp(dt[i] * a[i]) * h[i] + dt[i] * taken * x[i];
                    out[i] += read * h[i];
                }
            }
        }
        let Some(copy) = span.copy else { return };
        for n in 0..n_states {
            // SAFETY: as above; `check` has seen that the slots differ.
            let (from, to) =
                unsafe { (self.state.slice(place(span.to, n), width), self.state.slice(place(copy, n), width)) };
            to.copy_from_slice(from);
        }
    }
}
