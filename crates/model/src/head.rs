//! What follows the last hidden states of a text, if anything: a reranker's head, which turns them into one score (or a
//! few classes), and the layers that sentence-transformers puts between pooling and the vector.
//!
//! These are a few small products for one row, so they stay on the host wherever the model runs.

use serde_json::Value as Json;
use weights::{Bytes, Checkpoint, Tensor};

use crate::family::FamilyKind;
use crate::names::{At, Format, Names};
use crate::{Config, Error, PooledStates};

pub struct Head {
    /// Width to width, with `activation` and a norm after it.
    dense: Option<Layer>,
    activation: HostActivation,
    norm: Option<(Vec<f32>, f32)>,
    output: Layer,
    states: PooledStates,
    /// Whether two outputs stand for "yes" and "no", and scores are their probabilities.
    is_choice: bool,
}

/// The layers in safetensors, by what writes them: transformers' RoBERTa, its ModernBERT, its BERT, its decoders.
const HUB_SPELLINGS: [(&str, &str); 4] = [
    ("classifier.dense", "classifier.out_proj"),
    ("head.dense", "classifier"),
    ("bert.pooler.dense", "classifier"),
    ("", "score"),
];

/// The spelling that a folder's tensors have.
pub fn hub_spelling(checkpoint: &Checkpoint) -> Option<(&'static str, &'static str)> {
    let has = |name: &str| checkpoint.find(&format!("{name}.weight")).is_some();
    HUB_SPELLINGS.into_iter().find(|(dense, output)| has(output) && (dense.is_empty() || has(dense)))
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum HostActivation {
    Identity,
    Tanh,
    Gelu,
}

impl HostActivation {
    fn apply(self, x: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Tanh => x.iter_mut().for_each(|x| *x = x.tanh()),
            Self::Gelu => x.iter_mut().for_each(|x| *x = ops::gelu(*x)),
        }
    }
}

struct Layer {
    /// `[bias.len(), n_in]`
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Head {
    /// `None` where the checkpoint has none.
    pub fn open(config: &Config, names: &Names) -> Result<Option<Self>, Error> {
        let find = |name: &str, suffix: &str| match names.format {
            _ if name.is_empty() => None,
            Format::Gguf => names.find(At::Model, name, suffix),
            Format::Hub => names.checkpoint.find(&format!("{name}.{suffix}")),
        };
        let n_embd = config.n_embd;
        let spelling = match names.format {
            Format::Gguf => Some(("cls", "cls.output")),
            Format::Hub => hub_spelling(names.checkpoint),
        };
        if let Some((dense_name, output)) = spelling
            && let Some(weight) = find(output, "weight")
        {
            let n_classes = weight.shape.first().copied().unwrap_or(1);
            let dense = match find(dense_name, "weight") {
                Some(weight) => Some(Layer::read(weight, find(dense_name, "bias"), [n_embd, n_embd])?),
                None => None,
            };
            let norm = ["cls.norm", "head.norm"].iter().find_map(|name| find(name, "weight"));
            let norm = norm.map(|norm| Ok::<_, Error>((floats(norm, &[n_embd])?, config.norm_eps))).transpose()?;
            let output = Layer::read(weight, find(output, "bias"), [n_classes, n_embd])?;
            // Only ModernBERT's has a norm.
            let activation = if norm.is_some() { HostActivation::Gelu } else { HostActivation::Tanh };
            let states = config.head_states;
            let is_choice = n_classes == 2 && labels(names.checkpoint, config) == ["yes", "no"];
            return Ok(Some(Self { dense, activation, norm, output, states, is_choice }));
        }
        match answers_yes_or_no(names.checkpoint) {
            true => Self::of_words(config, names),
            false => Ok(None),
        }
    }

    /// Which hidden states it reads.
    pub fn states(&self) -> PooledStates {
        self.states
    }

    /// Of a model that was trained to answer with the words "yes" or "no".
    fn of_words(config: &Config, names: &Names) -> Result<Option<Self>, Error> {
        let Some(rows) = answer_rows(config, names)? else { return Ok(None) };
        let output = Layer::read(&rows, None, [2, config.n_embd])?;
        let (activation, states) = (HostActivation::Identity, PooledStates::Last);
        Ok(Some(Self { dense: None, activation, norm: None, output, states, is_choice: true }))
    }

    pub fn score(&self, pooled: &[f32]) -> Vec<f32> {
        let mut scores = match &self.dense {
            Some(dense) => {
                let mut between = dense.apply(pooled);
                self.activation.apply(&mut between);
                if let Some((weight, eps)) = &self.norm {
                    layer_norm(&mut between, weight, *eps);
                }
                self.output.apply(&between)
            }
            None => self.output.apply(pooled),
        };
        if self.is_choice {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        scores
    }
}

/// The rows of the output layer for "yes" and for "no", under GGUF's name; `None` where the vocabulary lacks them.
pub fn answer_rows(config: &Config, names: &Names) -> Result<Option<Tensor>, Error> {
    let Some(words) = names.checkpoint.hub().and_then(|hub| hub.tokenizer_json.as_ref()) else { return Ok(None) };
    let words: Json = serde_json::from_slice(words).unwrap_or_default();
    let word = |word: &str| words["model"]["vocab"][word].as_u64().map(|id| id as usize);
    let (Some(yes), Some(no)) = (word("yes"), word("no")) else { return Ok(None) };
    let table = match names.find(At::Model, "output", "weight") {
        Some(table) => table,
        None => names.tensor(At::Model, "token_embd")?,
    };
    let n_embd = config.n_embd;
    let mut bytes = Vec::new();
    for row in [yes, no] {
        let is_there = table.shape.last() == Some(&n_embd) && row < table.n_elements() / n_embd;
        let Some(row_bytes) = table.dtype.row_bytes(n_embd).filter(|_| is_there) else {
            let what = format!("no row {row} of {n_embd} numbers");
            return Err(Error::Tensor { name: table.name.clone(), what });
        };
        bytes.extend_from_slice(&table.bytes[row * row_bytes..(row + 1) * row_bytes]);
    }
    Ok(Some(Tensor::new("cls.output.weight", table.dtype, vec![2, n_embd], Bytes::from_vec(bytes))?))
}

/// Which hidden states a head reads: what the file says of it, and otherwise what its kind of model does.
pub fn head_states(kind: FamilyKind, named: Option<usize>) -> PooledStates {
    match (kind, named) {
        (FamilyKind::Decoder | FamilyKind::Assistant, _) => PooledStates::Last,
        (FamilyKind::Encoder, Some(1)) => PooledStates::Mean,
        (FamilyKind::Encoder, _) => PooledStates::First,
    }
}

/// What Qwen3's rerankers were trained to read; GGUF files hold the same text, written by llama.cpp's converter.
pub const YES_OR_NO_FORM: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query \
and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n\
<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Qwen3's rerankers in safetensors. They are told from its chat models by their names alone, as llama.cpp's converter
/// does it.
pub fn answers_yes_or_no(checkpoint: &Checkpoint) -> bool {
    let Some(hub) = checkpoint.hub() else { return false };
    if hub.config.get("model_type").and_then(Json::as_str) != Some("qwen3") {
        return false;
    }
    let folder = hub.folder.as_deref();
    let whole = folder.and_then(|folder| folder.canonicalize().ok());
    let names = [
        whole.as_deref().map(|folder| folder.to_string_lossy().into_owned()),
        hub.config.get("_name_or_path").and_then(Json::as_str).map(str::to_owned),
        folder.and_then(|folder| std::fs::read_to_string(folder.join("README.md")).ok()).map(|text| {
            let titles = text.lines().filter(|line| line.starts_with("# "));
            titles.collect::<Vec<_>>().join("\n")
        }),
    ];
    names.into_iter().flatten().any(|name| name.to_lowercase().contains("qwen3-reranker"))
}

fn labels<'a>(checkpoint: &'a Checkpoint, config: &Config) -> Vec<&'a str> {
    let key = format!("{}.classifier.output_labels", config.family.name);
    let labels = checkpoint.metadata().strings(&key).ok().flatten().unwrap_or_default();
    labels.iter().map(AsRef::as_ref).collect()
}

/// Layers between the pooled hidden states and the vector of a text.
pub struct Projection(Vec<(Layer, HostActivation)>);

impl Projection {
    /// `None` where there are none.
    pub fn open(config: &Config, names: &Names) -> Result<Option<Self>, Error> {
        let layers = match names.checkpoint.hub() {
            None => Self::of_gguf(config, names)?,
            Some(hub) => match (&hub.folder, &hub.modules) {
                (Some(folder), Some(modules)) => Self::of_modules(config, folder, modules)?,
                _ => Vec::new(),
            },
        };
        Ok((!layers.is_empty()).then_some(Self(layers)))
    }

    fn of_gguf(config: &Config, names: &Names) -> Result<Vec<(Layer, HostActivation)>, Error> {
        let mut layers = Vec::new();
        let mut n_in = config.n_embd;
        for name in ["dense_2", "dense_3"] {
            let Some(weight) = names.find(At::Model, name, "weight") else { continue };
            let n_out = weight.shape.first().copied().unwrap_or(0);
            let layer = Layer::read(weight, names.find(At::Model, name, "bias"), [n_out, n_in])?;
            layers.push((layer, HostActivation::Identity));
            n_in = n_out;
        }
        Ok(layers)
    }

    /// From the folders that sentence-transformers' `modules.json` names.
    fn of_modules(
        config: &Config,
        folder: &std::path::Path,
        modules: &Json,
    ) -> Result<Vec<(Layer, HostActivation)>, Error> {
        let mut layers = Vec::new();
        let mut n_in = config.n_embd;
        for module in modules.as_array().into_iter().flatten() {
            let is_dense = module["type"].as_str().is_some_and(|kind| kind.ends_with("Dense"));
            let Some(path) = module["path"].as_str().filter(|path| is_dense && is_plain(path)) else { continue };
            let part = Checkpoint::open(&folder.join(path).join("model.safetensors"))?;
            let settings = part.hub().map(|hub| &hub.config);
            let named = settings.and_then(|settings| settings["activation_function"].as_str()).unwrap_or_default();
            let activation = match named.rsplit('.').next() {
                Some("Identity" | "") | None => HostActivation::Identity,
                Some("Tanh") => HostActivation::Tanh,
                Some("GELU") => HostActivation::Gelu,
                Some(other) => {
                    let what = format!("`{other}` is not supported");
                    return Err(Error::Metadata { key: format!("{path}/config.json: activation_function"), what });
                }
            };
            let weight = part.tensor("linear.weight")?;
            let n_out = weight.shape.first().copied().unwrap_or(0);
            layers.push((Layer::read(weight, part.find("linear.bias"), [n_out, n_in])?, activation));
            n_in = n_out;
        }
        Ok(layers)
    }

    pub fn apply(&self, pooled: &[f32]) -> Vec<f32> {
        self.0.iter().fold(pooled.to_vec(), |x, (layer, activation)| {
            let mut out = layer.apply(&x);
            activation.apply(&mut out);
            out
        })
    }
}

/// A folder inside of the model's.
fn is_plain(path: &str) -> bool {
    let mut parts = std::path::Path::new(path).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(_)), None))
}

fn layer_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    let scale = 1.0 / (variance + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = (*x - mean) * scale * weight);
}

fn floats(tensor: &Tensor, expected: &[usize]) -> Result<Vec<f32>, Error> {
    if tensor.shape != expected {
        let (name, found) = (tensor.name.clone(), tensor.shape.clone());
        return Err(Error::Shape { name, found, expected: expected.to_vec() });
    }
    let mut numbers = vec![0.0; expected.iter().product()];
    ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut numbers);
    Ok(numbers)
}

impl Layer {
    fn read(weight: &Tensor, bias: Option<&Tensor>, [n_out, n_in]: [usize; 2]) -> Result<Self, Error> {
        let bias = bias.map_or_else(|| Ok(vec![0.0; n_out]), |bias| floats(bias, &[n_out]))?;
        Ok(Self { weight: floats(weight, &[n_out, n_in])?, bias })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(x.len().max(1)).zip(&self.bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias).collect()
    }
}
