//! The forward pass of a dense decoder: one step for a batch of rows, whatever they are (prefill, decode, both).

use ops::{Exec, Product, Projected, Spans, View, ViewMut};

use crate::kv_cache::KvCache;
use crate::resident::{LayerWeights, Resident};
use crate::rope_table::RopeTable;
use crate::scratch::Scratch;
use crate::step::{Places, Step};
use crate::{Config, Error};

/// Everything a step touches.
pub struct Decoder {
    pub config: Config,
    pub weights: Resident,
    pub rope: RopeTable,
    pub kv: KvCache,
    pub scratch: Scratch,
}

impl Decoder {
    /// Runs a step whose inputs lie at `places`. Afterwards `scratch.logits` and `scratch.pooled` hold the wanted rows.
    pub fn forward(&mut self, exec: Exec, step: &Step, places: &Places) -> Result<(), Error> {
        let s = &mut self.scratch;
        ops::embed(exec, self.weights.embedding.view(), places.tokens, &mut s.x.rows_mut(step.n_rows))?;
        let n_layers = self.weights.layers.len();
        for layer_idx in 0..n_layers {
            self.attend(exec, layer_idx, step, places)?;
            let layer = &self.weights.layers[layer_idx];
            let (config, s) = (&self.config, &mut self.scratch);
            if layer_idx + 1 < n_layers {
                let (x, mixed) = (s.x.rows_mut(step.n_rows), s.mixed.rows(step.n_rows));
                feed_forward(exec, config, layer, mixed, x, &mut s.h, &mut s.gate, &mut s.up)?;
            } else {
                // After the last attention only the wanted rows matter.
                let n = step.kept.len();
                ops::take_rows(exec, s.x.rows(step.n_rows), places.kept, &mut s.kept_x.rows_mut(n))?;
                ops::take_rows(exec, s.mixed.rows(step.n_rows), places.kept, &mut s.kept_mixed.rows_mut(n))?;
                let (x, mixed) = (s.kept_x.rows_mut(n), s.kept_mixed.rows(n));
                feed_forward(exec, config, layer, mixed, x, &mut s.h, &mut s.gate, &mut s.up)?;
            }
        }
        self.finish(exec, places)
    }

    /// Attention of one layer: from the stream `x` to `mixed`, with the new keys and values stored.
    fn attend(&mut self, exec: Exec, layer_idx: usize, step: &Step, places: &Places) -> Result<(), Error> {
        let (config, layer, s) = (&self.config, &self.weights.layers[layer_idx], &mut self.scratch);
        let n = step.n_rows;
        ops::norm_matmul(
            exec,
            s.x.rows(n),
            layer.attn_norm.view(),
            config.norm_eps,
            &mut s.h.rows_mut(n),
            &mut [
                Product::write(layer.q.view(), s.q.rows_mut(n)),
                Product::write(layer.k.view(), s.k.rows_mut(n)),
                Product::write(layer.v.view(), s.v.rows_mut(n)),
            ],
        )?;
        let kv = self.kv.layer_mut(layer_idx);
        let (mut k_pool, mut v_pool) = (kv.k.view_mut(), kv.v.view_mut());
        let projected = Projected {
            q: s.q.rows_mut(n),
            k: s.k.rows_mut(n),
            v: s.v.rows(n),
            angles: places.angles,
            head_dim: config.head_dim,
            pairing: config.family.pairing,
        };
        ops::rope_store(exec, projected, places.slots, &mut k_pool, &mut v_pool)?;
        let spans = step.spans();
        let spans = Spans { host: &spans, device: places.spans };
        ops::attention(exec, s.q.rows(n), kv.view(), config.heads(), spans, &mut s.mixed.rows_mut(n))?;
        Ok(())
    }

    /// The last norm and the output layer, for the rows that want them.
    fn finish(&mut self, exec: Exec, places: &Places) -> Result<(), Error> {
        let (weights, s) = (&self.weights, &mut self.scratch);
        let n = places.kept.len();
        let norm = weights.output_norm.view();
        ops::rmsnorm(exec, s.kept_x.rows(n), norm, self.config.norm_eps, &mut s.hidden.rows_mut(n))?;
        let (pooled, rows) = (places.pooled, places.logits_rows);
        ops::take_rows(exec, s.hidden.rows(n), pooled, &mut s.pooled.rows_mut(pooled.len()))?;
        if rows.is_empty() {
            return Ok(());
        }
        ops::take_rows(exec, s.hidden.rows(n), rows, &mut s.logits_in.rows_mut(rows.len()))?;
        let weight = weights.output.as_ref().unwrap_or(&weights.embedding).view();
        let out = s.logits.rows_mut(rows.len());
        ops::matmul(exec, s.logits_in.rows(rows.len()), &mut [Product::write(weight, out)])?;
        Ok(())
    }
}

/// `x += attention's output`, then `x += ffn(norm(x))`.
#[allow(clippy::too_many_arguments, reason = "the scratch's parts, borrowed apart from the rest of it")]
fn feed_forward(
    exec: Exec,
    config: &Config,
    layer: &LayerWeights,
    mixed: View,
    mut x: ViewMut,
    h: &mut ops::Tensor,
    gate: &mut ops::Tensor,
    up: &mut ops::Tensor,
) -> Result<(), Error> {
    let n = mixed.n_rows();
    ops::matmul(exec, mixed, &mut [Product::add(layer.attn_out.view(), x.reborrow())])?;
    let gate_and_up =
        &mut [Product::write(layer.gate.view(), gate.rows_mut(n)), Product::write(layer.up.view(), up.rows_mut(n))];
    ops::norm_matmul(exec, x.as_view(), layer.ffn_norm.view(), config.norm_eps, &mut h.rows_mut(n), gate_and_up)?;
    ops::swiglu_matmul(exec, &mut gate.rows_mut(n), up.rows(n), &mut [Product::add(layer.down.view(), x)])?;
    Ok(())
}
