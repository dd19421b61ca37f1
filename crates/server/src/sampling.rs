//! The settings of a generation that the API families share, checked once: ranges as OpenAI documents them, with the
//! field's name in the error, before anything is computed.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use engine::Sampling;
use model::TokenId;
use rocinante::ids;
use serde::Deserialize;
use std::collections::BTreeMap;
use text::Specials;

/// At most so many stop strings, of at most so many bytes.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 512;
const MAX_BIASES: usize = 1024;
const MAX_CHOICES: u32 = 64;
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// What a client asked; what it left out is `None`. Read from the wire as OpenAI, vLLM and llama.cpp name it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Knobs {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    pub seed: Option<i64>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
}

/// What a client that asks for nothing gets.
#[derive(Copy, Clone, Debug)]
pub struct Defaults {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub min_p: f32,
    pub max_tokens: Option<usize>,
}

impl Knobs {
    pub fn sampling(&self, model: &Loaded, defaults: &Defaults) -> Result<Sampling> {
        let temperature = in_range("temperature", self.temperature, 0.0..=100.0)?;
        let top_p = in_range("top_p", self.top_p, 0.0..=1.0)?;
        let min_p = in_range("min_p", self.min_p, 0.0..=1.0)?;
        let presence = in_range("presence_penalty", self.presence_penalty, -100.0..=100.0)?;
        let frequency = in_range("frequency_penalty", self.frequency_penalty, -100.0..=100.0)?;
        let repetition = in_range("repetition_penalty", self.repetition_penalty, 0.01..=100.0)?;
        let top_k = match self.top_k {
            Some(k) if k < -1 => return Err(ApiError::bad("top_k must be -1, 0 or more").param("top_k")),
            Some(k) => usize::try_from(k).unwrap_or(0),
            None => defaults.top_k,
        };
        Ok(Sampling {
            temperature: temperature.unwrap_or(defaults.temperature),
            // 0 keeps the best token, as OpenAI has it.
            top_p: top_p.unwrap_or(defaults.top_p).max(f32::MIN_POSITIVE),
            top_k,
            min_p: min_p.unwrap_or(defaults.min_p),
            presence_penalty: presence.unwrap_or(0.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            repetition_penalty: repetition.unwrap_or(1.0),
            logit_bias: self.biases(model)?,
            seed: self.seed.map_or_else(ids::seed, |seed| seed as u64),
            ..Sampling::default()
        })
    }

    /// Keys are token ids; any other text stands for its tokens.
    fn biases(&self, model: &Loaded) -> Result<Vec<(TokenId, f32)>> {
        let Some(map) = &self.logit_bias else { return Ok(Vec::new()) };
        if map.len() > MAX_BIASES {
            return Err(ApiError::bad(format!("more than {MAX_BIASES} entries")).param("logit_bias"));
        }
        let mut biases = Vec::new();
        for (key, &bias) in map {
            in_range("logit_bias", Some(bias), -1000.0..=1000.0)?;
            match key.parse::<u32>() {
                Ok(id) if (id as usize) < model.engine().n_vocab() => biases.push((TokenId(id), bias)),
                Ok(id) => {
                    let text = format!("there is no token {id}: the vocabulary has {}", model.engine().n_vocab());
                    return Err(ApiError::bad(text).param("logit_bias"));
                }
                Err(_) => {
                    let tokens = model.tokenizer.encode(key, Specials::Plain);
                    biases.extend(tokens.into_iter().map(|id| (TokenId(id), bias)));
                }
            }
        }
        biases.retain(|&(_, bias)| bias != 0.0);
        Ok(biases)
    }
}

fn in_range(param: &str, value: Option<f32>, range: std::ops::RangeInclusive<f32>) -> Result<Option<f32>> {
    match value {
        Some(value) if !range.contains(&value) => {
            let text = format!("{param} is {value}, expected {} to {}", range.start(), range.end());
            Err(ApiError::bad(text).param(param))
        }
        value => Ok(value),
    }
}

pub fn check_n(n: Option<u32>) -> Result<usize> {
    match n.unwrap_or(1) {
        n @ 1..=MAX_CHOICES => Ok(n as usize),
        n => Err(ApiError::bad(format!("n is {n}, expected 1 to {MAX_CHOICES}")).param("n")),
    }
}

/// Texts that end an answer, alone or as a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Stop {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Stop {
    pub fn texts(&self) -> Result<Vec<String>> {
        let texts = match self {
            Self::None => Vec::new(),
            Self::One(text) => vec![text.clone()],
            Self::Many(texts) => texts.clone(),
        };
        if texts.len() > MAX_STOPS || texts.iter().any(|text| text.len() > MAX_STOP_BYTES) {
            let text = format!("at most {MAX_STOPS} stop strings of at most {MAX_STOP_BYTES} bytes");
            return Err(ApiError::bad(text).param("stop"));
        }
        Ok(texts)
    }
}
