//! Norms of queries and keys, in place: each head by itself, or all heads of a row together.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, View, ViewMut, layernorm};

const OP: &str = "norm_heads";
pub(crate) const THREADS: u32 = 128;

gpu::args! {
    pub(crate) struct NormHeads<'a> {
        x0: SliceMut<'a, f32>,
        x1: Option<SliceMut<'a, f32>>,
        w0: Slice<'a, f32>,
        w1: Option<Slice<'a, f32>>,
        group: u32,
        n_groups0: u32,
        n_groups1: u32,
        n_weights0: u32,
        n_weights1: u32,
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
        Exec::Gpu(gpu) => return launch(gpu, x, weight, None, kind, eps),
    };
    let weight = weight.f32s(OP, "weight")?;
    let x = SharedPtr::new(x.f32s(OP, "x")?);
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

/// Two matrices of as many rows, in one launch where they have groups of one size: a decode step has queries and keys in
/// every layer.
pub fn norm_both_heads(
    exec: Exec,
    [x0, x1]: [&mut ViewMut; 2],
    [weight0, weight1]: [View; 2],
    kind: NormKind,
    eps: f32,
) -> Result<(), Error> {
    let group = weight0.shape[1];
    let is_whole = |x: &ViewMut, weight: View| {
        weight.shape[0] > 0 && weight.shape[1] == group && group > 0 && x.shape[1].is_multiple_of(group)
    };
    if let Exec::Gpu(gpu) = exec
        && x0.shape[0] == x1.shape[0]
        && is_whole(x0, weight0)
        && is_whole(x1, weight1)
    {
        return launch(gpu, x0, weight0, Some((x1, weight1)), kind, eps);
    }
    norm_heads(exec, x0, weight0, kind, eps)?;
    norm_heads(exec, x1, weight1, kind, eps)
}

fn launch(
    gpu: &Gpu,
    x: &mut ViewMut,
    weight: View,
    other: Option<(&mut ViewMut, View)>,
    kind: NormKind,
    eps: f32,
) -> Result<(), Error> {
    let ([n_rows, n_cols], [n_weights, group]) = (x.shape, weight.shape);
    let n_more = other.as_ref().map_or(0, |(x, _)| x.shape[1]);
    if n_rows == 0 || n_cols + n_more == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * (n_cols + n_more)) as u64, flops: 0 });
    let (n_groups0, n_groups1) = (count(OP, "groups", n_cols / group)?, count(OP, "groups", n_more / group)?);
    let n_weights1 = other.as_ref().map_or(1, |(_, weight)| weight.shape[0]);
    let (x1, w1) = match other {
        Some((x, weight)) => (Some(x.device_f32s(OP, "x")?), Some(weight.device_f32s(OP, "weight")?)),
        None => (None, None),
    };
    let args = NormHeads {
        x0: x.device_f32s(OP, "x")?,
        x1,
        w0: weight.device_f32s(OP, "weight")?,
        w1,
        group: count(OP, "columns", group)?,
        n_groups0,
        n_groups1,
        n_weights0: count(OP, "weights", n_weights)?,
        n_weights1: count(OP, "weights", n_weights1)?,
        kind: u32::from(kind == NormKind::Layer),
        eps,
    };
    let grid = Grid::plane(count(OP, "rows", n_rows)?, n_groups0 + n_groups1, THREADS);
    Ok(gpu.launcher.launch(&NormHeadsKernels::get(gpu.kernels, &[])?.norm_heads, grid, &args)?)
}

fn rms(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}
