//! What a checkpoint says about its model, checked once: after this, sizes can be trusted.
//!
//! A family is a row of data; the decoder reads the row and has no branch on a name.

use ops::{Heads, MAX_HEAD_DIM, Pairing};
use weights::Metadata;

use crate::Error;

/// What differs between families of dense decoders.
#[derive(Copy, Clone, Debug)]
pub struct Family {
    /// `general.architecture`, also the prefix of its keys.
    pub name: &'static str,
    /// Which numbers of a head rope turns together, in GGUF's order of rows.
    pub pairing: Pairing,
}

const FAMILIES: [Family; 1] = [Family { name: "llama", pairing: Pairing::Adjacent }];
const SUPPORTED: &str = "llama";

/// Larger counts than any model has: a lie in a file must not become an allocation.
const MAX_LAYERS: usize = 1024;
const MAX_WIDTH: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct Config {
    pub family: Family,
    pub name: String,
    pub n_vocab: usize,
    /// The context the model was trained for.
    pub n_ctx_train: usize,
    pub n_layers: usize,
    pub n_embd: usize,
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub norm_eps: f32,
    /// Numbers of a head that rope turns.
    pub n_rot: usize,
    pub rope_base: f32,
    /// Positions are divided by this (linear scaling; 1 without).
    pub rope_factor: f32,
}

/// Reads typed numbers under a family's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn count(&self, name: &str) -> Result<Option<usize>, Error> {
        Ok(self.metadata.u64(&self.key(name))?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn count_in(&self, name: &str, default: Option<usize>, max: usize) -> Result<usize, Error> {
        let found = self.count(name)?.or(default);
        match found {
            Some(n) if (1..=max).contains(&n) => Ok(n),
            Some(n) => Err(self.error(name, format!("{n} is not between 1 and {max}"))),
            None => Err(self.error(name, "missing".into())),
        }
    }

    fn number(&self, name: &str, default: f32) -> Result<f32, Error> {
        let found = self.metadata.f32(&self.key(name))?.unwrap_or(default);
        if found.is_finite() && found > 0.0 {
            Ok(found)
        } else {
            Err(self.error(name, format!("{found} is not above zero")))
        }
    }

    fn error(&self, name: &str, what: String) -> Error {
        Error::Metadata { key: self.key(name), what }
    }
}

impl Config {
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let architecture = metadata.string("general.architecture")?.unwrap_or_default();
        let Some(family) = FAMILIES.iter().find(|family| family.name == architecture) else {
            return Err(Error::Architecture(architecture.to_string(), SUPPORTED));
        };
        let keys = Keys { metadata, prefix: family.name };
        if keys.count("expert_count")?.is_some_and(|n| n > 0) {
            return Err(keys.error("expert_count", "mixtures of experts are not supported yet".into()));
        }
        let n_embd = keys.count_in("embedding_length", None, MAX_WIDTH)?;
        let n_heads = keys.count_in("attention.head_count", None, MAX_WIDTH)?;
        let n_kv_heads = keys.count_in("attention.head_count_kv", Some(n_heads), n_heads)?;
        let head_dim = keys.count_in("attention.key_length", Some(n_embd / n_heads), MAX_HEAD_DIM)?;
        if keys.count("attention.value_length")?.is_some_and(|n| n != head_dim) {
            return Err(keys.error("attention.value_length", format!("differs from the key length {head_dim}")));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            let what = format!("{n_heads} heads cannot share {n_kv_heads} KV heads");
            return Err(keys.error("attention.head_count_kv", what));
        }
        let n_rot = keys.count_in("rope.dimension_count", Some(head_dim), head_dim)?;
        if !n_rot.is_multiple_of(2) {
            return Err(keys.error("rope.dimension_count", format!("{n_rot} is odd")));
        }
        let n_tokens = metadata.strings("tokenizer.ggml.tokens")?.map(<[_]>::len);
        Ok(Self {
            family: *family,
            name: metadata.string("general.name")?.unwrap_or(family.name).to_string(),
            n_vocab: keys.count_in("vocab_size", n_tokens, u32::MAX as usize)?,
            n_ctx_train: keys.count_in("context_length", None, u32::MAX as usize)?,
            n_layers: keys.count_in("block_count", None, MAX_LAYERS)?,
            n_embd,
            n_ff: keys.count_in("feed_forward_length", None, MAX_WIDTH)?,
            n_heads,
            n_kv_heads,
            head_dim,
            norm_eps: keys.number("attention.layer_norm_rms_epsilon", 1e-5)?,
            n_rot,
            rope_base: keys.number("rope.freq_base", 10_000.0)?,
            rope_factor: rope_factor(&keys)?,
        })
    }

    /// Columns of the keys and of the values of one token.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    pub fn heads(&self) -> Heads {
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        Heads { n_heads: self.n_heads, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim, scale }
    }

    /// Columns of the queries of one token.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }
}

fn rope_factor(keys: &Keys) -> Result<f32, Error> {
    let kind = keys.metadata.string(&keys.key("rope.scaling.type"))?;
    match kind {
        None | Some("none" | "") => Ok(1.0),
        Some("linear") => keys.number("rope.scaling.factor", 1.0),
        Some(other) => Err(keys.error("rope.scaling.type", format!("`{other}` is not supported yet"))),
    }
}
