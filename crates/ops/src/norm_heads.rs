//! Norms of queries and keys, in place: each head by itself, or all heads of a row together.

use crate::view::Shared;
use crate::{Error, Exec, View, ViewMut, layernorm};

const OP: &str = "norm_heads";

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
    let pool = exec.cpu_only(OP)?;
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

fn rms(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}
