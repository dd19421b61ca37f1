//! The settings of a generation that the API families share. They are checked once, before anything is computed, and an
//! error has the field's name. Ranges are wider than OpenAI documents; a temperature may be up to 100.

use super::error::{ApiError, Result};
use super::generation::Guesses;
use super::loaded::Loaded;
use super::logit_bias::{LogitBias, TokenBiases};
use super::tally;
use engine::{Dry, Mirostat, Sampling, Stage, Xtc};
use model::TokenId;
use rocinante::ids;
use serde::Deserialize;

/// At most so many stop strings, of at most so many bytes.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 512;
/// What no repetition reaches over, as llama.cpp has it.
const USUAL_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
const MAX_CHOICES: u32 = 64;
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// What a client sent; what it left out is `None`. Read from the wire as OpenAI, vLLM and llama.cpp name it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    pub seed: Option<i64>,
    /// Whether the answer must be the same bit for bit, whatever else the server is doing.
    pub deterministic: Option<bool>,
    pub logit_bias: Option<LogitBias>,
    #[serde(alias = "typ_p", alias = "typical")]
    pub typical_p: Option<f32>,
    #[serde(alias = "top_nsigma")]
    pub top_n_sigma: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    pub dry_allowed_length: Option<u32>,
    /// Tokens to look back at; -1: all.
    pub dry_penalty_last_n: Option<i64>,
    pub dry_sequence_breakers: Option<Vec<String>>,
    #[serde(alias = "dynamic_temperature_range")]
    pub dynatemp_range: Option<f32>,
    pub dynatemp_exponent: Option<f32>,
    /// 0: off; 2, and 1 is taken for it.
    pub mirostat: Option<u32>,
    pub mirostat_tau: Option<f32>,
    pub mirostat_eta: Option<f32>,
    pub min_tokens: Option<u32>,
    /// Tokens that the penalties look at; -1: all.
    #[serde(alias = "penalty_last_n")]
    pub repeat_last_n: Option<i64>,
    /// Stages in their order, as llama.cpp names them.
    pub samplers: Option<Vec<String>>,
    /// Tokens to generate; -1: until it ends.
    pub num_predict: Option<i64>,
    /// Tokens of the prompt and the answer together. It cannot be more than the model was loaded for.
    pub num_ctx: Option<u64>,
    pub stop: Option<Stop>,
    /// Tokens that may be guessed ahead for one step; 0: none.
    #[serde(rename = "speculative.n_max")]
    pub max_draft: Option<u32>,
}

fn first_of<T: Clone>(one: &Option<T>, other: &Option<T>) -> Option<T> {
    one.clone().or_else(|| other.clone())
}

/// What a client that asks for nothing gets.
#[derive(Copy, Clone, Debug)]
pub struct Defaults {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub min_p: f32,
    pub max_tokens: Option<usize>,
    /// The same for every request that brings none.
    pub seed: Option<u64>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.05, max_tokens: None, seed: None }
    }
}

/// Another one each time, unless the same request must give the same answer.
fn fresh_seed(model: &Loaded) -> u64 {
    if model.is_deterministic() { 0 } else { ids::seed() }
}

impl SamplingParams {
    /// What is left open here is taken from another.
    pub fn or(&self, other: &Self) -> Self {
        macro_rules! first {
            ($($field:ident),* $(,)?) => { Self { $($field: first_of(&self.$field, &other.$field)),* } };
        }
        first!(
            deterministic,
            temperature,
            top_p,
            top_k,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            seed,
            logit_bias,
            typical_p,
            top_n_sigma,
            xtc_probability,
            xtc_threshold,
            dry_multiplier,
            dry_base,
            dry_allowed_length,
            dry_penalty_last_n,
            dry_sequence_breakers,
            dynatemp_range,
            dynatemp_exponent,
            mirostat,
            mirostat_tau,
            mirostat_eta,
            min_tokens,
            repeat_last_n,
            samplers,
            num_predict,
            num_ctx,
            stop,
            max_draft,
        )
    }

    pub fn sampling(&self, model: &Loaded, defaults: &Defaults) -> Result<Sampling> {
        self.or(&model.preset.params).checked(model, defaults)
    }

    fn checked(&self, model: &Loaded, defaults: &Defaults) -> Result<Sampling> {
        let temperature = in_range("temperature", self.temperature, 0.0..=100.0)?;
        let top_p = in_range("top_p", self.top_p, 0.0..=1.0)?;
        let min_p = in_range("min_p", self.min_p, 0.0..=1.0)?;
        let presence = in_range("presence_penalty", self.presence_penalty, -100.0..=100.0)?;
        let frequency = in_range("frequency_penalty", self.frequency_penalty, -100.0..=100.0)?;
        let repetition = in_range("repetition_penalty", self.repetition_penalty, 0.01..=100.0)?;
        if self.deterministic == Some(true) && !model.is_deterministic() {
            let what = "this model was not started with --deterministic, so other requests may change the last bits";
            return Err(ApiError::bad(what).param("deterministic"));
        }
        let top_k = match self.top_k {
            Some(k) if k < -1 => return Err(ApiError::bad("top_k must be -1, 0 or more").param("top_k")),
            Some(k) => usize::try_from(k).unwrap_or(0),
            None => defaults.top_k,
        };
        let seed = match self.seed {
            // llama.cpp's clients send one of these for a random one.
            Some(-1 | 0xffff_ffff) => None,
            Some(seed) => Some(seed as u64),
            None => defaults.seed,
        };
        let seed = seed.unwrap_or_else(|| fresh_seed(model));
        let bias = self.logit_bias.as_ref().map(|bias| bias.tokens(model)).transpose()?;
        let TokenBiases { biases, banned } = bias.unwrap_or_default();
        Ok(Sampling {
            temperature: temperature.unwrap_or(defaults.temperature),
            // 0 keeps the best token, as OpenAI has it.
            top_p: top_p.unwrap_or(defaults.top_p).max(f32::MIN_POSITIVE),
            top_k,
            min_p: min_p.unwrap_or(defaults.min_p),
            presence_penalty: presence.unwrap_or(0.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            repetition_penalty: repetition.unwrap_or(1.0),
            logit_bias: biases,
            banned,
            seed,
            typical_p: in_range("typical_p", self.typical_p, 0.0..=1.0)?.unwrap_or(1.0).max(f32::MIN_POSITIVE),
            // Negative is off for llama.cpp.
            top_n_sigma: in_range("top_n_sigma", self.top_n_sigma, -1.0..=100.0)?.unwrap_or(0.0).max(0.0),
            xtc: self.xtc()?,
            dry: self.dry(model)?,
            dynatemp_range: in_range("dynatemp_range", self.dynatemp_range, 0.0..=100.0)?.unwrap_or(0.0),
            dynatemp_exponent: in_range("dynatemp_exponent", self.dynatemp_exponent, 0.0..=100.0)?.unwrap_or(1.0),
            mirostat: self.mirostat()?,
            min_tokens: self.min_tokens.map_or(0, |n| n as usize),
            penalty_window: window("repeat_last_n", self.repeat_last_n)?.unwrap_or(Sampling::default().penalty_window),
            order: self.order()?,
            ..Sampling::default()
        })
    }

    /// How tokens may be guessed ahead, and a text to guess from.
    pub fn guesses(&self, prediction: Option<String>) -> Guesses {
        Guesses { max_draft: self.max_draft.map(|n| n as usize), prediction }
    }

    pub fn stops(&self) -> Result<Vec<String>> {
        self.stop.as_ref().map_or(Ok(Vec::new()), Stop::texts)
    }

    pub fn max_tokens(&self) -> Option<usize> {
        self.num_predict.and_then(|n| usize::try_from(n).ok())
    }

    /// How many tokens may follow a prompt, with `num_ctx` kept to. One that is too large is told.
    pub fn limit(&self, max_tokens: Option<usize>, n_prompt: usize, model: &Loaded) -> Option<usize> {
        let Some(n_ctx) = self.num_ctx.filter(|&n| n > 0) else { return max_tokens };
        if n_ctx > model.n_ctx() as u64 {
            if let Some(tally) = tally::current() {
                tally.ignore(vec!["num_ctx".to_owned()]);
            }
            return max_tokens;
        }
        let left = usize::try_from(n_ctx).unwrap_or(usize::MAX).saturating_sub(n_prompt).max(1);
        Some(max_tokens.map_or(left, |max| max.min(left)))
    }

    fn xtc(&self) -> Result<Xtc> {
        let usual = Xtc::default();
        Ok(Xtc {
            probability: in_range("xtc_probability", self.xtc_probability, 0.0..=1.0)?.unwrap_or(usual.probability),
            threshold: in_range("xtc_threshold", self.xtc_threshold, 0.0..=1.0)?.unwrap_or(usual.threshold),
        })
    }

    fn dry(&self, model: &Loaded) -> Result<Dry> {
        let usual = Dry::default();
        let multiplier = in_range("dry_multiplier", self.dry_multiplier, 0.0..=100.0)?.unwrap_or(usual.multiplier);
        let given: Option<Vec<&str>> =
            self.dry_sequence_breakers.as_ref().map(|texts| texts.iter().map(String::as_str).collect());
        let texts = given.unwrap_or_else(|| USUAL_BREAKERS.to_vec());
        if texts.len() > MAX_STOPS || texts.iter().any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
            let text = format!("at most {MAX_STOPS} texts of at most {MAX_STOP_BYTES} bytes");
            return Err(ApiError::bad(text).param("dry_sequence_breakers"));
        }
        let breakers = match multiplier > 0.0 && !texts.is_empty() {
            true => model.tokenizer.ids_holding(&texts).into_iter().map(TokenId).collect(),
            false => Vec::new(),
        };
        Ok(Dry {
            multiplier,
            base: in_range("dry_base", self.dry_base, 1.0..=100.0)?.unwrap_or(usual.base),
            allowed_length: self.dry_allowed_length.map_or(usual.allowed_length, |n| n as usize),
            window: window("dry_penalty_last_n", self.dry_penalty_last_n)?.unwrap_or(usual.window),
            breakers,
        })
    }

    fn mirostat(&self) -> Result<Option<Mirostat>> {
        let usual = Mirostat::default();
        let tau = in_range("mirostat_tau", self.mirostat_tau, 0.0..=100.0)?.unwrap_or(usual.tau);
        let eta = in_range("mirostat_eta", self.mirostat_eta, 0.0..=10.0)?.unwrap_or(usual.eta);
        match self.mirostat.unwrap_or(0) {
            0 => Ok(None),
            1 | 2 => Ok(Some(Mirostat { tau, eta })),
            n => Err(ApiError::bad(format!("mirostat is {n}, expected 0, 1 or 2")).param("mirostat")),
        }
    }

    fn order(&self) -> Result<Vec<Stage>> {
        let Some(names) = &self.samplers else { return Ok(Stage::DEFAULT_ORDER.to_vec()) };
        Stage::parse_order(&names.join(";")).map_err(|text| ApiError::bad(text).param("samplers"))
    }
}

/// A number of tokens to look back at; -1: all.
fn window(param: &str, n: Option<i64>) -> Result<Option<usize>> {
    match n {
        Some(-1) => Ok(Some(usize::MAX)),
        Some(n) => match usize::try_from(n) {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(ApiError::bad(format!("{param} is {n}, expected -1 or more")).param(param)),
        },
        None => Ok(None),
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
#[serde(untagged, expecting = "expected a text or a list of texts")]
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
