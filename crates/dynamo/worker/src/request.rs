//! What Dynamo asks for, as a request of ours. What cannot be done is refused: an answer that quietly ignores a wish is
//! worse than none.

use dynamo_backend_common::{DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions};
use rocinante::{Constraint, Model, Request, Sampling, TokenId};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::failure::refused;

/// Most probable tokens that are told for one position.
const MAX_TOP: u32 = 20;

/// A request, with what the engine behind `rocinante` does not know about.
#[derive(Debug)]
pub struct Wanted {
    pub prompt: Vec<TokenId>,
    pub request: Request,
    /// Tokens that end this answer, beside the model's own.
    pub stop_tokens: HashSet<TokenId>,
    /// None of them ends it before so many tokens.
    pub min_tokens: usize,
}

pub fn translate(asked: &PreprocessedRequest, model: &Model) -> Result<Wanted, DynamoError> {
    refuse_what_is_missing(asked)?;
    let stops = &asked.stop_conditions;
    let min_tokens = stops.min_tokens.unwrap_or(0) as usize;
    let ends = || model.tokenizer().end_ids().iter().map(|&id| TokenId(id));
    let ignores_ends = stops.ignore_eos.unwrap_or(false);
    let mut sampling = sampling(&asked.sampling_options, model.is_deterministic())?;
    sampling.min_tokens = min_tokens;
    if ignores_ends {
        sampling.banned.extend(ends());
    }
    let listed = [&stops.stop_token_ids, &stops.stop_token_ids_visible, &stops.stop_token_ids_hidden];
    let stop_tokens = match ignores_ends {
        true => HashSet::new(),
        false => listed.into_iter().flatten().flatten().map(|&id| TokenId(id)).collect(),
    };
    let logprobs = asked.output_options.logprobs;
    if logprobs.is_some_and(|n| n > MAX_TOP) {
        return Err(refused(format!("logprobs is more than {MAX_TOP}")));
    }
    let request = Request {
        sampling,
        max_tokens: stops.max_tokens.map(|n| n as usize),
        stop: if ignores_ends { Vec::new() } else { stops.stop.clone().unwrap_or_default() },
        constraint: asked.sampling_options.guided_decoding.as_ref().map(constraint).transpose()?.flatten(),
        logprobs: logprobs.map(|n| n as usize),
        priority: asked.routing.as_ref().and_then(|routing| routing.priority).unwrap_or(0),
        ..Request::default()
    };
    let prompt = asked.token_ids.iter().map(|&id| TokenId(id)).collect();
    Ok(Wanted { prompt, request, stop_tokens, min_tokens })
}

fn refuse_what_is_missing(asked: &PreprocessedRequest) -> Result<(), DynamoError> {
    let sampling = &asked.sampling_options;
    let has_adapter = asked.routing.as_ref().is_some_and(|routing| routing.lora_name.is_some());
    let has_salt = asked.routing.as_ref().is_some_and(|routing| routing.cache_namespace.is_some());
    let missing = [
        (
            "several answers to one prompt (n, best_of)",
            [sampling.n, sampling.best_of].into_iter().flatten().any(|n| n > 1),
        ),
        ("beam search", sampling.use_beam_search == Some(true)),
        ("log-probabilities of the prompt", asked.output_options.prompt_logprobs.is_some()),
        ("a bound on thinking tokens", asked.stop_conditions.max_thinking_tokens.is_some()),
        ("embeddings as a prompt", asked.prompt_embeds.is_some()),
        ("images, sounds or videos", asked.multi_modal_data.as_ref().is_some_and(|data| !data.is_empty())),
        ("adapters", has_adapter),
        ("a prefix cache apart from others' (cache_salt)", has_salt),
        ("a prompt that another worker has read", asked.prefill_result.is_some() || asked.encoder_result.is_some()),
    ];
    match missing.into_iter().find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => Err(refused(format!("{what}: not offered by this worker"))),
        None => Ok(()),
    }
}

/// Tokens are drawn at temperature 1 unless it says otherwise, as OpenAI's API does.
fn sampling(asked: &SamplingOptions, is_deterministic: bool) -> Result<Sampling, DynamoError> {
    let usual = Sampling::default();
    let top_k = match asked.top_k {
        None | Some(-1) => 0,
        Some(k) => usize::try_from(k).map_err(|_| refused(format!("top_k is {k}")))?,
    };
    // A seed of 64 bits, from where the standard library has its own.
    let random = || if is_deterministic { 0 } else { RandomState::new().build_hasher().finish() };
    Ok(Sampling {
        temperature: asked.temperature.unwrap_or(1.0),
        top_k,
        top_p: asked.top_p.unwrap_or(1.0),
        min_p: asked.min_p.unwrap_or(0.0),
        repetition_penalty: asked.repetition_penalty.unwrap_or(1.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        seed: asked.seed.map_or_else(random, i64::cast_unsigned),
        ..usual
    })
}

fn constraint(asked: &GuidedDecodingOptions) -> Result<Option<Constraint>, DynamoError> {
    if asked.structural_tag.is_some() {
        return Err(refused("structural_tag: not offered by this worker"));
    }
    if asked.whitespace_pattern.is_some() {
        return Err(refused("whitespace_pattern: not offered by this worker"));
    }
    let mut found = Vec::new();
    // A schema may come as a text.
    if let Some(schema) = &asked.json {
        found.push(match schema.as_str().map(str::parse) {
            None => Constraint::JsonSchema(schema.clone()),
            Some(Ok(schema)) => Constraint::JsonSchema(schema),
            Some(Err(error)) => return Err(refused(format!("the schema is not JSON: {error}"))),
        });
    }
    found.extend(asked.regex.clone().map(Constraint::Regex));
    found.extend(asked.choice.as_deref().map(one_of));
    found.extend(asked.grammar.clone().map(|grammar| match grammar.contains("::=") {
        true => Constraint::Gbnf(grammar),
        false => Constraint::Lark(grammar),
    }));
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(refused("only one of json, regex, choice and grammar can hold")),
    }
}

/// One of these texts.
fn one_of(choices: &[String]) -> Constraint {
    let escape = |c: char| if "\\.+*?()|[]{}^$#&-~/".contains(c) { format!("\\{c}") } else { c.to_string() };
    let escaped: Vec<String> = choices.iter().map(|choice| choice.chars().map(escape).collect()).collect();
    Constraint::Regex(format!("({})", escaped.join("|")))
}
