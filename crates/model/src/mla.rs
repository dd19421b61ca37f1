//! Compressed attention (MLA): a token's keys and values are one short vector that all heads share, and a part that
//! rope rotates. Queries are projected into the compressed space and attend there, so that the KV pool holds one head;
//! the results are expanded to values afterwards.

use std::ops::Range;

use ops::{
    Exec, ExpertLeft, ExpertMatrices, ExpertProduct, GroupProduct, Numerics, Place, PlaceMut, Product, RowGroup,
    Tensor, View, ViewMut,
};

use crate::decoder::Context;
use crate::parts::{LayerParts, MlaParts, TensorId};
use crate::scratch::{Compressed, LayerScratch, Scratch};
use crate::{Error, indexer};

/// Rows that a device multiplies one by one, each with its head's matrix; of more, each head's rows are a product.
const MAX_ROWS_BY_HEAD: usize = 16;

/// Where rows must not matter, they take the way of few rows, however many there are.
fn takes_rows_by_head(exec: Exec, n: usize) -> bool {
    matches!(exec, Exec::Gpu(_)) && (n <= MAX_ROWS_BY_HEAD || exec.numerics() == Numerics::RowInvariant)
}

/// Once a step of `n` rows: which head's matrix a row takes, where they are taken one by one. The last layer may have few
/// rows of many.
pub fn begin(exec: Exec, n_heads: usize, n: usize, c: &mut Compressed) -> Result<(), Error> {
    let n = if takes_rows_by_head(exec, n) { n } else { n.min(MAX_ROWS_BY_HEAD) };
    match exec {
        Exec::Gpu(_) => Ok(ops::number_rows(exec, n_heads, &mut c.heads.rows_mut(n * n_heads))?),
        Exec::Cpu(_) => Ok(()),
    }
}

/// The rows of a step, as compressed attention sees them.
pub struct MlaRows<'a> {
    pub n: usize,
    /// `None` where the layer does not rotate.
    pub angles: Option<View<'a>>,
    /// Whether they attend to what the layer's indexer chooses.
    pub chooses: bool,
}

/// Fills `q`, `k` and `v` of the step's rows, rotated; and what the layer's indexer is made of, with its queries where
/// tokens are chosen.
pub fn project(
    context: Context,
    layer: &LayerParts,
    parts: &MlaParts,
    rows: MlaRows,
    s: &mut Scratch,
) -> Result<(), Error> {
    let Context { exec, config, .. } = context;
    let (n, n_heads) = (rows.n, config.n_heads);
    let Scratch { x, q, k, v, work, .. } = s;
    let LayerScratch { h, compressed: c, .. } = work;
    let mut h = h.rows_mut(n);
    match layer.attn_norm {
        Some(norm) => context.norm(norm, x.rows(n), &mut h)?,
        None => ops::take_columns(exec, x.rows(n), &mut h)?,
    }
    compress(context, parts, &rows, h.as_view(), c)?;
    project_queries(context, parts, &rows, h.as_view(), c)?;
    let (n_rot, pairing) = (config.n_rot, config.rope.pairing);
    if let Some(angles) = rows.angles {
        ops::rope(exec, &mut c.q_rope.rows_mut(n), angles, n_rot, pairing)?;
        ops::rope(exec, &mut c.k_rope.rows_mut(n), angles, n_rot, pairing)?;
    }

    let nope = split(c.q_nope.rows(n), n_heads);
    let mut found = c.by_row.rows_mut(n * n_heads);
    by_heads(context, nope, &parts.k_b, [&mut c.nope_by_head, &mut c.by_head], &c.heads, &mut found)?;
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

/// The shared vector of each token, normed, and the part for rope; the layer's input as the indexer projects it.
fn compress(context: Context, parts: &MlaParts, rows: &MlaRows, h: View, c: &mut Compressed) -> Result<(), Error> {
    let (weights, n) = (context.weights, rows.n);
    let mut products = vec![
        Product::write(weights.view(parts.kv), c.kv.rows_mut(n)),
        Product::write(weights.view(parts.k_rope), c.k_rope.rows_mut(n)),
    ];
    if let Some(indexer) = &parts.indexer {
        indexer::products_of_input(context, indexer, n, rows.chooses, &mut c.index, &mut products);
    }
    ops::matmul(context.exec, h, &mut products)?;
    drop(products);
    context.norm(parts.kv_norm, c.kv.rows(n), &mut c.kv_normed.rows_mut(n))
}

/// Queries: the part for rope and the other, and the indexer's where tokens are chosen.
fn project_queries(
    context: Context,
    parts: &MlaParts,
    rows: &MlaRows,
    h: View,
    c: &mut Compressed,
) -> Result<(), Error> {
    let (exec, weights, n) = (context.exec, context.weights, rows.n);
    let mut products = vec![
        Product::write(weights.view(parts.q_nope), c.q_nope.rows_mut(n)),
        Product::write(weights.view(parts.q_rope), c.q_rope.rows_mut(n)),
    ];
    if let Some(indexer) = parts.indexer.filter(|_| rows.chooses) {
        products.push(Product::write(weights.view(indexer.q), c.index.q.rows_mut(n)));
    }
    match parts.q_a {
        Some((weight, norm)) => {
            ops::matmul(exec, h, &mut [Product::write(weights.view(weight), c.q_a.rows_mut(n))])?;
            context.norm_products(Some(norm), c.q_a.rows(n), &mut c.q_a_normed.rows_mut(n), &mut products)
        }
        None => Ok(ops::matmul(exec, h, &mut products)?),
    }
}

/// What attention found in the compressed space, as the values of each head: `work.compressed.values`.
pub fn expand(context: Context, parts: &MlaParts, mixed: View, work: &mut LayerScratch) -> Result<(), Error> {
    let (n, n_heads) = (mixed.n_rows(), context.config.n_heads);
    let c = &mut work.compressed;
    ops::take_columns(context.exec, split(mixed, n_heads), &mut c.by_row.rows_mut(n * n_heads))?;
    let mut values = ViewMut { shape: [n * n_heads, c.v_by_head.shape()[1]], ..c.values.rows_mut(n) };
    let found = c.by_row.rows(n * n_heads);
    by_heads(context, found, &parts.v_b, [&mut c.by_head, &mut c.v_by_head], &c.heads, &mut values)
}

/// `[n, n_heads * width]` as `[n * n_heads, width]`: the same numbers.
fn split(x: View, n_heads: usize) -> View {
    View { shape: [x.shape[0] * n_heads, x.shape[1] / n_heads], ..x }
}

/// Multiplies each head's part of a row with that head's matrix. `x` and `out` are row by row, the memory between is
/// head by head, so that a head's rows lie together. Of few rows a device takes each by itself.
fn by_heads(
    context: Context,
    x: View,
    weights: &[TensorId],
    [gathered, made]: [&mut Tensor; 2],
    heads: &Tensor,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let (exec, n_heads, n_all) = (context.exec, weights.len(), x.n_rows());
    let n = n_all / n_heads;
    let view = |head: usize| context.weights.view(weights[head]);
    if takes_rows_by_head(exec, n) {
        let matrices = ExpertMatrices { weights: (0..n_heads).map(view).collect(), biases: Vec::new() };
        let product = ExpertProduct { matrices: &matrices, out: out.reborrow() };
        return Ok(ops::expert_matmul(exec, ExpertLeft::Rows(x), &mut [product], heads.rows(n_all))?);
    }
    ops::turn_rows(exec, x, n, &mut gathered.rows_mut(n_all))?;
    if let Exec::Gpu(_) = exec {
        for head in 0..n_heads {
            let rows = head * n..(head + 1) * n;
            let mut made = made.rows_mut(n_all);
            let product = Product::write(view(head), some_rows_mut(&mut made, rows.clone())?);
            ops::matmul(exec, some_rows(gathered.rows(n_all), rows)?, &mut [product])?;
        }
        return Ok(ops::turn_rows(exec, made.rows(n_all), n_heads, out)?);
    }
    let groups: Vec<RowGroup> =
        (0..n_heads).map(|head| RowGroup { rows: head * n..(head + 1) * n, weight: view(head) }).collect();
    let product = GroupProduct { groups, out: made.rows_mut(n_all) };
    ops::group_matmul(exec, gathered.rows(n_all), &mut [product])?;
    Ok(ops::turn_rows(exec, made.rows(n_all), n_heads, out)?)
}

/// Some rows of f32 numbers on a device.
fn some_rows(view: View, rows: Range<usize>) -> Result<View, Error> {
    let row_bytes = view.shape[1] * size_of::<f32>();
    let place = match view.place {
        Place::Device(bytes) => Place::Device(bytes.slice(rows.start * row_bytes..rows.end * row_bytes)?),
        Place::Host(bytes) => Place::Host(&bytes[rows.start * row_bytes..rows.end * row_bytes]),
    };
    Ok(View { shape: [rows.len(), view.shape[1]], place, ..view })
}

/// As [`some_rows`], to be changed.
fn some_rows_mut<'a>(view: &'a mut ViewMut, rows: Range<usize>) -> Result<ViewMut<'a>, Error> {
    let (n_cols, row_bytes) = (view.shape[1], view.shape[1] * size_of::<f32>());
    let view = view.reborrow();
    let place = match view.place {
        PlaceMut::Device(bytes) => PlaceMut::Device(bytes.into_slice(rows.start * row_bytes..rows.end * row_bytes)?),
        PlaceMut::Host(bytes) => PlaceMut::Host(&mut bytes[rows.start * row_bytes..rows.end * row_bytes]),
    };
    Ok(ViewMut { shape: [rows.len(), n_cols], place, ..view })
}
