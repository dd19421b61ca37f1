//! Layer norm: `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, a row at a time.

use crate::view::Shared;
use crate::{Error, Exec, View, ViewMut};

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
    let pool = exec.cpu_only(OP)?;
    let (x, weight) = (x.f32s(OP, "x")?, weight.f32s(OP, "weight")?);
    let bias = bias.map(|bias| bias.f32s(OP, "bias")).transpose()?;
    let out = Shared::new(out.f32s(OP, "out")?);
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
