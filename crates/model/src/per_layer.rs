//! Gemma 3n's and Gemma 4's per-layer embeddings: for each layer a row of a table plus a product of the embedding,
//! added up once per step. After its feed-forward block, a layer adds its part to the stream.

use ops::{Exec, Product, View, ViewMut};

use crate::Error;
use crate::decoder::Context;
use crate::parts::{LayerParts, PerLayerTable};
use crate::scratch::LayerScratch;

/// `out = (table[tokens] * sqrt(width) + norm(x * W / sqrt(n_embd))) / sqrt(2)`, with the parts of all layers beside each
/// other; `made` is as large as `out`.
pub fn embed(
    context: Context,
    parts: &PerLayerTable,
    tokens: ops::Indices,
    x: View,
    made: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let width = config.n_embd_per_layer as f32;
    ops::embed(exec, weights.view(parts.table), tokens, made)?;
    ops::matmul(exec, x, &mut [Product::write(weights.view(parts.from_embedding), out.reborrow())])?;
    ops::scale(exec, out, 1.0 / (config.n_embd as f32).sqrt())?;
    ops::norm_heads(exec, out, weights.view(parts.norm), ops::NormKind::Rms, config.norm_eps)?;
    ops::add_scaled(exec, out, made.as_view(), width.sqrt())?;
    Ok(ops::scale(exec, out, std::f32::consts::FRAC_1_SQRT_2)?)
}

/// Brings `work.layer_part` into the stream, and multiplies the stream by the layer's factor.
pub fn join(
    context: Context,
    layer_idx: usize,
    layer: &LayerParts,
    x: &mut ViewMut,
    work: &mut LayerScratch,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let n = x.shape[0];
    if let Some(parts) = &layer.per_layer {
        let LayerScratch { layer_part, layer_gate, branch, .. } = work;
        let (mut gate, mut branch) = (layer_gate.rows_mut(n), branch.rows_mut(n));
        ops::matmul(exec, x.as_view(), &mut [Product::write(weights.view(parts.gate), gate.reborrow())])?;
        ops::glu(exec, config.family.activation, &mut gate, layer_part.rows(n))?;
        ops::matmul(exec, gate.as_view(), &mut [Product::write(weights.view(parts.out), branch.reborrow())])?;
        context.norm_in_place(parts.norm, &mut branch)?;
        ops::add_scaled(exec, x, branch.as_view(), 1.0)?;
    }
    match config.layer_scales.get(layer_idx) {
        Some(scale) if *scale != 1.0 => Ok(ops::scale(exec, x, *scale)?),
        _ => Ok(()),
    }
}

/// One layer's part of `all`, of the rows that go on; `room` holds it before the rows are chosen.
pub fn take_part(
    exec: Exec,
    all: View,
    layer_idx: usize,
    kept: Option<ops::Indices>,
    room: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let Some(kept) = kept else { return Ok(ops::slice_columns(exec, all, layer_idx * out.shape[1], out)?) };
    ops::slice_columns(exec, all, layer_idx * out.shape[1], room)?;
    Ok(ops::take_rows(exec, room.as_view(), kept, out)?)
}
