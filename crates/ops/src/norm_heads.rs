//! Norms of queries and keys, in place: each head by itself, or all heads of a row together.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::Shared;
use crate::{Error, Exec, Gpu, View, ViewMut, layernorm};

const OP: &str = "norm_heads";
pub(crate) const THREADS: u32 = 128;

gpu::args! {
    pub(crate) struct NormHeads<'a> {
        x: SliceMut<'a, f32>,
        w: Slice<'a, f32>,
        group: u32,
        n_groups: u32,
        n_weights: u32,
        kind: u32,
        eps: f32,
    }
}

gpu::args! {
    pub(crate) struct LayerNorm<'a> {
        pub x: Slice<'a, f32>,
        pub w: Slice<'a, f32>,
        pub bias: Option<Slice<'a, f32>>,
        pub y: SliceMut<'a, f32>,
        pub n_cols: u32,
        pub eps: f32,
    }
}

kernels! {
    pub(crate) struct NormHeadsKernels in "norm_heads", overlapping {
        norm_heads: Kernel<NormHeads<'static>> = ["norm_heads"],
        layernorm: Kernel<LayerNorm<'static>> = ["layernorm"],
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum NormKind {
    /// By the root of the mean square.
    Rms,
    /// By mean and variance.
    Layer,
}

/// `x` is `[n_rows, n_cols]`; `weight` `[n_weights, group]`, where `group` numbers are normed together: group `i` of a
/// row takes row `i % n_weights` of it. All f32.
pub fn norm_heads(exec: Exec, x: &mut ViewMut, weight: View, kind: NormKind, eps: f32) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    let [n_weights, group] = weight.shape;
    if group == 0 || n_weights == 0 || !n_cols.is_multiple_of(group) {
        let what = format!("{n_cols} columns in groups of {group}, {n_weights} weights");
        return Err(Error::Argument { op: OP, what });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, x, weight, kind, eps),
    };
    let weight = weight.f32s(OP, "weight")?;
    let x = Shared::new(x.f32s(OP, "x")?);
    pool.run_ranges(n_rows, 8, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `x`.
            let x = unsafe { x.slice(row * n_cols, n_cols) };
            for (i, x) in x.chunks_exact_mut(group).enumerate() {
                let weight = &weight[i % n_weights * group..][..group];
                match kind {
                    NormKind::Rms => rms(x, weight, eps),
                    NormKind::Layer => layernorm::norm_row(x, weight, None, eps),
                }
            }
        }
    });
    Ok(())
}

fn launch(gpu: &Gpu, x: &mut ViewMut, weight: View, kind: NormKind, eps: f32) -> Result<(), Error> {
    let ([n_rows, n_cols], [n_weights, group]) = (x.shape, weight.shape);
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * n_cols) as u64, flops: 0 });
    let n_groups = count(OP, "groups", n_cols / group)?;
    let args = NormHeads {
        x: x.device_f32s(OP, "x")?,
        w: weight.device_f32s(OP, "weight")?,
        group: count(OP, "columns", group)?,
        n_groups,
        n_weights: count(OP, "weights", n_weights)?,
        kind: u32::from(kind == NormKind::Layer),
        eps,
    };
    let grid = Grid::plane(count(OP, "rows", n_rows)?, n_groups, THREADS);
    Ok(gpu.launcher.launch(&NormHeadsKernels::get(gpu.kernels, &[])?.norm_heads, grid, &args)?)
}

fn rms(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}
