//! Drafters that are checkpoints of their own and have queries only (`gemma4_assistant`): each layer reads the keys and
//! values that the last layer of its kind of the other model has stored. So they run inside of that model.
//!
//! A row is the last known token of a text, which the other model has not computed yet, with what that model made of the
//! token before it. Its position in the batch is the one of that token before, up to which there are keys and values; its
//! queries are turned by the next, where the row itself stands. Tokens that are drafted after it stand at the same place.

use ops::{ClusterRoom, Clusters, Product, View, ViewMut};

use crate::decoder::{Context, DraftTarget};
use crate::keys::MetadataKeys;
use crate::parts::{AssistantParts, ClusterParts};
use crate::scratch::{AssistantScratch, Scratch};
use crate::step::Places;
use crate::{Config, Error};

/// Larger widths than any model has.
const MAX_WIDTH: usize = 1 << 20;

/// What a drafter's configuration says beside its layers.
#[derive(Clone, Debug)]
pub struct AssistantConfig {
    /// Numbers of the other model's hidden states.
    pub n_embd_target: usize,
    /// Where the output layer scores the tokens of some clusters only.
    pub clusters: Option<ClusterCounts>,
    /// Of each layer: the layer of the other model whose keys and values it reads. Empty before the two were compared.
    pub layers: Vec<usize>,
}

/// Clusters of the vocabulary, all of a size.
#[derive(Copy, Clone, Debug)]
pub struct ClusterCounts {
    pub n: usize,
    /// Those whose tokens are scored.
    pub n_used: usize,
}

impl AssistantConfig {
    pub(crate) fn read(keys: &MetadataKeys) -> Result<Self, Error> {
        let n_embd_target = keys.count_in("embedding_length_out", None, MAX_WIDTH)?;
        let clusters = match keys.count("cluster_count")? {
            None => None,
            Some(_) => {
                let n = keys.count_in("cluster_count", None, ops::MAX_CLUSTERS)?;
                Some(ClusterCounts { n, n_used: keys.count_in("cluster_used_count", None, n)? })
            }
        };
        Ok(Self { n_embd_target, clusters, layers: Vec::new() })
    }
}

impl Config {
    /// The configuration of a drafter for this model: which layers it reads, and what they have kept.
    pub fn with_assistant(&self, drafter: &Self) -> Result<Self, Error> {
        let other = |what: String| Err(Error::OtherDrafter(what));
        let Some(assistant) = &drafter.assistant else {
            return other(format!("{} is a model of its own", drafter.family.name));
        };
        if self.family.name != "gemma4" {
            return other(format!("it reads the keys and values of a Gemma 4, this is a {}", self.family.name));
        }
        if assistant.n_embd_target != self.n_embd {
            let (its, own) = (assistant.n_embd_target, self.n_embd);
            return other(format!("it was made for hidden states of {its} numbers, the model's have {own}"));
        }
        if drafter.n_vocab != self.n_vocab {
            return other(format!("it has {} tokens, the model {}", drafter.n_vocab, self.n_vocab));
        }
        if let Some(clusters) = assistant.clusters.filter(|it| !drafter.n_vocab.is_multiple_of(it.n)) {
            return other(format!("{} tokens cannot be {} clusters of one size", drafter.n_vocab, clusters.n));
        }
        let layers = (0..drafter.n_layers).map(|layer_idx| self.layer_for(drafter, layer_idx));
        let layers = layers.collect::<Result<Vec<usize>, Error>>()?;
        Ok(Self {
            assistant: Some(AssistantConfig { layers, ..assistant.clone() }),
            n_ctx_train: self.n_ctx_train,
            // The row itself has the last place of the window, and nothing is stored there yet.
            window: self.window.map(|window| window.saturating_sub(1).max(1)),
            ..drafter.clone()
        })
    }

    /// The last layer of a kind, whose keys and values the drafter's layers of that kind read.
    fn layer_for(&self, drafter: &Self, layer_idx: usize) -> Result<usize, Error> {
        let is_windowed = drafter.is_windowed[layer_idx];
        let kind = if is_windowed { "with a window" } else { "without a window" };
        let Some(own) = (0..self.n_layers).rev().find(|own| self.is_windowed[*own] == is_windowed) else {
            let what = format!("its layer {layer_idx} reads keys and values of a layer {kind}, and the model has none");
            return Err(Error::OtherDrafter(what));
        };
        let (its, own_heads) = (drafter.heads_of(layer_idx), self.heads_of(own));
        if its.head_dim != own_heads.head_dim || its.n_kv_heads != own_heads.n_kv_heads {
            let sizes = |heads: ops::Heads| format!("{} of {} numbers", heads.n_kv_heads, heads.head_dim);
            let (its, own) = (sizes(its), sizes(own_heads));
            return Err(Error::OtherDrafter(format!(
                "its layer {layer_idx} reads heads of keys of layers {kind}, {its}; the model's are {own}"
            )));
        }
        Ok(self.kv_sources[own])
    }
}

/// From tokens and hidden states to the stream, `n` rows.
pub fn embed(
    context: Context,
    parts: &AssistantParts,
    target: &DraftTarget,
    places: &Places,
    n: usize,
    s: &mut Scratch,
) -> Result<(), Error> {
    let Context { exec, weights, .. } = context;
    let (embedded, mut x) = (&mut s.assistant.embedded.rows_mut(n), s.x.rows_mut(n));
    ops::embed(exec, target.weights.view(target.weights.parts.embedding), places.tokens, embedded)?;
    if target.embedding_scale != 1.0 {
        ops::scale(exec, embedded, target.embedding_scale)?;
    }
    ops::matmul(exec, embedded.as_view(), &mut [Product::write(weights.view(parts.token), x.reborrow())])?;
    Ok(ops::matmul(exec, places.hidden, &mut [Product::add(weights.view(parts.hidden), x)])?)
}

/// Logits of the tokens in each row's best clusters.
pub fn cluster_logits(
    context: Context,
    parts: ClusterParts,
    x: View,
    table: View,
    s: &mut AssistantScratch,
    logits: &mut ViewMut,
) -> Result<(), Error> {
    let Context { exec, config, weights, .. } = context;
    let counts = config.assistant.as_ref().and_then(|assistant| assistant.clusters);
    let Some(ClusterCounts { n_used, .. }) = counts else {
        unreachable!("clusters have tensors where they are counted")
    };
    let n = x.n_rows();
    ops::matmul(exec, x, &mut [Product::write(weights.view(parts.centroids), s.scores.rows_mut(n))])?;
    let n_tokens = s.rows.shape()[0];
    let clusters = Clusters { scores: s.scores.rows(n), ordering: weights.view(parts.ordering), table, n_used };
    let mut room =
        ClusterRoom { tokens: s.tokens.rows_mut(1), rows: s.rows.rows_mut(n_tokens), products: s.products.rows_mut(1) };
    Ok(ops::cluster_logits(exec, x, clusters, &mut room, logits)?)
}
