//! The tensors of an exported checkpoint: every one of the source finds its place under GGUF's name, or is an error.

use std::collections::HashSet;

use ops::Pairing;
use weights::{Bytes, Dtype, Tensor};

use super::split::pieces;
use crate::head::{answer_rows, answers_yes_or_no, hub_spelling};
use crate::names::{At, Names};
use crate::{Config, Error, FamilyKind};

/// What is there once, not in every layer.
const ONCE: [&str; 6] = ["token_embd", "position_embd", "token_types", "token_embd_norm", "output_norm", "output"];
/// Matrices that programs of GGUF want as f32, as they do vectors and norms.
const PLAIN: [&str; 4] = ["ffn_gate_inp", "_norm", "position_embd", "token_types"];
/// What some writers store besides the weights, and nobody needs: an encoder's pooling layer is for classifying only.
const IDLE: [&str; 5] =
    ["rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias", "pooler.dense.", "embeddings.position_ids"];

pub fn list(names: &Names, config: &Config) -> Result<Vec<Tensor>, Error> {
    let mut list = TensorList { names, config, used: HashSet::new(), tensors: Vec::new() };
    for stem in ONCE {
        list.place(At::Model, stem, stem)?;
    }
    if config.family.kind == FamilyKind::Encoder {
        list.place_head()?;
    } else if answers_yes_or_no(names.checkpoint) {
        list.tensors.extend(answer_rows(config, names)?);
    }
    let stems: Vec<&str> = names.stems().filter(|stem| !ONCE.contains(stem)).collect();
    for layer_idx in 0..config.n_layers {
        for stem in &stems {
            list.place(At::Layer(layer_idx), stem, &format!("blk.{layer_idx}.{stem}"))?;
        }
    }
    let is_left = |tensor: &&Tensor| {
        let is_idle = IDLE.iter().any(|part| tensor.name.contains(part)) || is_of_later_layers(names, config, tensor);
        !is_idle && !list.used.contains(&tensor.name)
    };
    match names.checkpoint.tensors().iter().find(is_left) {
        Some(tensor) => Err(Error::NotInGguf {
            what: format!("tensor `{}` has no name in GGUF for the family {}", tensor.name, config.family.name),
        }),
        None => Ok(list.tensors),
    }
}

/// DeepSeek's checkpoints have layers after the last one that guess more tokens at once; GGUF of this family goes without.
fn is_of_later_layers(names: &Names, config: &Config, tensor: &Tensor) -> bool {
    let hub = names.checkpoint.hub();
    let n_later = hub.and_then(|hub| hub.config.get("num_nextn_predict_layers")?.as_u64()).unwrap_or(0) as usize;
    let number = tensor.name.split_once("layers.").and_then(|(_, rest)| rest.split('.').next()?.parse::<usize>().ok());
    number.is_some_and(|number| (config.n_layers..config.n_layers.saturating_add(n_later)).contains(&number))
}

struct TensorList<'a> {
    names: &'a Names<'a>,
    config: &'a Config,
    used: HashSet<String>,
    tensors: Vec<Tensor>,
}

impl TensorList<'_> {
    /// Weight and bias of one name, where they are there.
    fn place(&mut self, at: At, stem: &str, name: &str) -> Result<(), Error> {
        for suffix in ["weight", "bias"] {
            let sources = self.sources(at, stem, suffix);
            let Some(first) = sources.first() else { continue };
            self.used.extend(sources.iter().map(|source| source.name.clone()));
            // A tied output is the embedding again.
            if stem == "output" && self.config.family.scales_embedding {
                continue;
            }
            if let [source] = sources.as_slice()
                && let Some(pieces) = pieces(self.config, stem, suffix, source)?
            {
                let place = name.strip_suffix(stem).unwrap_or_default();
                for piece in pieces {
                    let name = format!("{place}{}.{suffix}", piece.stem);
                    self.tensors.push(piece.tensor(name, source)?);
                }
                continue;
            }
            let name = format!("{name}.{suffix}");
            if let Some(other) = sources.iter().find(|one| one.dtype != first.dtype || one.shape != first.shape) {
                return Err(Error::NotInGguf {
                    what: format!("`{}` and `{}` differ in type or shape", first.name, other.name),
                });
            }
            let tensor = self.tensor(name, stem, &sources)?;
            self.tensors.push(tensor);
        }
        Ok(())
    }

    /// The layers that classify, where an encoder has them.
    fn place_head(&mut self) -> Result<(), Error> {
        let Some((dense, output)) = hub_spelling(self.names.checkpoint) else { return Ok(()) };
        for (from, to) in [(dense, "cls"), (output, "cls.output")] {
            for suffix in ["weight", "bias"] {
                if let Some(source) = self.names.checkpoint.find(&format!("{from}.{suffix}")) {
                    self.used.insert(source.name.clone());
                    let tensor = self.tensor(format!("{to}.{suffix}"), to, std::slice::from_ref(source))?;
                    self.tensors.push(tensor);
                }
            }
        }
        Ok(())
    }

    /// The tensor of that name, or those of all its parts (experts, heads), one after the other.
    fn sources(&self, at: At, stem: &str, suffix: &str) -> Vec<Tensor> {
        if let Some(source) = self.names.find(at, stem, suffix) {
            return vec![source.clone()];
        }
        let At::Layer(layer_idx) = at else { return Vec::new() };
        if !self.names.is_of_parts(stem) {
            return Vec::new();
        }
        (0..).map_while(|part| self.names.find(At::Part(layer_idx, part), stem, suffix)).cloned().collect()
    }

    fn tensor(&self, name: String, stem: &str, sources: &[Tensor]) -> Result<Tensor, Error> {
        let first = &sources[0];
        let mut shape: Vec<usize> = first.shape.clone();
        // GGUF counts positions from zero.
        let n_skipped = if stem == "position_embd" { self.config.position_offset } else { 0 };
        shape[0] = shape[0].saturating_sub(n_skipped);
        if sources.len() > 1 {
            shape.insert(0, sources.len());
        }
        let n_heads = match stem {
            _ if self.config.rope.pairing != Pairing::Halves || self.config.family.pairing != Pairing::Adjacent => None,
            "attn_q" => Some(self.config.n_heads),
            "attn_k" => Some(self.config.n_kv_heads),
            _ => None,
        };
        let is_norm = stem.ends_with("_norm");
        let offset = if is_norm { self.config.family.hub_norm_offset(stem) } else { 0.0 };
        let is_bias = name.ends_with(".bias");
        let is_plain = is_bias || first.shape.len() < 2 || PLAIN.iter().any(|part| stem.contains(part));
        let dtype = if is_plain { Dtype::F32 } else { first.dtype };
        if is_plain && first.dtype.block_len() > 1 {
            let what = format!("{} where plain numbers are expected", first.dtype);
            return Err(Error::Tensor { name: first.name.clone(), what });
        }
        if let Some(n) = n_heads
            && !first.shape[0].is_multiple_of(2 * n)
        {
            let what = format!("{} rows are not pairs of {n} heads", first.shape[0]);
            return Err(Error::Tensor { name: first.name.clone(), what });
        }
        let is_as_it_is =
            sources.len() == 1 && n_heads.is_none() && dtype == first.dtype && offset == 0.0 && n_skipped == 0;
        let bytes = if is_as_it_is {
            first.bytes.clone()
        } else {
            let n: usize = shape.iter().product();
            let parts: Vec<Bytes> = sources.iter().map(|source| source.bytes.clone()).collect();
            let (from, n_rows) = (first.dtype, first.shape[0]);
            let n_bytes = n / dtype.block_len() * dtype.block_bytes();
            Bytes::made(n_bytes, move || {
                let mut all = Vec::with_capacity(n_bytes);
                for part in &parts {
                    let rows = n_heads.map(|n_heads| paired(part, n_rows, n_heads));
                    let rows = rows.as_deref().unwrap_or(part);
                    let rows = &rows[rows.len() / n_rows.max(1) * n_skipped.min(n_rows)..];
                    if dtype == from && offset == 0.0 {
                        all.extend_from_slice(rows);
                    } else {
                        all.extend(floats(from, rows, offset).iter().flat_map(|x| x.to_le_bytes()));
                    }
                    part.release_pages();
                }
                all
            })
        };
        Ok(Tensor::new(name, dtype, shape, bytes)?)
    }
}

pub fn floats(dtype: Dtype, bytes: &[u8], offset: f32) -> Vec<f32> {
    let mut numbers = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    ops::quant::dequantize(dtype, bytes, &mut numbers);
    numbers.iter_mut().for_each(|x| *x += offset);
    numbers
}

/// Rows of heads in the order of adjacent pairs: safetensors have the first halves of all pairs of a head, then the
/// second ones.
fn paired(bytes: &[u8], n_rows: usize, n_heads: usize) -> Vec<u8> {
    let (row_bytes, head_dim) = (bytes.len() / n_rows, n_rows / n_heads);
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..n_rows {
        let (head, at) = (row / head_dim, row % head_dim);
        let source = head * head_dim + at % 2 * (head_dim / 2) + at / 2;
        out.extend_from_slice(&bytes[source * row_bytes..][..row_bytes]);
    }
    out
}
