//! The forward pass: one step for a batch of rows, whatever they are (prefill, decode, both, or texts for an encoder).
//! What a family does differently is in its row and in which parts its checkpoint has; every line here is an op.

mod context;
mod output;

pub use context::Context;
use ops::{Activation, Exec, Place, Product, Projected, Routes, Shaping, Spans, View, ViewMut};
pub use output::ChoicePlaces;

use crate::adapter::{Adapters, StepAdapters};
use crate::kv_cache::{KvCache, KvPool};
use crate::parts::{AltupParts, AttentionParts, LayerParts, TensorId};
use crate::resident::Resident;
use crate::rope_table::RopeTable;
use crate::scratch::{LayerScratch, Scratch};
use crate::state_pool::StatePool;
use crate::step::{Places, Step};
use crate::{Config, Error, altup, feed_forward, indexer, mla, per_layer, recurrent};

/// Everything a step touches.
pub struct Decoder {
    pub config: Config,
    pub weights: Resident,
    pub rope: RopeTable,
    pub kv: KvCache,
    pub states: StatePool,
    pub scratch: Scratch,
    /// For layers with a window, where they turn by another base.
    pub local_rope: Option<RopeTable>,
    /// Whether any layer has a window, a cap or sinks.
    pub is_shaped: bool,
    /// Whether indexers choose in every step, not only where a row sees more than they would choose: so that their kernels
    /// are rehearsed.
    pub always_chooses: bool,
    /// Where the model was loaded with room for any.
    pub adapters: Option<Adapters>,
    /// Which experts the rows of a layer go to.
    routes: Routes,
}

impl Decoder {
    pub fn new(
        config: Config,
        weights: Resident,
        rope: RopeTable,
        kv: KvCache,
        states: StatePool,
        scratch: Scratch,
    ) -> Self {
        let local_rope = RopeTable::local(&config);
        let has_sinks =
            |layer: &LayerParts| matches!(layer.attention, Some(AttentionParts::Plain { sinks: Some(_), .. }));
        let is_shaped = config.attn_softcap.is_some()
            || config.alibi.is_some()
            || (0..config.n_layers).any(|layer_idx| config.window_of(layer_idx).is_some())
            || weights.parts.layers.iter().any(has_sinks);
        Self {
            config,
            weights,
            rope,
            kv,
            states,
            scratch,
            local_rope,
            is_shaped,
            always_chooses: false,
            adapters: None,
            routes: Routes::default(),
        }
    }

    /// Whether the layers of a step attend to what their indexers choose: only where there is more.
    pub fn chooses(&self, step: &Step) -> bool {
        let most = |n_chosen| step.spans(KvPool::Whole).iter().any(|span| span.first_position + span.n_rows > n_chosen);
        let has_room = self.scratch.work.compressed.index.scores.shape()[0] > 0;
        has_room && self.config.indexer.is_some_and(|indexer| self.always_chooses || most(indexer.n_chosen))
    }

    /// Runs a step whose inputs lie at `places`. Afterwards `scratch.logits` and `scratch.pooled` hold the wanted rows.
    pub fn forward(&mut self, exec: Exec, step: &Step, places: &Places) -> Result<(), Error> {
        self.embed(exec, step, places)?;
        let n_layers = self.weights.parts.layers.len();
        for layer_idx in 0..n_layers {
            let layer = &self.weights.parts.layers[layer_idx];
            let (attends, recurs, is_gated) = (layer.attention.is_some(), layer.recurrent.is_some(), layer.is_gated());
            let altup = |decoder: &mut Self, run: AltupStep| -> Result<(), Error> {
                let Self { config, weights, scratch, .. } = decoder;
                let (layer, context) = (&weights.parts.layers[layer_idx], Context::plain(exec, config, weights));
                layer.altup.as_ref().map_or(Ok(()), |parts| run(context, layer, parts, step.n_rows, scratch))
            };
            altup(self, altup::predict)?;
            if attends {
                self.attend(exec, layer_idx, step, places)?;
            }
            self.recur(exec, layer_idx, step, places)?;
            let is_last = layer_idx + 1 == n_layers;
            let keeps_rows = self.keeps_rows_to_the_end(step);
            let slots = if is_last { places.kept_adapter_slots } else { places.adapter_slots };
            let adapters = self.adapters.as_ref().filter(|_| !slots.is_empty());
            let adapters = adapters.map(|all| StepAdapters { all, slots });
            let context = Context { exec, config: &self.config, weights: &self.weights, adapters };
            let s = &mut self.scratch;
            let heads = self.config.heads_of(layer_idx);
            let width = heads.n_heads * heads.head_dim;
            if self.weights.parts.layers[layer_idx].per_layer.is_some() {
                let kept = if is_last && !keeps_rows { Some(places.kept) } else { None };
                let n = if kept.is_some() { step.kept.len() } else { step.n_rows };
                let LayerScratch { layer_part, layer_gate, .. } = &mut s.work;
                let (mut room, mut part) = (layer_gate.rows_mut(step.n_rows), layer_part.rows_mut(n));
                per_layer::take_part(exec, s.per_layer.rows(step.n_rows), layer_idx, kept, &mut room, &mut part)?;
            }
            let mixed = if is_gated { &mut s.attn_gate } else { &mut s.mixed };
            let recurred = &s.recurrent.gate;
            if !is_last || keeps_rows {
                let n = step.n_rows;
                let found = MixedRows {
                    mixed: attends.then(|| mixed.narrow_mut([n, width])),
                    recurred: recurs.then(|| recurred.rows(n)),
                };
                join_blocks(context, layer_idx, found, &mut s.x.rows_mut(n), &mut s.work, &mut self.routes)?;
            } else if !step.kept.is_empty() {
                // After the last attention only the wanted rows matter: none in the middle of a prompt.
                let n = step.kept.len();
                ops::take_rows(exec, s.x.rows(step.n_rows), places.kept, &mut s.kept_x.rows_mut(n))?;
                if attends {
                    let rows = mixed.narrow([step.n_rows, width]);
                    ops::take_rows(exec, rows, places.kept, &mut s.kept_mixed.narrow_mut([n, width]))?;
                }
                if recurs {
                    ops::take_rows(exec, recurred.rows(step.n_rows), places.kept, &mut s.recurrent.kept.rows_mut(n))?;
                }
                let mixed = attends.then(|| s.kept_mixed.narrow_mut([n, width]));
                let found = MixedRows { mixed, recurred: recurs.then(|| s.recurrent.kept.rows(n)) };
                join_blocks(context, layer_idx, found, &mut s.kept_x.rows_mut(n), &mut s.work, &mut self.routes)?;
            }
            altup(self, altup::correct)?;
        }
        if let Some(parts) = &self.weights.parts.streams {
            let context = Context::plain(exec, &self.config, &self.weights);
            let (s, n) = (&mut self.scratch, step.n_rows);
            altup::end(context, parts, n, s)?;
            if !step.keeps_all() {
                ops::take_rows(exec, s.x.rows(n), places.kept, &mut s.kept_x.rows_mut(step.kept.len()))?;
            }
        }
        self.finish(exec, step, places)
    }

    /// Whether the last layer works on all rows, not on those alone that somebody wants.
    fn keeps_rows_to_the_end(&self, step: &Step) -> bool {
        step.keeps_all() || self.weights.parts.streams.is_some()
    }

    /// From tokens to the stream.
    fn embed(&mut self, exec: Exec, step: &Step, places: &Places) -> Result<(), Error> {
        let (config, weights, s) = (&self.config, &self.weights, &mut self.scratch);
        let (parts, n) = (&weights.parts, step.n_rows);
        let mut tokens = places.tokens;
        if !places.sources.is_empty() {
            ops::feed(exec, places.tokens, places.sources, s.chosen.view(), &mut s.tokens.rows_mut(n))?;
            if let Place::Device(fed) = s.tokens.rows(n).place {
                tokens.device = Some(fed.cast()?);
            }
        }
        if config.mla.is_some() {
            mla::begin(exec, config.n_heads, n, &mut s.work.compressed)?;
        }
        let mut x = s.x.rows_mut(n);
        ops::embed(exec, weights.view(parts.embedding), tokens, &mut x)?;
        if config.embedding_scale != 1.0 {
            ops::scale(exec, &mut x, config.embedding_scale)?;
        }
        if let Some(next) = parts.next {
            let context = Context { exec, config, weights, adapters: None };
            let h = &mut s.work.h.rows_mut(n);
            context.norm(next.token.0, x.as_view(), h)?;
            ops::matmul(exec, h.as_view(), &mut [Product::write(weights.view(next.token.1), x.reborrow())])?;
            context.norm(next.hidden.0, places.hidden, h)?;
            ops::matmul(exec, h.as_view(), &mut [Product::add(weights.view(next.hidden.1), x.reborrow())])?;
        }
        if let Some(table) = parts.positions {
            ops::embed(exec, weights.view(table), places.position_rows, &mut s.work.h.rows_mut(n))?;
            ops::add_scaled(exec, &mut x, s.work.h.rows(n), 1.0)?;
        }
        if let Some((table, _)) = parts.token_types {
            ops::embed(exec, weights.view(table), places.type_rows, &mut s.work.h.rows_mut(n))?;
            ops::add_scaled(exec, &mut x, s.work.h.rows(n), 1.0)?;
        }
        if let Some(norm) = parts.embedding_norm {
            Context { exec, config, weights, adapters: None }.norm_in_place(norm, &mut x)?;
        }
        if let Some(table) = &parts.per_layer {
            let context = Context { exec, config, weights, adapters: None };
            let (mut made, mut out) = (s.per_layer_made.rows_mut(n), s.per_layer.rows_mut(n));
            per_layer::embed(context, table, tokens, x.as_view(), &mut made, &mut out)?;
        }
        if let Some(streams) = &parts.streams {
            altup::begin(Context::plain(exec, config, weights), streams, n, s)?;
        }
        Ok(())
    }

    /// The recurrent block of one layer, if it has one: from the stream `x` to `recurrent.gate`, with the states moved on.
    fn recur(&mut self, exec: Exec, layer_idx: usize, step: &Step, places: &Places) -> Result<(), Error> {
        let slots = places.adapter_slots;
        let adapters = self.adapters.as_ref().filter(|_| !slots.is_empty()).map(|all| StepAdapters { all, slots });
        let context = Context { exec, config: &self.config, weights: &self.weights, adapters };
        let layer = &self.weights.parts.layers[layer_idx];
        let Some(parts) = &layer.recurrent else { return Ok(()) };
        let state = self.states.layer_mut(layer_idx);
        recurrent::mix(context, layer, &parts.mixer, places.states, state, step.n_rows, &mut self.scratch)
    }

    /// Attention of one layer: from the stream `x` to `mixed`, with the new keys and values stored.
    fn attend(&mut self, exec: Exec, layer_idx: usize, step: &Step, places: &Places) -> Result<(), Error> {
        let chooses = self.chooses(step);
        let (config, weights, s) = (&self.config, &self.weights, &mut self.scratch);
        let slots = places.adapter_slots;
        let adapters = self.adapters.as_ref().filter(|_| !slots.is_empty()).map(|all| StepAdapters { all, slots });
        let context = Context { exec, config, weights, adapters };
        let layer = &weights.parts.layers[layer_idx];
        let (n, is_windowed) = (step.n_rows, config.is_windowed[layer_idx]);
        let angles = match &self.local_rope {
            Some(_) if is_windowed => places.local_angles,
            _ => places.angles,
        };
        let attention = layer.attention.as_ref().expect("asked for layers with attention only");
        let heads = config.heads_of(layer_idx);
        let (q_shape, kv_shape) = ([n, heads.n_heads * heads.head_dim], [n, heads.n_kv_heads * heads.head_dim]);
        // Only the wanted rows of the last layer go on. A device has the spans of all rows, once a step.
        let is_last = layer_idx + 1 == weights.parts.layers.len();
        let pool = self.kv.pool_of(layer_idx);
        let slots = places.slots_in(pool);
        let spans = if is_last && places.spans.is_none() && weights.parts.streams.is_none() {
            step.kept_spans(pool)
        } else {
            step.spans(pool)
        };
        let device = if is_windowed { places.local_spans.or(places.spans) } else { places.spans };
        let spans = Spans { host: &spans, device };
        let sinks = match attention {
            AttentionParts::Plain { q, kv, q_norm, k_norm, v_norm, sinks, gate } => {
                let mut products = vec![Product::write(weights.view(q.weight), s.q.narrow_mut(q_shape))];
                if let Some([k, v]) = kv {
                    products.push(Product::write(weights.view(k.weight), s.k.narrow_mut(kv_shape)));
                    products.push(Product::write(weights.view(v.weight), s.v.narrow_mut(kv_shape)));
                }
                if let Some(gate) = gate {
                    products.push(Product::write(weights.view(gate.weight), s.attn_gate.rows_mut(n)));
                }
                context.norm_products(layer.attn_norm, s.x.rows(n), &mut s.work.h.rows_mut(n), &mut products)?;
                drop(products);
                let input = if layer.attn_norm.is_some() { s.work.h.rows(n) } else { s.x.rows(n) };
                if context.adapters.is_some() {
                    let mut outs = vec![(q.weight, s.q.narrow_mut(q_shape))];
                    if let Some([k, v]) = kv {
                        outs.push((k.weight, s.k.narrow_mut(kv_shape)));
                        outs.push((v.weight, s.v.narrow_mut(kv_shape)));
                    }
                    if let Some(gate) = gate {
                        outs.push((gate.weight, s.attn_gate.rows_mut(n)));
                    }
                    context.adapt_all(input, &mut outs)?;
                }
                if let Some(gate) = gate {
                    context.add_bias(gate, &mut s.attn_gate.rows_mut(n))?;
                }
                let (q_rows, k_rows) = (&mut s.q.narrow_mut(q_shape), &mut s.k.narrow_mut(kv_shape));
                let v_rows = &mut s.v.narrow_mut(kv_shape);
                let mut all = vec![(q, &mut *q_rows)];
                if let Some([k, v]) = kv {
                    all.extend([(k, &mut *k_rows), (v, &mut *v_rows)]);
                }
                for (linear, rows) in all {
                    context.add_bias(linear, rows)?;
                    if let Some(limit) = config.qkv_limit {
                        ops::clamp(exec, rows, limit)?;
                    }
                }
                let (q, k) = (q_rows, k_rows);
                if config.family.norms_rotated_heads && config.is_rotated[layer_idx] {
                    for x in [&mut *q, &mut *k] {
                        ops::rope(exec, x, angles, heads.head_dim, config.rope.pairing)?;
                    }
                }
                context.norm_heads([q, k], [*q_norm, *k_norm])?;
                if let Some(norm) = v_norm {
                    ops::norm_heads(exec, v_rows, weights.view(*norm), ops::NormKind::Rms, config.norm_eps)?;
                }
                let is_rotated = config.is_rotated[layer_idx];
                if config.temperature.is_some_and(|temperature| !temperature.is_for_unrotated || !is_rotated) {
                    ops::scale_rows(exec, q, places.query_scales)?;
                }
                *sinks
            }
            AttentionParts::Compressed(parts) => {
                mla::project(context, layer, parts, (angles, config.is_rotated[layer_idx]), (n, chooses), s)?;
                if let (Some(indexer), Some(keys)) = (&parts.indexer, &mut self.kv.layer_mut(layer_idx).index) {
                    let (index, spans) = (&mut s.work.compressed.index, chooses.then_some(spans));
                    indexer::choose(context, indexer, (angles, places, spans), keys, n, index)?;
                }
                if config.temperature.is_some() {
                    ops::scale_rows(exec, &mut s.q.rows_mut(n), places.query_scales)?;
                }
                None
            }
        };
        // Quantized keys and values lose less in turned heads; queries are turned alike, and what is found is turned back.
        let turned = self.kv.dtype().block_len() > 1;
        let width = ops::hadamard_width(heads.head_dim);
        let kv = self.kv.layer_mut(layer_idx);
        let (mut k_pool, mut v_pool) = (kv.k.view_mut(), kv.v.view_mut());
        let is_rotated_already = config.mla.is_some() || config.family.norms_rotated_heads;
        let reads_other = matches!(attention, AttentionParts::Plain { kv: None, .. });
        if reads_other {
            if config.is_rotated[layer_idx] {
                let q = &mut s.q.narrow_mut(q_shape);
                ops::rope(exec, q, angles, heads.head_dim, config.rope.pairing)?;
            }
            if turned {
                ops::hadamard(exec, &mut [s.q.narrow_mut(q_shape)], width)?;
            }
        } else if turned || config.n_rot == 0 || is_rotated_already || !config.is_rotated[layer_idx] {
            // Nothing to rotate, or rotated already.
            if turned {
                let (mut q, mut k) = (s.q.narrow_mut(q_shape), s.k.narrow_mut(kv_shape));
                if config.n_rot > 0 && !is_rotated_already && config.is_rotated[layer_idx] {
                    for x in [&mut q, &mut k] {
                        ops::rope(exec, x, angles, heads.head_dim, config.rope.pairing)?;
                    }
                }
                if let Some(bias) = constant_of_keys(config, attention) {
                    ops::scale(exec, &mut k, -1.0)?;
                    ops::add_bias(exec, &mut k, weights.view(bias))?;
                    ops::scale(exec, &mut k, -1.0)?;
                }
                ops::hadamard(exec, &mut [q, k, s.v.narrow_mut(kv_shape)], width)?;
            }
            let (k, v) = (s.k.narrow(kv_shape), s.v.narrow(kv_shape));
            ops::kv_store(exec, k, v, slots, heads.head_dim, &mut k_pool, &mut v_pool)?;
        } else {
            let projected = Projected {
                q: s.q.narrow_mut(q_shape),
                k: s.k.narrow_mut(kv_shape),
                v: s.v.narrow(kv_shape),
                angles,
                head_dim: heads.head_dim,
                pairing: config.rope.pairing,
            };
            ops::rope_store(exec, projected, slots, &mut k_pool, &mut v_pool)?;
        }
        let shaping = Shaping {
            window: config.window_of(layer_idx),
            is_chunked: config.family.chunked.is_some() && config.window_of(layer_idx).is_some(),
            softcap: config.attn_softcap,
            sinks: sinks.map(|sinks| weights.view(sinks)),
            slopes: config.alibi.map(|_| places.slopes),
            chosen: chooses.then(|| s.work.compressed.index.chosen.rows(n)),
        };
        let q = s.q.narrow(q_shape);
        ops::attention_with(exec, q, kv.view(), heads, spans, shaping, &mut s.mixed.narrow_mut(q_shape))?;
        if turned {
            ops::hadamard(exec, &mut [s.mixed.narrow_mut(q_shape)], width)?;
        }
        if layer.is_gated() {
            ops::glu(exec, Activation::Sigmoid, &mut s.attn_gate.rows_mut(n), s.mixed.rows(n))?;
        }
        Ok(())
    }
}

/// What may be taken from all keys of a layer after rope: a softmax does not see what all scores of a row have in common, and
/// quantized keys are closer to what is left. A large bias of keys lies where rope hardly turns, so most of it is in common.
fn constant_of_keys(config: &Config, attention: &AttentionParts) -> Option<TensorId> {
    match attention {
        AttentionParts::Plain { kv: Some([k, _]), k_norm: None, sinks: None, .. } => {
            k.bias.filter(|_| config.attn_softcap.is_none())
        }
        _ => None,
    }
}

/// What the blocks before the feed-forward block give, before their last products.
struct MixedRows<'a> {
    /// Attention's, where the layer has it.
    mixed: Option<ViewMut<'a>>,
    /// The recurrent block's, where the layer has one.
    recurred: Option<View<'a>>,
}

/// Brings what attention found and the feed-forward block into the stream. Where both read the same stream, the second
/// comes first: it sees the stream without attention, and a sum has no order.
fn join_blocks(
    context: Context,
    layer_idx: usize,
    found: MixedRows,
    x: &mut ViewMut,
    work: &mut LayerScratch,
    routes: &mut Routes,
) -> Result<(), Error> {
    let MixedRows { mixed, recurred } = found;
    let layer = &context.weights.parts.layers[layer_idx];
    if context.config.is_parallel {
        feed_forward::run(context, layer_idx, x, work, routes)?;
    }
    if let (Some(parts), Some(recurred)) = (&layer.recurrent, recurred) {
        let n = x.shape[0];
        context.join(recurred, &parts.out, layer.post_attn_norm, x, &mut work.branch.rows_mut(n))?;
    }
    if let Some(mut mixed) = mixed {
        join_attention(context, layer_idx, &mut mixed, x, work)?;
    }
    if layer.altup.is_some() {
        altup::join_laurel(context, x, work)?;
        // What follows the feed-forward block concerns all streams.
        return feed_forward::run(context, layer_idx, x, work, routes);
    }
    if !context.config.is_parallel {
        feed_forward::run(context, layer_idx, x, work, routes)?;
    }
    per_layer::join(context, layer_idx, layer, x, work)
}

/// `x += attention's output`, normed where the family does.
fn join_attention(
    context: Context,
    layer_idx: usize,
    mixed: &mut ViewMut,
    x: &mut ViewMut,
    work: &mut LayerScratch,
) -> Result<(), Error> {
    let (n, layer) = (mixed.shape[0], &context.weights.parts.layers[layer_idx]);
    if let Some(norm) = layer.attn_sub_norm {
        context.norm_in_place(norm, mixed)?;
    }
    let mixed = mixed.as_view();
    let (Some(attention), Some(attn_out)) = (&layer.attention, &layer.attn_out) else { return Ok(()) };
    if let AttentionParts::Compressed(parts) = attention {
        mla::expand(context, parts, mixed, work)?;
        let LayerScratch { branch, compressed, .. } = work;
        let values = compressed.values.rows(n);
        context.join(values, attn_out, layer.post_attn_norm, x, &mut branch.rows_mut(n))?;
    } else {
        context.join(mixed, attn_out, layer.post_attn_norm, x, &mut work.branch.rows_mut(n))?;
    }
    match layer.attn_sum_norm {
        Some(norm) => context.norm_in_place(norm, x),
        None => Ok(()),
    }
}

/// What happens to the streams before or after a layer.
type AltupStep = fn(Context, &LayerParts, &AltupParts, usize, &mut Scratch) -> Result<(), Error>;
