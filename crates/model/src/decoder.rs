//! The forward pass of a dense decoder: one step for a batch of rows, whatever they are (prefill, decode, both).

use ops::{Exec, Heads, Product, QuerySpan, Slot, View, ViewMut};

use crate::kv_cache::{KvCache, slot};
use crate::resident::{LayerWeights, Resident};
use crate::rope_table::RopeTable;
use crate::scratch::Scratch;
use crate::{Attention, Batch, Config, Error};

/// Everything a step touches.
pub struct Decoder {
    pub config: Config,
    pub weights: Resident,
    pub rope: RopeTable,
    pub kv: KvCache,
    pub scratch: Scratch,
}

/// A batch in the form the ops take it.
struct Step<'a> {
    n_rows: usize,
    slots: Vec<Slot>,
    /// Block table of each sequence.
    blocks: Vec<Vec<u32>>,
    batch: &'a Batch,
    /// Rows that anybody wants at the end, ascending.
    kept: Vec<u32>,
}

impl<'a> Step<'a> {
    fn new(batch: &'a Batch) -> Self {
        let mut slots = Vec::with_capacity(batch.n_rows());
        for seq in &batch.seqs {
            let rows = seq.first_row as usize..(seq.first_row + seq.n_rows) as usize;
            slots.extend(batch.positions[rows].iter().map(|&position| slot(&seq.block_table, position)));
        }
        let blocks = batch.seqs.iter().map(|seq| seq.block_table.iter().map(|block| block.0).collect()).collect();
        let mut kept: Vec<u32> = batch.logits_rows.iter().chain(&batch.pool_rows).copied().collect();
        kept.sort_unstable();
        kept.dedup();
        Self { n_rows: batch.n_rows(), slots, blocks, batch, kept }
    }

    fn spans(&self) -> Vec<QuerySpan<'_>> {
        let is_causal = self.batch.attention == Attention::Causal;
        self.batch
            .seqs
            .iter()
            .zip(&self.blocks)
            .map(|(seq, blocks)| QuerySpan {
                first_row: seq.first_row as usize,
                n_rows: seq.n_rows as usize,
                first_position: self.batch.positions[seq.first_row as usize] as usize,
                blocks,
                is_causal,
            })
            .collect()
    }
}

impl Decoder {
    /// Runs the batch. Afterwards `scratch.logits` and `scratch.hidden` hold the wanted rows.
    pub fn forward(&mut self, exec: Exec, batch: &Batch) -> Result<(), Error> {
        let step = Step::new(batch);
        let tokens: Vec<u32> = batch.tokens.iter().map(|token| token.0).collect();
        let s = &mut self.scratch;
        ops::embed(exec, self.weights.embedding.view(), &tokens, &mut s.x.rows_mut(step.n_rows))?;
        self.rope.fill(&batch.positions, s.angles.f32s_mut(step.n_rows));
        let n_layers = self.weights.layers.len();
        for layer_idx in 0..n_layers {
            self.attend(exec, layer_idx, &step)?;
            let layer = &self.weights.layers[layer_idx];
            let (config, s) = (&self.config, &mut self.scratch);
            if layer_idx + 1 < n_layers {
                let (x, mixed) = (s.x.rows_mut(step.n_rows), s.mixed.rows(step.n_rows));
                feed_forward(exec, config, layer, mixed, x, &mut s.h, &mut s.gate, &mut s.up)?;
            } else {
                // After the last attention only the wanted rows matter.
                let n = step.kept.len();
                ops::take_rows(exec, s.x.rows(step.n_rows), &step.kept, &mut s.kept_x.rows_mut(n))?;
                ops::take_rows(exec, s.mixed.rows(step.n_rows), &step.kept, &mut s.kept_mixed.rows_mut(n))?;
                let (x, mixed) = (s.kept_x.rows_mut(n), s.kept_mixed.rows(n));
                feed_forward(exec, config, layer, mixed, x, &mut s.h, &mut s.gate, &mut s.up)?;
            }
        }
        self.finish(exec, &step)
    }

    /// Attention of one layer: from the stream `x` to `mixed`, with the new keys and values stored.
    fn attend(&mut self, exec: Exec, layer_idx: usize, step: &Step) -> Result<(), Error> {
        let (config, layer, s) = (&self.config, &self.weights.layers[layer_idx], &mut self.scratch);
        let n = step.n_rows;
        ops::rmsnorm(exec, s.x.rows(n), layer.attn_norm.view(), config.norm_eps, &mut s.h.rows_mut(n))?;
        ops::matmul(
            exec,
            s.h.rows(n),
            &mut [
                Product::write(layer.q.view(), s.q.rows_mut(n)),
                Product::write(layer.k.view(), s.k.rows_mut(n)),
                Product::write(layer.v.view(), s.v.rows_mut(n)),
            ],
        )?;
        let pairing = config.family.pairing;
        ops::rope(exec, &mut s.q.rows_mut(n), s.angles.rows(n), config.head_dim, pairing)?;
        ops::rope(exec, &mut s.k.rows_mut(n), s.angles.rows(n), config.head_dim, pairing)?;
        let kv = self.kv.layer_mut(layer_idx);
        let (mut k_pool, mut v_pool) = (kv.k.view_mut(), kv.v.view_mut());
        ops::kv_store(exec, s.k.rows(n), s.v.rows(n), &step.slots, config.head_dim, &mut k_pool, &mut v_pool)?;
        let heads = Heads {
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        };
        ops::attention(exec, s.q.rows(n), kv.view(), heads, &step.spans(), &mut s.mixed.rows_mut(n))?;
        Ok(())
    }

    /// The last norm and the output layer, for the rows that want them.
    fn finish(&mut self, exec: Exec, step: &Step) -> Result<(), Error> {
        let (weights, s) = (&self.weights, &mut self.scratch);
        let n = step.kept.len();
        let norm = weights.output_norm.view();
        ops::rmsnorm(exec, s.kept_x.rows(n), norm, self.config.norm_eps, &mut s.hidden.rows_mut(n))?;
        let pooled: Vec<u32> = step.batch.pool_rows.iter().map(|row| step.index_of(*row)).collect();
        ops::take_rows(exec, s.hidden.rows(n), &pooled, &mut s.pooled.rows_mut(pooled.len()))?;
        let rows: Vec<u32> = step.batch.logits_rows.iter().map(|row| step.index_of(*row)).collect();
        if rows.is_empty() {
            return Ok(());
        }
        ops::take_rows(exec, s.hidden.rows(n), &rows, &mut s.logits_in.rows_mut(rows.len()))?;
        let weight = weights.output.as_ref().unwrap_or(&weights.embedding).view();
        let out = s.logits.rows_mut(rows.len());
        ops::matmul(exec, s.logits_in.rows(rows.len()), &mut [Product::write(weight, out)])?;
        Ok(())
    }
}

impl Step<'_> {
    /// Where a wanted row stands among the kept ones.
    fn index_of(&self, row: u32) -> u32 {
        self.kept.binary_search(&row).expect("a wanted row is kept") as u32
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
    ops::rmsnorm(exec, x.as_view(), layer.ffn_norm.view(), config.norm_eps, &mut h.rows_mut(n))?;
    let gate_and_up =
        &mut [Product::write(layer.gate.view(), gate.rows_mut(n)), Product::write(layer.up.view(), up.rows_mut(n))];
    ops::matmul(exec, h.rows(n), gate_and_up)?;
    ops::swiglu(exec, &mut gate.rows_mut(n), up.rows(n))?;
    ops::matmul(exec, gate.rows(n), &mut [Product::add(layer.down.view(), x)])?;
    Ok(())
}
