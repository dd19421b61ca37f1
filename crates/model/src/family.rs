//! What differs between families of models, as rows of data: the decoder reads the row and has no branch on a name.
//!
//! Much needs no row because a checkpoint says it by what it holds: biases, norms of queries and keys, experts, a tied
//! output. A row states what the tensors do not tell.

use ops::{Activation, Gating, NormKind, Pairing};

use crate::names::Rename;
use crate::names::{BERT, DEEPSEEK, GEMMA2, GLM4, GPT_OSS, MIXTRAL, NOMIC, OLMO2, PHI3, QWEN_MOE, STABLELM};

#[derive(Copy, Clone, Debug)]
pub struct Family {
    /// `general.architecture`, also the prefix of its keys.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub hub_types: &'static [&'static str],
    /// Which numbers of a head rope turns together: GGUF's converter reorders the rows of some families.
    pub pairing: Pairing,
    pub hub_pairing: Pairing,
    pub norm: NormKind,
    pub placement: Placement,
    /// What safetensors leave out of their norm weights.
    pub hub_norm_offset: f32,
    pub activation: Activation,
    /// Whether embeddings are scaled by the root of their width.
    pub scales_embedding: bool,
    pub windows: Windows,
    pub gating: Gating,
    /// Whether the weights of chosen experts sum up to one where the file says nothing.
    pub normalizes_experts: bool,
    /// Whether YaRN's range of pairs is rounded to whole pairs.
    pub yarn_truncates: bool,
    /// Whether positions are learned, so that nothing is rotated.
    pub learns_positions: bool,
    /// The base of rope in layers with a window, where the file says nothing and it is not that of the others.
    pub local_rope_base: Option<f32>,
    /// The model of this many layers scales its scores by the width of a head's share of the embedding, not by that of the
    /// head; GGUF does not say so.
    pub scales_by_share: Option<usize>,
    pub kind: FamilyKind,
    /// Tensor names in safetensors that differ from llama's.
    pub renames: &'static [Rename],
}

/// Where the norms of a layer stand.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Placement {
    /// Before each block.
    Before,
    /// After each block, before it joins the stream.
    After,
    /// Both.
    Around,
    /// Of the stream, after each block joined it.
    OfSum,
}

/// Which layers look back only so far, where there is a window at all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Windows {
    All,
    /// All but every n-th.
    AllBut(usize),
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FamilyKind {
    /// Tokens see what stands before them; the model gives logits.
    Decoder,
    /// Tokens see each other; the model gives hidden states.
    Encoder,
}

const LLAMA: Family = Family {
    name: "llama",
    hub_types: &["llama", "mistral"],
    pairing: Pairing::Adjacent,
    hub_pairing: Pairing::Halves,
    norm: NormKind::Rms,
    placement: Placement::Before,
    hub_norm_offset: 0.0,
    activation: Activation::Silu,
    scales_embedding: false,
    windows: Windows::All,
    gating: Gating::Softmax,
    normalizes_experts: true,
    yarn_truncates: true,
    learns_positions: false,
    local_rope_base: None,
    scales_by_share: None,
    kind: FamilyKind::Decoder,
    renames: &[],
};
/// As llama, but the rows of queries and keys are in the same order everywhere.
const HALVES: Family = Family { pairing: Pairing::Halves, ..LLAMA };
const GEMMA: Family = Family {
    name: "gemma",
    hub_types: &["gemma"],
    hub_norm_offset: 1.0,
    activation: Activation::GeluTanh,
    scales_embedding: true,
    ..HALVES
};
const ENCODER: Family = Family {
    norm: NormKind::Layer,
    placement: Placement::OfSum,
    activation: Activation::Gelu,
    kind: FamilyKind::Encoder,
    renames: BERT,
    ..HALVES
};

pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family { hub_types: &["mixtral"], renames: MIXTRAL, ..LLAMA },
    Family { name: "granite", hub_types: &["granite"], ..LLAMA },
    Family { name: "qwen2", hub_types: &["qwen2"], ..HALVES },
    Family { name: "qwen2moe", hub_types: &["qwen2_moe"], normalizes_experts: false, renames: QWEN_MOE, ..HALVES },
    Family { name: "qwen3", hub_types: &["qwen3"], ..HALVES },
    Family { name: "qwen3moe", hub_types: &["qwen3_moe"], renames: QWEN_MOE, ..HALVES },
    GEMMA,
    Family {
        name: "gemma2",
        hub_types: &["gemma2"],
        placement: Placement::Around,
        windows: Windows::AllBut(2),
        scales_by_share: Some(46),
        renames: GEMMA2,
        ..GEMMA
    },
    Family {
        name: "gemma3",
        hub_types: &["gemma3_text", "gemma3"],
        placement: Placement::Around,
        windows: Windows::AllBut(6),
        local_rope_base: Some(10_000.0),
        scales_by_share: Some(62),
        renames: GEMMA2,
        ..GEMMA
    },
    Family { name: "phi3", hub_types: &["phi3"], renames: PHI3, ..HALVES },
    Family { name: "olmo2", hub_types: &["olmo2"], placement: Placement::After, renames: OLMO2, ..HALVES },
    Family { name: "stablelm", hub_types: &["stablelm"], norm: NormKind::Layer, renames: STABLELM, ..HALVES },
    Family {
        name: "glm4",
        hub_types: &["glm4"],
        hub_pairing: Pairing::Adjacent,
        placement: Placement::Around,
        renames: GLM4,
        ..LLAMA
    },
    Family {
        name: "deepseek2",
        hub_types: &["deepseek_v2", "deepseek_v3"],
        hub_pairing: Pairing::Adjacent,
        normalizes_experts: false,
        renames: DEEPSEEK,
        ..LLAMA
    },
    Family {
        name: "gpt-oss",
        hub_types: &["gpt_oss"],
        activation: Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
        windows: Windows::AllBut(2),
        gating: Gating::SoftmaxOfBest,
        normalizes_experts: false,
        yarn_truncates: false,
        renames: GPT_OSS,
        ..HALVES
    },
    Family { name: "bert", hub_types: &["bert", "roberta", "xlm-roberta"], learns_positions: true, ..ENCODER },
    Family { name: "nomic-bert", hub_types: &["nomic_bert"], activation: Activation::Silu, renames: NOMIC, ..ENCODER },
];

/// The names of all of them, for an error that says what there is.
pub fn supported() -> String {
    let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    names.dedup();
    names.join(", ")
}
