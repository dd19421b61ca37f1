//! The metadata of an exported checkpoint. Most of it is what `hub.rs` reads `config.json` as, in the widths that
//! llama.cpp insists on; rope's scaling is spelt out again, and some of it becomes tensors.

use ops::Gating;
use weights::{Bytes, Dtype, HubFiles, Metadata, Tensor, Value};

use crate::family::Windows;
use crate::head::YES_OR_NO_FORM;
use crate::hub::translate;
use crate::rope_scaling::{RopeScaling, mscale};
use crate::{Config, Error, Experts, FamilyKind, Pooling};

/// Keys that hold f32 in GGUF, also where `config.json` has a whole number.
const FLOATS: [&str; 10] = [
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "expert_weights_scale",
    "rope.freq_base",
];

pub fn metadata(hub: &HubFiles, config: &Config, name: &str) -> Result<Metadata, Error> {
    let translated = translate(&hub.config)?;
    let prefix = config.family.name;
    let mut out = Metadata::new();
    out.set("general.architecture", prefix);
    out.set("general.type", "model");
    out.set("general.name", name);
    for (key, value) in translated.metadata.iter() {
        let bare = key.strip_prefix(prefix).map_or(key, |rest| rest.trim_start_matches('.'));
        let value = match value {
            Value::U64(n) if FLOATS.contains(&bare) => Value::F32(*n as f32),
            Value::U64(n) => Value::U32(u32::try_from(*n).map_err(|_| Error::Metadata {
                key: key.to_owned(),
                what: format!("{n} does not fit GGUF's 32 bits"),
            })?),
            Value::F64(x) => Value::F32(*x as f32),
            other => other.clone(),
        };
        // No window is said by leaving it out.
        if bare != "attention.sliding_window" || value.as_integer() != Some(0) {
            out.set(key, value);
        }
    }
    let mut set = |key: &str, value: Value| drop(out.set(format!("{prefix}.{key}"), value));
    set("attention.key_length", Value::U32(config.head_dim as u32));
    // Compressed attention is attention of one head, whose values are the compressed vector.
    set("attention.value_length", Value::U32(config.mla.map_or(config.head_dim, |mla| mla.kv_rank) as u32));
    if config.mla.is_some() {
        set("attention.head_count_kv", Value::U32(config.n_kv_heads as u32));
        // llama.cpp asks for it where there are none, too.
        if translated.metadata.get(&format!("{prefix}.expert_shared_count")).is_none() {
            set("expert_shared_count", Value::U32(0));
        }
    }
    if let Some(experts) = &config.experts {
        set("expert_feed_forward_length", Value::U32(experts.n_ff as u32));
        if let Some(number) = gating_number(experts, config) {
            set("expert_gating_func", Value::U32(number));
        }
    }
    set("context_length", Value::U32(config.n_ctx_train as u32));
    if config.family.kind == FamilyKind::Encoder {
        set("attention.causal", Value::Bool(false));
        if let Some(pooling) = config.pooling {
            let number = match pooling {
                Pooling::Mean => 1,
                Pooling::First => 2,
                Pooling::Last => 3,
                Pooling::Score { .. } => 4,
            };
            set("pooling_type", Value::U32(number));
        }
        if let Some(labels) = labels(hub) {
            set("classifier.output_labels", labels.into());
        }
    } else {
        set("rope.dimension_count", Value::U32(config.n_rot as u32));
    }
    set("vocab_size", Value::U32(config.n_vocab as u32));
    check_windows(config)?;
    scaling(config, set)?;
    Ok(out)
}

/// What says that a model scores texts by answering "yes" or "no".
pub fn rerank(out: &mut Metadata, prefix: &str) {
    // llama.cpp's number for models that score.
    out.set(format!("{prefix}.pooling_type"), Value::U32(4));
    out.set(format!("{prefix}.classifier.output_labels"), vec!["yes".to_owned(), "no".to_owned()]);
    out.set("tokenizer.chat_template.rerank", YES_OR_NO_FORM);
    out.set("tokenizer.chat_templates", vec!["rerank".to_owned()]);
}

/// Rope's scaling, where it is not in tensors.
fn scaling(config: &Config, mut set: impl FnMut(&str, Value)) -> Result<(), Error> {
    match &config.rope.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } => {}
        RopeScaling::Linear { factor } => {
            set("rope.scaling.type", Value::String("linear".into()));
            set("rope.scaling.factor", Value::F32(*factor as f32));
        }
        RopeScaling::Yarn(yarn) => {
            if yarn.truncates != config.family.yarn_truncates {
                let what = format!("GGUF has no word for YaRN's `truncate`, here {}", yarn.truncates);
                return Err(Error::NotInGguf { what });
            }
            set("rope.scaling.type", Value::String("yarn".into()));
            set("rope.scaling.factor", Value::F32(yarn.factor as f32));
            set("rope.scaling.original_context_length", Value::U32(yarn.original as u32));
            set("rope.scaling.yarn_beta_fast", Value::F32(yarn.beta_fast as f32));
            set("rope.scaling.yarn_beta_slow", Value::F32(yarn.beta_slow as f32));
            // What compressed attention is multiplied with leaves the angles as they are.
            let attention = yarn.attention.filter(|_| config.mla.is_some() && yarn.factor > 1.0);
            let usual = if attention.is_some() { 1.0 } else { mscale(yarn.factor, 1.0) };
            if let Some(attention) = attention {
                if yarn.magnitude != usual {
                    return Err(Error::NotInGguf { what: "`mscale` and `mscale_all_dim` differ".into() });
                }
                let multiplier = (attention - 1.0) / yarn.factor.ln();
                set("rope.scaling.yarn_log_multiplier", Value::F32(multiplier as f32));
            } else if yarn.magnitude != usual {
                set("rope.scaling.attn_factor", Value::F32((yarn.magnitude / usual) as f32));
            }
        }
        RopeScaling::Long { original, magnitude, .. } => {
            set("rope.scaling.original_context_length", Value::U32(*original as u32));
            set("rope.scaling.attn_factor", Value::F32(*magnitude as f32));
        }
        RopeScaling::Proportional { .. } => {
            return Err(Error::NotInGguf { what: "proportional rope is not written yet".into() });
        }
        RopeScaling::Dynamic { .. } => {
            return Err(Error::NotInGguf { what: "GGUF has no word for dynamic rope scaling".into() });
        }
    }
    Ok(())
}

/// How experts are weighed, where the family's name does not say it: DeepSeek's second and third version differ.
fn gating_number(experts: &Experts, config: &Config) -> Option<u32> {
    let number = match experts.routing.gating {
        Gating::Softmax => 1,
        Gating::Sigmoid => 2,
        Gating::SoftmaxOfBest => 3,
        // GGUF has no number for it; the family says it.
        Gating::NearBest => 1,
    };
    (experts.routing.gating != config.family.gating).then_some(number)
}

/// What an encoder's classes are called, in the order of their numbers; two that transformers made up are none.
fn labels(hub: &HubFiles) -> Option<Vec<String>> {
    let by_number = hub.config.get("id2label")?.as_object()?;
    let labels: Option<Vec<String>> =
        (0..by_number.len()).map(|n| Some(by_number.get(&n.to_string())?.as_str()?.to_owned())).collect();
    labels.filter(|labels| !labels.is_empty() && (labels.len() != 2 || labels[0] != "LABEL_0"))
}

/// GGUF does not list the layers that look back only so far: the family's pattern must be the configuration's.
fn check_windows(config: &Config) -> Result<(), Error> {
    let is_windowed = |layer_idx: usize| match config.family.windows {
        Windows::All => true,
        Windows::AllBut(n) => !(layer_idx + 1).is_multiple_of(n),
        Windows::AllButFirstOf(n) => !layer_idx.is_multiple_of(n),
    };
    let differs = |(layer_idx, found): (usize, &bool)| *found != is_windowed(layer_idx);
    match config.is_windowed.iter().enumerate().position(differs) {
        Some(layer_idx) if config.window.is_some() => Err(Error::NotInGguf {
            what: format!("layer {layer_idx} has another window than GGUF's pattern for {}", config.family.name),
        }),
        _ => Ok(()),
    }
}

/// Divisors of rope's frequencies, where GGUF keeps them as tensors.
pub fn rope_tensors(config: &Config) -> Result<Vec<Tensor>, Error> {
    let tensor = |name: &str, numbers: Vec<f32>| {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::new(name, Dtype::F32, vec![numbers.len()], Bytes::from_vec(bytes))
    };
    match &config.rope.scaling {
        scaling @ RopeScaling::Llama3 { .. } => {
            let base = f64::from(config.rope.base);
            let plain = RopeScaling::None.frequencies(base, config.n_rot, 0);
            let scaled = scaling.frequencies(base, config.n_rot, 0);
            let divisors = plain.iter().zip(scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect();
            Ok(vec![tensor("rope_freqs.weight", divisors)?])
        }
        RopeScaling::Long { short, long, .. } => Ok(vec![
            tensor("rope_factors_long.weight", long.clone())?,
            tensor("rope_factors_short.weight", short.clone())?,
        ]),
        _ => Ok(Vec::new()),
    }
}
