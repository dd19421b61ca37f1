//! Compressed attention: a token's keys and values are one short vector that all heads share, and a part that rope
//! turns. Queries are brought into the compressed space and attend there, so that the KV pool holds one head; what
//! they find is expanded to values afterwards.

use ops::{GroupProduct, Product, RowGroup, Tensor, View, ViewMut};

use crate::Error;
use crate::decoder::Context;
use crate::parts::{LayerParts, MlaParts, TensorId};
use crate::scratch::{LayerScratch, Scratch};

/// Fills `q`, `k` and `v` of the first `n` rows, rotated.
pub fn project(
    context: Context,
    layer: &LayerParts,
    parts: &MlaParts,
    (angles, is_rotated): (View, bool),
    n: usize,
    s: &mut Scratch,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let n_heads = config.n_heads;
    let Scratch { x, q, k, v, work, .. } = s;
    let LayerScratch { h, compressed: c, .. } = work;
    let mut h = h.rows_mut(n);
    match layer.attn_norm {
        Some(norm) => context.norm(norm, x.rows(n), &mut h)?,
        None => ops::take_columns(exec, x.rows(n), &mut h)?,
    }
    let to_kv = &mut [
        Product::write(weights.view(parts.kv), c.kv.rows_mut(n)),
        Product::write(weights.view(parts.k_rope), c.k_rope.rows_mut(n)),
    ];
    ops::matmul(exec, h.as_view(), to_kv)?;
    context.norm(parts.kv_norm, c.kv.rows(n), &mut c.kv_normed.rows_mut(n))?;
    let to_q = &mut [
        Product::write(weights.view(parts.q_nope), c.q_nope.rows_mut(n)),
        Product::write(weights.view(parts.q_rope), c.q_rope.rows_mut(n)),
    ];
    match parts.q_a {
        Some((weight, norm)) => {
            ops::matmul(exec, h.as_view(), &mut [Product::write(weights.view(weight), c.q_a.rows_mut(n))])?;
            context.norm_products(Some(norm), c.q_a.rows(n), &mut c.q_a_normed.rows_mut(n), to_q)?;
        }
        None => ops::matmul(exec, h.as_view(), to_q)?,
    }
    let (n_rot, pairing) = (config.n_rot, config.rope.pairing);
    if is_rotated {
        ops::rope(exec, &mut c.q_rope.rows_mut(n), angles, n_rot, pairing)?;
        ops::rope(exec, &mut c.k_rope.rows_mut(n), angles, n_rot, pairing)?;
    }

    let nope = split(c.q_nope.rows(n), n_heads);
    let mut found = c.by_row.rows_mut(n * n_heads);
    by_heads(context, nope, &parts.k_b, &mut c.nope_by_head, &mut c.by_head, &mut found)?;
    let q_shape = [n * n_heads, config.head_dim];
    let mut q = ViewMut { shape: q_shape, ..q.rows_mut(n) };
    ops::join_columns(exec, c.by_row.rows(n * n_heads), split(c.q_rope.rows(n), n_heads), &mut q)?;
    ops::join_columns(exec, c.kv_normed.rows(n), c.k_rope.rows(n), &mut k.rows_mut(n))?;
    // Values are the same vector; the rest of the head's width is empty.
    let empty = View::of_f32(&[], 0);
    let empty = View { shape: [n, 0], ..empty };
    ops::join_columns(exec, c.kv_normed.rows(n), empty, &mut v.rows_mut(n))?;
    Ok(())
}

/// What attention found in the compressed space, as the values of each head: `work.compressed.values`.
pub fn expand(context: Context, parts: &MlaParts, mixed: View, work: &mut LayerScratch) -> Result<(), Error> {
    let (n, n_heads) = (mixed.n_rows(), context.config.n_heads);
    let c = &mut work.compressed;
    ops::take_columns(context.exec, split(mixed, n_heads), &mut c.by_row.rows_mut(n * n_heads))?;
    let mut values = ViewMut { shape: [n * n_heads, c.v_by_head.shape()[1]], ..c.values.rows_mut(n) };
    by_heads(context, c.by_row.rows(n * n_heads), &parts.v_b, &mut c.by_head, &mut c.v_by_head, &mut values)
}

/// `[n, n_heads * width]` as `[n * n_heads, width]`: the same numbers.
fn split(x: View, n_heads: usize) -> View {
    View { shape: [x.shape[0] * n_heads, x.shape[1] / n_heads], ..x }
}

/// Multiplies each head's part of a row with that head's matrix. `x` and `out` are row by row, the memory between is
/// head by head, so that a head's rows lie together.
fn by_heads(
    context: Context,
    x: View,
    weights: &[TensorId],
    gathered: &mut Tensor,
    made: &mut Tensor,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let (n_heads, n_all) = (weights.len(), x.n_rows());
    let n = n_all / n_heads;
    let to_heads: Vec<u32> = (0..n_all).map(|i| (i % n * n_heads + i / n) as u32).collect();
    let to_rows: Vec<u32> = (0..n_all).map(|i| (i % n_heads * n + i / n_heads) as u32).collect();
    ops::take_rows(context.exec, x, &to_heads, &mut gathered.rows_mut(n_all))?;
    let view = |head: usize| context.weights.view(weights[head]);
    let groups: Vec<RowGroup> =
        (0..n_heads).map(|head| RowGroup { rows: head * n..(head + 1) * n, weight: view(head) }).collect();
    let product = GroupProduct { groups, out: made.rows_mut(n_all) };
    ops::group_matmul(context.exec, gathered.rows(n_all), &mut [product])?;
    Ok(ops::take_rows(context.exec, made.rows(n_all), &to_rows, out)?)
}
