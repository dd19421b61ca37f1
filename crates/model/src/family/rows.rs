//! The table of families. A family that is close to another is written as that one with the fields that differ
//! (`..LLAMA`). Long, because it is one table.

use ops::{Activation, Gating, NormKind, Pairing};

use super::{Chunked, Family, FamilyKind, FusedRows, Placement, Rotation, Scales, Windows};
use crate::config::Temperature;
use crate::names::{
    APERTUS, BAILING_MOE, BERT, BITNET, BLOOM, DBRX, DEEPSEEK, ERNIE_MOE, FALCON, GEMMA2, GEMMA3N,
    GEMMA4 as GEMMA4_NAMES, GEMMA4_ASSISTANT, GLM4, GPT_OSS, GPT2, GPTNEOX, GRANITE_HYBRID, GRANITE_MOE, GROK, HUNYUAN,
    INTERNLM2, JINA3, KIMI_LINEAR, LFM2, LLAMA4, MAMBA_FEED_FORWARD, MINIMAX, MISTRAL4, MIXER, MIXTRAL, MODERN_BERT,
    MPT, NOMIC, OLMO2, PHI2, PHI3, PLAMO2, QWEN_DELTA, QWEN_MOE, RWKV7, SEED_OSS, STABLELM, STARCODER2,
};
use crate::recurrent_config::RecurrentKind;

const LLAMA: Family = Family {
    name: "llama",
    hub_types: &["llama", "mistral"],
    pairing: Pairing::Adjacent,
    hub_pairing: Pairing::Halves,
    index_pairing: Pairing::Halves,
    norm: NormKind::Rms,
    placement: Placement::Before,
    skips_first_norm: false,
    hub_norm_offset: 0.0,
    hub_norm_offsets: &[],
    activation: Activation::Silu,
    scales_embedding: false,
    windows: Windows::All,
    rotation: Rotation::All,
    has_plain_local_rope: false,
    norms_rotated_heads: false,
    is_parallel: false,
    alibi: None,
    multiplies_logits: false,
    scales: None,
    gating: Gating::Softmax,
    biased_gating: Gating::Sigmoid,
    normalizes_experts: true,
    yarn_truncates: true,
    learns_positions: false,
    local_rope_base: None,
    scales_by_share: None,
    chunked: None,
    has_plain_head_norms: false,
    dense_beside_experts: None,
    usual_numbers: &[],
    weighs_inputs: false,
    scales_scores: true,
    norms_values: false,
    has_streams: false,
    scales_layers: false,
    recurrent: None,
    has_multipliers: false,
    tiles_value_heads: false,
    kind: FamilyKind::Decoder,
    renames: &[],
    hub_qkv: FusedRows::Apart,
    hub_transposed: &[],
    hub_gate_alternates: false,
    is_exported: true,
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
/// Norms without an offset, values normed too, scores that are not scaled.
const GEMMA4: Family = Family {
    name: "gemma4",
    hub_types: &["gemma4_text", "gemma4"],
    placement: Placement::Around,
    windows: Windows::AllBut(6),
    hub_norm_offset: 0.0,
    scales_scores: false,
    norms_values: true,
    scales_layers: true,
    renames: GEMMA4_NAMES,
    is_exported: false,
    ..GEMMA
};
const ENCODER: Family = Family {
    norm: NormKind::Layer,
    placement: Placement::OfSum,
    activation: Activation::Gelu,
    kind: FamilyKind::Encoder,
    renames: BERT,
    ..HALVES
};
const GEMMA3: Family = Family {
    name: "gemma3",
    hub_types: &["gemma3_text", "gemma3"],
    placement: Placement::Around,
    windows: Windows::AllBut(6),
    local_rope_base: Some(10_000.0),
    scales_by_share: Some(62),
    renames: GEMMA2,
    ..GEMMA
};
const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    hub_types: &["deepseek_v2", "deepseek_v3"],
    hub_pairing: Pairing::Adjacent,
    normalizes_experts: false,
    renames: DEEPSEEK,
    ..LLAMA
};
/// The second version and, with windows, the third.
const OLMO: Family = Family {
    name: "olmo2",
    hub_types: &["olmo2"],
    placement: Placement::After,
    windows: Windows::AllBut(4),
    has_plain_local_rope: true,
    renames: OLMO2,
    ..HALVES
};
/// Cohere's: adjacent pairs everywhere, both blocks beside each other.
const COMMAND_R: Family = Family {
    name: "command-r",
    hub_types: &["cohere"],
    hub_pairing: Pairing::Adjacent,
    norm: NormKind::Layer,
    is_parallel: true,
    multiplies_logits: true,
    is_exported: false,
    ..LLAMA
};
/// GPT-2 and what followed it: layer norms with biases, no gate.
const GPT: Family =
    Family { norm: NormKind::Layer, activation: Activation::GeluTanh, renames: GPT2, is_exported: false, ..HALVES };

/// Layers of Mamba 2, some with attention among them.
const MAMBA2: Family = Family {
    name: "mamba2",
    hub_types: &["mamba2"],
    rotation: Rotation::None,
    recurrent: Some(RecurrentKind::Ssm),
    renames: MIXER,
    is_exported: false,
    ..HALVES
};
const NEMOTRON_H: Family = Family {
    name: "nemotron_h",
    hub_types: &["nemotron_h"],
    activation: Activation::ReluSquared,
    gating: Gating::Sigmoid,
    // Nothing is rotated, but GGUF has the rows in this order, which adapters must follow.
    pairing: Pairing::Adjacent,
    ..MAMBA2
};
/// Layers that mix tokens by a recurrence and then channels, both with the token before.
const RWKV: Family = Family {
    name: "rwkv7",
    hub_types: &["rwkv7"],
    norm: NormKind::Layer,
    rotation: Rotation::None,
    recurrent: Some(RecurrentKind::Wkv),
    renames: RWKV7,
    is_exported: false,
    ..HALVES
};
/// Gated delta nets with attention in every fourth layer.
const QWEN_HYBRID: Family = Family {
    name: "qwen3next",
    hub_types: &["qwen3_next"],
    hub_norm_offset: 1.0,
    recurrent: Some(RecurrentKind::Delta),
    renames: QWEN_DELTA,
    is_exported: false,
    ..HALVES
};

/// What PLaMo 2's safetensors leave out of norms where it is not one: 1/5 and 1/5^1.5 behind its blocks.
const PLAMO2_NORMS: &[(&str, f32)] = &[
    ("post_attention_norm", 0.2),
    ("post_ffw_norm", 0.089_442_72),
    ("attn_q_norm", 0.0),
    ("attn_k_norm", 0.0),
    ("ssm_dt_norm", 0.0),
    ("ssm_b_norm", 0.0),
    ("ssm_c_norm", 0.0),
];
/// What files of the first version are without.
const GROK_1: &[(&str, f32)] = &[
    ("embedding_scale", 78.383_67),
    ("logit_scale", 0.577_350_26),
    ("attention.output_scale", 0.088_388_346),
    ("attn_logit_softcapping", 30.0),
];

pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family { hub_types: &["mixtral"], renames: MIXTRAL, ..LLAMA },
    Family { name: "granite", hub_types: &["granite"], ..LLAMA },
    Family { name: "qwen2", hub_types: &["qwen2"], ..HALVES },
    Family { name: "qwen2moe", hub_types: &["qwen2_moe"], normalizes_experts: false, renames: QWEN_MOE, ..HALVES },
    Family { name: "qwen3", hub_types: &["qwen3"], ..HALVES },
    Family { name: "qwen2vl", hub_types: &["qwen2_vl_text", "qwen2_5_vl_text"], is_exported: false, ..HALVES },
    Family { name: "qwen3vl", hub_types: &["qwen3_vl_text"], is_exported: false, ..HALVES },
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
    GEMMA3,
    GEMMA4,
    Family {
        name: "gemma4-assistant",
        hub_types: &["gemma4_assistant", "gemma4_unified_assistant"],
        scales_embedding: false,
        kind: FamilyKind::Assistant,
        renames: GEMMA4_ASSISTANT,
        ..GEMMA4
    },
    Family {
        name: "gemma3n",
        hub_types: &["gemma3n_text", "gemma3n"],
        windows: Windows::AllBut(5),
        local_rope_base: Some(10_000.0),
        has_streams: true,
        scales_layers: false,
        renames: GEMMA3N,
        ..GEMMA4
    },
    Family {
        name: "llama4",
        hub_types: &["llama4_text", "llama4"],
        hub_pairing: Pairing::Adjacent,
        windows: Windows::AllBut(4),
        rotation: Rotation::Windowed,
        norms_rotated_heads: true,
        has_plain_head_norms: true,
        chunked: Some(Chunked {
            window: 8192,
            temperature: Temperature { scale: 0.1, length: 8192, first: 1, is_for_unrotated: true },
        }),
        gating: Gating::Sigmoid,
        normalizes_experts: false,
        weighs_inputs: true,
        renames: LLAMA4,
        hub_transposed: &["ffn_gate_up_exps", "ffn_down_exps"],
        is_exported: false,
        ..LLAMA
    },
    Family {
        name: "phimoe",
        hub_types: &["phimoe"],
        norm: NormKind::Layer,
        gating: Gating::NearBest,
        normalizes_experts: false,
        renames: MIXTRAL,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "grok",
        hub_types: &["grok-1"],
        placement: Placement::Around,
        activation: Activation::GeluTanh,
        multiplies_logits: true,
        dense_beside_experts: Some(std::f32::consts::FRAC_1_SQRT_2),
        usual_numbers: GROK_1,
        renames: GROK,
        is_exported: false,
        ..HALVES
    },
    Family { name: "phi3", hub_types: &["phi3"], renames: PHI3, ..HALVES },
    OLMO,
    Family { hub_types: &["olmo3"], is_exported: false, ..OLMO },
    Family { name: "stablelm", hub_types: &["stablelm"], norm: NormKind::Layer, renames: STABLELM, ..HALVES },
    Family {
        name: "glm4",
        hub_types: &["glm4"],
        hub_pairing: Pairing::Adjacent,
        placement: Placement::Around,
        renames: GLM4,
        ..LLAMA
    },
    DEEPSEEK2,
    Family {
        name: "mistral4",
        hub_types: &["mistral4"],
        normalizes_experts: true,
        renames: MISTRAL4,
        is_exported: false,
        ..DEEPSEEK2
    },
    Family { name: "deepseek32", hub_types: &["deepseek_v32"], is_exported: false, ..DEEPSEEK2 },
    Family {
        name: "glm-dsa",
        hub_types: &["glm_moe_dsa"],
        index_pairing: Pairing::Adjacent,
        is_exported: false,
        ..DEEPSEEK2
    },
    Family {
        name: "internlm2",
        hub_types: &["internlm2"],
        hub_qkv: FusedRows::ByHead,
        renames: INTERNLM2,
        is_exported: false,
        ..LLAMA
    },
    Family {
        name: "bailingmoe2",
        hub_types: &["bailing_moe_v2"],
        gating: Gating::Sigmoid,
        renames: BAILING_MOE,
        is_exported: false,
        ..HALVES
    },
    Family { hub_types: &["youtu"], is_exported: false, ..DEEPSEEK2 },
    // Says which layers are dense in a list, which is not written yet.
    Family { hub_types: &["glm4_moe_lite"], is_exported: false, ..DEEPSEEK2 },
    Family {
        name: "gpt-oss",
        hub_types: &["gpt_oss"],
        activation: Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
        windows: Windows::AllBut(2),
        gating: Gating::SoftmaxOfBest,
        normalizes_experts: false,
        yarn_truncates: false,
        renames: GPT_OSS,
        hub_transposed: &["ffn_gate_up_exps", "ffn_down_exps"],
        hub_gate_alternates: true,
        ..HALVES
    },
    Family { name: "smollm3", hub_types: &["smollm3"], rotation: Rotation::AllBut(4), is_exported: false, ..LLAMA },
    Family {
        name: "olmoe",
        hub_types: &["olmoe", "flex_olmo"],
        normalizes_experts: false,
        renames: QWEN_MOE,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "exaone4",
        hub_types: &["exaone4"],
        placement: Placement::After,
        windows: Windows::AllBut(4),
        rotation: Rotation::Windowed,
        renames: OLMO2,
        is_exported: false,
        ..HALVES
    },
    Family { name: "seed_oss", hub_types: &["seed_oss"], renames: SEED_OSS, ..HALVES },
    COMMAND_R,
    Family {
        name: "cohere2",
        hub_types: &["cohere2"],
        windows: Windows::AllBut(4),
        rotation: Rotation::Windowed,
        ..COMMAND_R
    },
    Family { name: "ernie4_5", hub_types: &["ernie4_5"], hub_pairing: Pairing::Adjacent, ..LLAMA },
    Family {
        name: "ernie4_5-moe",
        hub_types: &["ernie4_5_moe"],
        hub_pairing: Pairing::Adjacent,
        biased_gating: Gating::Softmax,
        renames: ERNIE_MOE,
        is_exported: false,
        ..LLAMA
    },
    Family {
        name: "hunyuan-dense",
        hub_types: &["hunyuan_v1_dense"],
        norms_rotated_heads: true,
        renames: HUNYUAN,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "hunyuan-moe",
        hub_types: &["hunyuan_v1_moe"],
        norms_rotated_heads: true,
        renames: HUNYUAN,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "glm4moe",
        hub_types: &["glm4_moe", "solar_open"],
        gating: Gating::Sigmoid,
        renames: DEEPSEEK,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "dots1",
        hub_types: &["dots1"],
        gating: Gating::Sigmoid,
        renames: DEEPSEEK,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "minimax-m2",
        hub_types: &["minimax_m2"],
        gating: Gating::Sigmoid,
        renames: MINIMAX,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "phi2",
        hub_types: &["phi"],
        norm: NormKind::Layer,
        activation: Activation::GeluTanh,
        is_parallel: true,
        renames: PHI2,
        is_exported: false,
        ..HALVES
    },
    Family { name: "starcoder2", hub_types: &["starcoder2"], renames: STARCODER2, ..GPT },
    Family {
        name: "gpt2",
        hub_types: &["gpt2"],
        learns_positions: true,
        hub_transposed: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        ..GPT
    },
    Family {
        name: "starcoder",
        hub_types: &["gpt_bigcode"],
        learns_positions: true,
        hub_qkv: FusedRows::ByHead,
        ..GPT
    },
    Family {
        name: "gptneox",
        hub_types: &["gpt_neox"],
        activation: Activation::Gelu,
        is_parallel: true,
        hub_qkv: FusedRows::ByHead,
        renames: GPTNEOX,
        ..GPT
    },
    Family {
        name: "falcon",
        hub_types: &["falcon"],
        activation: Activation::Gelu,
        is_parallel: true,
        hub_qkv: FusedRows::ByHead,
        renames: FALCON,
        ..GPT
    },
    Family {
        name: "bloom",
        hub_types: &["bloom"],
        alibi: Some(8.0),
        hub_qkv: FusedRows::ByHead,
        renames: BLOOM,
        ..GPT
    },
    Family { name: "mpt", hub_types: &["mpt"], activation: Activation::Gelu, renames: MPT, ..GPT },
    Family {
        name: "nemotron",
        hub_types: &["nemotron"],
        norm: NormKind::Layer,
        hub_norm_offset: 1.0,
        activation: Activation::ReluSquared,
        is_exported: false,
        ..HALVES
    },
    Family { name: "apertus", hub_types: &["apertus"], renames: APERTUS, is_exported: false, ..HALVES },
    Family { name: "arcee", hub_types: &["arcee"], activation: Activation::ReluSquared, is_exported: false, ..LLAMA },
    Family { name: "mistral3", hub_types: &["ministral3"], is_exported: false, ..LLAMA },
    Family {
        name: "minicpm3",
        hub_types: &["minicpm3"],
        scales: Some(Scales { embedding: 12.0, depth: 1.4, base_width: 256.0 }),
        renames: DEEPSEEK,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "exaone-moe",
        hub_types: &["exaone_moe"],
        windows: Windows::AllBut(4),
        rotation: Rotation::Windowed,
        gating: Gating::Sigmoid,
        renames: DEEPSEEK,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "jais2",
        hub_types: &["jais2"],
        norm: NormKind::Layer,
        activation: Activation::ReluSquared,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "bitnet",
        hub_types: &["bitnet"],
        activation: Activation::ReluSquared,
        renames: BITNET,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "chatglm",
        hub_types: &["glm"],
        hub_pairing: Pairing::Adjacent,
        renames: PHI3,
        is_exported: false,
        ..LLAMA
    },
    Family { name: "granitemoe", hub_types: &["granitemoe"], renames: GRANITE_MOE, is_exported: false, ..LLAMA },
    Family {
        name: "dbrx",
        hub_types: &["dbrx"],
        norm: NormKind::Layer,
        renames: DBRX,
        hub_transposed: &["ffn_down_exps"],
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "lfm2",
        hub_types: &["lfm2"],
        recurrent: Some(RecurrentKind::ShortConv),
        renames: LFM2,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "lfm2moe",
        hub_types: &["lfm2_moe"],
        recurrent: Some(RecurrentKind::ShortConv),
        gating: Gating::Sigmoid,
        renames: LFM2,
        is_exported: false,
        ..HALVES
    },
    MAMBA2,
    Family {
        name: "granitehybrid",
        hub_types: &["granitemoehybrid"],
        recurrent: Some(RecurrentKind::Ssm),
        renames: GRANITE_HYBRID,
        is_exported: false,
        ..LLAMA
    },
    Family {
        name: "granitehybrid",
        hub_types: &["bamba"],
        recurrent: Some(RecurrentKind::Ssm),
        renames: MAMBA_FEED_FORWARD,
        is_exported: false,
        ..LLAMA
    },
    Family {
        name: "falcon-h1",
        hub_types: &["falcon_h1"],
        recurrent: Some(RecurrentKind::Ssm),
        multiplies_logits: true,
        has_multipliers: true,
        renames: MAMBA_FEED_FORWARD,
        is_exported: false,
        ..HALVES
    },
    Family {
        name: "plamo2",
        hub_types: &["plamo2"],
        placement: Placement::Around,
        hub_norm_offset: 1.0,
        hub_norm_offsets: PLAMO2_NORMS,
        recurrent: Some(RecurrentKind::SelectiveHeads),
        renames: PLAMO2,
        is_exported: false,
        ..HALVES
    },
    RWKV,
    NEMOTRON_H,
    Family { name: "nemotron_h_moe", hub_types: &[], ..NEMOTRON_H },
    Family {
        name: "jamba",
        hub_types: &["jamba"],
        rotation: Rotation::None,
        recurrent: Some(RecurrentKind::Selective),
        normalizes_experts: false,
        renames: MAMBA_FEED_FORWARD,
        is_exported: false,
        ..HALVES
    },
    QWEN_HYBRID,
    Family { name: "qwen35", hub_types: &["qwen3_5_text"], tiles_value_heads: true, ..QWEN_HYBRID },
    Family { name: "qwen35moe", hub_types: &["qwen3_5_moe_text"], tiles_value_heads: true, ..QWEN_HYBRID },
    Family {
        name: "kimi-linear",
        hub_types: &["kimi_linear"],
        rotation: Rotation::None,
        recurrent: Some(RecurrentKind::ChannelDelta),
        gating: Gating::Sigmoid,
        renames: KIMI_LINEAR,
        is_exported: false,
        ..HALVES
    },
    Family { name: "bert", hub_types: &["bert", "roberta", "xlm-roberta"], learns_positions: true, ..ENCODER },
    Family {
        name: "jina-bert-v3",
        hub_types: &["jina_embeddings_v3", "xlm-roberta+rotary"],
        renames: JINA3,
        is_exported: false,
        ..ENCODER
    },
    Family {
        name: "modern-bert",
        hub_types: &["modernbert"],
        placement: Placement::Before,
        skips_first_norm: true,
        windows: Windows::AllButFirstOf(3),
        local_rope_base: Some(10_000.0),
        renames: MODERN_BERT,
        is_exported: false,
        ..ENCODER
    },
    Family {
        name: "gemma-embedding",
        hub_types: &["gemma3_text+bidirectional"],
        scales_by_share: None,
        kind: FamilyKind::Encoder,
        is_exported: false,
        ..GEMMA3
    },
    Family {
        name: "llama-embed",
        hub_types: &["llama_bidirec", "llama+bidirectional"],
        kind: FamilyKind::Encoder,
        is_exported: false,
        ..LLAMA
    },
    Family { name: "eurobert", hub_types: &["eurobert"], kind: FamilyKind::Encoder, is_exported: false, ..HALVES },
    Family { name: "nomic-bert", hub_types: &["nomic_bert"], activation: Activation::Silu, renames: NOMIC, ..ENCODER },
];
