//! `logit_bias`: tokens that become likelier, less likely, or impossible. OpenAI has an object for it, llama.cpp also a
//! list of pairs; its keys may be texts, and `false` stands for never.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use model::TokenId;
use serde::Deserialize;
use std::collections::BTreeMap;
use text::Specials;

const MAX_BIASES: usize = 1024;
/// A text whose tokens are made likelier or less likely.
const MAX_BIAS_BYTES: usize = 512;
const MAX_BIAS: f32 = 1000.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected an object of numbers, or a list of pairs of a token or a text and a number")]
pub enum LogitBias {
    /// Keys are token ids; any other text stands for its tokens.
    Map(BTreeMap<String, Bias>),
    List(Vec<(BiasKey, Bias)>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a token id or a text")]
pub enum BiasKey {
    Token(u32),
    Text(String),
}

/// What is added to a logit; `false`: the token is never chosen.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or false")]
pub enum Bias {
    Number(f32),
    Allowed(bool),
}

/// What it comes down to.
#[derive(Debug, Default)]
pub struct TokenBiases {
    pub biases: Vec<(TokenId, f32)>,
    pub banned: Vec<TokenId>,
}

fn bad(text: impl Into<String>) -> ApiError {
    ApiError::bad(text).param("logit_bias")
}

impl LogitBias {
    pub fn tokens(&self, model: &Loaded) -> Result<TokenBiases> {
        let n = match self {
            Self::Map(map) => map.len(),
            Self::List(list) => list.len(),
        };
        if n > MAX_BIASES {
            return Err(bad(format!("more than {MAX_BIASES} tokens")));
        }
        let mut found = TokenBiases::default();
        match self {
            Self::Map(map) => {
                for (key, &bias) in map {
                    let key = key.parse().map_or_else(|_| BiasKey::Text(key.clone()), BiasKey::Token);
                    found.add(&key, bias, model)?;
                }
            }
            Self::List(list) => list.iter().try_for_each(|(key, bias)| found.add(key, *bias, model))?,
        }
        Ok(found)
    }
}

impl TokenBiases {
    fn add(&mut self, key: &BiasKey, bias: Bias, model: &Loaded) -> Result<()> {
        let n_vocab = model.engine().n_vocab();
        let ids = match key {
            BiasKey::Token(id) if (*id as usize) < n_vocab => vec![*id],
            BiasKey::Token(id) => return Err(bad(format!("there is no token {id}: the vocabulary has {n_vocab}"))),
            BiasKey::Text(text) if text.len() > MAX_BIAS_BYTES => {
                return Err(bad(format!("a text of more than {MAX_BIAS_BYTES} bytes")));
            }
            BiasKey::Text(text) => model.tokenizer.encode(text, Specials::Plain),
        };
        match bias {
            Bias::Number(bias) if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) => {
                return Err(bad(format!("logit_bias is {bias}, expected {} to {MAX_BIAS}", -MAX_BIAS)));
            }
            Bias::Number(0.0) => {}
            Bias::Number(bias) => self.biases.extend(ids.into_iter().map(|id| (TokenId(id), bias))),
            Bias::Allowed(false) => self.banned.extend(ids.into_iter().map(TokenId)),
            Bias::Allowed(true) => return Err(bad("true says nothing: expected a number, or false for never")),
        }
        match self.biases.len() + self.banned.len() > MAX_BIASES {
            true => Err(bad(format!("more than {MAX_BIASES} tokens"))),
            false => Ok(()),
        }
    }
}
