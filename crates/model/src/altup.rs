//! Gemma 3n's four streams (AltUp): a layer works on the first one; the others are predicted before it and corrected
//! after it. In parallel to attention, a layer has a product through a few columns (LAuReL).

use ops::{Product, ViewMut};

use crate::Error;
use crate::decoder::Context;
use crate::parts::{AltupParts, LaurelParts, LayerParts, Norm, StreamParts, TensorId};
use crate::scratch::{LayerScratch, Scratch, StreamScratch};

/// The other streams from the first: a product each, as large as the first.
pub fn begin(context: Context, parts: &StreamParts, n: usize, s: &mut Scratch) -> Result<(), Error> {
    let Scratch { x, streams, .. } = s;
    for (weight, other) in parts.into.iter().zip(&mut streams.others) {
        let (x, mut other) = (x.rows(n), other.rows_mut(n));
        ops::matmul(context.exec, x, &mut [Product::write(context.weights.view(*weight), other.reborrow())])?;
        ops::match_rows(context.exec, x, &mut other)?;
    }
    Ok(())
}

/// One stream from all: their mean, each through its product and as large as the first.
pub fn end(context: Context, parts: &StreamParts, n: usize, s: &mut Scratch) -> Result<(), Error> {
    let Scratch { x, streams, work, .. } = s;
    let StreamScratch { others, predicted, .. } = streams;
    let mut sum = predicted.rows_mut(n);
    ops::slice_columns(context.exec, x.rows(n), 0, &mut sum)?;
    for (weight, other) in parts.out_of.iter().zip(others) {
        let mut made = work.h.rows_mut(n);
        let product = Product::write(context.weights.view(*weight), made.reborrow());
        ops::matmul(context.exec, other.rows(n), &mut [product])?;
        ops::match_rows(context.exec, x.rows(n), &mut made)?;
        ops::add_scaled(context.exec, &mut sum, made.as_view(), 1.0)?;
    }
    ops::scale(context.exec, &mut sum, 1.0 / ops::N_STREAMS as f32)?;
    Ok(ops::slice_columns(context.exec, sum.as_view(), 0, &mut x.rows_mut(n))?)
}

/// Before a layer: predicts all streams, keeps the first as predicted, and computes what stands beside attention.
pub fn predict(
    context: Context,
    layer: &LayerParts,
    parts: &AltupParts,
    n: usize,
    s: &mut Scratch,
) -> Result<(), Error> {
    let Context { exec, weights, .. } = context;
    let Scratch { x, streams, work, .. } = s;
    look(context, parts, n, x, streams, work)?;
    let StreamScratch { others: [b, c, d], predicted, states, .. } = streams;
    let all = [&mut x.rows_mut(n), &mut b.rows_mut(n), &mut c.rows_mut(n), &mut d.rows_mut(n)];
    ops::predict_streams(exec, states.rows(n), weights.view(parts.predict), all)?;
    ops::slice_columns(exec, x.rows(n), 0, &mut predicted.rows_mut(n))?;
    let Some(norm) = layer.attn_norm else { return Ok(()) };
    laurel(context, &parts.laurel, norm, n, s)
}

/// `work.laurel = h + norm(h * left * right)`, where `h` is what attention reads.
fn laurel(context: Context, parts: &LaurelParts, norm: Norm, n: usize, s: &mut Scratch) -> Result<(), Error> {
    let Context { exec, weights, .. } = context;
    let Scratch { x, work: LayerScratch { h, laurel, laurel_low, .. }, .. } = s;
    let (mut h, mut low, mut out) = (h.rows_mut(n), laurel_low.rows_mut(n), laurel.rows_mut(n));
    context.norm(norm, x.rows(n), &mut h)?;
    ops::matmul(exec, h.as_view(), &mut [Product::write(weights.view(parts.left), low.reborrow())])?;
    ops::matmul(exec, low.as_view(), &mut [Product::write(weights.view(parts.right), out.reborrow())])?;
    context.norm_in_place(parts.norm, &mut out)?;
    Ok(ops::add_scaled(exec, &mut out, h.as_view(), 1.0)?)
}

/// After attention has joined the stream: the mean of it and of what stands beside it, times the root of two.
pub fn join_laurel(context: Context, x: &mut ViewMut, work: &LayerScratch) -> Result<(), Error> {
    ops::add_scaled(context.exec, x, work.laurel.rows(x.shape[0]), 1.0)?;
    Ok(ops::scale(context.exec, x, std::f32::consts::FRAC_1_SQRT_2)?)
}

/// After a layer: corrects all streams by what it made of the first, and brings its own numbers of the tokens into the
/// others.
pub fn correct(
    context: Context,
    layer: &LayerParts,
    parts: &AltupParts,
    n: usize,
    s: &mut Scratch,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let Scratch { x, streams, work, .. } = s;
    look(context, parts, n, x, streams, work)?;
    let StreamScratch { others, predicted, states } = streams;
    let LayerScratch { h, branch, layer_part, layer_gate, .. } = work;
    let [b, c, d] = others;
    let all = [&mut x.rows_mut(n), &mut b.rows_mut(n), &mut c.rows_mut(n), &mut d.rows_mut(n)];
    let coefficients = (states.rows(n), weights.view(parts.correct));
    let first = (predicted.rows(n), weights.view(parts.scale));
    ops::correct_streams(exec, coefficients, first, all, &mut h.rows_mut(n))?;

    let Some(own) = &layer.per_layer else { return Ok(()) };
    let (mut gate, mut branch) = (layer_gate.rows_mut(n), branch.rows_mut(n));
    ops::matmul(exec, h.rows(n), &mut [Product::write(weights.view(own.gate), gate.reborrow())])?;
    ops::glu(exec, config.family.activation, &mut gate, layer_part.rows(n))?;
    ops::matmul(exec, gate.as_view(), &mut [Product::write(weights.view(own.out), branch.reborrow())])?;
    context.norm_in_place(own.norm, &mut branch)?;
    for other in others {
        ops::add_scaled(exec, &mut other.rows_mut(n), branch.as_view(), 1.0)?;
    }
    Ok(())
}

/// `states = tanh(router(norm(x) / n_embd))`; the division is in the norm's weights.
fn look(
    context: Context,
    parts: &AltupParts,
    n: usize,
    x: &ops::Tensor,
    streams: &mut StreamScratch,
    work: &mut LayerScratch,
) -> Result<(), Error> {
    let AltupParts { router_norm, router, .. } = parts;
    let (mut h, mut states) = (work.h.rows_mut(n), streams.states.rows_mut(n));
    context.norm(Norm { weight: *router_norm, bias: None }, x.rows(n), &mut h)?;
    let weight: TensorId = *router;
    ops::matmul(context.exec, h.as_view(), &mut [Product::write(context.weights.view(weight), states.reborrow())])?;
    Ok(ops::softcap(context.exec, &mut states, 1.0)?)
}
