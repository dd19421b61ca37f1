//! How the next token is chosen, as plain data. The meaning of each number is in [`sampler`](crate::sampler).

use batch::TokenId;
use serde::{Deserialize, Serialize};

/// How the next token is chosen. Bias, bans and masks come before everything else; then the stages of `order`, each on
/// what the one before left; then a draw.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the best token.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest best tokens whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Keep the tokens whose surprise is nearest to the expected one, as many as reach this probability; 1 keeps all.
    pub typical_p: f32,
    /// Keep logits within this many standard deviations of the best; 0 keeps all.
    pub top_n_sigma: f32,
    pub xtc: Xtc,
    pub dry: Dry,
    /// Temperature moves by up to this much with the entropy of the distribution; 0 keeps it fixed.
    pub dynatemp_range: f32,
    pub dynatemp_exponent: f32,
    /// Instead of the truncating stages: keeps the surprise of the answer near a target.
    pub mirostat: Option<Mirostat>,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens in the window.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the window.
    pub frequency_penalty: f32,
    /// How many of the latest tokens, prompt included, the penalties look at.
    pub penalty_window: usize,
    /// Added to logits; negative infinity forbids a token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Never chosen.
    pub banned: Vec<TokenId>,
    /// Nothing else is chosen; `None` allows all.
    pub allowed: Option<Vec<TokenId>>,
    /// Stop tokens are not chosen before so many tokens were generated.
    pub min_tokens: usize,
    /// A stage that is not in it does nothing.
    pub order: Vec<Stage>,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: Xtc::default(),
            dry: Dry::default(),
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            allowed: None,
            min_tokens: 0,
            order: Stage::DEFAULT_ORDER.to_vec(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether a row of logits and a random number are all it takes: temperature, top-k, top-p and min-p in the usual
    /// order, with no look at the tokens so far, no bias and no bans. What a device can do by itself.
    pub fn is_simple(&self) -> bool {
        !self.has_penalties()
            && self.logit_bias.is_empty()
            && self.banned.is_empty()
            && self.allowed.is_none()
            && self.min_tokens == 0
            && self.is_usual()
    }

    /// Whether only the stages of [`is_simple`](Self::is_simple) and the penalties do anything, in the usual order.
    pub(crate) fn is_usual(&self) -> bool {
        self.order == Stage::DEFAULT_ORDER
            && self.typical_p >= 1.0
            && self.top_n_sigma <= 0.0
            && self.xtc.probability <= 0.0
            && self.dry.multiplier == 0.0
            && self.dynatemp_range <= 0.0
            && self.mirostat.is_none()
    }

    pub(crate) fn has_penalties(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }
}

/// Exclude top choices: sometimes, of the tokens that are probable enough, only the least probable stays.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Xtc {
    /// How often; 0 is never.
    pub probability: f32,
    /// What counts as probable enough. Above 0.5 there are never two such tokens.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

/// "Don't repeat yourself": a token that would go on repeating an earlier stretch of the text is made less probable,
/// the more so the longer the stretch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    pub base: f32,
    /// Stretches up to this length are free.
    pub allowed_length: usize,
    /// How many of the latest tokens it looks at.
    pub window: usize,
    /// Tokens over which no stretch reaches, ascending.
    pub breakers: Vec<TokenId>,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, window: usize::MAX, breakers: Vec::new() }
    }
}

/// Mirostat 2.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mirostat {
    /// The surprise to aim at, in bits.
    pub tau: f32,
    /// How fast it corrects itself.
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { tau: 5.0, eta: 0.1 }
    }
}

/// A step from logits to a choice.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Serialize, Deserialize)]
pub enum Stage {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

impl Stage {
    /// llama.cpp's.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typical_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }

    /// By its name; `-` counts as `_`, and llama.cpp's short `typ_p` is known.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.trim().replace('-', "_");
        let name = if name == "typ_p" { "typical_p" } else { &name };
        Self::DEFAULT_ORDER.into_iter().find(|stage| stage.name() == name)
    }

    /// A list such as `penalties;top_k;temperature`, each stage at most once.
    pub fn parse_order(text: &str) -> Result<Vec<Self>, String> {
        let mut order = Vec::new();
        for name in text.split([';', ',']).filter(|name| !name.trim().is_empty()) {
            let names = || Self::DEFAULT_ORDER.map(Self::name).join(";");
            let stage =
                Self::from_name(name).ok_or_else(|| format!("unknown stage `{}` (known: {})", name.trim(), names()))?;
            if order.contains(&stage) {
                return Err(format!("`{}` stands twice", stage.name()));
            }
            order.push(stage);
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_list_of_names() {
        let all = Stage::DEFAULT_ORDER.map(Stage::name).join(";");
        assert_eq!(Stage::parse_order(&all).unwrap(), Stage::DEFAULT_ORDER);
        assert_eq!(Stage::parse_order("temperature, top-k").unwrap(), [Stage::Temperature, Stage::TopK]);
        assert_eq!(Stage::parse_order("").unwrap(), []);
        assert!(
            Stage::parse_order("top_k;nonsense")
                .unwrap_err()
                .starts_with("unknown stage `nonsense` (known: penalties;")
        );
        assert_eq!(Stage::parse_order("top_k;top_k").unwrap_err(), "`top_k` stands twice");
    }

    #[test]
    fn what_is_simple() {
        assert!(Sampling::default().is_simple());
        assert!(Sampling { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.1, ..Sampling::default() }.is_simple());
        for complex in [
            Sampling { presence_penalty: 1.0, ..Sampling::default() },
            Sampling { banned: vec![TokenId(1)], ..Sampling::default() },
            Sampling { min_tokens: 1, ..Sampling::default() },
            Sampling { typical_p: 0.9, ..Sampling::default() },
            Sampling { mirostat: Some(Mirostat::default()), ..Sampling::default() },
            Sampling { order: vec![Stage::Temperature, Stage::TopK], ..Sampling::default() },
        ] {
            assert!(!complex.is_simple(), "{complex:?}");
        }
    }
}
