//! Adapters as PEFT stores them: a folder with `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use weights::{Checkpoint, Tensor};

use super::{AdapterFile, LoraModule, part, unusable};
use crate::Error;
use crate::names::Format;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Settings that change what is computed, and that are not supported.
const UNSUPPORTED: [&str; 8] = [
    "modules_to_save",
    "trainable_token_indices",
    "layer_replication",
    "lora_bias",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
];
/// What PEFT puts before the names of the model it wraps.
const PREFIX: &str = "base_model.model.";

pub fn open(folder: &Path) -> Result<AdapterFile, Error> {
    let config = config(folder)?;
    let weights = folder.join(WEIGHTS);
    if !weights.is_file() {
        let has_pickle = folder.join("adapter_model.bin").is_file();
        let hint = if has_pickle { "; adapter_model.bin is not read, convert it to safetensors" } else { "" };
        return Err(unusable(format!("there is no {WEIGHTS} in the folder{hint}")));
    }
    let file = Checkpoint::open(&weights)?;
    let settings = PeftConfig::read(&config)?;
    let mut found: BTreeMap<String, LoraTensors> = BTreeMap::new();
    for tensor in file.tensors() {
        let (module, part) = split(&tensor.name)?;
        *found.entry(module.to_owned()).or_default().part(part) = Some(tensor.clone());
    }
    let mut modules = Vec::new();
    for (name, found) in found {
        modules.extend(found.modules(name, &settings)?);
    }
    AdapterFile::new(Format::Hub, None, modules)
}

fn config(folder: &Path) -> Result<Value, Error> {
    let path = folder.join(CONFIG);
    let text = std::fs::read(&path).map_err(|error| unusable(format!("cannot read {CONFIG}: {error}")))?;
    serde_json::from_slice(&text).map_err(|error| unusable(format!("{CONFIG} is not JSON: {error}")))
}

/// The module's name without the wrapper's prefix, and which of its matrices this is.
fn split(name: &str) -> Result<(&str, LoraPart), Error> {
    const PARTS: [(&str, LoraPart); 4] = [
        (".lora_A.weight", LoraPart::A),
        (".lora_B.weight", LoraPart::B),
        (".lora_magnitude_vector", LoraPart::Magnitude),
        (".lora_magnitude_vector.weight", LoraPart::Magnitude),
    ];
    let found = PARTS.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)));
    let Some((module, part)) = found else {
        let what = match name.contains("lora_embedding_") {
            true => "an adapter of the embedding, which is not supported".to_owned(),
            false => "neither lora_A, lora_B nor a magnitude: modules that were trained whole are not supported".into(),
        };
        return Err(Error::Tensor { name: name.to_owned(), what });
    };
    Ok((module.strip_prefix(PREFIX).unwrap_or(module), part))
}

#[derive(Copy, Clone)]
enum LoraPart {
    A,
    B,
    Magnitude,
}

#[derive(Default)]
struct LoraTensors {
    a: Option<Tensor>,
    b: Option<Tensor>,
    magnitude: Option<Tensor>,
}

impl LoraTensors {
    fn part(&mut self, part: LoraPart) -> &mut Option<Tensor> {
        match part {
            LoraPart::A => &mut self.a,
            LoraPart::B => &mut self.b,
            LoraPart::Magnitude => &mut self.magnitude,
        }
    }

    fn modules(self, name: String, settings: &PeftConfig) -> Result<Vec<LoraModule>, Error> {
        let Self { a, b, magnitude } = self;
        let missing = |what: &str| Error::Tensor { name: name.clone(), what: format!("{what} is missing") };
        let (a, b) = (a.ok_or_else(|| missing("lora_A"))?, b.ok_or_else(|| missing("lora_B"))?);
        let (rank, alpha) = (settings.rank(&name)?, settings.alpha(&name));
        let divisor = if settings.is_rank_stabilized { (rank as f32).sqrt() } else { rank as f32 };
        let scale = alpha / divisor;
        if let Some(n) = settings.n_experts(&name, &a, rank) {
            return experts(&name, n, rank, [&a, &b], scale);
        }
        match (settings.has_magnitudes, &magnitude) {
            (true, None) => return Err(missing("the magnitude vector that use_dora asks for")),
            (false, Some(_)) => {
                let what = "a magnitude vector, but the configuration does not say use_dora".to_owned();
                return Err(Error::Tensor { name, what });
            }
            _ => {}
        }
        if a.shape.first() != Some(&rank) {
            let what = format!("A has shape {:?}, the configuration says rank {rank}", a.shape);
            return Err(Error::Tensor { name, what });
        }
        Ok(vec![LoraModule { name, expert: None, a, b, scale, magnitude }])
    }
}

/// A parameter of all experts: the rows of `A` are those of one expert after another, the columns of `B` take turns. Two
/// parameters of one module are wrapped in each other, and only their sizes tell which is which.
fn experts(name: &str, n: usize, rank: usize, [a, b]: [&Tensor; 2], scale: f32) -> Result<Vec<LoraModule>, Error> {
    let (&[a_rows, n_in], &[n_out, b_cols]) = (&a.shape[..], &b.shape[..]) else {
        let what = format!("A of shape {:?} and B of shape {:?} are no low-rank product", a.shape, b.shape);
        return Err(Error::Tensor { name: name.to_owned(), what });
    };
    let plain = [a, b].into_iter().all(|tensor| tensor.dtype.is_plain());
    if a_rows != n * rank || b_cols != a_rows || !plain {
        let what = format!("A of {:?} {} and B of {:?} {} for {n} experts", a.shape, a.dtype, b.shape, b.dtype);
        return Err(Error::Tensor { name: name.to_owned(), what });
    }
    let name = name.trim_end_matches(".base_layer");
    let of = |i: usize| -> Result<LoraModule, Error> {
        let a = part(a, [rank, n_in], i * rank * n_in..(i + 1) * rank * n_in)?;
        let columns = (0..n_out * rank).map(|at| at / rank * b_cols + at % rank * n + i);
        let b = part(b, [n_out, rank], columns)?;
        Ok(LoraModule { name: name.to_owned(), expert: Some((i, n)), a, b, scale, magnitude: None })
    };
    (0..n).map(of).collect()
}

/// What `adapter_config.json` says about all modules, and about some.
struct PeftConfig {
    rank: usize,
    alpha: f32,
    is_rank_stabilized: bool,
    has_magnitudes: bool,
    ranks: Vec<(String, f64)>,
    alphas: Vec<(String, f64)>,
    /// Parameters that are changed without being a module.
    parameters: Vec<String>,
}

impl PeftConfig {
    fn read(config: &Value) -> Result<Self, Error> {
        let wrong = |what: String| Err(unusable(format!("{CONFIG}: {what}")));
        match config["peft_type"].as_str() {
            Some("LORA") => {}
            Some(other) => return wrong(format!("peft_type is {other}, only LORA is supported")),
            None => return wrong("peft_type is missing".into()),
        }
        let is_set = |key: &str| match &config[key] {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        if let Some(key) = UNSUPPORTED.into_iter().find(|key| is_set(key)) {
            return wrong(format!("{key} is not supported"));
        }
        if let Some(bias) = config["bias"].as_str().filter(|bias| *bias != "none") {
            return wrong(format!("bias is {bias}, only none is supported"));
        }
        let Some(rank) = config["r"].as_u64().filter(|rank| (1..=65536).contains(rank)) else {
            return wrong(format!("r is {}, a rank from 1 to 65536 is expected", config["r"]));
        };
        let alpha = match &config["lora_alpha"] {
            // PEFT's default.
            Value::Null => 8.0,
            value => value.as_f64().unwrap_or(f64::NAN),
        };
        if !(alpha as f32).is_finite() {
            return wrong(format!("lora_alpha is {}, a finite number is expected", config["lora_alpha"]));
        }
        let parameters: Vec<String> = match config["target_parameters"].as_array() {
            Some(list) => list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            None if is_set("target_parameters") => return wrong("target_parameters is no list of names".into()),
            None => Vec::new(),
        };
        let [ranks, alphas] = ["rank_pattern", "alpha_pattern"].map(|key| pattern(config, key));
        let (ranks, alphas) = (ranks?, alphas?);
        let is_parameter =
            |(name, _): &&(String, f64)| parameters.iter().any(|parameter| parameter.ends_with(name.as_str()));
        if let Some((name, _)) = ranks.iter().chain(&alphas).find(is_parameter) {
            return wrong(format!("a pattern names the parameter `{name}`, only modules are supported"));
        }
        Ok(Self {
            rank: rank as usize,
            alpha: alpha as f32,
            is_rank_stabilized: is_set("use_rslora"),
            has_magnitudes: is_set("use_dora"),
            ranks,
            alphas,
            parameters,
        })
    }

    /// How many experts the rows of `A` are of, where the module's parameter is one of all experts.
    fn n_experts(&self, module: &str, a: &Tensor, rank: usize) -> Option<usize> {
        let module = module.trim_end_matches(".base_layer");
        // `mlp.experts.down_proj` is a parameter of `model.layers.0.mlp.experts`.
        let is_of = |parameter: &String| {
            parameter.rsplit_once('.').is_some_and(|(of, _)| module == of || module.ends_with(&format!(".{of}")))
        };
        let n_rows = *a.shape.first()?;
        (self.parameters.iter().any(is_of) && n_rows.is_multiple_of(rank)).then_some(n_rows / rank)
    }

    fn rank(&self, module: &str) -> Result<usize, Error> {
        match special(&self.ranks, module) {
            None => Ok(self.rank),
            Some(rank) if (1.0..=65536.0).contains(&rank) && rank.fract() == 0.0 => Ok(rank as usize),
            Some(rank) => Err(unusable(format!("{CONFIG}: rank_pattern gives `{module}` the rank {rank}"))),
        }
    }

    fn alpha(&self, module: &str) -> f32 {
        special(&self.alphas, module).map_or(self.alpha, |alpha| alpha as f32)
    }
}

fn pattern(config: &Value, key: &str) -> Result<Vec<(String, f64)>, Error> {
    let Some(map) = config[key].as_object() else { return Ok(Vec::new()) };
    let row = |(name, value): (&String, &Value)| match value.as_f64() {
        Some(_) if name.contains(['(', '[', '*', '+', '\\', '|', '^', '$']) => {
            Err(unusable(format!("{CONFIG}: {key} has the regular expression `{name}`, only names are supported")))
        }
        Some(value) => Ok((name.clone(), value)),
        None => Err(unusable(format!("{CONFIG}: {key} of `{name}` is no number"))),
    };
    map.iter().map(row).collect()
}

/// The first pattern that is the module's name or its end, as PEFT looks for it.
fn special(patterns: &[(String, f64)], module: &str) -> Option<f64> {
    let is_of = |name: &str| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    patterns.iter().find(|(name, _)| is_of(name)).map(|(_, value)| *value)
}
