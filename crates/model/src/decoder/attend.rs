//! The attention of a layer: products, norms, rope, the KV pool and attention itself, from the residual stream `x` to
//! `mixed`. `decoder.rs` brings the result back into the stream.

use ops::{Activation, Exec, HeadNorms, Heads, Indices, Product, Projected, Shaping, Spans, Tensor, View, ViewMut};

use super::{Context, Decoder};
use crate::adapter::StepAdapters;
use crate::kv_cache::KvLayer;
use crate::parts::{AttentionParts, LayerParts, Linear, PlainAttention, TensorId};
use crate::scratch::Scratch;
use crate::step::{Places, Step};
use crate::{Config, Error, indexer, mla};

/// What the parts of a layer's attention read.
struct LayerAttention<'a> {
    context: Context<'a>,
    layer: &'a LayerParts,
    /// Rows of this step.
    n: usize,
    heads: Heads,
    angles: View<'a>,
    is_rotated: bool,
    /// Quantized keys and values lose less in turned heads; queries are turned alike, and the result is turned back.
    is_turned: bool,
}

impl Decoder {
    /// Attention of one layer: from the stream `x` to `mixed`, with the new keys and values stored.
    pub(super) fn attend(&mut self, exec: Exec, layer_idx: usize, step: &Step, places: &Places) -> Result<(), Error> {
        let chooses = self.chooses(step);
        let (config, weights) = (&self.config, &self.weights);
        let layer = &weights.parts.layers[layer_idx];
        let parts = layer.attention.as_ref().expect("asked for layers with attention only");
        let is_windowed = config.is_windowed[layer_idx];
        let adapters = StepAdapters::of(self.adapters.as_ref(), places.adapter_slots);
        let (context, n) = (Context { exec, config, weights, adapters }, step.n_rows);
        let attention = LayerAttention {
            context,
            layer,
            n,
            heads: config.heads_of(layer_idx),
            angles: if is_windowed && self.local_rope.is_some() { places.local_angles } else { places.angles },
            is_rotated: config.is_rotated[layer_idx],
            is_turned: self.kv.dtype().block_len() > 1,
        };
        // Only the wanted rows of the last layer go on. A device has the spans of all rows, once a step.
        let is_last = layer_idx + 1 == weights.parts.layers.len();
        let kv_layer = config.kv_layer(layer_idx);
        let pool = self.kv.pool_of(kv_layer);
        let spans = if is_last && places.spans.is_none() && weights.parts.streams.is_none() {
            step.kept_spans(pool)
        } else {
            step.spans(pool)
        };
        let device = if is_windowed { places.local_spans.or(places.spans) } else { places.spans };
        let spans = Spans { host: &spans, device };
        let (s, kv) = (&mut self.scratch, self.kv.layer_mut(kv_layer));
        let sinks = match parts {
            AttentionParts::Plain(plain) => {
                attention.project(plain, s)?;
                if config.temperature.is_some_and(|t| !t.is_for_unrotated || !attention.is_rotated) {
                    ops::scale_rows(exec, &mut s.q.narrow_mut(attention.q_shape()), places.query_scales)?;
                }
                plain.sinks
            }
            AttentionParts::Compressed(mla) => {
                let angles = attention.is_rotated.then_some(attention.angles);
                mla::project(context, layer, mla, mla::MlaRows { n, angles, chooses }, s)?;
                if let (Some(indexer), Some(keys)) = (&mla.indexer, &mut kv.index) {
                    let (angles, spans) = (attention.angles, chooses.then_some(spans));
                    let rows = indexer::IndexedRows { n, angles, slots: places.slots, spans };
                    indexer::choose(context, indexer, rows, keys, &mut s.work.compressed.index)?;
                }
                if config.temperature.is_some() {
                    ops::scale_rows(exec, &mut s.q.rows_mut(n), places.query_scales)?;
                }
                None
            }
        };
        attention.store(parts, places.slots_in(pool), kv, s)?;
        let shaping = Shaping {
            window: config.window_of(layer_idx),
            is_chunked: config.family.chunked.is_some() && config.window_of(layer_idx).is_some(),
            softcap: config.attn_softcap,
            sinks: sinks.map(|sinks| weights.view(sinks)),
            slopes: config.alibi.map(|_| places.slopes),
            chosen: chooses.then(|| s.work.compressed.index.chosen.rows(n)),
        };
        let (q, mut mixed) = (s.q.narrow(attention.q_shape()), s.mixed.narrow_mut(attention.q_shape()));
        ops::attention_with(exec, q, kv.view(), attention.heads, spans, shaping, &mut mixed)?;
        attention.finish(&mut mixed, &mut s.attn_gate)
    }
}

impl LayerAttention<'_> {
    fn q_shape(&self) -> [usize; 2] {
        [self.n, self.heads.n_heads * self.heads.head_dim]
    }

    fn kv_shape(&self) -> [usize; 2] {
        [self.n, self.heads.n_kv_heads * self.heads.head_dim]
    }

    fn rotate(&self, heads: &mut ViewMut) -> Result<(), Error> {
        let Context { exec, config, .. } = self.context;
        Ok(ops::rope(exec, heads, self.angles, self.heads.head_dim, config.rope.pairing)?)
    }

    /// The products of attention's input, and where each goes: queries, keys, values, gate, as far as the layer has them.
    fn outputs<'s>(
        &self,
        parts: &PlainAttention,
        [q, k, v, attn_gate]: [&'s mut Tensor; 4],
    ) -> Vec<(Linear, ViewMut<'s>)> {
        let mut outputs = vec![(parts.q, q.narrow_mut(self.q_shape()))];
        if let Some([k_part, v_part]) = parts.kv {
            outputs.push((k_part, k.narrow_mut(self.kv_shape())));
            outputs.push((v_part, v.narrow_mut(self.kv_shape())));
        }
        outputs.extend(parts.gate.map(|gate| (gate, attn_gate.rows_mut(self.n))));
        outputs
    }

    /// Queries, keys, values and the gate, with biases and norms; rotated only where the norms come after rope.
    fn project(&self, parts: &PlainAttention, s: &mut Scratch) -> Result<(), Error> {
        let Context { exec, config, weights, .. } = self.context;
        let Scratch { x, q, k, v, attn_gate, work, .. } = s;
        let (x, mut h) = (x.rows(self.n), work.h.rows_mut(self.n));
        let mut outputs = self.outputs(parts, [q, k, v, attn_gate]);
        let products = outputs.iter_mut().map(|(part, out)| Product::write(weights.view(part.weight), out.reborrow()));
        self.context.norm_products(self.layer.attn_norm, x, &mut h, &mut products.collect::<Vec<_>>())?;
        if self.context.adapters.is_some() {
            let input = if self.layer.attn_norm.is_some() { h.as_view() } else { x };
            let mut adapted: Vec<_> = outputs.iter_mut().map(|(linear, out)| (linear.weight, out.reborrow())).collect();
            self.context.adapt_all(input, &mut adapted)?;
        }
        for (linear, out) in &mut outputs {
            self.context.add_bias(linear, out)?;
        }
        if let Some(limit) = config.qkv_limit {
            let n_clamped = if parts.kv.is_some() { 3 } else { 1 };
            for (_, out) in &mut outputs[..n_clamped] {
                ops::clamp(exec, out, limit)?;
            }
        }
        drop(outputs);
        let (mut q, mut k) = (q.narrow_mut(self.q_shape()), k.narrow_mut(self.kv_shape()));
        if config.family.norms_rotated_heads && self.is_rotated {
            self.rotate(&mut q)?;
            self.rotate(&mut k)?;
        }
        if self.norms_before_rope(parts).is_none() {
            self.context.norm_heads([&mut q, &mut k], [parts.q_norm, parts.k_norm])?;
        }
        if let Some(norm) = parts.v_norm {
            let v = &mut v.narrow_mut(self.kv_shape());
            ops::norm_heads(exec, v, weights.view(norm), ops::NormKind::Rms, config.norm_eps)?;
        }
        Ok(())
    }

    /// Norms of queries and keys that are computed with the rotation: where nothing comes between them.
    fn norms_before_rope(&self, parts: &PlainAttention) -> Option<HeadNorms<'_>> {
        let Context { config, weights, .. } = self.context;
        let is_next = config.family.norm == ops::NormKind::Rms
            && config.temperature.is_none()
            && parts.kv.is_some()
            && self.rotates_last()
            && !self.is_turned;
        let (q, k) = (parts.q_norm.filter(|_| is_next)?, parts.k_norm?);
        Some(HeadNorms { q: weights.view(q), k: weights.view(k), eps: config.norm_eps })
    }

    /// Whether queries and keys are rotated behind their norms.
    fn rotates_last(&self) -> bool {
        let config = self.context.config;
        let is_rotated_already = config.mla.is_some() || config.family.norms_rotated_heads;
        config.n_rot > 0 && self.is_rotated && !is_rotated_already
    }

    /// Rotates and turns what is not yet, and stores the new keys and values.
    fn store(&self, parts: &AttentionParts, slots: Indices, kv: &mut KvLayer, s: &mut Scratch) -> Result<(), Error> {
        let Context { exec, config, .. } = self.context;
        let (head_dim, width) = (self.heads.head_dim, ops::hadamard_width(self.heads.head_dim));
        let Scratch { q, k, v, .. } = s;
        let mut q = q.narrow_mut(self.q_shape());
        if matches!(parts, AttentionParts::Plain(PlainAttention { kv: None, .. })) {
            // Another layer stored them.
            if self.is_rotated {
                self.rotate(&mut q)?;
            }
            if self.is_turned {
                ops::hadamard(exec, &mut [q], width)?;
            }
            return Ok(());
        }
        let (mut k_pool, mut v_pool) = (kv.k.view_mut(), kv.v.view_mut());
        let (mut k, mut v) = (k.narrow_mut(self.kv_shape()), v.narrow_mut(self.kv_shape()));
        let rotates = self.rotates_last();
        if rotates && !self.is_turned {
            let (pairing, v) = (config.rope.pairing, v.as_view());
            let norms = match parts {
                AttentionParts::Plain(plain) => self.norms_before_rope(plain),
                AttentionParts::Compressed(_) => None,
            };
            let projected = Projected { q, k, v, angles: self.angles, head_dim, pairing, norms };
            return Ok(ops::rope_store(exec, projected, slots, &mut k_pool, &mut v_pool)?);
        }
        if self.is_turned {
            if rotates {
                self.rotate(&mut q)?;
                self.rotate(&mut k)?;
            }
            if let Some(bias) = constant_of_keys(config, parts) {
                ops::scale(exec, &mut k, -1.0)?;
                ops::add_bias(exec, &mut k, self.context.weights.view(bias))?;
                ops::scale(exec, &mut k, -1.0)?;
            }
            ops::hadamard(exec, &mut [q, k.reborrow(), v.reborrow()], width)?;
        }
        Ok(ops::kv_store(exec, k.as_view(), v.as_view(), slots, head_dim, &mut k_pool, &mut v_pool)?)
    }

    /// Turns what attention found back, and weighs it where the layer has a gate: `gate` then holds the result.
    fn finish(&self, mixed: &mut ViewMut, gate: &mut Tensor) -> Result<(), Error> {
        let exec = self.context.exec;
        if self.is_turned {
            ops::hadamard(exec, &mut [mixed.reborrow()], ops::hadamard_width(self.heads.head_dim))?;
        }
        if self.layer.is_gated() {
            ops::glu(exec, Activation::Sigmoid, &mut gate.rows_mut(self.n), mixed.as_view())?;
        }
        Ok(())
    }
}

/// What may be taken from all keys of a layer after rope: a softmax does not see what all scores of a row have in common, and
/// quantized keys are closer to what is left. A large bias of keys lies where rope hardly turns, so most of it is in common.
fn constant_of_keys(config: &Config, attention: &AttentionParts) -> Option<TensorId> {
    match attention {
        AttentionParts::Plain(PlainAttention { kv: Some([k, _]), k_norm: None, sinks: None, .. }) => {
            k.bias.filter(|_| config.attn_softcap.is_none())
        }
        _ => None,
    }
}
