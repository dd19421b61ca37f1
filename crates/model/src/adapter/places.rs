//! Which matrices of a model a module of an adapter changes, and which of its rows and columns each of them has. What a file
//! holds as one matrix may be several in memory, and the two forms order some rows in another way.

use ops::{HeadOrder, Pairing};

use super::fit::Fitting;
use super::{AdapterFile, LoraModule};
use crate::family::FusedRows;
use crate::names::{At, Format, hub_spellings};
use crate::parts::{
    AttentionParts, Cut, Dense, FactoredLinear, FfnParts, LayerParts, MixerParts, PlainAttention, TensorId,
};
use crate::{Error, RecurrentKind};

/// Matrices of attention, dense blocks and shared experts that adapters may change, by GGUF's names.
const STEMS: [&str; 11] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
];
/// As [`STEMS`], of recurrent layers; some call their own by the names of attention's.
const RECURRENT_STEMS: [&str; 19] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "shortconv.in_proj",
    "shortconv.out_proj",
    "ssm_in",
    "ssm_out",
    "ssm_x",
    "ssm_dt",
    "ssm_ba",
    "ssm_beta",
    "ssm_alpha",
    "ssm_f_a",
    "ssm_f_b",
    "ssm_g_a",
    "ssm_g_b",
];
/// Of experts: one matrix each, or gate and up in one.
const EXPERT_STEMS: [&str; 4] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"];

/// The matrices of a layer that may be changed.
#[derive(Clone, Default)]
pub struct LayerMatrices {
    q: Option<TensorId>,
    k: Option<TensorId>,
    v: Option<TensorId>,
    /// Of attention's output, where it comes out of one product with the queries.
    q_gate: Option<TensorId>,
    output: Option<TensorId>,
    dense: BlockMatrices,
    shared: BlockMatrices,
    experts: Vec<BlockMatrices>,
    /// Of a recurrent block, the last product too.
    recurrent: Vec<TensorId>,
    delta: Option<DeltaMatrices>,
}

/// Of a feed-forward block, or of an expert.
#[derive(Copy, Clone, Default)]
struct BlockMatrices {
    gate: Option<TensorId>,
    up: Option<TensorId>,
    down: Option<TensorId>,
}

#[derive(Copy, Clone)]
struct DeltaMatrices {
    qkv: [TensorId; 3],
    gate: TensorId,
    beta: TensorId,
    forget: TensorId,
    out: TensorId,
}

/// A matrix in memory, and which row of the module each of its rows is; of its columns too, where they are not the same.
pub struct ModulePlace {
    pub tensor: TensorId,
    pub rows: Vec<usize>,
    pub cols: Option<Vec<usize>>,
}

impl BlockMatrices {
    fn of(dense: &Dense) -> Self {
        let gate = dense.gate.map(|gate| gate.weight);
        Self { gate, up: Some(dense.up.weight), down: Some(dense.down.weight) }
    }

    fn all(self) -> impl Iterator<Item = TensorId> {
        [self.gate, self.up, self.down].into_iter().flatten()
    }
}

impl LayerMatrices {
    pub fn of(layer: &LayerParts) -> Self {
        let mut found = Self { output: layer.attn_out.as_ref().map(|linear| linear.weight), ..Self::default() };
        if let Some(AttentionParts::Plain(PlainAttention { q, kv: Some([k, v]), gate, .. })) = &layer.attention {
            (found.q, found.k, found.v) = (Some(q.weight), Some(k.weight), Some(v.weight));
            found.q_gate = gate.map(|gate| gate.weight);
        }
        match &layer.ffn {
            Some(FfnParts::Dense(dense)) => found.dense = BlockMatrices::of(dense),
            Some(FfnParts::Experts(parts)) => {
                found.experts = parts.experts.iter().map(BlockMatrices::of).collect();
                found.shared = parts.shared.as_ref().map(BlockMatrices::of).unwrap_or_default();
            }
            _ => {}
        }
        if let Some(parts) = &layer.recurrent {
            found.recurrent = mixer_matrices(&parts.mixer);
            found.recurrent.push(parts.out.weight);
            if let MixerParts::Delta(delta) = &parts.mixer {
                found.delta = Some(DeltaMatrices {
                    qkv: delta.qkv.map(|linear| linear.weight),
                    gate: delta.gate.up.weight,
                    beta: delta.beta.weight,
                    forget: delta.forget.up.weight,
                    out: parts.out.weight,
                });
            }
        }
        found
    }

    /// With those of experts or without; of each kind of matrix, all experts' come one after another.
    pub fn all(&self, has_experts: bool) -> impl Iterator<Item = TensorId> + use<> {
        let Self { q, k, v, q_gate, output, dense, shared, experts, recurrent, .. } = self.clone();
        let experts = if has_experts { experts } else { Vec::new() };
        let kinds: [fn(&BlockMatrices) -> Option<TensorId>; 3] = [|one| one.gate, |one| one.up, |one| one.down];
        let of_experts: Vec<TensorId> =
            kinds.into_iter().flat_map(|kind| experts.iter().filter_map(kind).collect::<Vec<_>>()).collect();
        let attention = [q, k, v, q_gate, output].into_iter().flatten();
        attention.chain(dense.all()).chain(shared.all()).chain(recurrent).chain(of_experts)
    }
}

fn mixer_matrices(mixer: &MixerParts) -> Vec<TensorId> {
    match mixer {
        MixerParts::ShortConv { b, c, x, .. } => [b, c, x].map(|linear| linear.weight).to_vec(),
        MixerParts::Ssm(parts) => [&parts.gate, &parts.xbc, &parts.dt].map(|linear| linear.weight).to_vec(),
        MixerParts::Selective(parts) => {
            vec![parts.x.weight, parts.gate.weight, parts.low, parts.b, parts.c, parts.dt.weight]
        }
        MixerParts::Delta(parts) => {
            let of = |linear: &FactoredLinear| linear.down.into_iter().chain([linear.up.weight]);
            let qkv = parts.qkv.iter().map(|linear| linear.weight);
            qkv.chain([parts.beta.weight]).chain(of(&parts.forget)).chain(of(&parts.gate)).collect()
        }
        MixerParts::SelectiveHeads(_) | MixerParts::Wkv(_) => Vec::new(),
    }
}

/// A matrix and the rows of a module that it has; none where the model lacks it.
type Part = (Option<TensorId>, Vec<usize>);

impl Fitting {
    /// The matrices in memory that a module changes, and which of its rows each one has.
    pub(super) fn places(&self, adapter: &AdapterFile, module: &LoraModule) -> Result<Vec<ModulePlace>, Error> {
        let wrong = |what: String| Error::Tensor { name: module.name.clone(), what };
        let unknown =
            || wrong(format!("no module of this model ({}) that adapters can change", self.config.family.name));
        let layer_idx: Option<usize> = module.name.split('.').find_map(|part| part.parse().ok());
        let layer_idx = layer_idx.filter(|idx| *idx < self.layers.len()).ok_or_else(unknown)?;
        let n_experts = self.layers[layer_idx].experts.len();
        if let Some((_, n)) = module.expert.filter(|(_, n)| *n != n_experts) {
            return Err(wrong(format!("it is of {n} experts, the layer has {n_experts}")));
        }
        let mut cols = None;
        let parts = if let Some(parts) = self.expert_parts(adapter, module, layer_idx) {
            parts
        } else if let Some((parts, own_cols)) = self.recurrent_parts(adapter, module, layer_idx) {
            cols = own_cols;
            parts
        } else {
            let stem = self.find(adapter.format, &module.name, layer_idx, &STEMS).ok_or_else(unknown)?;
            self.block_parts(adapter, module, layer_idx, stem)
        };
        let n_out: usize = parts.iter().map(|(_, rows)| rows.len()).sum();
        let mut places = Vec::new();
        for (tensor, rows) in parts {
            let tensor = tensor.ok_or_else(unknown)?;
            let (n_in, found) = (self.rows[tensor.0].shape[1], [module.b.shape[0], module.a.shape[1]]);
            if found != [n_out, n_in] {
                return Err(wrong(format!("it changes a matrix of {found:?}, the model's is {:?}", [n_out, n_in])));
            }
            places.push(ModulePlace { tensor, rows, cols: cols.clone() });
        }
        Ok(places)
    }

    /// Of attention, a dense block or the expert that all rows go to.
    fn block_parts(&self, adapter: &AdapterFile, module: &LoraModule, layer_idx: usize, stem: &str) -> Vec<Part> {
        let ids = &self.layers[layer_idx];
        let block = if stem.ends_with("_shexp") { ids.shared } else { ids.dense };
        let n_ff_rows = block.up.map_or(0, |up| self.rows[up.0].shape[0]);
        let is_fused_gate = stem == "ffn_up" && block.gate.is_some() && module.b.shape[0] == 2 * n_ff_rows;
        match stem {
            "attn_q" => match (ids.q, ids.q_gate) {
                (Some(q), Some(gate)) if self.rows[q.0].source == self.rows[gate.0].source => {
                    [q, gate].map(|id| (Some(id), self.rows[id.0].source_rows())).into()
                }
                _ => vec![(ids.q, self.head_rows(adapter.format, ids.q, self.config.n_heads))],
            },
            "attn_k" => vec![(ids.k, self.head_rows(adapter.format, ids.k, self.config.n_kv_heads))],
            "attn_qkv" => {
                let rows = self.fused_rows(adapter.format).into_iter();
                rows.zip([ids.q, ids.k, ids.v]).map(|(rows, id)| (id, rows)).collect()
            }
            "ffn_up" if is_fused_gate => {
                vec![(block.gate, (0..n_ff_rows).collect()), (block.up, (n_ff_rows..2 * n_ff_rows).collect())]
            }
            _ => {
                let id = match stem {
                    "attn_v" => ids.v,
                    "attn_output" => ids.output,
                    "ffn_gate" | "ffn_gate_shexp" => block.gate,
                    "ffn_up" | "ffn_up_shexp" => block.up,
                    _ => block.down,
                };
                vec![(id, self.all_rows(id))]
            }
        }
    }

    fn all_rows(&self, id: Option<TensorId>) -> Vec<usize> {
        (0..id.map_or(0, |id| self.rows[id.0].shape[0])).collect()
    }

    /// Of one expert: by its own name, as a row of a stack, or as a parameter without a name, which the sizes tell.
    fn expert_parts(&self, adapter: &AdapterFile, module: &LoraModule, layer_idx: usize) -> Option<Vec<Part>> {
        let experts = &self.layers[layer_idx].experts;
        let (expert_idx, stem) = match module.expert {
            Some((idx, _)) => (idx, self.find(adapter.format, &module.name, layer_idx, &EXPERT_STEMS)),
            None => {
                let mut numbers = module.name.split('.').filter_map(|part| part.parse::<usize>().ok());
                let idx = numbers.nth(1)?;
                let is_called = |stem: &&str| self.is_hub(At::Part(layer_idx, idx), stem, &module.name);
                (idx, Some(EXPERT_STEMS.into_iter().find(is_called)?))
            }
        };
        let block = *experts.get(expert_idx)?;
        let (up, down) = (block.up?, block.down?);
        let n_ff = self.rows[up.0].shape[0];
        let n_both = if block.gate.is_some() { 2 * n_ff } else { n_ff };
        let is_down = [module.b.shape[0], module.a.shape[1]] == self.rows[down.0].shape;
        let stem = match stem {
            Some(stem) => stem,
            None if !module.name.ends_with("experts") => return None,
            None if is_down && module.b.shape[0] != n_both => "ffn_down_exps",
            None if block.gate.is_some() => "ffn_gate_up_exps",
            None => "ffn_up_exps",
        };
        Some(match stem {
            "ffn_gate_up_exps" => {
                let alternates = adapter.format == Format::Hub && self.config.family.hub_gate_alternates;
                let of = |which: usize| -> Vec<usize> {
                    (0..n_ff).map(|row| if alternates { 2 * row + which } else { which * n_ff + row }).collect()
                };
                vec![(block.gate, of(0)), (block.up, of(1))]
            }
            "ffn_gate_exps" => vec![(block.gate, self.all_rows(block.gate))],
            "ffn_up_exps" => vec![(block.up, self.all_rows(block.up))],
            _ => vec![(block.down, self.all_rows(block.down))],
        })
    }

    /// Of a recurrent block; and the columns, where the model has them in another order.
    fn recurrent_parts(
        &self,
        adapter: &AdapterFile,
        module: &LoraModule,
        layer_idx: usize,
    ) -> Option<(Vec<Part>, Option<Vec<usize>>)> {
        let layer = &self.layers[layer_idx];
        if layer.recurrent.is_empty() {
            return None;
        }
        let stem = self.find(adapter.format, &module.name, layer_idx, &RECURRENT_STEMS)?;
        let is_delta = self.config.recurrent.is_some_and(|recurrent| recurrent.kind == RecurrentKind::Delta);
        if let Some(delta) = layer.delta.filter(|_| is_delta) {
            return self.delta_parts(adapter.format, &delta, stem);
        }
        let is_of_stem = |id: &&TensorId| {
            let source = &self.rows[id.0].source;
            self.find(self.config.format, source.strip_suffix(".weight").unwrap_or(source), layer_idx, &[stem])
                .is_some()
        };
        let ids: Vec<TensorId> = layer.recurrent.iter().filter(is_of_stem).copied().collect();
        let parts = ids.iter().map(|id| (Some(*id), self.rows[id.0].source_rows())).collect();
        (!ids.is_empty()).then_some((parts, None))
    }

    /// Of a gated delta net, whose heads of values take turns in GGUF where they stand by their keys' in safetensors.
    fn delta_parts(
        &self,
        format: Format,
        delta: &DeltaMatrices,
        stem: &str,
    ) -> Option<(Vec<Part>, Option<Vec<usize>>)> {
        let sizes = self.config.recurrent?;
        let (n_groups, n_heads, keys) = (sizes.n_groups, sizes.n_heads, sizes.n_groups * sizes.state_dim);
        let (inner, per_key) = (sizes.inner, sizes.inner / sizes.n_groups);
        let every = |first, len, step| Cut { first, len, step, n: n_groups, transposed: None }.picked().collect();
        let of_order = |tiles: bool| if tiles { HeadOrder::Tiled } else { HeadOrder::Grouped };
        let own = of_order(format == Format::Gguf && self.config.family.tiles_value_heads);
        // Of each number of the values, in the model's order, its place in the adapter's.
        let values = |n_each: usize| -> Vec<usize> {
            let per_group = n_heads / n_groups;
            let place = |head: usize| match (sizes.order, own) {
                (HeadOrder::Tiled, HeadOrder::Grouped) => head % n_groups * per_group + head / n_groups,
                (HeadOrder::Grouped, HeadOrder::Tiled) => head % per_group * n_groups + head / per_group,
                _ => head,
            };
            (0..n_heads).flat_map(|head| (0..n_each).map(move |i| place(head) * n_each + i)).collect()
        };
        let through = |rows: Vec<usize>, n_each: usize| values(n_each).into_iter().map(|at| rows[at]).collect();
        let (head_dim, step) = (inner / n_heads, 2 * sizes.state_dim + 2 * per_key);
        let ([q, k, v], all) = (delta.qkv, |n: usize| (0..n).collect::<Vec<usize>>());
        let per_group = n_heads / n_groups;
        let parts = match stem {
            "ssm_in" => vec![
                (q, every(0, sizes.state_dim, step)),
                (k, every(sizes.state_dim, sizes.state_dim, step)),
                (v, through(every(2 * sizes.state_dim, per_key, step), head_dim)),
                (delta.gate, through(every(2 * sizes.state_dim + per_key, per_key, step), head_dim)),
            ],
            "ssm_ba" => vec![
                (delta.beta, through(every(0, per_group, 2 * per_group), 1)),
                (delta.forget, through(every(per_group, per_group, 2 * per_group), 1)),
            ],
            "attn_qkv" => vec![
                (q, all(keys)),
                (k, (keys..2 * keys).collect()),
                (v, through((2 * keys..2 * keys + inner).collect(), head_dim)),
            ],
            "attn_gate" => vec![(delta.gate, through(all(inner), head_dim))],
            "ssm_beta" => vec![(delta.beta, through(all(n_heads), 1))],
            "ssm_alpha" => vec![(delta.forget, through(all(n_heads), 1))],
            "ssm_out" => {
                let rows = self.all_rows(Some(delta.out));
                return Some((vec![(Some(delta.out), rows)], Some(values(head_dim))));
            }
            _ => return None,
        };
        Some((parts.into_iter().map(|(id, rows)| (Some(id), rows)).collect(), None))
    }

    /// The one of some of GGUF's names that a module is called by.
    fn find(&self, format: Format, name: &str, layer_idx: usize, stems: &[&'static str]) -> Option<&'static str> {
        let is_called = |stem: &&str| match format {
            Format::Gguf => name == format!("blk.{layer_idx}.{stem}"),
            Format::Hub => self.is_hub(At::Layer(layer_idx), stem, name),
        };
        stems.iter().copied().find(is_called)
    }

    fn is_hub(&self, at: At, stem: &str, name: &str) -> bool {
        let mut spellings = hub_spellings(&self.config.family, at, stem, "weight");
        spellings.any(|spelling| spelling.strip_suffix(".weight").unwrap_or(&spelling) == name)
    }

    /// Where the rows of queries or keys stand in the adapter: GGUF has those of some families in another order.
    fn head_rows(&self, format: Format, tensor: Option<TensorId>, n_heads: usize) -> Vec<usize> {
        let n = tensor.map_or(0, |tensor| self.rows[tensor.0].shape[0]);
        let family = &self.config.family;
        let is_reordered = family.pairing == Pairing::Adjacent && family.hub_pairing == Pairing::Halves;
        if format == self.config.format || !is_reordered || !n.is_multiple_of(2 * n_heads) {
            return (0..n).collect();
        }
        let (head_dim, half) = (n / n_heads, n / n_heads / 2);
        let place = |row: usize| {
            let (head, at) = (row / head_dim, row % head_dim);
            head * head_dim
                + match format {
                    // Pairs stand side by side in memory, and half a head apart in the adapter.
                    Format::Hub => at % 2 * half + at / 2,
                    Format::Gguf => at % half * 2 + at / half,
                }
        };
        (0..n).map(place).collect()
    }

    /// Where queries, keys and values stand in a product that makes all of them.
    fn fused_rows(&self, format: Format) -> [Vec<usize>; 3] {
        let (q_dim, kv_dim, head_dim) = (self.config.q_dim(), self.config.kv_dim(), self.config.head_dim);
        if format == Format::Gguf || self.config.family.hub_qkv != FusedRows::ByHead {
            let q_and_k = q_dim + kv_dim;
            return [(0..q_dim).collect(), (q_dim..q_and_k).collect(), (q_and_k..q_and_k + kv_dim).collect()];
        }
        let n = self.config.n_kv_heads;
        let group = q_dim / n;
        let of_heads =
            |first, len| Cut { first, len, step: group + 2 * head_dim, n, transposed: None }.picked().collect();
        [of_heads(0, group), of_heads(group, head_dim), of_heads(group + head_dim, head_dim)]
    }
}
