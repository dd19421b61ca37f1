//! Names of tensors in a checkpoint, as data. GGUF's names are the ones this crate speaks; a safetensors folder has a
//! table from them to its own, llama's with what a family renames. Long, because it is mostly tables.

use weights::{Checkpoint, Tensor};

use crate::Family;

/// GGUF's name, and the one in safetensors. Neither holds the layer or `.weight`.
pub type Rename = (&'static str, &'static str);

/// How a checkpoint spells its tensors.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Format {
    Gguf,
    /// Safetensors as transformers writes them.
    Hub,
}

/// What may stand before a name, depending on which class of transformers wrote it.
const HUB_PREFIXES: [&str; 9] = [
    "model.",
    "",
    "language_model.model.",
    "model.language_model.",
    "transformer.",
    "gpt_neox.",
    "bert.",
    "roberta.",
    "backbone.",
];

const LLAMA: &[Rename] = &[
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("output", "lm_head"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("cls.output", "score"),
];
pub const MIXTRAL: &[Rename] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
];
pub const QWEN_MOE: &[Rename] = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];
pub const GEMMA2: &[Rename] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
pub const GEMMA4: &[Rename] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("per_layer_token_embd", "embed_tokens_per_layer"),
    ("per_layer_model_proj", "per_layer_model_projection"),
    ("per_layer_proj_norm", "per_layer_projection_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale", "layer_scalar"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_inp_scale", "router.scale"),
    ("ffn_down_exps_scale", "router.per_expert_scale"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
];
pub const GEMMA4_ASSISTANT: &[Rename] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("layer_output_scale", "layer_scalar"),
    ("nextn.pre_projection", "pre_projection"),
    ("nextn.post_projection", "post_projection"),
    ("masked_embd_centroids", "masked_embedding.centroids"),
    ("masked_embd_ordering", "masked_embedding.token_ordering"),
];
pub const GEMMA3N: &[Rename] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("per_layer_token_embd", "embed_tokens_per_layer"),
    ("per_layer_model_proj", "per_layer_model_projection"),
    ("per_layer_proj_norm", "per_layer_projection_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("altup_proj.0", "altup_projections.0"),
    ("altup_proj.1", "altup_projections.1"),
    ("altup_proj.2", "altup_projections.2"),
    ("altup_unembd_proj.0", "altup_unembed_projections.0"),
    ("altup_unembd_proj.1", "altup_unembed_projections.1"),
    ("altup_unembd_proj.2", "altup_unembed_projections.2"),
    ("altup_correct_coef", "altup.correction_coefs"),
    ("altup_correct_scale", "altup.correct_output_scale"),
    ("altup_predict_coef", "altup.prediction_coefs"),
    ("altup_router", "altup.modality_router"),
    ("altup_router_norm", "altup.router_norm"),
    ("laurel_l", "laurel.linear_left"),
    ("laurel_r", "laurel.linear_right"),
    ("laurel_post_norm", "laurel.post_laurel_norm"),
];
pub const LLAMA4: &[Rename] = &[
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ffn_gate_inp", "feed_forward.router"),
    ("ffn_gate_up_exps", "feed_forward.experts.gate_up_proj"),
    ("ffn_down_exps", "feed_forward.experts.down_proj"),
    ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
    ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
    ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
];
/// Grok 1, as transformers' users have it. The second version is published in parts for eight GPUs, which nothing here joins.
pub const GROK: &[Rename] = &[
    ("token_embd", "in_out_embed"),
    ("output_norm", "rms_norm"),
    ("attn_norm", "rms_norm"),
    ("attn_q", "multi_head_attention.query"),
    ("attn_k", "multi_head_attention.key"),
    ("attn_v", "multi_head_attention.value"),
    ("attn_output", "multi_head_attention.linear"),
    ("attn_output_norm", "rms_norm_1"),
    ("ffn_norm", "rms_norm_2"),
    ("layer_output_norm", "rms_norm_3"),
    ("ffn_gate_inp", "router"),
    ("ffn_gate_exps", "moe.{}.linear"),
    ("ffn_up_exps", "moe.{}.linear_v"),
    ("ffn_down_exps", "moe.{}.linear_1"),
];
pub const PHI3: &[Rename] = &[("ffn_up", "mlp.gate_up_proj")];
pub const OLMO2: &[Rename] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_norm", ""),
];
pub const STABLELM: &[Rename] =
    &[("attn_q_norm", "self_attn.q_layernorm.norms.{}"), ("attn_k_norm", "self_attn.k_layernorm.norms.{}")];
pub const GLM4: &[Rename] = &[
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];
pub const DEEPSEEK: &[Rename] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
    ("exp_probs_b", "mlp.e_score_correction"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
/// As DeepSeek, with gate and up of all experts in one tensor.
pub const MISTRAL4: &[Rename] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
    ("exp_probs_b", "mlp.e_score_correction"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
pub const INTERNLM2: &[Rename] = &[
    ("token_embd", "tok_embeddings"),
    ("output", "output"),
    ("attn_norm", "attention_norm"),
    ("attn_qkv", "attention.wqkv"),
    ("attn_output", "attention.wo"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];
pub const BAILING_MOE: &[Rename] = &[
    ("token_embd", "word_embeddings"),
    ("attn_qkv", "attention.query_key_value"),
    ("attn_q_norm", "attention.query_layernorm"),
    ("attn_k_norm", "attention.key_layernorm"),
    ("attn_output", "attention.dense"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.gate.expert"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
pub const GPT_OSS: &[Rename] = &[
    ("attn_sinks", "self_attn.sinks"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", ""),
    ("ffn_gate_inp", "mlp.router"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
];
pub const BERT: &[Rename] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];
/// As transformers has it, and as its author wrote it.
pub const JINA3: &[Rename] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("token_embd", "embeddings.word_embeddings.parametrizations.weight.original"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_types", "embeddings.token_type_embeddings.parametrizations.weight.original"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("token_embd_norm", "emb_ln"),
    ("attn_qkv", "mixer.Wqkv"),
    ("attn_qkv", "mixer.Wqkv.parametrizations.weight.original"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_output", "mixer.out_proj"),
    ("attn_output", "mixer.out_proj.parametrizations.weight.original"),
    ("attn_output_norm", "post_attention_layernorm"),
    ("attn_output_norm", "norm1"),
    ("ffn_norm", ""),
    ("ffn_up", "mlp.fc1"),
    ("ffn_up", "mlp.fc1.parametrizations.weight.original"),
    ("ffn_down", "mlp.fc2"),
    ("ffn_down", "mlp.fc2.parametrizations.weight.original"),
    ("layer_output_norm", "post_mlp_layernorm"),
    ("layer_output_norm", "norm2"),
];
pub const MODERN_BERT: &[Rename] = &[
    ("token_embd", "embeddings.tok_embeddings"),
    ("token_embd_norm", "embeddings.norm"),
    ("output_norm", "final_norm"),
    ("attn_norm", "attn_norm"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.Wo"),
    ("ffn_norm", "mlp_norm"),
    ("ffn_up", "mlp.Wi"),
    ("ffn_down", "mlp.Wo"),
];
pub const NOMIC: &[Rename] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "emb_ln"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.out_proj"),
    ("attn_output_norm", "norm1"),
    ("ffn_up", "mlp.fc11"),
    ("ffn_gate", "mlp.fc12"),
    ("ffn_down", "mlp.fc2"),
    ("layer_output_norm", "norm2"),
];
pub const SEED_OSS: &[Rename] = &[("post_attention_norm", "post_attention_layernorm"), ("ffn_norm", "")];
pub const ERNIE_MOE: &[Rename] = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.moe_statics.e_score_correction"),
    ("exp_probs_b", "mlp.gate.moe_statics.e_score_correction"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
pub const HUNYUAN: &[Rename] = &[
    ("attn_q_norm", "self_attn.query_layernorm"),
    ("attn_k_norm", "self_attn.key_layernorm"),
    ("ffn_gate_inp", "mlp.gate.wg"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];
pub const MINIMAX: &[Rename] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("exp_probs_b", "block_sparse_moe.e_score_correction"),
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
];
pub const PHI2: &[Rename] = &[
    ("output_norm", "final_layernorm"),
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
    ("ffn_norm", ""),
];
pub const STARCODER2: &[Rename] = &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")];
pub const GPT2: &[Rename] = &[
    ("token_embd", "wte"),
    ("position_embd", "wpe"),
    ("output_norm", "ln_f"),
    ("attn_norm", "ln_1"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];
pub const GPTNEOX: &[Rename] = &[
    ("token_embd", "embed_in"),
    ("output_norm", "final_layer_norm"),
    ("output", "embed_out"),
    ("output", "lm_head"),
    ("attn_qkv", "attention.query_key_value"),
    ("attn_output", "attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];
pub const FALCON: &[Rename] = &[
    ("token_embd", "word_embeddings"),
    ("output_norm", "ln_f"),
    ("attn_norm", "input_layernorm"),
    ("attn_norm", "ln_mlp"),
    ("attn_norm_2", "ln_attn"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];
pub const BLOOM: &[Rename] = &[
    ("token_embd", "word_embeddings"),
    ("token_embd_norm", "word_embeddings_layernorm"),
    ("output_norm", "ln_f"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];
pub const MPT: &[Rename] = &[
    ("token_embd", "wte"),
    ("output_norm", "norm_f"),
    ("attn_norm", "norm_1"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.out_proj"),
    ("ffn_norm", "norm_2"),
    ("ffn_up", "ffn.up_proj"),
    ("ffn_down", "ffn.down_proj"),
];
pub const APERTUS: &[Rename] = &[
    ("attn_norm", "attention_layernorm"),
    ("ffn_norm", "feedforward_layernorm"),
    ("xielu_alpha_p", "mlp.act_fn.alpha_p"),
    ("xielu_alpha_n", "mlp.act_fn.alpha_n"),
    ("xielu_beta", "mlp.act_fn.beta"),
    ("xielu_eps", "mlp.act_fn.eps"),
];
pub const BITNET: &[Rename] = &[("attn_sub_norm", "self_attn.attn_sub_norm"), ("ffn_sub_norm", "mlp.ffn_sub_norm")];
pub const GRANITE_MOE: &[Rename] = &[
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("ffn_down_exps", "block_sparse_moe.output_linear"),
];
pub const DBRX: &[Rename] = &[
    ("token_embd", "wte"),
    ("output_norm", "norm_f"),
    ("attn_norm", "norm_attn_norm.norm_1"),
    ("attn_qkv", "norm_attn_norm.attn.Wqkv"),
    ("attn_output", "norm_attn_norm.attn.out_proj"),
    ("ffn_norm", "norm_attn_norm.norm_2"),
    ("attn_output_norm", ""),
    ("ffn_gate_inp", "ffn.router.layer"),
    ("ffn_gate_exps", "ffn.experts.mlp.w1"),
    ("ffn_up_exps", "ffn.experts.mlp.v1"),
    ("ffn_down_exps", "ffn.experts.mlp.w2"),
];
pub const LFM2: &[Rename] = &[
    ("output_norm", "embedding_norm"),
    ("attn_norm", "operator_norm"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("attn_output", "self_attn.out_proj"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("exp_probs_b", "feed_forward.expert"),
    ("ffn_gate_exps", "feed_forward.experts.{}.w1"),
    ("ffn_up_exps", "feed_forward.experts.{}.w3"),
    ("ffn_down_exps", "feed_forward.experts.{}.w2"),
];
/// Mamba 2 alone, and Nemotron's layers, each of which is one block.
pub const MIXER: &[Rename] = &[
    ("token_embd", "embeddings"),
    ("output_norm", "norm_f"),
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_dt", "mixer.dt"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("exp_probs_b", "mixer.gate.e_score_correction"),
    ("ffn_up_exps", "mixer.experts.{}.up_proj"),
    ("ffn_down_exps", "mixer.experts.{}.down_proj"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];
/// As flash-linear-attention has it.
pub const RWKV7: &[Rename] = &[
    ("token_embd", "embeddings"),
    ("token_embd_norm", "layers.0.pre_norm"),
    ("output_norm", "norm"),
    ("attn_norm", "attn_norm"),
    ("attn_norm_2", "ffn_norm"),
    ("time_mix_lerp_fused", "attn.x_x"),
    ("time_mix_x_r", "attn.x_r"),
    ("time_mix_x_w", "attn.x_w"),
    ("time_mix_x_k", "attn.x_k"),
    ("time_mix_x_v", "attn.x_v"),
    ("time_mix_x_a", "attn.x_a"),
    ("time_mix_x_g", "attn.x_g"),
    ("time_mix_k_k", "attn.k_k"),
    ("time_mix_k_a", "attn.k_a"),
    ("time_mix_r_k", "attn.r_k"),
    ("time_mix_receptance", "attn.r_proj"),
    ("time_mix_key", "attn.k_proj"),
    ("time_mix_value", "attn.v_proj"),
    ("time_mix_output", "attn.o_proj"),
    ("time_mix_w1", "attn.w_lora.lora.0"),
    ("time_mix_w2", "attn.w_lora.lora.2"),
    ("time_mix_a1", "attn.a_lora.lora.0"),
    ("time_mix_a2", "attn.a_lora.lora.2"),
    ("time_mix_v1", "attn.v_lora.lora.0"),
    ("time_mix_v2", "attn.v_lora.lora.2"),
    ("time_mix_g1", "attn.g_lora.lora.0"),
    ("time_mix_g2", "attn.g_lora.lora.2"),
    ("time_mix_ln", "attn.g_norm"),
    ("channel_mix_lerp_k", "ffn.x_k"),
    ("channel_mix_key", "ffn.key"),
    ("channel_mix_value", "ffn.value"),
];
pub const GRANITE_HYBRID: &[Rename] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt", "mamba.dt"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("ffn_down_exps", "block_sparse_moe.output_linear"),
    ("ffn_up_shexp", "shared_mlp.input_linear"),
    ("ffn_down_shexp", "shared_mlp.output_linear"),
    ("ffn_up", "shared_mlp.input_linear"),
    ("ffn_down", "shared_mlp.output_linear"),
];
/// Jamba and Falcon H1.
pub const MAMBA_FEED_FORWARD: &[Rename] = &[
    ("output_norm", "final_layernorm"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_x", "mamba.x_proj"),
    ("ssm_dt", "mamba.dt_proj"),
    ("ssm_dt", "mamba.dt"),
    ("ssm_dt_norm", "mamba.dt_layernorm"),
    ("ssm_b_norm", "mamba.b_layernorm"),
    ("ssm_c_norm", "mamba.c_layernorm"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_norm", "pre_ff_layernorm"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ffn_gate_inp", "feed_forward.router"),
    ("ffn_gate_exps", "feed_forward.experts.{}.gate_proj"),
    ("ffn_up_exps", "feed_forward.experts.{}.up_proj"),
    ("ffn_down_exps", "feed_forward.experts.{}.down_proj"),
];
pub const PLAMO2: &[Rename] = &[
    ("attn_norm", "pre_mixer_norm"),
    ("attn_qkv", "mixer.qkv_proj"),
    ("attn_q_norm", "mixer.q_weight"),
    ("attn_k_norm", "mixer.k_weight"),
    ("attn_output", "mixer.o_proj"),
    ("post_attention_norm", "post_mixer_norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_x", "mixer.bcdt_proj"),
    ("ssm_dt", "mixer.dt_proj"),
    ("ssm_dt", "mixer.dt"),
    ("ssm_dt_norm", "mixer.dt_norm_weight"),
    ("ssm_b_norm", "mixer.B_norm_weight"),
    ("ssm_c_norm", "mixer.C_norm_weight"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_norm", "pre_mlp_norm"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_mlp_norm"),
];
/// Qwen's gated delta nets, with both ways to lay out their inputs.
pub const QWEN_DELTA: &[Rename] = &[
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt", "linear_attn.dt"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];
pub const KIMI_LINEAR: &[Rename] = &[
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    // As transformers' modules are called, and so adapters.
    ("ssm_f_a", "self_attn.forget_gate.f_a_proj"),
    ("ssm_f_b", "self_attn.forget_gate.f_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_dt", "self_attn.dt"),
    ("ssm_a", "self_attn.A_log"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_gate", "block_sparse_moe.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_up", "block_sparse_moe.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_down", "block_sparse_moe.down_proj"),
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("exp_probs_b", "block_sparse_moe.gate.e_score_correction"),
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
    ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
    ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
];
/// What a layer that guesses ahead has beside an ordinary one: GGUF's name, DeepSeek's, behind the layer, and Qwen's, whole.
const NEXT: &[[&str; 3]] = &[
    ["nextn.eh_proj", "eh_proj", "mtp.fc"],
    ["nextn.enorm", "enorm", "mtp.pre_fc_norm_embedding"],
    ["nextn.hnorm", "hnorm", "mtp.pre_fc_norm_hidden"],
    ["nextn.embed_tokens", "embed_tokens", ""],
    ["nextn.shared_head_norm", "shared_head.norm", "mtp.norm"],
    ["nextn.shared_head_head", "shared_head.head", ""],
];
/// Folders that hold the layers, in the order they are looked for.
const HUB_LAYERS: [&str; 7] =
    ["layers.", "h.", "blocks.", "encoder.layer.", "encoder.layers.", "layers.layers.", "decoder_layer."];

/// Finds tensors by GGUF's names.
#[derive(Copy, Clone)]
pub struct Names<'a> {
    pub checkpoint: &'a Checkpoint,
    pub format: Format,
    pub family: &'a Family,
    /// Where only the layers that guess ahead are meant: the first of them. It is layer 0 here.
    pub next_from: Option<usize>,
}

/// Where a tensor stands.
#[derive(Copy, Clone, Debug)]
pub enum At {
    Model,
    Layer(usize),
    /// One expert, or one head, of a layer, where each has tensors of its own.
    Part(usize, usize),
}

impl<'a> Names<'a> {
    /// The tensor `name` at `at`; `suffix` is `weight` or `bias`.
    pub fn find(&self, at: At, name: &str, suffix: &str) -> Option<&'a Tensor> {
        self.spellings(at, name, suffix).find_map(|name| self.checkpoint.find(&name))
    }

    /// As [`Names::find`]; what is missing is named as the format would spell it.
    pub fn tensor(&self, at: At, name: &str) -> Result<&'a Tensor, weights::Error> {
        match self.find(at, name, "weight") {
            Some(tensor) => Ok(tensor),
            None => self.checkpoint.tensor(&self.spellings(at, name, "weight").next().unwrap_or(name.to_owned())),
        }
    }

    /// GGUF's names of everything a family of safetensors may hold, each once.
    pub fn stems(&self) -> impl Iterator<Item = &'static str> {
        let renamed = self.family.renames;
        let others = LLAMA.iter().filter(|row| renamed.iter().all(|other| other.0 != row.0));
        let is_first = |(i, row): &(usize, &Rename)| renamed[..*i].iter().all(|other| other.0 != row.0);
        let each_once = renamed.iter().enumerate().filter(is_first).map(|(_, row)| row);
        each_once.chain(others).filter(|row| !row.1.is_empty()).map(|row| row.0)
    }

    /// Whether safetensors have a tensor for each part of it.
    pub fn is_of_parts(&self, name: &str) -> bool {
        self.family.renames.iter().any(|row| row.0 == name && row.1.contains("{}"))
    }

    /// Lazily: most are found by the first of them.
    fn spellings<'n>(&self, at: At, name: &'n str, suffix: &'n str) -> Box<dyn Iterator<Item = String> + 'n> {
        let at = match (at, self.next_from) {
            (At::Layer(layer), Some(from)) => At::Layer(from + layer),
            (At::Part(layer, part), Some(from)) => At::Part(from + layer, part),
            (at, _) => at,
        };
        if self.format == Format::Gguf {
            let stem = match at {
                At::Model => name.to_owned(),
                At::Layer(layer) => format!("blk.{layer}.{name}"),
                // Experts in files from before they were stacked.
                At::Part(layer, part) => format!("blk.{layer}.{}.{part}", name.trim_end_matches("_exps")),
            };
            // A few tensors of recurrent layers have no suffix.
            let bare = (suffix == "weight" && self.family.recurrent.is_some()).then(|| stem.clone());
            return Box::new(std::iter::once(format!("{stem}.{suffix}")).chain(bare));
        }
        match self.next_from {
            None => hub_spellings(self.family, at, name, suffix),
            Some(from) => self.next_spellings(from, at, name, suffix),
        }
    }

    /// DeepSeek's and GLM's extra layers follow the others; Qwen's have a folder of their own, whose numbers begin at 0.
    fn next_spellings<'n>(
        &self,
        from: usize,
        at: At,
        name: &'n str,
        suffix: &'n str,
    ) -> Box<dyn Iterator<Item = String> + 'n> {
        let own = NEXT.iter().find(|row| row[0] == name);
        match (at, own) {
            (At::Layer(layer), Some([_, behind, whole])) => {
                let behind = HUB_PREFIXES.iter().map(move |prefix| format!("{prefix}layers.{layer}.{behind}.{suffix}"));
                let whole = ["", "model."].into_iter().filter(|_| !whole.is_empty());
                Box::new(
                    behind.chain(whole.map(move |prefix| format!("{prefix}{}.{suffix}", own.map_or("", |row| row[2])))),
                )
            }
            (At::Layer(_) | At::Part(..), None) => {
                let own_at = match at {
                    At::Layer(layer) => At::Layer(layer - from),
                    At::Part(layer, part) => At::Part(layer - from, part),
                    At::Model => At::Model,
                };
                let in_folder = hub_spellings(self.family, own_at, name, suffix)
                    .filter(|spelling| spelling.starts_with("layers."))
                    .flat_map(|spelling| [format!("mtp.{spelling}"), format!("model.mtp.{spelling}")]);
                Box::new(hub_spellings(self.family, at, name, suffix).chain(in_folder))
            }
            _ => hub_spellings(self.family, at, name, suffix),
        }
    }
}

/// What safetensors of a family may call a tensor, the likeliest first.
pub fn hub_spellings<'n>(
    family: &Family,
    at: At,
    name: &'n str,
    suffix: &'n str,
) -> Box<dyn Iterator<Item = String> + 'n> {
    let table = if family.renames.iter().any(|row| row.0 == name) { family.renames } else { LLAMA };
    let stems = table.iter().filter(move |row| row.0 == name && !row.1.is_empty()).map(|row| row.1);
    Box::new(stems.flat_map(move |stem| {
        let (middles, stem): (&[&str], String) = match at {
            At::Model => (&[""], stem.to_owned()),
            At::Layer(layer) => (&HUB_LAYERS, format!("{layer}.{stem}")),
            At::Part(layer, part) => (&HUB_LAYERS, format!("{layer}.{}", stem.replace("{}", &part.to_string()))),
        };
        let middle_first = middles.iter().flat_map(|middle| HUB_PREFIXES.iter().map(move |prefix| (prefix, middle)));
        middle_first.flat_map(move |(prefix, middle)| {
            let full = format!("{prefix}{middle}{stem}");
            // Some parameters are no layers of their own and have no suffix, or one of another kind.
            let bare = if suffix == "bias" { format!("{full}_bias") } else { full.clone() };
            [format!("{full}.{suffix}"), bare]
        })
    }))
}
