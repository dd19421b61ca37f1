//! `config.json`, as transformers writes it, translated to the keys of GGUF's metadata: a table of keys, and the few
//! settings that are more than a number.

mod rope;

use serde_json::Value as Json;
use weights::{Array, Metadata, Value};

use crate::family::{FAMILIES, Family, FamilyKind, supported, unknown};
use crate::recurrent_config::Multipliers;
use crate::rope_scaling::RopeScaling;
use crate::{Error, Pooling};
use rope::{rope_settings, scaling};

pub struct Translated {
    pub family: Family,
    pub metadata: Metadata,
    pub scaling: RopeScaling,
    /// Where the configuration lists the layers.
    pub is_windowed: Option<Vec<bool>>,
    pub is_rotated: Option<Vec<bool>>,
    pub position_offset: usize,
    pub multipliers: Multipliers,
}

/// GGUF's key, and the names it goes by here, the first that is there.
const NUMBERS: &[(&str, &[&str])] = &[
    ("context_length", &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"]),
    ("embedding_length", &["hidden_size", "n_embd", "d_model"]),
    ("block_count", &["num_hidden_layers", "n_layer", "n_layers"]),
    ("feed_forward_length", &["intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size"]),
    ("attention.head_count", &["num_attention_heads", "n_head", "n_heads"]),
    ("attention.head_count_kv", &["num_key_value_heads", "num_kv_heads", "kv_n_heads"]),
    ("attention.key_length", &["head_dim", "hidden_size_per_head"]),
    ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]),
    ("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"]),
    ("attention.sliding_window", &["sliding_window", "attention_chunk_size", "local_attention"]),
    ("attention.sliding_window_pattern", &["global_attn_every_n_layers"]),
    ("attention.use_qk_norm", &["use_qk_norm"]),
    ("attention.scale", &["attention_multiplier", "attn_output_multiplier"]),
    ("attn_logit_softcapping", &["attn_logit_softcapping", "max_attn_value"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("embedding_scale", &["embedding_multiplier", "scale_emb", "embedding_multiplier_scale"]),
    ("residual_scale", &["residual_multiplier"]),
    ("logit_scale", &["logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier_scale"]),
    ("use_parallel_residual", &["use_parallel_residual", "parallel_attn"]),
    ("attention.clamp_kqv", &["clip_qkv"]),
    ("vocab_size", &["vocab_size"]),
    ("expert_count", &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"]),
    (
        "expert_used_count",
        &[
            "num_experts_per_tok",
            "experts_per_token",
            "moe_k",
            "moe_topk",
            "moe_top_k",
            "num_experts_per_token",
            "top_k_experts",
        ],
    ),
    ("expert_feed_forward_length", &["moe_intermediate_size"]),
    (
        "expert_shared_feed_forward_length",
        &["shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"],
    ),
    ("expert_shared_count", &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"]),
    ("leading_dense_block_count", &["first_k_dense_replace", "moe_layer_start_index"]),
    ("expert_weights_scale", &["routed_scaling_factor"]),
    ("expert_weights_norm", &["norm_topk_prob", "moe_renormalize"]),
    ("expert_group_count", &["n_group", "num_expert_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("attention.q_lora_rank", &["q_lora_rank"]),
    ("attention.kv_lora_rank", &["kv_lora_rank"]),
    ("attention.value_length_mla", &["v_head_dim"]),
    ("rope.dimension_count", &["qk_rope_head_dim", "rotary_dim"]),
    ("rope.interleaved", &["rope_interleave"]),
    ("shortconv.l_cache", &["conv_L_cache"]),
    ("ssm.conv_kernel", &["mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "short_conv_kernel_size"]),
    ("ssm.state_size", &["mamba_d_state", "ssm_state_size", "state_size", "linear_key_head_dim"]),
    ("ssm.group_count", &["mamba_n_groups", "n_groups", "linear_num_key_heads"]),
    (
        "ssm.time_step_rank",
        &[
            "mamba_n_heads",
            "mamba_num_heads",
            "linear_num_value_heads",
            "linear_num_heads",
            "mamba_dt_rank",
            "num_heads",
        ],
    ),
    ("kda.head_dim", &["linear_head_dim"]),
    ("attention.indexer.top_k", &["index_topk"]),
    ("attention.indexer.head_count", &["index_n_heads"]),
    ("attention.indexer.key_length", &["index_head_dim"]),
    ("attention.shared_kv_layers", &["num_kv_shared_layers"]),
    ("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
];

pub fn translate(json: &Json) -> Result<Translated, Error> {
    let outer = json;
    // Models that also see keep the language model's settings in a part of their own.
    let json = json.get("text_config").filter(|part| part.get("hidden_size").is_some()).unwrap_or(json);
    let Some(kind) = json.get("model_type").and_then(Json::as_str) else {
        return Err(Error::NoArchitecture("model_type", supported()));
    };
    let settings = HubConfig::of(json);
    // The settings of a drafter's layers are in the part, and have the type of the model that it drafts for.
    let assistant = outer.get("model_type").and_then(Json::as_str).filter(|kind| kind.ends_with("_assistant"));
    let kind = &variant(assistant.unwrap_or(kind), &settings)[..];
    let Some(family) = FAMILIES.iter().find(|family| family.hub_types.contains(&kind)).copied() else {
        return Err(unknown(kind));
    };
    let mut metadata = Metadata::default();
    let mut set = |key: &str, value: Value| drop(metadata.set(format!("{}.{key}", family.name), value));
    for (key, names) in NUMBERS {
        if let Some(value) = names.iter().find_map(|name| settings.get(name)).and_then(value_of) {
            set(key, value);
        }
    }
    sizes(&settings, &mut set);
    layer_sizes(&settings, &mut set);
    if let Some(layers) = indexed_layers(&settings) {
        set("attention.indexer.types", Value::Array(Array::Bool(layers)));
    }
    recurrent_sizes(&settings, &mut set);
    if family.kind == FamilyKind::Assistant {
        assistant_sizes(outer, &mut set);
    }
    if kind == "granitemoehybrid" && settings.get("position_embedding_type").and_then(Json::as_str) != Some("rope") {
        set("rope.scaling.finetuned", Value::Bool(false));
    }
    scales(&settings, &mut set);
    if let (FamilyKind::Encoder, Some(name)) = (family.kind, settings.get("hidden_activation").and_then(Json::as_str)) {
        set("hidden_activation", Value::String(name.to_owned()));
    }
    if let Some(name) = settings.get("classifier_pooling").and_then(Json::as_str) {
        set("classifier.pooling_type", Value::U64(if name == "mean" { 1 } else { 2 }));
    }
    let rope = rope_settings(json);
    let head_dim = settings.number("head_dim").or_else(|| settings.width()?.checked_div(settings.n_heads()?));
    // HunYuan's `dynamic` scaling has a fixed factor, so it is another base.
    let alpha = rope.scaling.and_then(|scaling| scaling.get("alpha")?.as_f64()).filter(|alpha| *alpha > 0.0);
    let growth = alpha.zip(head_dim.filter(|n| *n > 2)).map(|(alpha, n)| alpha.powf(n as f64 / (n as f64 - 2.0)));
    if let Some(base) = rope.base {
        set("rope.freq_base", Value::F64(base * growth.unwrap_or(1.0)));
    }
    if let Some(base) = rope.local_base {
        set("rope.freq_base_swa", Value::F64(base));
    }
    if let (Some(part), Some(head_dim), None) = (rope.part, head_dim, settings.number("qk_rope_head_dim")) {
        set("rope.dimension_count", Value::U64((part * head_dim as f64) as u64));
    }
    if let Some(scale) = rope.scaling.and_then(|scaling| scaling.get("llama_4_scaling_beta")?.as_f64()) {
        let length = rope.scaling.and_then(|scaling| scaling.get("original_max_position_embeddings")?.as_u64());
        set("attention.temperature_scale", Value::F64(scale));
        set("attention.temperature_length", Value::U64(length.unwrap_or(0)));
    }
    let layers = settings.get("layer_types").and_then(Json::as_array);
    let is_windowed = layers.map(|layers| layers.iter().map(is_windowed_layer).collect());
    if let Some(layers) = layers {
        let windowed = layers.iter().map(is_windowed_layer).collect();
        set("attention.sliding_window_pattern", Value::Array(Array::Bool(windowed)));
    }
    let turning = settings.get("no_rope_layers").and_then(Json::as_array);
    let is_rotated = turning.map(|layers| layers.iter().map(|layer| layer.as_u64() == Some(1)).collect());
    let is_offset = matches!(kind, "roberta" | "xlm-roberta");
    let position_offset = if is_offset { settings.number("pad_token_id").unwrap_or(1) as usize + 1 } else { 0 };
    let context = settings.number("max_position_embeddings").unwrap_or(0) as f64;
    let scaling = scaling(rope.scaling.filter(|_| growth.is_none()), context, &family)?;
    let multipliers = multipliers(&settings);
    Ok(Translated { family, scaling, is_windowed, is_rotated, position_offset, multipliers, metadata })
}

fn is_windowed_layer(layer: &Json) -> bool {
    layer == "sliding_attention" || layer == "chunked_attention"
}

/// The type of model, and what else tells it from others of the type.
fn variant(kind: &str, settings: &HubConfig) -> String {
    let is_rotary = settings.get("position_embedding_type").and_then(Json::as_str) == Some("rotary");
    match kind {
        _ if settings.is("use_bidirectional_attention") == Some(true) => format!("{kind}+bidirectional"),
        "xlm-roberta" if is_rotary => format!("{kind}+rotary"),
        _ => kind.to_owned(),
    }
}

/// The settings of `config.json`. MPT and DBRX keep those of a block in a part of their own.
struct HubConfig<'a> {
    parts: Vec<&'a Json>,
}

impl<'a> HubConfig<'a> {
    fn of(json: &'a Json) -> Self {
        Self {
            parts: [Some(json), json.get("attn_config"), json.get("ffn_config"), json.get("linear_attn_config")]
                .into_iter()
                .flatten()
                .collect(),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Json> {
        self.parts.iter().find_map(|part| part.get(name).filter(|value| !value.is_null()))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    fn real(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    fn is(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    fn width(&self) -> Option<u64> {
        ["hidden_size", "n_embd", "d_model"].iter().find_map(|name| self.number(name))
    }

    fn n_heads(&self) -> Option<u64> {
        ["num_attention_heads", "n_head", "n_heads"].iter().find_map(|name| self.number(name))
    }
}

/// Sizes that follow from others, and switches that change them.
fn sizes(settings: &HubConfig, set: &mut impl FnMut(&str, Value)) {
    if let (true, Some(width)) = (settings.get("intermediate_size_mlp").is_some(), settings.get("intermediate_size")) {
        set("expert_feed_forward_length", value_of(width).unwrap_or(Value::U64(0)));
        if settings.get("attention_chunk_size").is_none() {
            set("attention.sliding_window", Value::U64(0));
        }
        // A flag, or a number in some files.
        let is_tempered = settings.get("attn_temperature_tuning").is_some_and(|x| *x != Json::Bool(false) && *x != 0);
        let scale = settings.real("attn_scale").filter(|_| is_tempered);
        set("attention.temperature_scale", Value::F64(scale.unwrap_or(0.0)));
        set("attention.temperature_length", Value::U64(settings.number("floor_scale").unwrap_or(8192)));
    }
    let has_ffn = ["intermediate_size", "n_inner", "ffn_hidden_size"].iter().any(|name| settings.get(name).is_some());
    if let (false, Some(width)) = (has_ffn, settings.width()) {
        let ratio = settings.number("expansion_ratio").unwrap_or(4);
        set("feed_forward_length", Value::U64(width.saturating_mul(ratio)));
    }
    if settings.is("block_auto_adjust_ff_dim") == Some(true)
        && let Some(width) = settings.number("block_ff_dim").or(settings.number("intermediate_size"))
    {
        let factor = settings.real("block_ffn_dim_multiplier").unwrap_or(1.0);
        let multiple = settings.number("block_multiple_of").unwrap_or(256).max(1);
        let width = ((2 * width / 3) as f64 * factor) as u64;
        set("feed_forward_length", Value::U64(width.div_ceil(multiple).saturating_mul(multiple)));
    }
    if settings.is("multi_query") == Some(true) && settings.is("new_decoder_architecture") != Some(true) {
        set("attention.head_count_kv", Value::U64(1));
    }
    if settings.is("use_sliding_window") == Some(false) {
        set("attention.sliding_window", Value::U64(0));
    }
    if settings.get("topk_method").and_then(Json::as_str) == Some("greedy") {
        set("expert_group_count", Value::U64(1));
        set("expert_group_used_count", Value::U64(1));
    }
    if let (Some(nope), Some(rope)) = (settings.number("qk_nope_head_dim"), settings.number("qk_rope_head_dim")) {
        set("attention.key_length_mla", Value::U64(nope.saturating_add(rope)));
    }
}

/// Sizes that differ from layer to layer: heads of layers without a window, feed-forward blocks of those without keys and
/// values of their own.
fn layer_sizes(settings: &HubConfig, set: &mut impl FnMut(&str, Value)) {
    let layers = settings.get("layer_types").and_then(Json::as_array).into_iter().flatten();
    let first_whole = layers.clone().position(|layer| layer == "full_attention");
    let of_layers = settings.get("per_layer_config").and_then(|all| all.get(first_whole?.to_string()));
    let of_whole = |name: &str, other: &str| -> Option<u64> {
        settings.number(name).or_else(|| of_layers?.get(other)?.as_u64()).or_else(|| settings.number(other))
    };
    if let (Some(whole), Some(local)) = (of_whole("global_head_dim", "head_dim"), settings.number("head_dim"))
        && (whole != local || of_layers.is_some() || settings.get("global_head_dim").is_some())
    {
        set("attention.key_length", Value::U64(whole));
        set("attention.key_length_swa", Value::U64(local));
        set("rope.dimension_count", Value::U64(whole));
        let shares = settings.is("attention_k_eq_v") != Some(false);
        let n_whole = of_whole("num_global_key_value_heads", "num_key_value_heads").filter(|_| shares);
        if let (Some(n_whole), Some(n_local)) = (n_whole, settings.number("num_key_value_heads")) {
            let clamped = |n: u64| n.min(i32::MAX as u64) as i32;
            let of = |layer: &Json| if layer == "full_attention" { clamped(n_whole) } else { clamped(n_local) };
            set("attention.head_count_kv", Value::Array(Array::I32(layers.map(of).collect())));
        }
    }
    let shares = settings.get("activation_sparsity_pattern").and_then(Json::as_array);
    if let Some(shares) = shares {
        let scale = |share: &Json| deviations(share.as_f64().unwrap_or(0.0)) as f32;
        set("activation_sparsity_scale", Value::Array(Array::F32(shares.iter().map(scale).collect())));
    }
    let widths = settings.get("intermediate_size").and_then(Json::as_array);
    let widest = widths.and_then(|widths| widths.iter().filter_map(Json::as_u64).max());
    let is_double = settings.is("use_double_wide_mlp") == Some(true);
    if let Some(width) = widest.or_else(|| settings.number("intermediate_size").filter(|_| is_double)) {
        set("feed_forward_length", Value::U64(if is_double { width.saturating_mul(2) } else { width }));
    }
}

/// What a drafter's configuration says beside its layers.
fn assistant_sizes(json: &Json, set: &mut impl FnMut(&str, Value)) {
    let number = |name: &str| json.get(name).and_then(Json::as_u64);
    if let Some(width) = number("backbone_hidden_size") {
        set("embedding_length_out", Value::U64(width));
    }
    let counts = number("num_centroids").zip(number("centroid_intermediate_top_k"));
    if let (Some((n, n_used)), Some(true)) = (counts, json.get("use_ordered_embeddings").and_then(Json::as_bool)) {
        set("cluster_count", Value::U64(n));
        set("cluster_used_count", Value::U64(n_used));
    }
}

/// Which layers have an indexer of their own: by a list, by a letter for each, or every so many from one on.
fn indexed_layers(settings: &HubConfig) -> Option<Vec<bool>> {
    let listed = ["indexer_types", "index_topk_pattern"].into_iter().find_map(|name| settings.get(name));
    if let Some(layers) = listed.and_then(Json::as_array) {
        return Some(layers.iter().map(|layer| layer == "full").collect());
    }
    if let Some(letters) = listed.and_then(Json::as_str) {
        return Some(letters.chars().map(|letter| letter == 'F').collect());
    }
    let period = settings.number("index_topk_freq").filter(|period| *period > 0)?;
    let from = settings.number("index_skip_topk_offset").unwrap_or(2);
    // The reader bounds the number of layers; a list that does not fit is not used.
    let n_layers = settings.number("num_hidden_layers")?.min(1 << 16);
    Some((0..n_layers).map(|layer| (layer + 1).saturating_sub(from) % period == 0).collect())
}

/// How many standard deviations above the mean a share of normally distributed numbers lies below: by bisection.
fn deviations(share: f64) -> f64 {
    if share <= 0.0 {
        return f64::NEG_INFINITY;
    }
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        *if below(middle) < share { &mut low } else { &mut high } = middle;
    }
    (low + high) / 2.0
}

/// The share of normally distributed numbers below `x` deviations: the density, integrated by Simpson's rule.
fn below(x: f64) -> f64 {
    const N: usize = 2000;
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let end = x.clamp(-12.0, 12.0);
    let step = end / N as f64;
    let weight = |i: usize| if i == 0 || i == N { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    0.5 + step / 3.0 * (0..=N).map(|i| weight(i) * density(i as f64 * step)).sum::<f64>()
}

/// Sizes of recurrent layers that follow from others.
fn recurrent_sizes(settings: &HubConfig, set: &mut impl FnMut(&str, Value)) {
    let product = |[a, b]: [&str; 2]| settings.number(a)?.checked_mul(settings.number(b)?);
    let by_expansion = || settings.number("mamba_expand")?.checked_mul(settings.width()?);
    let inner = settings
        .number("mamba_d_ssm")
        .or_else(|| product(["mamba_num_heads", "mamba_head_dim"]))
        .or_else(|| product(["mamba_n_heads", "mamba_d_head"]))
        .or_else(|| product(["mamba_num_heads", "hidden_size_per_head"]))
        .or_else(|| product(["linear_num_value_heads", "linear_value_head_dim"]))
        .or_else(by_expansion)
        .or_else(|| product(["num_heads", "head_dim"]));
    if let Some(inner) = inner {
        set("ssm.inner_size", Value::U64(inner));
    }
    if let Some(layers) = settings.get("layers_block_type").and_then(Json::as_array) {
        set("block_count", Value::U64(layers.len() as u64));
    }
    // Kimi's own code keeps them in a part of their own.
    if let Some(part) = settings.get("linear_attn_config") {
        for (key, name) in [("kda.head_dim", "head_dim"), ("ssm.time_step_rank", "num_heads")] {
            if let Some(n) = part.get(name).and_then(Json::as_u64) {
                set(key, Value::U64(n));
            }
        }
    }
}

fn multipliers(settings: &HubConfig) -> Multipliers {
    let one = |name: &str| settings.real(name).map_or(1.0, |x| x as f32);
    let list =
        |name: &str, i: usize| settings.get(name).and_then(|list| list.get(i)?.as_f64()).map_or(1.0, |x| x as f32);
    Multipliers {
        attention_in: one("attention_in_multiplier"),
        attention_out: one("attention_out_multiplier"),
        key: one("key_multiplier"),
        ffn: [0, 1].map(|i| list("mlp_multipliers", i)),
        ssm_in: one("ssm_in_multiplier"),
        ssm_out: one("ssm_out_multiplier"),
        ssm: [0, 1, 2, 3, 4].map(|i| list("ssm_multipliers", i)),
    }
}

/// What scores, blocks and logits are multiplied with.
fn scales(settings: &HubConfig, set: &mut impl FnMut(&str, Value)) {
    if let Some(width) = settings.real("query_pre_attn_scalar") {
        set("attention.scale", Value::F64(width.powf(-0.5)));
    }
    if settings.is("alibi") == Some(true) {
        set("attention.max_alibi_bias", Value::F64(settings.real("alibi_bias_max").unwrap_or(8.0)));
    }
    if let (Some(depth), Some(n_layers)) = (settings.real("scale_depth"), settings.number("num_hidden_layers")) {
        set("residual_scale", Value::F64(depth / (n_layers.max(1) as f64).sqrt()));
    }
    if let (Some(base), Some(width)) = (settings.real("dim_model_base"), settings.width()) {
        set("logit_scale", Value::F64(width as f64 / base));
    }
}

/// From `1_Pooling/config.json`, as sentence-transformers writes it.
pub fn pooling(json: &Json) -> Option<Pooling> {
    let is_set = |name: &str| json.get(name).and_then(Json::as_bool) == Some(true);
    let modes = [
        ("pooling_mode_cls_token", Pooling::First),
        ("pooling_mode_lasttoken", Pooling::Last),
        ("pooling_mode_mean_tokens", Pooling::Mean),
    ];
    modes.into_iter().find(|(name, _)| is_set(name)).map(|(_, pooling)| pooling)
}

/// Negative numbers and texts are no sizes; the reader says what is missing.
fn value_of(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(flag) => Some(Value::Bool(*flag)),
        Json::Number(number) => number.as_u64().map(Value::U64).or_else(|| number.as_f64().map(Value::F64)),
        // One for each layer, all the same.
        Json::Array(all) if !all.is_empty() && all.iter().all(|one| *one == all[0]) => value_of(&all[0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_without_a_type_is_told_what_is_missing() {
        let error = translate(&serde_json::json!({"hidden_size": 64})).err().unwrap().to_string();
        assert!(error.starts_with("`model_type` is missing: it names the family"), "{error}");
    }
}
