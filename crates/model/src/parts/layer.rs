//! A layer's norms and its attention, plain or compressed, as the checkpoint names and cuts them.

use ops::{Heads, N_STREAMS};
use weights::Tensor;

use super::list::{PartList, rows_and_cols};
use super::{
    AltupParts, AttentionParts, Cut, FfnParts, IndexerParts, LaurelParts, LayerParts, Linear, MlaParts, PerLayerParts,
    PerLayerTable, PlainAttention, StreamParts, TensorId,
};
use crate::family::{FusedRows, Placement};
use crate::indexer::Indexer;
use crate::names::{At, Format};
use crate::recurrent_config::Multipliers;
use crate::{Config, Error};

impl<'a> PartList<'a, '_> {
    pub(super) fn layer(&mut self, at: At) -> Result<LayerParts, Error> {
        let config = self.config;
        let At::Layer(layer_idx) = at else { unreachable!("a layer stands in a layer") };
        let blocks = config.blocks[layer_idx];
        let n_embd = config.n_embd;
        let placement = config.family.placement;
        let (is_before, is_after) = (
            matches!(placement, Placement::Before | Placement::Around),
            matches!(placement, Placement::After | Placement::Around),
        );
        let names = self.names;
        let has = |name: &str| names.find(at, name, "weight").is_some();
        // Falcon's larger models have a norm for each block, and the one for attention is the second.
        let attn_norm_name = if has("attn_norm_2") && !blocks.recurs { "attn_norm_2" } else { "attn_norm" };
        // Some call the norm of the feed-forward block by the name of another, or use attention's for both blocks.
        let mut others = ["ffn_norm", "post_attention_norm", "attn_output_norm"].into_iter();
        let ffn_norm_name = match others.find(|name| has(name)) {
            None if config.is_parallel => "attn_norm",
            // The only block of its layer.
            None if !blocks.attends && !blocks.recurs => "attn_norm",
            found => found.unwrap_or("ffn_norm"),
        };
        let has_both = has("pre_ffw_norm_2");
        // Grok's norms behind its blocks have the names of those of sums.
        let after = |usual: &'static str, other: &'static str| if !has(usual) && has(other) { other } else { usual };
        let has_attn_norm = is_before && !(layer_idx == 0 && config.family.skips_first_norm);
        let attn_norm = has_attn_norm.then(|| self.norm(at, attn_norm_name, n_embd)).transpose()?;
        let heads = config.heads_of(layer_idx);
        let out_dim = config.mla.map_or(heads.n_heads * heads.head_dim, |mla| config.n_heads * mla.v_dim);
        let attention = blocks.attends.then(|| self.attention(at, heads)).transpose()?;
        let attn_out = blocks.attends.then(|| self.attention_output(at, out_dim)).transpose()?;
        let recurrent = blocks.recurs.then(|| self.recurrent(at).map(Box::new)).transpose()?;
        let post_attn_norm =
            is_after.then(|| self.norm(at, after("post_attention_norm", "attn_output_norm"), n_embd)).transpose()?;
        let ffn_norm = (is_before && blocks.has_ffn).then(|| self.norm(at, ffn_norm_name, n_embd)).transpose()?;
        let ffn = match (&config.experts, self.names.find(at, "ffn_gate_inp", "weight")) {
            _ if !blocks.has_ffn => None,
            (Some(_), Some(_)) if has_both => Some(self.dense_and_experts(at)?),
            (Some(_), Some(_)) => Some(FfnParts::Experts(Box::new(self.experts(at)?))),
            _ => Some(FfnParts::Dense(self.dense_block(at)?)),
        };
        let is_of_sum = placement == Placement::OfSum;
        Ok(LayerParts {
            attn_norm,
            attention,
            attn_out,
            recurrent,
            attn_sub_norm: self.norm_if_there(at, "attn_sub_norm", out_dim)?,
            ffn_sub_norm: self.norm_if_there(at, "ffn_sub_norm", config.n_ff)?,
            post_attn_norm,
            ffn_norm,
            ffn,
            post_ffn_norm: is_after
                .then(|| self.norm(at, after("post_ffw_norm", "layer_output_norm"), n_embd))
                .transpose()?,
            attn_sum_norm: is_of_sum.then(|| self.norm(at, "attn_output_norm", n_embd)).transpose()?,
            ffn_sum_norm: is_of_sum.then(|| self.norm(at, "layer_output_norm", n_embd)).transpose()?,
            altup: match config.laurel_rank {
                Some(rank) => Some(Box::new(self.altup(at, rank)?)),
                None => None,
            },
            per_layer: (config.n_embd_per_layer > 0).then(|| self.per_layer(at)).transpose()?,
        })
    }

    fn attention(&mut self, at: At, heads: Heads) -> Result<AttentionParts, Error> {
        Ok(match self.config.mla {
            Some(_) => AttentionParts::Compressed(Box::new(self.compressed(at)?)),
            None => AttentionParts::Plain(self.plain_attention(at, heads)?),
        })
    }

    fn attention_output(&mut self, at: At, out_dim: usize) -> Result<Linear, Error> {
        let n_embd = self.config.n_embd;
        let out = self.linear(at, "attn_output", [n_embd, out_dim])?;
        self.scale(out.weight, &[(n_embd, self.config.multipliers.attention_out)]);
        Ok(out)
    }

    fn plain_attention(&mut self, at: At, heads: Heads) -> Result<PlainAttention, Error> {
        let config = self.config;
        let At::Layer(layer_idx) = at else { unreachable!("attention stands in a layer") };
        let Heads { n_heads, n_kv_heads, head_dim, .. } = heads;
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        if !config.keeps_kv(layer_idx) {
            let q = self.linear(at, "attn_q", [q_dim, config.n_embd])?;
            let q_norm = self.head_norm(at, "attn_q_norm", q_dim, head_dim)?;
            let (k_norm, v_norm, sinks, gate) = (None, None, None, None);
            return Ok(PlainAttention { q, kv: None, q_norm, k_norm, v_norm, sinks, gate });
        }
        let mut gate = None;
        let [q, k, v] = if let Some(fused) = self.names.find(at, "attn_qkv", "weight") {
            self.fused_qkv(at, fused)?
        } else {
            let source = self.names.tensor(at, "attn_q")?;
            let q = if config.may_gate() && rows_and_cols(source)[0] == 2 * q_dim {
                let [q, gates] = self.gated_queries(at, source)?;
                gate = Some(gates);
                q
            } else {
                self.linear(at, "attn_q", [q_dim, config.n_embd])?
            };
            let k = self.linear(at, "attn_k", [kv_dim, config.n_embd])?;
            // Values without a tensor are the keys before their norm and rope.
            let has_values = !config.family.norms_values || self.names.find(at, "attn_v", "weight").is_some();
            [q, k, if has_values { self.linear(at, "attn_v", [kv_dim, config.n_embd])? } else { k }]
        };
        let Multipliers { attention_in, key, .. } = config.multipliers;
        self.scale(q.weight, &[(q_dim, attention_in)]);
        self.scale(k.weight, &[(kv_dim, attention_in * key)]);
        self.scale(v.weight, &[(kv_dim, attention_in)]);
        let q_norm = self.head_norm(at, "attn_q_norm", q_dim, head_dim)?;
        let k_norm = self.head_norm(at, "attn_k_norm", kv_dim, head_dim)?;
        let (q_norm, k_norm) = match (q_norm, k_norm) {
            (None, None) if config.has_plain_head_norms && config.is_rotated[layer_idx] => {
                let plain = self.names.tensor(at, "attn_norm")?;
                (Some(self.ones(plain, head_dim)?), Some(self.ones(plain, head_dim)?))
            }
            found => found,
        };
        let v_norm = match (config.family.norms_values, self.names.find(at, "attn_k_norm", "weight")) {
            (true, Some(source)) => Some(self.ones(source, head_dim)?),
            _ => None,
        };
        let sinks = match self.names.find(at, "attn_sinks", "weight") {
            Some(source) => Some(self.vector(source, 0, config.n_heads, 0.0)?),
            None => None,
        };
        Ok(PlainAttention { q, kv: Some([k, v]), q_norm, k_norm, v_norm, sinks, gate })
    }

    /// Of each head its query, and then what its output is weighed with.
    fn gated_queries(&mut self, at: At, source: &'a Tensor) -> Result<[Linear; 2], Error> {
        let Config { n_embd, n_heads, head_dim, .. } = *self.config;
        let bias = self.names.find(at, "attn_q", "bias");
        let mut part = |first: usize| -> Result<Linear, Error> {
            let cut = Cut { first, len: head_dim, step: 2 * head_dim, n: n_heads, transposed: None };
            let weight = self.push(source, cut, [n_heads * head_dim, n_embd])?;
            let n = 2 * n_heads * head_dim;
            let bias = bias.map(|bias| self.floats_of(bias, n, cut, [1, n / 2], 0.0)).transpose()?;
            Ok(Linear { weight, bias })
        };
        Ok([part(0)?, part(head_dim)?])
    }

    /// Queries, keys and values out of one tensor.
    fn fused_qkv(&mut self, at: At, fused: &'a Tensor) -> Result<[Linear; 3], Error> {
        let config = self.config;
        let (q_dim, kv_dim, head_dim, n_embd) = (config.q_dim(), config.kv_dim(), config.head_dim, config.n_embd);
        let is_by_head = self.names.format == Format::Hub && config.family.hub_qkv == FusedRows::ByHead;
        let group = q_dim / config.n_kv_heads;
        let of_heads =
            |first, len| Cut { first, len, step: group + 2 * head_dim, n: config.n_kv_heads, transposed: None };
        let cuts = match is_by_head {
            true => [of_heads(0, group), of_heads(group, head_dim), of_heads(group + head_dim, head_dim)],
            false => [Cut::rows(0, q_dim), Cut::rows(q_dim, kv_dim), Cut::rows(q_dim + kv_dim, kv_dim)],
        };
        let is_transposed = self.is_transposed("attn_qkv");
        let shape = [q_dim + 2 * kv_dim, n_embd];
        self.expect(fused, if is_transposed { [shape[1], shape[0]] } else { shape })?;
        let bias = self.names.find(at, "attn_qkv", "bias");
        let mut linears = Vec::with_capacity(3);
        for cut in cuts {
            let n = cut.n_rows();
            let in_file = if is_transposed { Cut::columns(n_embd, cut.first, n) } else { cut };
            let weight = self.push(fused, in_file, [n, n_embd])?;
            let bias = bias.map(|bias| self.floats_of(bias, shape[0], cut, [1, n], 0.0)).transpose()?;
            linears.push(Linear { weight, bias });
        }
        Ok([linears[0], linears[1], linears[2]])
    }

    /// Norms of queries or keys: of each head with the same weights, of each with its own, or of all together.
    fn head_norm(&mut self, at: At, name: &str, n_cols: usize, head_dim: usize) -> Result<Option<TensorId>, Error> {
        let Some(source) = self.names.find(at, name, "weight") else { return Ok(None) };
        let shape = match rows_and_cols(source) {
            [1, n] if n == head_dim || n == n_cols => [1, n],
            [n, width] if width == head_dim && n * width == n_cols => [n, width],
            _ => {
                let (found, expected) = (source.shape.clone(), vec![head_dim]);
                return Err(Error::Shape { name: source.name.clone(), found, expected });
            }
        };
        let offset = self.norm_offset(name);
        self.floats(source, Cut::rows(0, shape[0] * shape[1]), shape, offset).map(Some)
    }

    /// How a layer's own numbers of a token come into the stream.
    fn per_layer(&mut self, at: At) -> Result<PerLayerParts, Error> {
        let Config { n_embd, n_embd_per_layer: width, .. } = *self.config;
        Ok(PerLayerParts {
            gate: self.matrix(at, "inp_gate", [width, n_embd])?,
            out: self.matrix(at, "proj", [n_embd, width])?,
            norm: self.norm(at, "post_norm", n_embd)?,
        })
    }

    /// The numbers of all layers beside each other: `n_cols` of them, `width` a layer.
    pub(super) fn per_layer_table(&mut self, n_cols: usize, width: usize) -> Result<PerLayerTable, Error> {
        let source = self.names.tensor(At::Model, "per_layer_token_embd")?;
        let n_tokens = rows_and_cols(source)[0];
        self.expect(source, [n_tokens, n_cols])?;
        if n_tokens < self.config.n_vocab {
            let (found, expected) = (source.shape.clone(), vec![self.config.n_vocab, n_cols]);
            return Err(Error::Shape { name: source.name.clone(), found, expected });
        }
        let norm = self.names.tensor(At::Model, "per_layer_proj_norm")?;
        Ok(PerLayerTable {
            table: self.push(source, Cut::rows(0, n_tokens), [n_tokens, n_cols])?,
            from_embedding: self.matrix(At::Model, "per_layer_model_proj", [n_cols, self.config.n_embd])?,
            norm: self.vector(norm, 0, width, 0.0)?,
        })
    }

    /// How the streams of a layer predict and correct each other.
    fn altup(&mut self, at: At, rank: usize) -> Result<AltupParts, Error> {
        let n_embd = self.config.n_embd;
        let router_norm = self.norm(at, "altup_router_norm", n_embd)?.weight;
        self.scale(router_norm, &[(1, 1.0 / n_embd as f32)]);
        let mut coefficients = |name: &str, n_rows: usize| -> Result<TensorId, Error> {
            let source = self.names.tensor(at, name)?;
            self.expect(source, [n_rows, N_STREAMS])?;
            self.floats(source, Cut::rows(0, n_rows * N_STREAMS), [n_rows, N_STREAMS], 0.0)
        };
        let predict = coefficients("altup_predict_coef", N_STREAMS * N_STREAMS)?;
        let correct = coefficients("altup_correct_coef", N_STREAMS)?;
        let scale = self.names.tensor(at, "altup_correct_scale")?;
        Ok(AltupParts {
            router_norm,
            router: self.matrix(at, "altup_router", [N_STREAMS, n_embd])?,
            predict,
            correct,
            scale: self.vector(scale, 0, n_embd, 0.0)?,
            laurel: LaurelParts {
                left: self.matrix(at, "laurel_l", [rank, n_embd])?,
                right: self.matrix(at, "laurel_r", [n_embd, rank])?,
                norm: self.norm(at, "laurel_post_norm", n_embd)?,
            },
        })
    }

    /// From the embedding to the other streams, and back: GGUF has them in a stack.
    pub(super) fn streams(&mut self) -> Result<StreamParts, Error> {
        let n_embd = self.config.n_embd;
        let mut all = |stack: &str, each: [&str; N_STREAMS - 1]| -> Result<Vec<TensorId>, Error> {
            if self.names.format == Format::Hub {
                return each.into_iter().map(|name| self.matrix(At::Model, name, [n_embd, n_embd])).collect();
            }
            let stack = self.names.tensor(At::Model, stack)?;
            self.expect(stack, [(N_STREAMS - 1) * n_embd, n_embd])?;
            (0..N_STREAMS - 1).map(|i| self.push(stack, Cut::rows(i * n_embd, n_embd), [n_embd, n_embd])).collect()
        };
        let into = all("altup_proj", ["altup_proj.0", "altup_proj.1", "altup_proj.2"])?;
        let of = ["altup_unembd_proj.0", "altup_unembd_proj.1", "altup_unembd_proj.2"];
        Ok(StreamParts { into, out_of: all("altup_unembd_proj", of)? })
    }

    fn compressed(&mut self, at: At) -> Result<MlaParts, Error> {
        let config = self.config;
        let mla = config.mla.expect("asked for compressed attention only");
        let (n_heads, n_rot, kv_rank) = (config.n_heads, config.n_rot, mla.kv_rank);
        let key_dim = mla.nope_dim + n_rot;
        let (q_a, q_name, q_in) = match mla.q_rank {
            Some(rank) => {
                let weight = self.matrix(at, "attn_q_a", [rank, config.n_embd])?;
                (Some((weight, self.norm(at, "attn_q_a_norm", rank)?)), "attn_q_b", rank)
            }
            None => (None, "attn_q", config.n_embd),
        };
        let q = self.names.tensor(at, q_name)?;
        self.expect(q, [n_heads * key_dim, q_in])?;
        let of_heads = |first, len| Cut { first, len, step: key_dim, n: n_heads, transposed: None };
        let q_nope = self.push(q, of_heads(0, mla.nope_dim), [n_heads * mla.nope_dim, q_in])?;
        let q_rope = self.push(q, of_heads(mla.nope_dim, n_rot), [n_heads * n_rot, q_in])?;
        let kv_a = self.names.tensor(at, "attn_kv_a_mqa")?;
        self.expect(kv_a, [kv_rank + n_rot, config.n_embd])?;
        let kv = self.push(kv_a, Cut::rows(0, kv_rank), [kv_rank, config.n_embd])?;
        let k_rope = self.push(kv_a, Cut::rows(kv_rank, n_rot), [n_rot, config.n_embd])?;
        let kv_norm = self.norm(at, "attn_kv_a_norm", kv_rank)?;
        let (mut k_b, mut v_b) = (Vec::new(), Vec::new());
        if let Some(keys) = self.names.find(at, "attn_k_b", "weight") {
            let values = self.names.tensor(at, "attn_v_b")?;
            self.expect(keys, [n_heads * kv_rank, mla.nope_dim])?;
            self.expect(values, [n_heads * mla.v_dim, kv_rank])?;
            for head in 0..n_heads {
                k_b.push(self.push(keys, Cut::rows(head * kv_rank, kv_rank), [kv_rank, mla.nope_dim])?);
                v_b.push(self.push(values, Cut::rows(head * mla.v_dim, mla.v_dim), [mla.v_dim, kv_rank])?);
            }
        } else {
            let both = self.names.tensor(at, "attn_kv_b")?;
            self.expect(both, [n_heads * (mla.nope_dim + mla.v_dim), kv_rank])?;
            for head in 0..n_heads {
                k_b.push(self.push(both, Cut::keys_of(head, &mla), [kv_rank, mla.nope_dim])?);
                v_b.push(self.push(both, Cut::values_of(head, &mla), [mla.v_dim, kv_rank])?);
            }
        }
        let indexer = self.indexer(at, q_in)?;
        Ok(MlaParts { q_a, q_nope, q_rope, kv, k_rope, kv_norm, k_b, v_b, indexer })
    }

    /// `q_in`: the width of what queries are made of.
    fn indexer(&mut self, at: At, q_in: usize) -> Result<Option<IndexerParts>, Error> {
        let At::Layer(layer_idx) = at else { unreachable!("attention stands in a layer") };
        let Config { n_embd, is_indexed, .. } = self.config;
        let Some(Indexer { n_heads, head_dim, .. }) = self.config.indexer.filter(|_| is_indexed[layer_idx]) else {
            return Ok(None);
        };
        Ok(Some(IndexerParts {
            q: self.matrix(at, "indexer.attn_q_b", [n_heads * head_dim, q_in])?,
            k: self.matrix(at, "indexer.attn_k", [head_dim, *n_embd])?,
            k_norm: self.norm(at, "indexer.k_norm", head_dim)?,
            weights: self.matrix(at, "indexer.proj", [n_heads, *n_embd])?,
        }))
    }
}
