//! `config.json`, as transformers writes it, in the words of GGUF's metadata: a table of keys, and the few settings
//! that are more than a number.

use serde_json::Value as Json;
use weights::{Metadata, Value};

use crate::family::{FAMILIES, Family, supported};
use crate::rope_scaling::{Scaling, Yarn, long_magnitude, mscale};
use crate::{Error, Pooling};

pub struct Translated {
    pub family: Family,
    pub metadata: Metadata,
    pub scaling: Scaling,
    /// Where the configuration lists the layers.
    pub is_windowed: Option<Vec<bool>>,
    pub position_offset: usize,
}

/// GGUF's key, and the names it goes by here, the first that is there.
const NUMBERS: &[(&str, &[&str])] = &[
    ("context_length", &["max_position_embeddings", "n_positions"]),
    ("embedding_length", &["hidden_size", "n_embd"]),
    ("block_count", &["num_hidden_layers", "n_layer"]),
    ("feed_forward_length", &["intermediate_size", "n_inner"]),
    ("attention.head_count", &["num_attention_heads", "n_head"]),
    ("attention.head_count_kv", &["num_key_value_heads"]),
    ("attention.key_length", &["head_dim"]),
    ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]),
    ("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon"]),
    ("attention.sliding_window", &["sliding_window"]),
    ("attention.scale", &["attention_multiplier"]),
    ("attn_logit_softcapping", &["attn_logit_softcapping"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("embedding_scale", &["embedding_multiplier"]),
    ("residual_scale", &["residual_multiplier"]),
    ("logit_scale", &["logits_scaling"]),
    ("vocab_size", &["vocab_size"]),
    ("expert_count", &["num_local_experts", "num_experts", "n_routed_experts"]),
    ("expert_used_count", &["num_experts_per_tok", "experts_per_token"]),
    ("expert_feed_forward_length", &["moe_intermediate_size"]),
    ("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
    ("expert_shared_count", &["n_shared_experts"]),
    ("leading_dense_block_count", &["first_k_dense_replace"]),
    ("expert_weights_scale", &["routed_scaling_factor"]),
    ("expert_weights_norm", &["norm_topk_prob"]),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("attention.q_lora_rank", &["q_lora_rank"]),
    ("attention.kv_lora_rank", &["kv_lora_rank"]),
    ("attention.value_length_mla", &["v_head_dim"]),
    ("rope.dimension_count", &["qk_rope_head_dim"]),
];

pub fn translate(json: &Json) -> Result<Translated, Error> {
    // Models that also see keep the language model's settings in a part of their own.
    let json = json.get("text_config").filter(|part| part.get("hidden_size").is_some()).unwrap_or(json);
    let Some(kind) = json.get("model_type").and_then(Json::as_str) else {
        return Err(Error::NoArchitecture("model_type", supported()));
    };
    let Some(family) = FAMILIES.iter().find(|family| family.hub_types.contains(&kind)).copied() else {
        return Err(Error::Architecture(kind.to_owned(), supported()));
    };
    let mut metadata = Metadata::default();
    let mut set = |key: &str, value: Value| metadata.set(format!("{}.{key}", family.name), value);
    let get = |name: &str| json.get(name).filter(|value| !value.is_null());
    for (key, names) in NUMBERS {
        if let Some(value) = names.iter().find_map(|name| get(name)).and_then(value_of) {
            set(key, value);
        }
    }
    if get("use_sliding_window").and_then(Json::as_bool) == Some(false) {
        set("attention.sliding_window", Value::U64(0));
    }
    if let Some(width) = get("query_pre_attn_scalar").and_then(Json::as_f64) {
        set("attention.scale", Value::F64(width.powf(-0.5)));
    }
    if get("topk_method").and_then(Json::as_str) == Some("greedy") {
        set("expert_group_count", Value::U64(1));
        set("expert_group_used_count", Value::U64(1));
    }
    let number = |name: &str| get(name).and_then(Json::as_u64);
    if let (Some(nope), Some(rope)) = (number("qk_nope_head_dim"), number("qk_rope_head_dim")) {
        set("attention.key_length_mla", Value::U64(nope.saturating_add(rope)));
    }
    let rope = rope_settings(json);
    if let Some(base) = rope.base {
        set("rope.freq_base", Value::F64(base));
    }
    if let Some(base) = rope.local_base {
        set("rope.freq_base_swa", Value::F64(base));
    }
    let head_dim = number("head_dim").or_else(|| number("hidden_size")?.checked_div(number("num_attention_heads")?));
    if let (Some(part), Some(head_dim), None) = (rope.part, head_dim, number("qk_rope_head_dim")) {
        set("rope.dimension_count", Value::U64((part * head_dim as f64) as u64));
    }
    let layers = get("layer_types").and_then(Json::as_array);
    let is_windowed = layers.map(|layers| layers.iter().map(|layer| layer == "sliding_attention").collect());
    let is_offset = matches!(kind, "roberta" | "xlm-roberta");
    let position_offset = if is_offset { number("pad_token_id").unwrap_or(1) as usize + 1 } else { 0 };
    let context = number("max_position_embeddings").unwrap_or(0) as f64;
    let scaling = scaling(rope.scaling, context, &family)?;
    Ok(Translated { family, scaling, is_windowed, position_offset, metadata })
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
        _ => None,
    }
}

struct RopeSettings<'a> {
    base: Option<f64>,
    local_base: Option<f64>,
    /// The part of a head that is turned.
    part: Option<f64>,
    scaling: Option<&'a Json>,
}

/// From `rope_parameters`, one or one for each kind of layer, or from the older keys beside each other.
fn rope_settings(json: &Json) -> RopeSettings<'_> {
    let number = |json: &Json, name: &str| json.get(name).and_then(Json::as_f64);
    let parameters = json.get("rope_parameters").filter(|value| value.is_object());
    let full = parameters.map(|all| all.get("full_attention").unwrap_or(all));
    let local = parameters.and_then(|all| all.get("sliding_attention"));
    let scaling = full.or_else(|| json.get("rope_scaling").filter(|value| value.is_object()));
    RopeSettings {
        base: full.and_then(|full| number(full, "rope_theta")).or_else(|| number(json, "rope_theta")),
        local_base: local
            .and_then(|local| number(local, "rope_theta"))
            .or_else(|| number(json, "rope_local_base_freq")),
        part: full
            .and_then(|full| number(full, "partial_rotary_factor"))
            .or_else(|| number(json, "partial_rotary_factor")),
        scaling,
    }
}

fn scaling(json: Option<&Json>, context: f64, family: &Family) -> Result<Scaling, Error> {
    let Some(json) = json else { return Ok(Scaling::None) };
    let error = |what: String| Error::Metadata { key: "config.json: rope scaling".into(), what };
    let kind = ["rope_type", "type"].iter().find_map(|name| json.get(name)).and_then(Json::as_str);
    let number = |name: &str| json.get(name).and_then(Json::as_f64);
    let above_zero = |name: &str, default: Option<f64>| match number(name).or(default) {
        Some(x) if x.is_finite() && x > 0.0 => Ok(x),
        found => Err(error(format!("`{name}` is {found:?}, expected a number above zero"))),
    };
    let original = |default| above_zero("original_max_position_embeddings", Some(default));
    let list = |name: &str| -> Result<Vec<f32>, Error> {
        let numbers = json.get(name).and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_f64);
        let list: Vec<f32> = numbers.map(|x| x as f32).collect();
        let is_good = !list.is_empty() && list.iter().all(|x| x.is_finite() && *x > 0.0);
        is_good.then_some(list).ok_or_else(|| error(format!("`{name}` is no list of numbers above zero")))
    };
    match kind.unwrap_or("default") {
        "default" | "none" | "mrope" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: above_zero("factor", None)? }),
        "dynamic" => Ok(Scaling::Dynamic { factor: above_zero("factor", None)?, original: original(context)? }),
        "llama3" => Ok(Scaling::Llama3 {
            factor: above_zero("factor", None)?,
            low: above_zero("low_freq_factor", Some(1.0))?,
            high: above_zero("high_freq_factor", Some(4.0))?,
            original: original(8192.0)?,
        }),
        "yarn" => {
            let original = original(context)?;
            let factor = above_zero("factor", Some(context / original))?;
            let (of_one, of_all) = (number("mscale").unwrap_or(0.0), number("mscale_all_dim").unwrap_or(0.0));
            let both = of_one != 0.0 && of_all != 0.0;
            let default = if both { mscale(factor, of_one) / mscale(factor, of_all) } else { mscale(factor, 1.0) };
            Ok(Scaling::Yarn(Yarn {
                factor,
                original,
                beta_fast: above_zero("beta_fast", Some(32.0))?,
                beta_slow: above_zero("beta_slow", Some(1.0))?,
                magnitude: above_zero("attention_factor", Some(default))?,
                attention: (of_all != 0.0).then(|| mscale(factor, of_all)),
                truncates: json.get("truncate").and_then(Json::as_bool).unwrap_or(family.yarn_truncates),
            }))
        }
        "longrope" | "su" => {
            let original = original(context)?;
            let factor = above_zero("factor", Some(context / original))?;
            let magnitude = above_zero("attention_factor", Some(long_magnitude(factor, original)))?;
            Ok(Scaling::Long { short: list("short_factor")?, long: list("long_factor")?, original, magnitude })
        }
        other => Err(error(format!("`{other}` is not supported"))),
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
