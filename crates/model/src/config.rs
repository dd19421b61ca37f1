//! What a checkpoint says about its model, checked once: after this, sizes can be trusted.
//!
//! GGUF says it in metadata. What `config.json` says is translated into the same keys first (`hub.rs`), so that there
//! is one reader (`config/read.rs`).

mod read;

use std::borrow::Cow;

use ops::{Activation, Gating, Heads, Pairing, Routing, Xielu};
use weights::{Checkpoint, Metadata, Value};

use crate::assistant::AssistantConfig;
use crate::family::{FAMILIES, Family, FamilyKind, supported, unknown};
use crate::indexer::Indexer;
use crate::keys::MetadataKeys;
use crate::names::{At, Format, Names};
use crate::recurrent_config::{LayerBlocks, Multipliers, Recurrent};
use crate::rope_scaling::RopeScaling;
use crate::{Error, PooledStates, Pooling, hub, layer_details};

/// Larger counts than any model has: a lie in a file must not become an allocation.
const MAX_LAYERS: usize = 1024;
const MAX_WIDTH: usize = 1 << 20;
/// How `config.json` counts the layers that guess ahead, and what Qwen3-Next has without counting them.
const NEXT_KEYS: [&str; 2] = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
const NEXT_ALONE: [&str; 2] = ["mtp.fc.weight", "model.mtp.fc.weight"];

#[derive(Clone, Debug)]
pub struct Config {
    pub family: Family,
    pub format: Format,
    pub name: String,
    pub n_vocab: usize,
    /// The context the model was trained for.
    pub n_ctx_train: usize,
    pub n_layers: usize,
    /// Layers behind them that guess the token after the next, where the checkpoint speaks of any.
    pub n_next: usize,
    /// Where this is the configuration of such a layer: the index of the first. See [`Config::next_token`].
    pub next_from: Option<usize>,
    pub n_embd: usize,
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Numbers of a head as the KV pool keeps it.
    pub head_dim: usize,
    /// The heads of layers with a window, where they have others.
    pub local_heads: Option<LocalHeads>,
    /// Of each layer: whose keys and values it reads.
    pub kv_sources: Vec<usize>,
    pub norm_eps: f32,
    /// Of the feed-forward blocks, where the layers have none of their own.
    pub activation: Activation,
    pub rope: RopeConfig,
    /// Numbers of a head that rope turns; 0 where positions are learned.
    pub n_rot: usize,
    /// What scores are multiplied with.
    pub attn_scale: f32,
    pub attn_softcap: Option<f32>,
    pub logits_softcap: Option<f32>,
    pub embedding_scale: f32,
    pub residual_scale: f32,
    pub logits_scale: f32,
    /// How far back the layers look that have a window.
    pub window: Option<usize>,
    /// Of each layer: whether it has the window.
    pub is_windowed: Vec<bool>,
    /// Of each layer: whether positions turn its queries and keys.
    pub is_rotated: Vec<bool>,
    /// Whether both blocks of a layer read the same stream.
    pub is_parallel: bool,
    /// The largest slope of scores that fall with the distance.
    pub alibi: Option<f32>,
    /// Queries, keys and values are brought within this bound.
    pub qkv_limit: Option<f32>,
    /// Whether queries and keys of rotated layers are normed without weights.
    pub has_plain_head_norms: bool,
    /// How queries grow with the position.
    pub temperature: Option<Temperature>,
    /// Of each layer, where they are learned.
    pub xielu: Vec<Xielu>,
    pub experts: Option<Experts>,
    pub mla: Option<Mla>,
    /// What chooses the tokens that rows attend to, where that is not all of them.
    pub indexer: Option<Indexer>,
    /// Of each layer: whether it has an indexer of its own; the others take the choice of the layer before.
    pub is_indexed: Vec<bool>,
    /// Numbers that every layer gets of each token from a table of its own; 0 without one.
    pub n_embd_per_layer: usize,
    /// Columns of the product beside attention, where there are several streams.
    pub laurel_rank: Option<usize>,
    /// Of each layer: how many deviations a column of the feed-forward gate must stand out; 0 lets all through. Empty
    /// where all are let through.
    pub sparsity: Vec<f32>,
    /// Of each layer: what the stream is multiplied with behind it; empty where nothing is.
    pub layer_scales: Vec<f32>,
    /// The recurrent layers, where there are any.
    pub recurrent: Option<Recurrent>,
    pub multipliers: Multipliers,
    /// Of each layer: what it is made of.
    pub blocks: Vec<LayerBlocks>,
    /// Learned positions that stand before the first.
    pub position_offset: usize,
    /// Of a drafter that reads another model's keys and values.
    pub assistant: Option<AssistantConfig>,
    /// Which hidden states make the vector of a text, where the checkpoint says it.
    pub pooling: Option<Pooling>,
    /// Which hidden states the head reads, where there is one.
    pub head_states: PooledStates,
}

/// Heads of layers with a window.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct LocalHeads {
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub n_rot: usize,
}

/// How positions become angles.
#[derive(Clone, Debug)]
pub struct RopeConfig {
    pub pairing: Pairing,
    pub base: f32,
    /// Of the layers with a window, where it differs. Those are never scaled.
    pub local_base: Option<f32>,
    pub scaling: RopeScaling,
}

/// Queries are sharpened in long contexts: by `1 + scale * ln(1 + floor(position / length))`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Temperature {
    pub scale: f32,
    pub length: usize,
    /// What the first position counts as.
    pub first: usize,
    /// Whether only layers without rotation have it.
    pub is_for_unrotated: bool,
}

impl Temperature {
    pub fn at(&self, position: u32) -> f32 {
        let n = (position as usize + self.first) / self.length.max(1);
        1.0 + self.scale * (n as f32).ln_1p()
    }
}

/// A mixture of experts.
#[derive(Copy, Clone, Debug)]
pub struct Experts {
    pub n: usize,
    pub routing: Routing,
    pub n_ff: usize,
    /// Width of the expert that every token goes to; 0 without one.
    pub n_ff_shared: usize,
}

/// Compressed attention: keys and values are kept as one vector a token, shared by all heads.
#[derive(Copy, Clone, Debug)]
pub struct Mla {
    /// Queries go through this many numbers, if they do.
    pub q_rank: Option<usize>,
    pub kv_rank: usize,
    /// Numbers of a head's key that rope leaves alone, and of its value.
    pub nope_dim: usize,
    pub v_dim: usize,
}

impl Config {
    /// From whatever form the checkpoint has.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, Error> {
        let mut config = match checkpoint.hub() {
            Some(hub) => {
                let mut config = Self::from_hub(&hub.config)?;
                config.pooling = hub.pooling.as_ref().and_then(hub::pooling);
                config
            }
            None => Self::from_metadata(checkpoint.metadata())?,
        };
        let family = config.family;
        let names = Names { checkpoint, format: config.format, family: &family, next_from: None };
        if let Some(experts) = &mut config.experts {
            let has_bias = (0..config.n_layers).any(|i| names.find(At::Layer(i), "exp_probs_b", "bias").is_some());
            if has_bias && experts.routing.gating == Gating::Softmax {
                // A bias for the choice came with sigmoids; files from before the key existed do not say so.
                experts.routing.gating = config.family.biased_gating;
            }
            // Some files count this expert, some its width, some nothing: its tensor knows.
            let name = if config.family.dense_beside_experts.is_some() { "ffn_down" } else { "ffn_down_shexp" };
            let shared = (0..config.n_layers).find_map(|i| names.find(At::Layer(i), name, "weight"));
            let n_columns = shared.and_then(|tensor| tensor.shape.last().copied());
            experts.n_ff_shared = n_columns.unwrap_or(experts.n_ff_shared);
        }
        if let Some(recurrent) = &mut config.recurrent {
            recurrent.size_by_tensors(&names, config.n_layers);
            config.blocks = (0..config.n_layers).map(|layer_idx| LayerBlocks::found(&names, layer_idx)).collect();
            // Some files say it for each layer, some for the experts only: the tensor knows.
            let down = (0..config.n_layers).find_map(|i| names.find(At::Layer(i), "ffn_down", "weight"));
            config.n_ff = down.and_then(|down| down.shape.last().copied()).unwrap_or(config.n_ff).clamp(1, MAX_WIDTH);
        }
        config.find_indexers(&names);
        if config.family.has_streams {
            let laurel = names.tensor(At::Layer(0), "laurel_l")?;
            config.laurel_rank = Some(laurel.shape[0].clamp(1, MAX_WIDTH));
        }
        if config.family.scales_layers {
            config.layer_scales = layer_details::learned_scales(&names, config.n_layers)?;
        }
        if checkpoint.hub().is_some() && NEXT_ALONE.iter().any(|name| checkpoint.find(name).is_some()) {
            config.n_next = config.n_next.max(1);
        }
        if config.xielu.is_empty() {
            config.xielu = layer_details::learned_xielu(&names, config.n_layers)?;
        }
        if config.n_vocab == 0 {
            let table = names.tensor(At::Model, "token_embd")?;
            config.n_vocab = table.shape[0];
        }
        Ok(config)
    }

    /// From the text of `config.json`.
    pub fn from_hub(json: &serde_json::Value) -> Result<Self, Error> {
        let translated = hub::translate(json)?;
        let mut config = Self::read(&translated.metadata, translated.family, Format::Hub)?;
        config.rope.scaling = translated.scaling;
        if let Some(is_windowed) = translated.is_windowed.filter(|layers| layers.len() == config.n_layers) {
            config.is_windowed = is_windowed;
        }
        // What the file says of all layers was read with the keys.
        let rotates_none = config.recurrent.is_some() && !config.is_rotated.contains(&true);
        config.is_rotated = match translated.is_rotated.filter(|layers| layers.len() == config.n_layers) {
            Some(is_rotated) => is_rotated,
            None if rotates_none => vec![false; config.n_layers],
            None => layer_details::rotated(&config.family, &config.is_windowed),
        };
        config.position_offset = translated.position_offset;
        let text = json.get("text_config").unwrap_or(json);
        let n_next = NEXT_KEYS.iter().find_map(|key| text.get(*key)?.as_u64());
        config.n_next = n_next.unwrap_or(0).min(MAX_LAYERS as u64) as usize;
        config.multipliers = translated.multipliers;
        config.n_ctx_train = config.n_ctx_train.saturating_sub(translated.position_offset).max(1);
        if let (Some(factor), Some(_)) = (config.rope.scaling.attention_factor(), config.mla) {
            config.attn_scale *= factor * factor;
        }
        Ok(config)
    }

    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let Some(architecture) = metadata.string("general.architecture")? else {
            return Err(Error::NoArchitecture("general.architecture", supported()));
        };
        let Some(family) = FAMILIES.iter().find(|family| family.name == architecture) else {
            return Err(unknown(architecture));
        };
        let metadata = &completed(metadata, family);
        let mut config = Self::read(metadata, *family, Format::Gguf)?;
        let keys = MetadataKeys { metadata, prefix: family.name };
        config.rope.scaling = RopeScaling::from_keys(&keys, family, config.mla.is_some())?;
        if let (Some(_), Some(factor)) = (config.mla, config.rope.scaling.attention_factor()) {
            config.attn_scale *= factor * factor;
        }
        Ok(config)
    }

    /// Files that do not list the layers with an indexer show it by their tensors. Without any indexer all tokens are seen,
    /// which is what the model was trained with as far as it would have chosen all of them.
    fn find_indexers(&mut self, names: &Names) {
        let Some(indexer) = self.indexer else { return };
        let has = |layer_idx| names.find(At::Layer(layer_idx), "indexer.attn_k", "weight").is_some();
        let found: Vec<bool> = (0..self.n_layers).map(has).collect();
        if !found.contains(&true) {
            self.indexer = None;
            self.n_ctx_train = self.n_ctx_train.min(indexer.n_chosen);
        }
        if self.is_indexed.len() != self.n_layers {
            self.is_indexed = found;
        }
        // There is no choice before the first layer.
        if let Some(first) = self.is_indexed.first_mut() {
            *first = true;
        }
    }

    /// Of the first layer that guesses ahead as a model of its own, if there is one: an ordinary layer with attention, that
    /// reads a token and what this model made of the one before.
    pub fn next_token(&self) -> Option<Self> {
        (self.n_next > 0).then(|| Self {
            n_layers: 1,
            n_next: 0,
            next_from: Some(self.n_layers),
            recurrent: None,
            // A guess may look at everything.
            indexer: None,
            local_heads: None,
            kv_sources: vec![0],
            is_windowed: vec![false],
            is_rotated: vec![true],
            xielu: Vec::new(),
            layer_scales: Vec::new(),
            blocks: vec![LayerBlocks::ATTENTION],
            ..self.clone()
        })
    }

    /// Whether a layer keeps keys and values of its own.
    pub fn keeps_kv(&self, layer_idx: usize) -> bool {
        self.assistant.is_none() && self.kv_sources[layer_idx] == layer_idx
    }

    /// The layer of the KV cache that a layer reads.
    pub fn kv_layer(&self, layer_idx: usize) -> usize {
        self.assistant.as_ref().map_or(layer_idx, |assistant| assistant.layers[layer_idx])
    }

    /// Numbers of the hidden states that a batch has for each row; 0 where it has none.
    pub fn n_hidden_in(&self) -> usize {
        match &self.assistant {
            Some(assistant) => assistant.n_embd_target,
            None if self.next_from.is_some() => self.n_embd,
            None => 0,
        }
    }

    /// Numbers of the hidden states that a step gives back.
    pub fn n_hidden_out(&self) -> usize {
        self.assistant.as_ref().map_or(self.n_embd, |assistant| assistant.n_embd_target)
    }

    /// Whether attention's output may be weighed with a gate that stands among the queries.
    pub fn may_gate(&self) -> bool {
        self.recurrent.is_some() || self.next_from.is_some()
    }

    /// Columns of the keys and of the values of one token, in the layer that has most.
    pub fn kv_dim(&self) -> usize {
        let local = self.local_heads.map_or(0, |local| local.n_kv_heads * local.head_dim);
        local.max(self.n_kv_heads * self.head_dim)
    }

    pub fn heads(&self) -> Heads {
        Heads { n_heads: self.n_heads, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim, scale: self.attn_scale }
    }

    /// The heads of one layer.
    pub fn heads_of(&self, layer_idx: usize) -> Heads {
        match self.local_heads {
            Some(LocalHeads { n_kv_heads, head_dim, .. }) if self.is_windowed[layer_idx] => {
                Heads { n_kv_heads, head_dim, ..self.heads() }
            }
            _ => self.heads(),
        }
    }

    /// How far back a layer looks, where that is less than everything. A window that no context of this model outgrows
    /// changes nothing.
    pub fn window_of(&self, layer_idx: usize) -> Option<usize> {
        self.window.filter(|window| self.is_windowed[layer_idx] && *window < self.n_ctx_train)
    }

    /// The window of the layers that can keep their context in a pool of their own, which holds no more than they see:
    /// `None` where no layer of a decoder has one. A pool is worth it only where contexts are longer.
    pub fn window_pool(&self) -> Option<usize> {
        let is_plain = !self.is_encoder() && self.mla.is_none() && self.indexer.is_none();
        // A layer reads another's keys and values in the same pool.
        let is_windowed = |layer_idx: &usize| self.window_of(*layer_idx).is_some();
        let are_alike = |(layer_idx, source): (usize, &usize)| is_windowed(&layer_idx) == is_windowed(source);
        let is_possible = is_plain && self.kv_sources.iter().enumerate().all(are_alike);
        let has_any = (0..self.n_layers).any(|layer_idx| is_windowed(&layer_idx));
        self.window.filter(|_| is_possible && has_any)
    }

    /// What the feed-forward block of a layer does to its numbers.
    pub fn activation_of(&self, layer_idx: usize) -> Activation {
        self.xielu.get(layer_idx).map_or(self.activation, |xielu| Activation::Xielu(*xielu))
    }

    /// Columns of the queries of one token, in the layer that has most.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.local_heads.map_or(0, |local| local.head_dim).max(self.head_dim)
    }

    pub fn is_encoder(&self) -> bool {
        self.family.kind == FamilyKind::Encoder
    }
}

/// With the numbers that old files of a family leave out.
fn completed<'a>(metadata: &'a Metadata, family: &Family) -> Cow<'a, Metadata> {
    let mut found = Cow::Borrowed(metadata);
    for (name, number) in family.usual_numbers {
        let key = format!("{}.{name}", family.name);
        if metadata.get(&key).is_none() {
            drop(found.to_mut().set(key, Value::F32(*number)));
        }
    }
    found
}
