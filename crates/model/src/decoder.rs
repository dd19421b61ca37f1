//! The forward pass: one step for a batch of rows, whatever they are (prefill, decode, both, or texts for an encoder).
//! What a family does differently is in its row and in which parts its checkpoint has; every line here is an op.

mod attend;
mod context;
mod output;

use std::sync::Arc;

pub use context::Context;
use ops::{Exec, Place, Product, Routes, View, ViewMut};
pub use output::ChoicePlaces;

use crate::adapter::{Adapters, StepAdapters};
use crate::kv_cache::{KvCache, KvPool};
use crate::parts::{AltupParts, AttentionParts, LayerParts, PlainAttention};
use crate::resident::Resident;
use crate::rope_table::RopeTable;
use crate::scratch::{LayerScratch, Scratch};
use crate::state_pool::StatePool;
use crate::step::{Places, Step};
use crate::{Config, Error, altup, assistant, feed_forward, mla, per_layer, recurrent};

/// Everything a step touches.
pub struct Decoder {
    pub config: Config,
    pub weights: Arc<Resident>,
    /// Of a drafter: the model whose tokens and states it reads.
    pub target: Option<DraftTarget>,
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

/// What a drafter reads of the other model, besides keys and values.
pub struct DraftTarget {
    pub weights: Arc<Resident>,
    pub embedding_scale: f32,
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
        let has_sinks = |layer: &LayerParts| {
            matches!(&layer.attention, Some(AttentionParts::Plain(PlainAttention { sinks: Some(_), .. })))
        };
        let is_shaped = config.attn_softcap.is_some()
            || config.alibi.is_some()
            || (0..config.n_layers).any(|layer_idx| config.window_of(layer_idx).is_some())
            || weights.parts.layers.iter().any(has_sinks);
        Self {
            config,
            weights: Arc::new(weights),
            target: None,
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
            let adapters = StepAdapters::of(self.adapters.as_ref(), slots);
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
        if let (Some(target), Some(parts)) = (&self.target, &parts.assistant) {
            let context = Context::plain(exec, config, weights);
            return assistant::embed(context, parts, target, places, n, s);
        }
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
        let adapters = StepAdapters::of(self.adapters.as_ref(), places.adapter_slots);
        let context = Context { exec, config: &self.config, weights: &self.weights, adapters };
        let layer = &self.weights.parts.layers[layer_idx];
        let Some(parts) = &layer.recurrent else { return Ok(()) };
        let state = self.states.layer_mut(layer_idx);
        recurrent::mix(context, layer, &parts.mixer, places.states, state, step.n_rows, &mut self.scratch)
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
