//! One list of keys, each checked where it is read: what GGUF's metadata and the translated `config.json` say.

use ops::{Gating, MAX_HEAD_DIM, MAX_INDEX_DIM, Pairing, Routing};
use weights::Metadata;

use super::{Config, Experts, LocalHeads, MAX_LAYERS, MAX_WIDTH, Mla, RopeConfig};
use crate::assistant::AssistantConfig;
use crate::family::{Family, FamilyKind};
use crate::head::head_states;
use crate::indexer::Indexer;
use crate::keys::MetadataKeys;
use crate::names::Format;
use crate::recurrent_config::{LayerBlocks, Multipliers, Recurrent, RecurrentKind};
use crate::rope_scaling::RopeScaling;
use crate::{Error, Pooling, layer_details};

/// Larger counts than any model has: a lie in a file must not become an allocation.
const MAX_EXPERTS: usize = 4096;
/// Of a model whose layers are all recurrent and that names no context: what llama.cpp's converter writes.
const UNBOUNDED_CTX: usize = 1 << 20;

impl Config {
    pub(super) fn read(metadata: &Metadata, family: Family, format: Format) -> Result<Self, Error> {
        let keys = MetadataKeys { metadata, prefix: family.name };
        let n_blocks = keys.count_in("block_count", None, MAX_LAYERS)?;
        // Layers that guess ahead stand behind the others.
        let is_assistant = family.kind == FamilyKind::Assistant;
        let n_next = match is_assistant {
            // It is made of nothing else.
            true => 0,
            false => keys.count("nextn_predict_layers")?.unwrap_or(0).min(n_blocks.saturating_sub(1)),
        };
        let n_layers = n_blocks - n_next;
        let n_embd = keys.count_in("embedding_length", None, MAX_WIDTH)?;
        // A model of recurrent layers alone has no heads.
        let is_recurrent = family.recurrent.is_some();
        // Some list them, with none for the layers that do not attend.
        let most_heads = if is_recurrent { keys.largest("attention.head_count")? } else { None };
        let has_heads = !is_recurrent || most_heads.is_some_and(|n| n > 0);
        let n_heads = match most_heads {
            Some(n) if has_heads => n.clamp(1, MAX_WIDTH),
            _ if has_heads => keys.count_in("attention.head_count", None, MAX_WIDTH)?,
            _ => 1,
        };
        let per_head = if has_heads { n_embd / n_heads } else { 2 };
        let mla = mla(&keys, per_head)?;
        let (window, is_windowed) = layer_details::windows(&keys, &family, n_layers)?;
        // Of hybrids, layers without attention list no heads at all.
        let listed_kv_heads = match is_recurrent {
            true => None,
            false => layer_details::listed_kv_heads(&keys, &is_windowed)?,
        };
        let n_kv_heads = match mla {
            Some(_) => 1,
            None if is_recurrent => keys.largest("attention.head_count_kv")?.unwrap_or(n_heads).clamp(1, n_heads),
            None if listed_kv_heads.is_some() => listed_kv_heads.map_or(1, |[of_others, _]| of_others),
            None => keys.count_in("attention.head_count_kv", Some(n_heads), n_heads)?,
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            let what = format!("{n_heads} heads cannot share {n_kv_heads} KV heads");
            return Err(keys.error("attention.head_count_kv", what));
        }
        let HeadSizes { head_dim, key_dim, n_rot } = HeadSizes::read(&keys, &family, mla, per_head)?;
        let is_rotated = match keys.flag("rope.scaling.finetuned")? {
            // Granite's hybrids say by this key whether they rotate at all.
            Some(false) if is_recurrent => vec![false; n_layers],
            _ => layer_details::rotated(&family, &is_windowed),
        };
        let reorders_heads = family.pairing == Pairing::Adjacent && family.hub_pairing == Pairing::Halves;
        let is_partial = (1..head_dim).contains(&n_rot) && mla.is_none() && is_rotated.contains(&true);
        if format == Format::Gguf && reorders_heads && is_partial {
            let what = format!(
                "{n_rot} of {head_dim} numbers are rotated, but llama.cpp's converter reorders the rows of this family as if all \
                 were (Bamba's files are so); use the model's safetensors"
            );
            return Err(keys.error("rope.dimension_count", what));
        }
        let local_kv_heads = listed_kv_heads.map_or(n_kv_heads, |[_, of_windowed]| of_windowed);
        let local_heads = LocalHeads::read(&keys, n_heads, local_kv_heads)?;
        let experts = experts(&keys, &family)?;
        let n_ff = match is_recurrent || keys.is_list("feed_forward_length") {
            true => keys.largest("feed_forward_length")?.unwrap_or(0).clamp(1, MAX_WIDTH),
            false => keys.count_in("feed_forward_length", experts.map(|experts| experts.n_ff), MAX_WIDTH)?,
        };
        let experts = experts.map(|mut experts| {
            experts.n_ff = if experts.n_ff == 0 { n_ff } else { experts.n_ff };
            experts
        });
        let alibi = keys.positive("attention.max_alibi_bias")?.or(family.alibi);
        let scored_width = if family.scales_by_share == Some(n_layers) { per_head } else { key_dim };
        let n_tokens = metadata.strings("tokenizer.ggml.tokens")?.map(<[_]>::len);
        Ok(Self {
            format,
            name: metadata.string("general.name")?.unwrap_or(family.name).to_string(),
            // 0: to be counted in the embedding.
            n_vocab: keys.count("vocab_size")?.or(n_tokens).unwrap_or(0).min(u32::MAX as usize),
            n_ctx_train: context_length(&keys, &family)?,
            n_layers,
            n_next,
            next_from: None,
            n_embd,
            n_ff,
            n_heads,
            n_kv_heads,
            head_dim,
            local_heads,
            kv_sources: match is_assistant {
                true => (0..n_layers).collect(),
                false => layer_details::kv_sources(&keys, &is_windowed)?,
            },
            norm_eps: layer_details::norm_eps(&keys, &family)?,
            activation: layer_details::activation(&keys, &family)?,
            rope: RopeConfig {
                pairing: pairing(&keys, &family, format)?,
                base: keys.number("rope.freq_base", 10_000.0)?,
                local_base: local_base(&keys, &family, window.is_some())?,
                scaling: RopeScaling::None,
            },
            n_rot: if alibi.is_some() { 0 } else { n_rot },
            attn_scale: if family.scales_scores { attention_scale(&keys, scored_width)? } else { 1.0 },
            attn_softcap: keys.positive("attn_logit_softcapping")?,
            logits_softcap: keys.positive("final_logit_softcapping")?.filter(|_| !is_assistant),
            embedding_scale: match family.scales_embedding {
                // The original rounds it to bf16, or not, as the weights are: what the converter's users see is f32.
                true => (n_embd as f32).sqrt(),
                false => keys.number("embedding_scale", family.scales.map_or(1.0, |scales| scales.embedding))?,
            },
            residual_scale: {
                let usual = family.scales.map_or(1.0, |scales| scales.depth / (n_layers as f32).sqrt());
                keys.number("residual_scale", usual)?
            },
            logits_scale: match keys
                .number("logit_scale", family.scales.map_or(1.0, |s| n_embd as f32 / s.base_width))?
            {
                scale if family.multiplies_logits => scale,
                scale => 1.0 / scale,
            },
            window,
            is_rotated,
            is_windowed,
            is_parallel: keys.flag("use_parallel_residual")?.unwrap_or(family.is_parallel),
            alibi,
            qkv_limit: keys.positive("attention.clamp_kqv")?,
            has_plain_head_norms: family.has_plain_head_norms
                && keys.flag("attention.use_qk_norm")?.unwrap_or(experts.is_none_or(|experts| experts.n < 128)),
            temperature: layer_details::temperature(&keys, &family, window.is_some())?,
            xielu: layer_details::listed_xielu(&keys, n_layers)?,
            experts,
            mla,
            indexer: indexer(&keys, &family, n_rot)?,
            is_indexed: keys.flags("attention.indexer.types")?.unwrap_or_default(),
            n_embd_per_layer: keys.count("embedding_length_per_layer_input")?.unwrap_or(0).min(MAX_WIDTH),
            laurel_rank: None,
            sparsity: layer_details::sparsity(&keys, &family, n_layers)?,
            layer_scales: Vec::new(),
            recurrent: Recurrent::read(&keys, &family, format, n_embd)?,
            multipliers: Multipliers::NONE,
            blocks: vec![LayerBlocks::ATTENTION; n_layers],
            position_offset: 0,
            assistant: is_assistant.then(|| AssistantConfig::read(&keys)).transpose()?,
            pooling: pooling(&keys)?,
            head_states: head_states(family.kind, keys.count("classifier.pooling_type")?),
            family,
        })
    }
}

impl LocalHeads {
    /// Where the file says that layers with a window have heads of another width.
    fn read(keys: &MetadataKeys, n_heads: usize, n_kv_heads: usize) -> Result<Option<Self>, Error> {
        let name = "attention.key_length_swa";
        let Some(_) = keys.count(name)? else { return Ok(None) };
        let head_dim = keys.count_in(name, None, MAX_HEAD_DIM)?;
        let n_rot = keys.count_in("rope.dimension_count_swa", Some(head_dim), head_dim)?;
        if n_rot % 2 != 0 || n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            let what = format!("{n_heads} heads, {n_kv_heads} of keys, {n_rot} of {head_dim} numbers rotated");
            return Err(keys.error(name, what));
        }
        Ok(Some(Self { n_kv_heads, head_dim, n_rot }))
    }
}

/// Columns of one head.
struct HeadSizes {
    /// Of the keys and values in the KV pool.
    head_dim: usize,
    /// Of the keys that scores are made of.
    key_dim: usize,
    /// How many of them rope turns.
    n_rot: usize,
}

impl HeadSizes {
    /// `per_head` is a head's share of the embedding: what a file without a key length means.
    fn read(keys: &MetadataKeys, family: &Family, mla: Option<Mla>, per_head: usize) -> Result<Self, Error> {
        let mut sizes = match mla {
            Some(Mla { kv_rank, nope_dim, .. }) => {
                let n_rot = keys.count_in("rope.dimension_count", None, MAX_HEAD_DIM)?;
                Self { head_dim: kv_rank + n_rot, key_dim: nope_dim + n_rot, n_rot }
            }
            None => {
                let head_dim = keys.count_in("attention.key_length", Some(per_head), MAX_HEAD_DIM)?;
                if keys.count("attention.value_length")?.is_some_and(|n| n != head_dim) {
                    let what = format!("differs from the key length {head_dim}");
                    return Err(keys.error("attention.value_length", what));
                }
                let n_rot = keys.count_in("rope.dimension_count", Some(head_dim), head_dim)?;
                Self { head_dim, key_dim: head_dim, n_rot }
            }
        };
        if sizes.head_dim > MAX_HEAD_DIM {
            let what = format!("heads of {} are above {MAX_HEAD_DIM}", sizes.head_dim);
            return Err(keys.error("attention.kv_lora_rank", what));
        }
        if family.learns_positions {
            sizes.n_rot = 0;
        }
        if !sizes.n_rot.is_multiple_of(2) {
            return Err(keys.error("rope.dimension_count", format!("{} is odd", sizes.n_rot)));
        }
        Ok(sizes)
    }
}

/// Which numbers rope turns together. Safetensors of compressed attention may say that its weights are in halves; GGUF cannot.
fn pairing(keys: &MetadataKeys, family: &Family, format: Format) -> Result<Pairing, Error> {
    Ok(match (format, keys.flag("rope.interleaved")?) {
        (Format::Gguf, _) => family.pairing,
        (Format::Hub, Some(false)) => Pairing::Halves,
        (Format::Hub, _) => family.hub_pairing,
    })
}

fn context_length(keys: &MetadataKeys, family: &Family) -> Result<usize, Error> {
    // RWKV has no positions; its `config.json` names the length of the texts it was trained on.
    if family.recurrent == Some(RecurrentKind::Wkv) {
        return Ok(UNBOUNDED_CTX);
    }
    let default = family.recurrent.map(|_| UNBOUNDED_CTX);
    keys.count_in("context_length", default, u32::MAX as usize)
}

fn indexer(keys: &MetadataKeys, family: &Family, n_rot: usize) -> Result<Option<Indexer>, Error> {
    let Some(n_chosen) = keys.count("attention.indexer.top_k")?.filter(|n| *n > 0) else { return Ok(None) };
    let head_dim = keys.count_in("attention.indexer.key_length", Some(128), MAX_INDEX_DIM)?;
    if head_dim < n_rot {
        return Err(keys.error("attention.indexer.key_length", format!("{head_dim} is below rope's {n_rot}")));
    }
    let n_heads = keys.count_in("attention.indexer.head_count", None, MAX_WIDTH)?;
    Ok(Some(Indexer { n_heads, head_dim, n_chosen, pairing: family.index_pairing }))
}

fn pooling(keys: &MetadataKeys) -> Result<Option<Pooling>, Error> {
    Ok(match keys.count("pooling_type")? {
        Some(1) => Some(Pooling::Mean),
        Some(2) => Some(Pooling::First),
        Some(3) => Some(Pooling::Last),
        _ => None,
    })
}

/// `per_head` is a head's share of the embedding: what a file without a length of values means.
fn mla(keys: &MetadataKeys, per_head: usize) -> Result<Option<Mla>, Error> {
    let Some(kv_rank) = keys.count("attention.kv_lora_rank")?.filter(|n| *n > 0) else { return Ok(None) };
    let n_rot = keys.count_in("rope.dimension_count", None, MAX_HEAD_DIM)?;
    // Files from before the keys of compressed attention existed have the plain ones.
    let length = |name: &str, old: &str, usual: Option<usize>| -> Result<usize, Error> {
        let old = keys.count(old)?.or(usual);
        keys.count_in(name, old, MAX_WIDTH)
    };
    let key_dim = length("attention.key_length_mla", "attention.key_length", None)?;
    if key_dim <= n_rot {
        return Err(keys.error("attention.key_length_mla", format!("{key_dim} is not above rope's {n_rot}")));
    }
    Ok(Some(Mla {
        q_rank: keys.count("attention.q_lora_rank")?.filter(|n| *n > 0),
        kv_rank: kv_rank.min(MAX_WIDTH),
        nope_dim: key_dim - n_rot,
        v_dim: length("attention.value_length_mla", "attention.value_length", Some(per_head))?,
    }))
}

fn experts(keys: &MetadataKeys, family: &Family) -> Result<Option<Experts>, Error> {
    if keys.count("expert_count")?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    // Converters write a dense model's count, if its configuration class has one by default, and nothing else of experts.
    if keys.count("expert_used_count")?.is_none() && keys.count("expert_feed_forward_length")?.is_none() {
        return Ok(None);
    }
    let n = keys.count_in("expert_count", None, MAX_EXPERTS)?;
    let n_ff = keys.count("expert_feed_forward_length")?.unwrap_or(0).min(MAX_WIDTH);
    let n_shared = keys.count("expert_shared_count")?.unwrap_or(0).min(MAX_EXPERTS);
    let gating = match keys.count("expert_gating_func")? {
        None | Some(0) => family.gating,
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SoftmaxOfBest,
        Some(other) => return Err(keys.error("expert_gating_func", format!("{other} is not known"))),
    };
    let n_groups = keys.count("expert_group_count")?.unwrap_or(1).max(1);
    let routing = Routing {
        n_used: keys.count_in("expert_used_count", None, n)?,
        gating,
        is_normalized: keys.flag("expert_weights_norm")?.unwrap_or(family.normalizes_experts),
        scale: match keys.number_or_zero("expert_weights_scale")? {
            0.0 => 1.0,
            scale => scale,
        },
        n_groups,
        n_groups_used: keys.count_in("expert_group_used_count", Some(n_groups), n_groups)?,
    };
    let shared = keys.count("expert_shared_feed_forward_length")?.unwrap_or(0).min(MAX_WIDTH);
    let n_ff_shared = if shared > 0 { shared } else { n_shared * n_ff };
    Ok(Some(Experts { n, routing, n_ff, n_ff_shared }))
}

fn local_base(keys: &MetadataKeys, family: &Family, has_window: bool) -> Result<Option<f32>, Error> {
    let named = keys.positive("rope.freq_base_swa")?.or(family.local_rope_base);
    Ok(match named {
        None if family.has_plain_local_rope && has_window => Some(keys.number("rope.freq_base", 10_000.0)?),
        named => named,
    })
}

fn attention_scale(keys: &MetadataKeys, width: usize) -> Result<f32, Error> {
    let found = keys.positive("attention.scale")?.or(keys.positive("attention.output_scale")?);
    Ok(found.unwrap_or(1.0 / (width as f32).sqrt()))
}
