//! Layer norm: `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, a row at a time.

use gpu::Grid;

use crate::gpu::count;
use crate::norm_heads::{self, LayerNorm, NormHeadsKernels};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, View, ViewMut};

const OP: &str = "layernorm";

/// `x` and `out` are `[n_rows, n_cols]`, `weight` and `bias` `[1, n_cols]`, all f32.
pub fn layernorm(
    exec: Exec,
    x: View,
    weight: View,
    bias: Option<View>,
    eps: f32,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    weight.expect_shape(OP, "weight", [1, n_cols])?;
    if let Some(bias) = bias {
        bias.expect_shape(OP, "bias", [1, n_cols])?;
    }
    out.expect_shape(OP, "out", x.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, x, weight, bias, eps, out),
    };
    let (x, weight) = (x.f32s(OP, "x")?, weight.f32s(OP, "weight")?);
    let bias = bias.map(|bias| bias.f32s(OP, "bias")).transpose()?;
    let out = SharedPtr::new(out.f32s(OP, "out")?);
    pool.run_ranges(n_rows, 16, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `out`.
            let out = unsafe { out.slice(row * n_cols, n_cols) };
            out.copy_from_slice(&x[row * n_cols..][..n_cols]);
            norm_row(out, weight, bias, eps);
        }
    });
    Ok(())
}

fn launch(gpu: &Gpu, x: View, weight: View, bias: Option<View>, eps: f32, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * n_cols) as u64, flops: 0 });
    let args = LayerNorm {
        x: x.device_f32s(OP, "x")?,
        w: weight.device_f32s(OP, "weight")?,
        bias: bias.map(|bias| bias.device_f32s(OP, "bias")).transpose()?,
        y: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        eps,
    };
    let grid = Grid::line(count(OP, "rows", n_rows)?, norm_heads::THREADS);
    Ok(gpu.launcher.launch(&NormHeadsKernels::get(gpu.kernels, &[])?.layernorm, grid, &args)?)
}

/// In place, for the norms of heads too.
pub(crate) fn norm_row(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) {
    let n = x.len().max(1) as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    for (i, x) in x.iter_mut().enumerate() {
        *x = ((f64::from(*x) - mean) * scale) as f32 * weight[i] + bias.map_or(0.0, |bias| bias[i]);
    }
}
