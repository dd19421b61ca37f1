//! The sizes of recurrent layers, and of each layer which blocks it has.

use ops::HeadOrder;

use crate::Error;
use crate::family::Family;
use crate::keys::MetadataKeys;
use crate::names::{At, Format, Names};

/// Wider than any model's: a lie in a file must not become an allocation.
const MAX_WIDTH: usize = 1 << 20;
const MAX_TAPS: usize = 64;
/// How often a layer of RWKV mixes a token with the one before it, each time in another proportion.
pub const N_SHIFTS: usize = 7;
/// Where its products through a few columns begin.
const WKV_LOW: [&str; 4] = ["time_mix_w1", "time_mix_a1", "time_mix_v1", "time_mix_g1"];

/// What a recurrent layer computes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RecurrentKind {
    /// A gated short convolution (LFM2).
    ShortConv,
    /// Mamba 2.
    Ssm,
    /// The first Mamba.
    Selective,
    /// The heads of Mamba 2, whose time steps, B and C come from the convolved columns as the first Mamba's do (PLaMo 2).
    SelectiveHeads,
    /// A gated delta net.
    Delta,
    /// A delta net with a decay for each number of a key (KDA).
    ChannelDelta,
    /// RWKV 7: its layer has no other block, so what mixes the channels belongs to it.
    Wkv,
}

/// All recurrent layers of a model have the same sizes.
#[derive(Copy, Clone, Debug)]
pub struct Recurrent {
    pub kind: RecurrentKind,
    /// Inputs that the convolution sees.
    pub n_taps: usize,
    /// Columns of what the layer gives before its last product; of RWKV that is the one of the channels.
    pub inner: usize,
    /// Numbers that a column keeps; of delta nets the width of a key.
    pub state_dim: usize,
    /// Of delta nets those of values.
    pub n_heads: usize,
    /// How many sets of inputs the heads share; of delta nets the heads of keys.
    pub n_groups: usize,
    /// The rank of time steps of Mamba and PLaMo 2; of RWKV the largest of the products through a few columns.
    pub dt_rank: usize,
    pub order: HeadOrder,
}

impl Recurrent {
    pub fn read(keys: &MetadataKeys, family: &Family, format: Format, n_embd: usize) -> Result<Option<Self>, Error> {
        let Some(kind) = family.recurrent else { return Ok(None) };
        let tiles = format == Format::Gguf && family.tiles_value_heads;
        let order = if tiles { HeadOrder::Tiled } else { HeadOrder::Grouped };
        let one = Self { kind, n_taps: 2, inner: n_embd, state_dim: 1, n_heads: 1, n_groups: 1, dt_rank: 1, order };
        if kind == RecurrentKind::ShortConv {
            return Ok(Some(Self { n_taps: taps(keys, "shortconv.l_cache")?, ..one }));
        }
        if kind == RecurrentKind::Wkv {
            let name = if keys.is_there("wkv.head_size") { "wkv.head_size" } else { "attention.key_length" };
            let dim = keys.count_in(name, None, ops::MAX_WKV_DIM)?;
            if !n_embd.is_multiple_of(dim) {
                return Err(keys.error(name, format!("{n_embd} columns do not fall into heads of {dim}")));
            }
            return Ok(Some(Self { state_dim: dim, n_heads: n_embd / dim, ..one }));
        }
        let n_taps = taps(keys, "ssm.conv_kernel")?;
        if kind == RecurrentKind::ChannelDelta {
            let state_dim = keys.count_in("kda.head_dim", None, ops::MAX_DELTA_DIM)?;
            let n_heads = keys.count("ssm.time_step_rank")?.or(keys.count("attention.head_count")?);
            let n_heads = n_heads.filter(|n| (1..=MAX_WIDTH).contains(n)).unwrap_or(1);
            let inner = n_heads * state_dim;
            return Ok(Some(Self { n_taps, inner, state_dim, n_heads, n_groups: n_heads, ..one }));
        }
        let inner = keys.count_in("ssm.inner_size", None, MAX_WIDTH)?;
        let state_dim = keys.count_in("ssm.state_size", None, MAX_WIDTH)?;
        let rank = keys.count_in("ssm.time_step_rank", None, inner)?;
        if kind == RecurrentKind::SelectiveHeads {
            if !inner.is_multiple_of(rank) {
                return Err(keys.error("ssm.time_step_rank", format!("{inner} columns in {rank} heads")));
            }
            // No key says it: all of these models have a sixteenth of the stream, and 64 at least.
            let dt_rank = (n_embd / 16).max(64);
            return Ok(Some(Self { n_taps, inner, state_dim, n_heads: rank, dt_rank, ..one }));
        }
        let n_groups = keys.count_in("ssm.group_count", Some(1), rank)?;
        if kind == RecurrentKind::Selective {
            return Ok(Some(Self { n_taps, inner, state_dim, dt_rank: rank, ..one }));
        }
        if !inner.is_multiple_of(rank) || !rank.is_multiple_of(n_groups) {
            let what = format!("{inner} columns in {rank} heads and {n_groups} groups");
            return Err(keys.error("ssm.time_step_rank", what));
        }
        if kind == RecurrentKind::Delta && state_dim.max(inner / rank) > ops::MAX_DELTA_DIM {
            let what = format!("heads of {state_dim} and {} numbers, at most {} fit", inner / rank, ops::MAX_DELTA_DIM);
            return Err(keys.error("ssm.state_size", what));
        }
        Ok(Some(Self { n_taps, inner, state_dim, n_heads: rank, n_groups, ..one }))
    }

    /// The sizes that only its tensors say.
    pub fn size_by_tensors(&mut self, names: &Names, n_layers: usize) {
        if self.kind != RecurrentKind::Wkv {
            return;
        }
        let shapes = |name| (0..n_layers).filter_map(move |i| names.find(At::Layer(i), name, "weight"));
        let ranks = WKV_LOW.into_iter().flat_map(shapes).filter_map(|tensor| tensor.shape.first().copied());
        self.dt_rank = ranks.max().unwrap_or(1).clamp(1, MAX_WIDTH);
        let inner = shapes("channel_mix_value").find_map(|tensor| tensor.shape.last().copied());
        self.inner = inner.unwrap_or(1).clamp(1, MAX_WIDTH);
    }

    /// Columns of a head.
    pub fn head_dim(&self) -> usize {
        self.inner / self.n_heads
    }

    /// Columns of each thing that is convolved.
    pub fn streams(&self) -> Vec<usize> {
        let keys = self.n_groups * self.state_dim;
        match self.kind {
            RecurrentKind::ShortConv | RecurrentKind::Selective | RecurrentKind::SelectiveHeads => vec![self.inner],
            RecurrentKind::Ssm => vec![self.inner + 2 * keys],
            RecurrentKind::Delta | RecurrentKind::ChannelDelta => vec![keys, keys, self.inner],
            // What each of its products sees of the token before, one for the channels.
            RecurrentKind::Wkv => vec![self.n_heads * self.state_dim; N_SHIFTS],
        }
    }

    /// Numbers of a sequence's state beside the convolution's.
    pub fn state_len(&self) -> usize {
        match self.kind {
            RecurrentKind::ShortConv => 0,
            RecurrentKind::Wkv => self.n_heads * self.state_dim * self.state_dim,
            _ => self.inner * self.state_dim,
        }
    }
}

fn taps(keys: &MetadataKeys, name: &str) -> Result<usize, Error> {
    match keys.count_in(name, None, MAX_TAPS)? {
        1 => Err(keys.error(name, "a convolution over one input has no state".into())),
        n => Ok(n),
    }
}

/// What a layer is made of.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct LayerBlocks {
    pub attends: bool,
    pub recurs: bool,
    pub has_ffn: bool,
}

impl LayerBlocks {
    /// The usual layer.
    pub const ATTENTION: Self = Self { attends: true, recurs: false, has_ffn: true };

    /// By the tensors that the checkpoint has for it.
    pub fn found(names: &Names, layer_idx: usize) -> Self {
        let has = |name: &str| names.find(At::Layer(layer_idx), name, "weight").is_some();
        let recurs = ["shortconv.conv", "ssm_conv1d", "ssm_conv1d_q", "time_mix_key"].into_iter().any(has);
        // Delta nets call their own inputs by the names of attention's.
        let is_delta = has("ssm_norm") && !has("ssm_d");
        let is_fused = !recurs && has("attn_qkv");
        let attends = is_fused || !is_delta && ["attn_k", "attn_kv_a_mqa"].into_iter().any(has);
        let has_ffn = ["ffn_down", "ffn_gate_inp", "ffn_up"].into_iter().any(has);
        Self { attends, recurs, has_ffn }
    }
}

/// What Falcon H1 multiplies its products with. GGUF has it in the weights.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Multipliers {
    pub attention_in: f32,
    pub attention_out: f32,
    pub key: f32,
    /// Of the gate and of the last product of the feed-forward block.
    pub ffn: [f32; 2],
    pub ssm_in: f32,
    pub ssm_out: f32,
    /// Of the gate, x, B, C and the time step.
    pub ssm: [f32; 5],
}

impl Multipliers {
    pub const NONE: Self = Self {
        attention_in: 1.0,
        attention_out: 1.0,
        key: 1.0,
        ffn: [1.0; 2],
        ssm_in: 1.0,
        ssm_out: 1.0,
        ssm: [1.0; 5],
    };
}
