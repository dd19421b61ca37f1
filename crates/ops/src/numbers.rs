//! The launches of ops that change every number by itself: one translation unit for all of them (kernels/numbers.hip).

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Activation, Error, Gpu, View, ViewMut, Xielu};

const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Scale<'a> {
        x: SliceMut<'a, f32>,
        n: u64,
        factor: f32,
    }
}

gpu::args! {
    pub(crate) struct AddScaled<'a> {
        x: SliceMut<'a, f32>,
        y: Slice<'a, f32>,
        n: u64,
        factor: f32,
    }
}

gpu::args! {
    /// Also of `scale_rows`, whose factors stand in for the bias.
    pub(crate) struct AddBias<'a> {
        x: SliceMut<'a, f32>,
        bias: Slice<'a, f32>,
        n: u64,
        n_cols: u32,
    }
}

gpu::args! {
    pub(crate) struct Activate<'a> {
        x: SliceMut<'a, f32>,
        n: u64,
        kind: u32,
        alpha_p: f32,
        alpha_n: f32,
        beta: f32,
        eps: f32,
    }
}

gpu::args! {
    pub(crate) struct Glu<'a> {
        gate: SliceMut<'a, f32>,
        up: Slice<'a, f32>,
        n: u64,
        kind: u32,
        alpha: f32,
        limit: f32,
    }
}

gpu::args! {
    pub(crate) struct SliceColumns<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, f32>,
        n: u64,
        n_in: u32,
        n_out: u32,
        first: u32,
    }
}

kernels! {
    pub(crate) struct NumberKernels in "numbers", overlapping {
        scale: Kernel<Scale<'static>> = ["scale"],
        softcap: Kernel<Scale<'static>> = ["softcap"],
        add_scaled: Kernel<AddScaled<'static>> = ["add_scaled"],
        add_bias: Kernel<AddBias<'static>> = ["add_bias"],
        clamp: Kernel<Scale<'static>> = ["clamp"],
        scale_rows: Kernel<AddBias<'static>> = ["scale_rows"],
        activate: Kernel<Activate<'static>> = ["activate"],
        glu: Kernel<Glu<'static>> = ["glu"],
        slice_columns: Kernel<SliceColumns<'static>> = ["slice_columns"],
    }
}

/// A thread a number, and what it moves: the numbers in and out, and `others` more of each.
fn grid(gpu: &Gpu, op: &'static str, shape: [usize; 2], others: u64) -> Result<(Grid, u64), Error> {
    let n = (shape[0] * shape[1]) as u64;
    gpu.launcher.count(gpu::Work { bytes: (8 + 4 * others) * n, flops: 0 });
    Ok((Grid::line(count(op, "numbers", n.div_ceil(u64::from(THREADS)) as usize)?, THREADS), n))
}

pub(crate) fn scale(gpu: &Gpu, op: &'static str, x: &mut ViewMut, factor: f32) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    Ok(gpu.launcher.launch(
        &NumberKernels::get(gpu.kernels, &[])?.scale,
        grid,
        &Scale { x: x.device_f32s(op, "x")?, n, factor },
    )?)
}

pub(crate) fn softcap(gpu: &Gpu, op: &'static str, x: &mut ViewMut, cap: f32) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    Ok(gpu.launcher.launch(
        &NumberKernels::get(gpu.kernels, &[])?.softcap,
        grid,
        &Scale { x: x.device_f32s(op, "x")?, n, factor: cap },
    )?)
}

pub(crate) fn add_scaled(gpu: &Gpu, op: &'static str, x: &mut ViewMut, y: View, factor: f32) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 1)?;
    let args = AddScaled { x: x.device_f32s(op, "x")?, y: y.device_f32s(op, "y")?, n, factor };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.add_scaled, grid, &args)?)
}

pub(crate) fn add_bias(gpu: &Gpu, op: &'static str, x: &mut ViewMut, bias: View) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    let n_cols = count(op, "columns", x.shape[1])?;
    let args = AddBias { x: x.device_f32s(op, "x")?, bias: bias.device_f32s(op, "bias")?, n, n_cols };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.add_bias, grid, &args)?)
}

pub(crate) fn clamp(gpu: &Gpu, op: &'static str, x: &mut ViewMut, limit: f32) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    Ok(gpu.launcher.launch(
        &NumberKernels::get(gpu.kernels, &[])?.clamp,
        grid,
        &Scale { x: x.device_f32s(op, "x")?, n, factor: limit },
    )?)
}

pub(crate) fn scale_rows(gpu: &Gpu, op: &'static str, x: &mut ViewMut, factors: View) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    let n_cols = count(op, "columns", x.shape[1])?;
    let args = AddBias { x: x.device_f32s(op, "x")?, bias: factors.device_f32s(op, "factors")?, n, n_cols };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.scale_rows, grid, &args)?)
}

pub(crate) fn activate(gpu: &Gpu, op: &'static str, x: &mut ViewMut, activation: Activation) -> Result<(), Error> {
    if x.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, x.shape, 0)?;
    let Xielu { alpha_p, alpha_n, beta, eps } = match activation {
        Activation::Xielu(xielu) => xielu,
        _ => Xielu { alpha_p: 0.0, alpha_n: 0.0, beta: 0.0, eps: 0.0 },
    };
    let (kind, ..) = activation.as_kernels_take_it();
    let args = Activate { x: x.device_f32s(op, "x")?, n, kind, alpha_p, alpha_n, beta, eps };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.activate, grid, &args)?)
}

/// `(kind, alpha, limit)` as the kernel takes them.
pub(crate) fn glu(
    gpu: &Gpu,
    op: &'static str,
    gate: &mut ViewMut,
    up: View,
    (kind, alpha, limit): (u32, f32, f32),
) -> Result<(), Error> {
    if gate.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, gate.shape, 1)?;
    let args = Glu { gate: gate.device_f32s(op, "gate")?, up: up.device_f32s(op, "up")?, n, kind, alpha, limit };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.glu, grid, &args)?)
}

/// `out[r] = x[r][first..]`, as many columns as `out` has.
pub(crate) fn slice_columns(
    gpu: &Gpu,
    op: &'static str,
    x: View,
    first: usize,
    out: &mut ViewMut,
) -> Result<(), Error> {
    if out.shape.contains(&0) {
        return Ok(());
    }
    let _op = gpu.launcher.op(op);
    let (grid, n) = grid(gpu, op, out.shape, 0)?;
    let columns = |n: usize| count(op, "columns", n);
    let args = SliceColumns {
        x: x.device_f32s(op, "x")?,
        n,
        n_in: columns(x.shape[1])?,
        n_out: columns(out.shape[1])?,
        first: columns(first)?,
        out: out.device_f32s(op, "out")?,
    };
    Ok(gpu.launcher.launch(&NumberKernels::get(gpu.kernels, &[])?.slice_columns, grid, &args)?)
}
