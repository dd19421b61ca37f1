//! Foreign packings: what GPTQ, AWQ, compressed-tensors, F8 with scales and MXFP4 checkpoints keep in several tensors
//! each becomes one tensor `X.weight` of a type of ours. Where a type holds the same numbers exactly it is that one
//! (Q4_0, Q8_0, MXFP4); else the numbers are rounded once, to F16.
//!
//! Everything is checked when the file is opened; the work is done when a tensor's bytes are first looked at.

mod awq;
mod compressed;
mod fp8;
mod gptq;
mod make;
mod mxfp4;

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::reader::StoredTensor;
use crate::{Error, HubFiles, Result, Tensor};

/// The tensors of a model by name; what a scheme takes is gone for the others.
pub(super) struct PackedTensors {
    by_name: HashMap<String, StoredTensor>,
}

impl PackedTensors {
    fn take(&mut self, name: &str) -> Option<StoredTensor> {
        self.by_name.remove(name)
    }

    fn need(&mut self, name: &str, whose: &str) -> Result<StoredTensor> {
        self.take(name).ok_or_else(|| Error::invalid(format_args!("tensor `{whose}`"), format!("`{name}` is missing")))
    }
}

/// What the schemes make of a model's tensors: their own, those they leave alone, and a line for people.
pub(super) struct UnpackedTensors {
    pub tensors: Vec<Tensor>,
    pub rest: Vec<StoredTensor>,
    pub notes: Vec<String>,
}

pub(super) fn unpack(stored: Vec<StoredTensor>, hub: Option<&HubFiles>) -> Result<UnpackedTensors> {
    let config = hub.map(|hub| quantization_of(&hub.config)).unwrap_or(&Value::Null);
    let names: Vec<String> = stored.iter().map(|tensor| tensor.name.clone()).collect();
    let mut pieces =
        PackedTensors { by_name: stored.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect() };
    let mut tensors = Vec::new();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for name in &names {
        if let Some((scheme, tensor)) = one(name, &mut pieces, config)? {
            *counts.entry((scheme, tensor.dtype.name())).or_default() += 1;
            tensors.push(tensor);
        }
    }
    let notes = counts.iter().map(|((scheme, dtype), n)| format!("{n} tensors of {scheme} are held as {dtype}"));
    let notes = notes.collect();
    // What is left keeps its order.
    let rest = names.iter().filter_map(|name| pieces.take(name)).collect();
    Ok(UnpackedTensors { tensors, rest, notes })
}

/// The packed tensor whose main piece is called `name`, if it is one.
fn one(name: &str, pieces: &mut PackedTensors, config: &Value) -> Result<Option<(&'static str, Tensor)>> {
    let Some(kind) = pieces.by_name.get(name).map(|tensor| tensor.kind) else { return Ok(None) };
    if let Some(stem) = name.strip_suffix(".qweight") {
        return match config["quant_method"].as_str() {
            Some("awq") => awq::tensor(stem, pieces, config).map(|tensor| Some(("AWQ", tensor))),
            Some("gptq") | None => gptq::tensor(stem, pieces, config).map(|tensor| Some(("GPTQ", tensor))),
            Some(other) => {
                let reason = format!("quantization method `{other}` is not supported yet");
                Err(Error::invalid(format_args!("tensor `{name}`"), reason))
            }
        };
    }
    if let Some(stem) = name.strip_suffix(".weight_packed") {
        return compressed::tensor(stem, pieces, config).map(|tensor| Some(("compressed-tensors", tensor)));
    }
    if let Some(stem) = name.strip_suffix("_blocks")
        && pieces.by_name.contains_key(&format!("{stem}_scales"))
    {
        return mxfp4::tensor(stem, pieces).map(|tensor| Some(("MXFP4", tensor)));
    }
    if let Some(scheme) = fp8::scheme_of(kind, name, pieces) {
        return fp8::tensor(name, pieces, config).map(|tensor| Some((scheme, tensor)));
    }
    Ok(None)
}

/// The part of a model's configuration that says how its weights are packed.
fn quantization_of(config: &Value) -> &Value {
    let places =
        [&config["quantization_config"], &config["compression_config"], &config["text_config"]["quantization_config"]];
    places.into_iter().find(|place| place.is_object()).unwrap_or(&Value::Null)
}
