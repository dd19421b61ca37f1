//! Rope's part of `config.json`: bases, the part of a head that is rotated, and how angles are stretched.

use serde_json::Value as Json;

use crate::Error;
use crate::family::Family;
use crate::rope_scaling::{RopeScaling, Yarn, long_magnitude, mscale};

pub struct RopeSettings<'a> {
    pub base: Option<f64>,
    pub local_base: Option<f64>,
    /// The part of a head that is rotated.
    pub part: Option<f64>,
    pub scaling: Option<&'a Json>,
}

/// From `rope_parameters`, one or one for each kind of layer, or from the older keys beside each other.
pub fn rope_settings(json: &Json) -> RopeSettings<'_> {
    let number = |json: &Json, name: &str| json.get(name).and_then(Json::as_f64);
    let parameters = json.get("rope_parameters").filter(|value| value.is_object());
    let full = parameters.map(|all| all.get("full_attention").unwrap_or(all));
    let local = parameters.and_then(|all| all.get("sliding_attention"));
    let is_proportional = full.is_some_and(|full| full.get("rope_type").is_some_and(|kind| kind == "proportional"));
    let scaling = full.or_else(|| json.get("rope_scaling").filter(|value| value.is_object()));
    RopeSettings {
        base: full.and_then(|full| number(full, "rope_theta")).or_else(|| {
            ["rope_theta", "global_rope_theta", "rotary_emb_base"].iter().find_map(|name| number(json, name))
        }),
        local_base: local
            .and_then(|local| number(local, "rope_theta"))
            .or_else(|| ["rope_local_base_freq", "local_rope_theta"].iter().find_map(|name| number(json, name))),
        part: full
            .filter(|_| !is_proportional)
            .and_then(|full| number(full, "partial_rotary_factor"))
            .or_else(|| number(json, "partial_rotary_factor"))
            .or_else(|| number(json, "rotary_pct")),
        scaling,
    }
}

pub fn scaling(json: Option<&Json>, context: f64, family: &Family) -> Result<RopeScaling, Error> {
    let Some(json) = json else { return Ok(RopeScaling::None) };
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
        is_good.then_some(list).ok_or_else(|| error(format!("`{name}` is not a list of numbers above zero")))
    };
    match kind.unwrap_or("default") {
        "default" | "none" | "mrope" => Ok(RopeScaling::None),
        "proportional" => Ok(RopeScaling::Proportional { part: number("partial_rotary_factor").unwrap_or(1.0) }),
        "linear" => Ok(RopeScaling::Linear { factor: above_zero("factor", None)? }),
        "dynamic" => Ok(RopeScaling::Dynamic { factor: above_zero("factor", None)?, original: original(context)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
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
            Ok(RopeScaling::Yarn(Yarn {
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
            let magnitude = above_zero(
                "attention_factor",
                Some(number("long_mscale").unwrap_or_else(|| long_magnitude(factor, original))),
            )?;
            Ok(RopeScaling::Long { short: list("short_factor")?, long: list("long_factor")?, original, magnitude })
        }
        other => Err(error(format!("`{other}` is not supported"))),
    }
}
