//! Adapters as llama.cpp stores them: a GGUF file with `NAME.lora_a` and `NAME.lora_b` for each matrix.

use std::collections::BTreeMap;
use std::path::Path;

use weights::{Checkpoint, FileFormat, Tensor};

use super::{AdapterFile, LoraModule, part, unusable};
use crate::Error;
use crate::names::Format;

pub fn open(path: &Path) -> Result<AdapterFile, Error> {
    let file = Checkpoint::open(path)?;
    if file.format() != FileFormat::Gguf {
        return Err(unusable(
            "a safetensors file alone does not say its scale; give the folder with adapter_config.json",
        ));
    }
    let metadata = file.metadata();
    match metadata.string("general.type")? {
        Some("adapter") => {}
        Some(other) => return Err(unusable(format!("general.type is `{other}`, an adapter is expected"))),
        None => return Err(unusable("general.type is missing: this is not an adapter")),
    }
    match metadata.string("adapter.type")? {
        Some("lora") => {}
        other => return Err(unusable(format!("adapter.type is {other:?}, only lora is supported"))),
    }
    if metadata.get("adapter.alora.invocation_tokens").is_some() {
        return Err(unusable("it is switched on by tokens of the prompt (aLoRA), which is not supported"));
    }
    let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
    if !alpha.is_finite() {
        return Err(unusable(format!("adapter.lora.alpha is {alpha}, a finite number is expected")));
    }
    let mut pairs: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
    for tensor in file.tensors() {
        let ends = [".lora_a", ".lora_b"];
        let found = ends.iter().enumerate().find_map(|(i, end)| Some((i, tensor.name.strip_suffix(end)?)));
        let Some((part, name)) = found else {
            let what = "neither lora_a nor lora_b: modules that were trained whole are not supported".to_owned();
            return Err(Error::Tensor { name: tensor.name.clone(), what });
        };
        let name = name.strip_suffix(".weight").unwrap_or(name);
        pairs.entry(name.to_owned()).or_default()[part] = Some(tensor.clone());
    }
    let mut modules = Vec::new();
    for (name, [a, b]) in pairs {
        let missing = |what: &str| Error::Tensor { name: name.clone(), what: format!("{what} is missing") };
        let pair = [a.ok_or_else(|| missing("lora_a"))?, b.ok_or_else(|| missing("lora_b"))?];
        let experts = experts(&name, &pair)?;
        modules.extend(experts.into_iter().map(|(expert, pair)| module(name.clone(), expert, pair, alpha)));
    }
    AdapterFile::new(Format::Gguf, metadata.string("general.architecture")?.map(str::to_owned), modules)
}

/// Which of how many experts, if any, and its matrices.
type OfExpert = (Option<(usize, usize)>, [Tensor; 2]);

/// The pair of each expert, where they lie in stacks.
fn experts(name: &str, [a, b]: &[Tensor; 2]) -> Result<Vec<OfExpert>, Error> {
    let ([n, a_rows, a_cols], [n_other, b_rows, b_cols]) = match (&a.shape[..], &b.shape[..]) {
        (&[n, a_rows, a_cols], &[n_other, b_rows, b_cols]) => ([n, a_rows, a_cols], [n_other, b_rows, b_cols]),
        _ => return Ok(vec![(None, [a.clone(), b.clone()])]),
    };
    let plain = [a, b].into_iter().all(|tensor| tensor.dtype.is_plain());
    if n != n_other || !plain {
        let what = format!("stacks of {n} and {n_other} experts, of {} and {}", a.dtype, b.dtype);
        return Err(Error::Tensor { name: name.to_owned(), what });
    }
    let of = |tensor: &Tensor, shape: [usize; 2], i: usize| {
        let len = shape[0] * shape[1];
        part(tensor, shape, i * len..(i + 1) * len)
    };
    (0..n).map(|i| Ok((Some((i, n)), [of(a, [a_rows, a_cols], i)?, of(b, [b_rows, b_cols], i)?]))).collect()
}

/// Without an alpha the product counts as it is.
fn module(name: String, expert: Option<(usize, usize)>, [a, b]: [Tensor; 2], alpha: f32) -> LoraModule {
    let rank = b.n_cols().max(1) as f32;
    let scale = if alpha == 0.0 { 1.0 } else { alpha / rank };
    LoraModule { name, expert, a, b, scale, magnitude: None }
}
