//! What a model is made of: which tensor of the checkpoint goes where, how it is cut, and its layout in memory. Nothing
//! is read here; `resident.rs` follows the list.

mod cut;
mod ffn;
mod layer;
mod list;
mod recurrent;

use crate::family::Placement;
use crate::names::{At, Names};
use crate::recurrent_config::N_SHIFTS;
use crate::{Config, Error};
pub use cut::Cut;
pub use list::{LayoutOf, WantedRows};
use list::{PartList, rows_and_cols};

/// A tensor in memory, by its place in the list.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct TensorId(pub usize);

#[derive(Copy, Clone, Debug)]
pub struct Linear {
    pub weight: TensorId,
    pub bias: Option<TensorId>,
}

#[derive(Copy, Clone, Debug)]
pub struct Norm {
    pub weight: TensorId,
    pub bias: Option<TensorId>,
}

/// The whole model, as places in the list.
#[derive(Debug)]
pub struct Parts {
    pub embedding: TensorId,
    /// Learned positions, `[n_positions, n_embd]`.
    pub positions: Option<TensorId>,
    /// Embeddings of token types, and how many there are.
    pub token_types: Option<(TensorId, usize)>,
    pub embedding_norm: Option<Norm>,
    pub per_layer: Option<PerLayerTable>,
    /// Of a layer that guesses ahead: how it joins a token with what was made of the one before.
    pub next: Option<NextParts>,
    /// Of a drafter that reads another model's keys and values.
    pub assistant: Option<AssistantParts>,
    pub streams: Option<StreamParts>,
    pub output_norm: Option<Norm>,
    /// `None` where the output is tied to the embedding.
    pub output: Option<TensorId>,
    pub output_bias: Option<TensorId>,
    pub layers: Vec<LayerParts>,
}

/// The embedding of a token and the hidden state before it, each with a norm and a matrix of `[n_embd, n_embd]`.
#[derive(Copy, Clone, Debug)]
pub struct NextParts {
    pub token: (Norm, TensorId),
    pub hidden: (Norm, TensorId),
}

/// What joins the other model's embedding of a token with its hidden state before it, `[n_embd, n_embd_target]` each, and
/// what makes such a hidden state again, `[n_embd_target, n_embd]`.
#[derive(Copy, Clone, Debug)]
pub struct AssistantParts {
    pub token: TensorId,
    pub hidden: TensorId,
    pub out: TensorId,
    pub clusters: Option<ClusterParts>,
}

/// The clusters of the output layer.
#[derive(Copy, Clone, Debug)]
pub struct ClusterParts {
    /// `[n_clusters, n_embd]`
    pub centroids: TensorId,
    /// `[1, n_vocab]`: the tokens of each, one cluster after the other.
    pub ordering: TensorId,
}

#[derive(Debug)]
pub struct LayerParts {
    pub attn_norm: Option<Norm>,
    pub attention: Option<AttentionParts>,
    pub attn_out: Option<Linear>,
    pub recurrent: Option<Box<RecurrentParts>>,
    /// Of what goes into the last product of attention and of the feed-forward block.
    pub attn_sub_norm: Option<Norm>,
    pub ffn_sub_norm: Option<Norm>,
    pub post_attn_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn: Option<FfnParts>,
    pub post_ffn_norm: Option<Norm>,
    /// Of the stream, after attention and after the feed-forward block joined it.
    pub attn_sum_norm: Option<Norm>,
    pub ffn_sum_norm: Option<Norm>,
    /// What the layer's own numbers of a token bring into the stream.
    pub per_layer: Option<PerLayerParts>,
    pub altup: Option<Box<AltupParts>>,
}

/// How the streams of a layer predict and correct each other.
#[derive(Debug)]
pub struct AltupParts {
    /// Divided by the width of the embedding.
    pub router_norm: TensorId,
    pub router: TensorId,
    pub predict: TensorId,
    pub correct: TensorId,
    /// Of the first stream, where the layer's own numbers of a token are weighed with it.
    pub scale: TensorId,
    pub laurel: LaurelParts,
}

/// A product through a few columns, beside attention.
#[derive(Copy, Clone, Debug)]
pub struct LaurelParts {
    pub left: TensorId,
    pub right: TensorId,
    pub norm: Norm,
}

/// From the embedding to the other streams, and from them back.
#[derive(Debug)]
pub struct StreamParts {
    pub into: Vec<TensorId>,
    pub out_of: Vec<TensorId>,
}

/// A gate from the stream, weighed with the layer's numbers of the token, brought back into the stream.
#[derive(Copy, Clone, Debug)]
pub struct PerLayerParts {
    pub gate: TensorId,
    pub out: TensorId,
    pub norm: Norm,
}

/// Numbers that every layer gets of each token: from a table, and from the embedding.
#[derive(Copy, Clone, Debug)]
pub struct PerLayerTable {
    pub table: TensorId,
    pub from_embedding: TensorId,
    pub norm: TensorId,
}

#[derive(Debug)]
pub enum AttentionParts {
    Plain(PlainAttention),
    Compressed(Box<MlaParts>),
}

/// Attention with queries, keys and values of each head.
#[derive(Debug)]
pub struct PlainAttention {
    pub q: Linear,
    /// `None` where another layer's keys and values are read.
    pub kv: Option<[Linear; 2]>,
    pub q_norm: Option<TensorId>,
    pub k_norm: Option<TensorId>,
    pub v_norm: Option<TensorId>,
    pub sinks: Option<TensorId>,
    /// What the output is weighed with, number by number.
    pub gate: Option<Linear>,
}

/// Compressed attention, with the rows for rope apart from the others.
#[derive(Debug)]
pub struct MlaParts {
    pub q_a: Option<(TensorId, Norm)>,
    pub q_nope: TensorId,
    pub q_rope: TensorId,
    pub kv: TensorId,
    pub k_rope: TensorId,
    pub kv_norm: Norm,
    /// Of each head: from a query to the compressed space, and from there to a value.
    pub k_b: Vec<TensorId>,
    pub v_b: Vec<TensorId>,
    pub indexer: Option<IndexerParts>,
}

/// What chooses the tokens to attend to.
#[derive(Copy, Clone, Debug)]
pub struct IndexerParts {
    /// Of what the queries are made of.
    pub q: TensorId,
    pub k: TensorId,
    pub k_norm: Norm,
    pub weights: TensorId,
}

#[derive(Debug)]
pub struct RecurrentParts {
    pub mixer: MixerParts,
    pub out: Linear,
}

#[derive(Debug)]
pub enum MixerParts {
    ShortConv { b: Linear, c: Linear, x: Linear, conv: ConvParts },
    Ssm(SsmParts),
    Selective(SelectiveParts),
    SelectiveHeads(SelectiveParts),
    Delta(DeltaParts),
    Wkv(Box<WkvParts>),
}

#[derive(Copy, Clone, Debug)]
pub struct ConvParts {
    /// `[n_taps, n_cols]`
    pub weight: TensorId,
    pub bias: Option<TensorId>,
}

/// Mamba 2.
#[derive(Debug)]
pub struct SsmParts {
    pub gate: Linear,
    pub xbc: Linear,
    pub dt: Linear,
    pub conv: ConvParts,
    pub a: TensorId,
    pub d: TensorId,
    pub dt_bias: TensorId,
    /// Of the gated output, each group by itself.
    pub norm: Option<TensorId>,
}

/// The first Mamba, and PLaMo 2, whose `a`, `d` and time steps are one number for each head.
#[derive(Debug)]
pub struct SelectiveParts {
    pub x: Linear,
    pub gate: Linear,
    pub conv: ConvParts,
    /// From the convolved columns to the time step's few numbers, to `b` and to `c`; and their norms.
    pub low: TensorId,
    pub b: TensorId,
    pub c: TensorId,
    pub norms: [Option<Norm>; 3],
    pub dt: Linear,
    /// `[state_dim, inner]`, or `[1, n_heads]`.
    pub a: TensorId,
    pub d: TensorId,
}

/// Delta nets.
#[derive(Debug)]
pub struct DeltaParts {
    pub qkv: [Linear; 3],
    pub convs: [ConvParts; 3],
    pub forget: FactoredLinear,
    pub beta: Linear,
    pub forget_bias: TensorId,
    pub a: TensorId,
    /// Of each head's output.
    pub norm: TensorId,
    pub gate: FactoredLinear,
    pub activation: ops::Activation,
}

/// A layer of RWKV 7: one block that mixes tokens, and before the layer's last product one that mixes channels.
#[derive(Debug)]
pub struct WkvParts {
    /// How a token is mixed with the one before it, for `r`, the decay, `k`, `v`, the rate, the gate, and for the channels:
    /// filters of two taps.
    pub shifts: [TensorId; N_SHIFTS],
    pub r: TensorId,
    pub k: TensorId,
    pub v: TensorId,
    pub decay: FactoredLinear,
    pub rate: FactoredLinear,
    pub gate: FactoredLinear,
    /// How much of the first layer's values this one takes; the first has none.
    pub share: Option<FactoredLinear>,
    pub removal: TensorId,
    pub rate_of_key: TensorId,
    pub bonus: TensorId,
    /// Of each head's output, `[n_heads, head_dim]` and one row.
    pub norm: Norm,
    pub out: TensorId,
    pub channel_norm: Norm,
    pub channel_key: TensorId,
}

/// A product, through a few columns where there is a `down`.
#[derive(Debug)]
pub struct FactoredLinear {
    pub down: Option<TensorId>,
    pub up: Linear,
}

#[derive(Debug)]
pub enum FfnParts {
    Dense(Dense),
    Experts(Box<ExpertParts>),
    /// Beside each other, with norms of their own.
    Both(Dense, Box<ExpertParts>, BesideNorms),
}

#[derive(Copy, Clone, Debug)]
pub struct BesideNorms {
    /// Of what the router sees.
    pub router: TensorId,
    /// Of what the experts see.
    pub experts: Norm,
    /// Of what comes out of the dense block and of the experts.
    pub dense_out: Norm,
    pub experts_out: Norm,
}

#[derive(Copy, Clone, Debug)]
pub struct Dense {
    /// `None` where the activation has no gate.
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

#[derive(Debug)]
pub struct ExpertParts {
    pub router: Linear,
    /// Added for choosing only.
    pub choice_bias: Option<TensorId>,
    /// What the share of each expert is multiplied with at last, `[1, n_experts]`.
    pub shares: Option<TensorId>,
    pub experts: Vec<Dense>,
    pub shared: Option<Dense>,
    /// What the shared expert's part is weighed with.
    pub shared_gate: Option<TensorId>,
}

impl LayerParts {
    /// Whether attention's output is weighed number by number.
    pub fn is_gated(&self) -> bool {
        matches!(&self.attention, Some(AttentionParts::Plain(PlainAttention { gate: Some(_), .. })))
    }
}

/// The list, and the model as places in it.
pub fn parts<'a>(
    names: Names<'a>,
    config: &Config,
    layout_of: LayoutOf,
) -> Result<(Parts, Vec<WantedRows<'a>>), Error> {
    let mut list = PartList { names, config, layout_of, wanted: Vec::new() };
    let Config { n_vocab, n_embd, .. } = *config;
    // A layer that guesses ahead has some parts of its own, or shares them with the model.
    let has_own = |name: &str| config.next_from.is_some() && names.find(At::Layer(0), name, "weight").is_some();
    let own_or = |own: &'static str, shared: &'static str| match has_own(own) {
        true => (At::Layer(0), own),
        false => (At::Model, shared),
    };
    let (at, name) = own_or("nextn.embed_tokens", "token_embd");
    let embedding = list.matrix(at, name, [n_vocab, n_embd])?;
    let next = config.next_from.map(|_| list.next_parts()).transpose()?;
    let assistant = config.assistant.as_ref().map(|assistant| list.assistant_parts(assistant)).transpose()?;
    let positions = match names.find(At::Model, "position_embd", "weight") {
        Some(source) if config.n_rot == 0 => {
            Some(list.push(source, Cut::rows(0, rows_and_cols(source)[0]), [rows_and_cols(source)[0], n_embd])?)
        }
        _ => None,
    };
    let token_types = match names.find(At::Model, "token_types", "weight") {
        Some(source) => {
            let n = source.shape.iter().product::<usize>() / n_embd.max(1);
            Some((list.floats(source, Cut::rows(0, n * n_embd), [n, n_embd], 0.0)?, n))
        }
        None => None,
    };
    // LFM2's last norm has the name of one behind the embedding.
    let has_last = names.find(At::Model, "output_norm", "weight").is_some() || config.recurrent.is_none();
    let embedding_norm = match has_last {
        true => list.norm_if_there(At::Model, "token_embd_norm", n_embd)?,
        false => None,
    };
    // Encoders that norm the sums have nothing left to norm.
    let output_norm = match config.family.placement {
        Placement::OfSum => None,
        _ => {
            let (at, name) = own_or("nextn.shared_head_norm", if has_last { "output_norm" } else { "token_embd_norm" });
            Some(list.norm(at, name, n_embd)?)
        }
    };
    let (at, name) = own_or("nextn.shared_head_head", "output");
    let output = match names.find(at, name, "weight") {
        Some(_) if !config.is_encoder() => Some(list.matrix(at, name, [n_vocab, n_embd])?),
        _ => None,
    };
    let output_bias = match names.find(At::Model, "output", "bias") {
        Some(source) if !config.is_encoder() => Some(list.floats(source, Cut::rows(0, n_vocab), [1, n_vocab], 0.0)?),
        _ => None,
    };
    let per_layer = match config.n_embd_per_layer {
        0 => None,
        width => Some(list.per_layer_table(config.n_layers * width, width)?),
    };
    let streams = if config.laurel_rank.is_some() { Some(list.streams()?) } else { None };
    let layers = (0..config.n_layers).map(|layer_idx| list.layer(At::Layer(layer_idx))).collect::<Result<_, _>>()?;
    let parts = Parts {
        embedding,
        positions,
        token_types,
        embedding_norm,
        next,
        per_layer,
        assistant,
        streams,
        output_norm,
        output,
        output_bias,
        layers,
    };
    Ok((parts, list.wanted))
}

impl Parts {
    /// What this model needs and the GPU kernels do not support yet.
    pub fn missing_on_device(&self, config: &Config) -> Option<&'static str> {
        let has = |is_so: fn(&crate::config::Experts) -> bool| config.experts.as_ref().is_some_and(is_so);
        let widest = config.head_dim.max(config.local_heads.map_or(0, |local| local.head_dim));
        if config.recurrent.is_some_and(|recurrent| recurrent.state_dim > ops::MAX_GPU_STATE) {
            Some("recurrent states deeper than 256")
        } else if has(|experts| experts.routing.n_groups > ops::MAX_GPU_GROUPS) {
            Some("experts chosen by more than 32 groups")
        } else if has(|experts| experts.n > ops::MAX_GPU_EXPERTS) {
            Some("more than 1024 experts")
        } else if widest > 256 && widest % 2 == 1 {
            Some("attention heads wider than 256 of an odd width")
        } else {
            None
        }
    }
}
