//! Root-mean-square norm: `out = x / sqrt(mean(x^2) + eps) * weight`, a row at a time.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, NormKind, View, ViewMut, add_scaled, norm_heads};

const OP: &str = "rmsnorm";
const THREADS: u32 = 512;

gpu::args! {
    pub(crate) struct Rmsnorm<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        y: SliceMut<'a, f32>,
        n_cols: u32,
        eps: f32,
    }
}

gpu::args! {
    pub(crate) struct RmsnormAdd<'a> {
        y: Slice<'a, f32>,
        w: Slice<'a, f32>,
        x: SliceMut<'a, f32>,
        n_cols: u32,
        eps: f32,
        factor: f32,
    }
}

kernels! {
    pub(crate) struct RmsnormKernels in "rmsnorm", overlapping {
        rmsnorm: Kernel<Rmsnorm<'static>> = ["rmsnorm_f32"],
        add: Kernel<RmsnormAdd<'static>> = ["rmsnorm_add"],
    }
}

/// `x` and `out` are `[n_rows, n_cols]`, `weight` `[1, n_cols]`, all f32.
pub fn rmsnorm(exec: Exec, x: View, weight: View, eps: f32, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    weight.expect_shape(OP, "weight", [1, n_cols])?;
    out.expect_shape(OP, "out", x.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, x, weight, eps, out),
    };
    let (x, weight) = (x.f32s(OP, "x")?, weight.f32s(OP, "weight")?);
    let out = SharedPtr::new(out.f32s(OP, "out")?);
    pool.run_ranges(n_rows, 16, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `out`.
            let out = unsafe { out.slice(row * n_cols, n_cols) };
            norm_row(&x[row * n_cols..][..n_cols], weight, eps, out);
        }
    });
    Ok(())
}

fn launch(gpu: &Gpu, x: View, weight: View, eps: f32, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * n_cols) as u64, flops: 0 });
    let kernels = RmsnormKernels::get(gpu.kernels, &[])?;
    let args = Rmsnorm {
        x: x.device_f32s(OP, "x")?,
        w: weight.device_f32s(OP, "weight")?,
        y: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        eps,
    };
    Ok(gpu.launcher.launch(&kernels.rmsnorm, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
}

/// `x += factor * rmsnorm(y)`, all `[n_rows, n_cols]` f32: one launch on a GPU. What `y` holds afterwards is not said.
pub fn add_rmsnorm(
    exec: Exec,
    x: &mut ViewMut,
    y: &mut ViewMut,
    weight: View,
    eps: f32,
    factor: f32,
) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    weight.expect_shape(OP, "weight", [1, n_cols])?;
    y.expect_shape(OP, "y", x.shape)?;
    let gpu = match exec {
        Exec::Cpu(_) => {
            norm_heads(exec, y, weight, NormKind::Rms, eps)?;
            return add_scaled(exec, x, y.as_view(), factor);
        }
        Exec::Gpu(gpu) => gpu,
    };
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 12 * (n_rows * n_cols) as u64, flops: 0 });
    let args = RmsnormAdd {
        y: y.as_view().device_f32s(OP, "y")?,
        w: weight.device_f32s(OP, "weight")?,
        x: x.device_f32s(OP, "x")?,
        n_cols: count(OP, "columns", n_cols)?,
        eps,
        factor,
    };
    let kernels = RmsnormKernels::get(gpu.kernels, &[])?;
    Ok(gpu.launcher.launch(&kernels.add, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
}

pub(crate) fn norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // Eight sums: the compiler keeps them in one register, and rounding stays far below f32's.
    let mut sums = [0.0_f64; 8];
    let chunks = x.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    let mean = (sums.iter().sum::<f64>() + rest) / x.len().max(1) as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}
