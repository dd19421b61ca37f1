//! How an answer is chosen, as it is typed: temperature and truncation, what to avoid repeating, the form it must have.

use crate::cmd::tokenize::read_text;
use crate::report::{self, HintExt};
use anyhow::{Context, Result, anyhow};
use engine::{Dry, Mirostat, Sampling, Stage, Xtc};
use model::TokenId;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use text::Tokenizer;
use text::constraint::Constraint;

/// `--max-tokens -1`: no limit of its own, as llama.cpp and Ollama write it.
pub const UNLIMITED: usize = usize::MAX;
/// `--seed -1`: another one each time, as llama.cpp writes it.
const RANDOM_SEED: u64 = u64::MAX;
/// The API refuses higher temperatures too.
const MAX_TEMPERATURE: f32 = 100.0;
/// Above this, answers are mostly noise.
const USUAL_TEMPERATURE: f32 = 2.0;

/// How the next token is chosen.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 always picks the most probable token
    #[arg(long, alias = "temp", value_name = "T", default_value_t = 0.7, allow_negative_numbers = true, value_parser = parse_temperature)]
    pub temperature: f32,
    /// Sample from the K most probable tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Sample from the smallest set of tokens whose probabilities add up to P; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub top_p: f32,
    /// Drop tokens less probable than P times the most probable one; 0: none
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub min_p: f32,
    /// Penalize recent tokens by this factor; 1: off
    #[arg(long, value_name = "F", default_value_t = 1.0, allow_negative_numbers = true, value_parser = parse_from_zero)]
    pub repeat_penalty: f32,
    /// Subtract X from the logit of every recent token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_number)]
    pub presence_penalty: f32,
    /// Subtract X from a token's logit for each recent occurrence
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_number)]
    pub frequency_penalty: f32,
    /// Add BIAS to the logit of token ID (see `roci tokenize`); -inf bans it; repeatable
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed; the same seed gives the same answer; -1: random [default: random]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_seed)]
    pub seed: Option<u64>,
    /// Maximum number of tokens to generate; -1: no limit
    #[arg(short = 'n', long, aliases = ["n-predict", "predict"], value_name = "N", default_value_t = 2048,
          allow_negative_numbers = true, value_parser = parse_max_tokens)]
    pub max_tokens: usize,
    /// Stop when this text appears, and leave it out; repeatable
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub more: MoreSamplingArgs,
    #[command(flatten)]
    pub form: FormArgs,
}

/// The less usual ways.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Advanced sampling")]
pub struct MoreSamplingArgs {
    /// Order of the stages, by default penalties;dry;top_n_sigma;top_k;typical_p;top_p;min_p;xtc;temperature;
    /// omitted stages are skipped
    #[arg(long, value_name = "NAMES", value_parser = parse_order)]
    pub samplers: Option<SamplerOrder>,
    /// Typical sampling: keep the tokens closest to the expected surprise, up to this probability; 1: all
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = parse_fraction)]
    pub typical_p: f32,
    /// Keep tokens whose logits are within N standard deviations of the best; 0: all
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = parse_from_zero)]
    pub top_n_sigma: f32,
    /// XTC: probability of excluding the most probable tokens; 0: never
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = parse_fraction)]
    pub xtc_probability: f32,
    /// XTC: exclude only tokens at least this probable
    #[arg(long, value_name = "P", default_value_t = 0.1, value_parser = parse_fraction)]
    pub xtc_threshold: f32,
    /// DRY: penalty for continuing a repetition, growing with its length; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_from_zero)]
    pub dry_multiplier: f32,
    #[arg(long, value_name = "X", default_value_t = 1.75, value_parser = parse_from_zero, hide = true)]
    pub dry_base: f32,
    /// DRY: do not penalize repetitions of up to this many tokens
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// DRY: text that ends a repetition; repeatable [default: a line break, `:`, `"` and `*`]
    #[arg(long, value_name = "TEXT")]
    pub dry_breaker: Vec<String>,
    /// Vary the temperature by up to X with the model's confidence; 0: fixed
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_from_zero)]
    pub dynatemp_range: f32,
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_from_zero, hide = true)]
    pub dynatemp_exponent: f32,
    /// Mirostat 2: aim for this many bits of surprise per token, instead of truncating
    #[arg(long, value_name = "BITS", value_parser = parse_from_zero)]
    pub mirostat: Option<f32>,
    /// Mirostat's learning rate
    #[arg(long, value_name = "X", default_value_t = 0.1, value_parser = parse_from_zero)]
    pub mirostat_rate: f32,
    /// How many recent tokens the penalties consider
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub penalty_window: usize,
    /// Minimum number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_tokens: usize,
    /// Never choose token ID; repeatable
    #[arg(long, value_name = "ID")]
    pub ban_token: Vec<u32>,
    /// Choose only among these tokens; repeatable
    #[arg(long, value_name = "ID")]
    pub allow_token: Vec<u32>,
}

/// The form an answer must have.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Constrained output")]
#[group(id = "form", multiple = false)]
pub struct FormArgs {
    /// Answer with a JSON object
    #[arg(long)]
    pub json: bool,
    /// Answer with JSON that matches this schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|JSON")]
    pub json_schema: Option<String>,
    /// Answer with text that matches this grammar (Lark or GBNF): a file, or the grammar itself
    #[arg(long, value_name = "FILE|TEXT")]
    pub grammar: Option<String>,
    /// Answer with text that matches this regular expression in full
    #[arg(long, value_name = "REGEX")]
    pub regex: Option<String>,
}

/// Stages in the order they are run.
#[derive(Debug, Clone)]
pub struct SamplerOrder(pub Vec<Stage>);

impl SamplingArgs {
    /// The tokenizer knows which tokens hold the breakers of repetitions.
    pub fn sampling(&self, seed: u64, tokenizer: &Tokenizer) -> Sampling {
        let more = &self.more;
        let ids = |list: &[u32]| list.iter().map(|&id| TokenId(id)).collect::<Vec<_>>();
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: more.typical_p.max(f32::MIN_POSITIVE),
            top_n_sigma: more.top_n_sigma,
            xtc: Xtc { probability: more.xtc_probability, threshold: more.xtc_threshold },
            dry: Dry {
                multiplier: more.dry_multiplier,
                base: more.dry_base,
                allowed_length: more.dry_allowed_length,
                breakers: if more.dry_multiplier > 0.0 { self.breakers(tokenizer) } else { Vec::new() },
                ..Dry::default()
            },
            dynatemp_range: more.dynatemp_range,
            dynatemp_exponent: more.dynatemp_exponent,
            mirostat: more.mirostat.map(|tau| Mirostat { tau, eta: more.mirostat_rate }),
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: more.penalty_window,
            logit_bias: self.logit_bias.iter().map(|&(id, bias)| (TokenId(id), bias)).collect(),
            banned: ids(&more.ban_token),
            allowed: (!more.allow_token.is_empty()).then(|| ids(&more.allow_token)),
            min_tokens: more.min_tokens,
            order: more.samplers.clone().map_or_else(|| Stage::DEFAULT_ORDER.to_vec(), |order| order.0),
            seed,
        }
    }

    fn breakers(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        const USUAL: [&str; 4] = ["\n", ":", "\"", "*"];
        let given: Vec<&str> = self.more.dry_breaker.iter().map(String::as_str).collect();
        let texts = if given.is_empty() { &USUAL[..] } else { &given };
        tokenizer.ids_holding(texts).into_iter().map(TokenId).collect()
    }

    /// The seed that was asked for; `None`: a random one.
    pub fn fixed_seed(&self) -> Option<u64> {
        self.seed.filter(|&seed| seed != RANDOM_SEED)
    }

    /// The seed that was asked for, or a fresh one.
    pub fn pick_seed(&self) -> u64 {
        // std seeds its hash maps from the system's randomness.
        self.fixed_seed().unwrap_or_else(|| RandomState::new().hash_one("seed") >> 1)
    }

    /// How many tokens an answer may have; `None`: as many as it takes.
    pub fn max_tokens(&self) -> Option<usize> {
        (self.max_tokens != UNLIMITED).then_some(self.max_tokens)
    }

    /// Warns about a value that is allowed, but hardly meant.
    pub fn warn(&self) {
        if self.temperature > USUAL_TEMPERATURE {
            report::warning(&format!(
                "--temperature {} makes answers mostly random; usual values are 0 to {USUAL_TEMPERATURE}",
                self.temperature
            ));
        }
    }
}

impl FormArgs {
    /// What was asked for, if anything. Files are read here.
    pub fn constraint(&self) -> Result<Option<Constraint>> {
        if self.json {
            return Ok(Some(Constraint::Json));
        }
        if let Some(given) = &self.json_schema {
            return Ok(Some(Constraint::JsonSchema(schema(given)?)));
        }
        if let Some(given) = &self.grammar {
            let is_text = given.contains("::=") || given.contains('\n') || given.contains(": ");
            let text = if is_text { given.clone() } else { read_text(Path::new(given)).context("--grammar")? };
            return Ok(Some(Constraint::grammar(&text)));
        }
        Ok(self.regex.clone().map(Constraint::Regex))
    }
}

/// A schema that was typed, or the file that holds it.
fn schema(given: &str) -> Result<serde_json::Value> {
    if given.trim_start().starts_with('{') {
        return parse_json(given)
            .context("--json-schema is not valid JSON")
            .hint("quote it for the shell: '{\"type\": \"object\"}'");
    }
    if let Ok(schema @ serde_json::Value::Bool(_)) = serde_json::from_str(given) {
        return Ok(schema);
    }
    parse_json(&read_text(Path::new(given)).context("--json-schema")?)
        .with_context(|| format!("`{given}` is not valid JSON"))
        .hint("--json-schema takes a file with a JSON schema, or the schema itself")
}

/// A text as JSON; the error shows the place.
fn parse_json(text: &str) -> Result<serde_json::Value> {
    serde_json::from_str(text)
        .map_err(|error| anyhow!("{error}\n{}", hub::hint::excerpt(text, error.line(), error.column())))
}

fn parse_order(text: &str) -> Result<SamplerOrder, String> {
    Stage::parse_order(text).map(SamplerOrder)
}

fn parse_number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("expected a number".to_owned()),
    }
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    let in_range = |v| match (0.0..=MAX_TEMPERATURE).contains(&v) {
        true => Ok(v),
        false => Err(format!("expected a number from 0 to {MAX_TEMPERATURE}")),
    };
    parse_number(text).and_then(in_range)
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let is_random = text == "-1";
    let seed = if is_random { Ok(RANDOM_SEED) } else { text.parse() };
    seed.map_err(|_| "expected a whole number from 0, or -1 for a random seed".to_owned())
}

fn parse_max_tokens(text: &str) -> Result<usize, String> {
    // llama.cpp's -2 means until the context is full, which is where an answer without a limit ends.
    let is_unlimited = text == "-1" || text == "-2";
    let n_tokens = if is_unlimited { Ok(UNLIMITED) } else { text.parse() };
    n_tokens.map_err(|_| "expected a whole number from 0, or -1 for no limit".to_owned())
}

fn parse_from_zero(text: &str) -> Result<f32, String> {
    parse_number(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err("expected a number from 0".to_owned()) })
}

fn parse_fraction(text: &str) -> Result<f32, String> {
    let in_range = |v| if (0.0..=1.0).contains(&v) { Ok(v) } else { Err("expected a number from 0 to 1".to_owned()) };
    parse_number(text).and_then(in_range)
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse::<f32>().ok()?)));
    parts.filter(|(_, bias)| !bias.is_nan()).ok_or_else(|| "expected ID=BIAS, as in 42=-1.5 or 42=-inf".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Only {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn parse(args: &[&str]) -> Result<SamplingArgs, clap::Error> {
        <Only as clap::Parser>::try_parse_from(args).map(|only| only.sampling)
    }

    #[test]
    fn negative_numbers_of_llama_cpp() {
        let given = parse(&["-n", "-1", "--seed", "-1"]).unwrap();
        assert_eq!((given.max_tokens(), given.fixed_seed()), (None, None));
        assert_ne!(given.pick_seed(), given.pick_seed(), "another seed each time");
        let given = parse(&["-n", "0", "-s", "7"]).unwrap();
        assert_eq!((given.max_tokens(), given.fixed_seed()), (Some(0), Some(7)));
        for bad in [["-n", "-3"], ["-n", "many"], ["--seed", "-2"], ["--temperature", "101"], ["--temperature", "-1"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }
}
