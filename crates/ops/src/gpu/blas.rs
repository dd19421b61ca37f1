//! Products of many rows through the vendor's library: both sides as f16, with packed weights decoded first, and sums
//! in f32. For weights that f16 cannot hold (F32, BF16), both sides are f32.
//!
//! The left side is converted to f16 in one pass over what it is computed from (kernels/left_f16.hip).

use gpu::{Accumulate, Blas, GemmShape, Grid, Kernel, Number, ProductTypes, Slice, SliceMut};
use half::f16;
use weights::Dtype;

use super::THREADS;
use super::count;
use super::left::DeviceLeft;
use super::unit::kernels;
use crate::embed::{DecodeF16, DecodeF32, EmbedKernels};
use crate::matmul::{Mode, OP, Product};
use crate::plan::fits_f16;
use crate::{Error, Gpu, View};

pub(crate) const HALVES: ProductTypes = ProductTypes::new(Number::F16, Number::F32);
pub(crate) const FLOATS: ProductTypes = ProductTypes::new(Number::F32, Number::F32);
/// Activations go through f16 divided by this: outliers stay finite, and small numbers keep their bits.
const F16_DIVISOR: f32 = 16.0;
/// Threads of a row that is normed.
const NORM_THREADS: u32 = 512;
/// Numbers of a thread, elsewhere.
const AT_ONCE: u64 = 8;

gpu::args! {
    pub(crate) struct ToF16<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, f16>,
        n: u64,
        scale: f32,
    }
}

gpu::args! {
    pub(crate) struct SwigluF16<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        out: SliceMut<'a, f16>,
        n: u64,
        scale: f32,
    }
}

gpu::args! {
    pub(crate) struct RmsnormF16<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        out: SliceMut<'a, f16>,
        n_cols: u32,
        eps: f32,
        scale: f32,
    }
}

kernels! {
    pub(crate) struct LeftF16 in "left_f16", overlapping {
        rows: Kernel<ToF16<'static>> = ["rows_f16"],
        swiglu: Kernel<SwigluF16<'static>> = ["swiglu_f16"],
        rmsnorm: Kernel<RmsnormF16<'static>> = ["rmsnorm_f16"],
    }
}

/// Whether the left side lies in the workspace as f16 already: products of one left side come after each other.
#[derive(Default)]
pub(crate) struct LeftInF16(bool);

fn kinds(dtype: Dtype) -> ProductTypes {
    if fits_f16(dtype) { HALVES } else { FLOATS }
}

/// `false` if the library cannot take this product.
pub(crate) fn launch(gpu: &Gpu, left: DeviceLeft, made: &mut LeftInF16, product: &mut Product) -> Result<bool, Error> {
    let kinds = kinds(product.weight.dtype);
    let Some(blas) = gpu.blas.filter(|blas| blas.can(kinds)) else {
        gpu.kernels.refuse(format!("{kinds:?} products through the vendor's library: not usable here"));
        return Ok(false);
    };
    match multiply(gpu, blas, left, made, product) {
        Err(Error::Gpu(error @ gpu::Error::Blas { .. })) => {
            gpu.kernels.refuse(format!("products through the vendor's library: {error}"));
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

fn multiply(
    gpu: &Gpu,
    blas: &Blas,
    left: DeviceLeft,
    made: &mut LeftInF16,
    product: &mut Product,
) -> Result<(), Error> {
    let ([n_rows, n_in], [n_out, _]) = (left.shape(), product.weight.shape);
    let (dtype, weight) = (product.weight.dtype, product.weight.device_bytes(OP, "weight")?);
    let is_wide = kinds(dtype) == FLOATS;
    let keep = if product.mode == Mode::Add { 1.0 } else { 0.0 };
    let mut workspace = gpu.workspace.borrow_mut();
    let workspace = &mut *workspace;
    let mut x_f16 = None;
    if !is_wide {
        let mut halves = workspace.activations.slice_mut(..n_rows * n_in * 2)?.cast::<f16>()?;
        if !made.0 {
            make(gpu, left, halves.reborrow())?;
            made.0 = true;
        }
        x_f16 = Some(halves);
    }
    let mut out = product.out.device_f32s(OP, "out")?;
    let number_bytes = if is_wide { 4 } else { 2 };
    let is_ready = matches!(dtype, Dtype::F32 | Dtype::F16);
    let room = workspace.weights.len() / (n_in * number_bytes).max(1);
    let step = if is_ready { n_out } else { room.min(n_out) };
    if step == 0 {
        let what = format!("a row of {n_in} decoded weights does not fit the workspace");
        return Err(Error::Argument { op: OP, what });
    }
    for first in (0..n_out).step_by(step) {
        let n = step.min(n_out - first);
        if !is_ready {
            decode(gpu, product.weight, first..first + n, workspace.weights.all_mut(), is_wide)?;
        }
        let scale = if is_wide { 1.0 } else { F16_DIVISOR };
        let finish = Accumulate { scale, keep, row_step: n_out };
        let shape = GemmShape::rows(n_rows, n, n_in);
        let out = out.slice_mut(first..)?;
        let decoded = if is_ready { weight } else { workspace.weights.all() };
        let decoded = decoded.slice(..n * n_in * number_bytes)?;
        match (&x_f16, left) {
            (Some(x), _) => blas.multiply_into(gpu.launcher, shape, x.as_slice(), decoded.cast()?, out, finish)?,
            (None, DeviceLeft::Rows(x)) => {
                let x = x.device_f32s(OP, "x")?;
                blas.multiply_into::<f32, f32>(gpu.launcher, shape, x, decoded.cast()?, out, finish)?;
            }
            (None, _) => {
                let what = "a left side that is made on the way needs weights that fit f16".to_owned();
                return Err(Error::Argument { op: OP, what });
            }
        }
    }
    Ok(())
}

/// The left side as f16.
fn make(gpu: &Gpu, left: DeviceLeft, out: SliceMut<f16>) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let (n, scale, unit) = ((n_rows * n_in) as u64, 1.0 / F16_DIVISOR, LeftF16::get(gpu.kernels, &[])?);
    let n_blocks = n.div_ceil(AT_ONCE).div_ceil(u64::from(THREADS));
    let grid = Grid::line(count(OP, "numbers", n_blocks as usize)?, THREADS);
    match left {
        DeviceLeft::Rows(x) => {
            let args = ToF16 { x: x.device_f32s(OP, "x")?, out, n, scale };
            gpu.launcher.launch(&unit.rows, grid, &args)?;
        }
        // Other activations do not come here (matmul.rs).
        DeviceLeft::Gated { gate, up, .. } => {
            let (gate, up) = (gate.device_f32s(OP, "gate")?, up.device_f32s(OP, "up")?);
            gpu.launcher.launch(&unit.swiglu, grid, &SwigluF16 { gate, up, out, n, scale })?;
        }
        DeviceLeft::Norm { x, weight, eps } => {
            let (x, w) = (x.device_f32s(OP, "x")?, weight.device_f32s(OP, "weight")?);
            let args = RmsnormF16 { x, w, out, n_cols: count(OP, "columns", n_in)?, eps, scale };
            gpu.launcher.launch(&unit.rmsnorm, Grid::line(count(OP, "rows", n_rows)?, NORM_THREADS), &args)?;
        }
    }
    Ok(())
}

/// Some rows of a weight matrix as plain numbers.
fn decode(gpu: &Gpu, weight: View, rows: std::ops::Range<usize>, to: SliceMut<u8>, is_wide: bool) -> Result<(), Error> {
    let unit = EmbedKernels::of(gpu.kernels, weight.dtype)?;
    let table = weight.device_bytes(OP, "weight")?;
    let [n_rows, n_cols] = [count(OP, "weight rows", weight.n_rows())?, count(OP, "columns", weight.n_cols())?];
    let (first_row, n_out_rows) = (count(OP, "rows", rows.start)?, count(OP, "rows", rows.len())?);
    let grid = Grid::line(n_out_rows.div_ceil(4), THREADS);
    if is_wide {
        let out = to.cast()?;
        let args = DecodeF32 { table, out, n_rows, n_cols, first_row, n_out_rows };
        return Ok(gpu.launcher.launch(&unit.decode_f32, grid, &args)?);
    }
    let out = to.cast()?;
    let args = DecodeF16 { table, out, n_rows, n_cols, first_row, n_out_rows };
    Ok(gpu.launcher.launch(&unit.decode_f16, grid, &args)?)
}
