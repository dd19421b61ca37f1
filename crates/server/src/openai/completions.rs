//! `/v1/completions`: text to be continued, without a chat template.

use super::chat::{RequestBody, count};
use super::completions_stream::{CompletionEncoder, Echoes, Lists};
use super::{finish_reason, total, usage};
use crate::App;
use crate::blocking;
use crate::error::{ApiError, Result};
use crate::generation::{self, Answers, Caller, GenerationRequest};
use crate::llama;
use crate::loaded::Loaded;
use crate::models::now_s;
use crate::prompt::CompletionPrompt;
use crate::sampling::{MAX_TOP_LOGPROBS, check_n};
use crate::stream::{self, Framing};
use crate::tools;
use crate::whole;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use rocinante::{Splitter, WholeAnswer, ids};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Prompts in one request.
const MAX_PROMPTS: usize = 64;
/// Tokens of an answer whose length nobody gave, as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct CompletionRequest {
    #[serde(default)]
    pub prompt: Option<CompletionPrompt>,
    #[serde(default)]
    pub suffix: Option<String>,
    #[serde(default)]
    pub echo: Option<bool>,
    /// Answers to choose the `n` likeliest from.
    #[serde(default)]
    pub best_of: Option<u32>,
    #[serde(default)]
    pub logprobs: Option<u32>,
}

/// Everything about a request that is not on the wire any more.
struct Prepared {
    prompts: Vec<Vec<TokenId>>,
    request: GenerationRequest,
    splitter: Splitter,
    /// What is shown before each answer.
    echoes: Vec<String>,
    /// Answers shown to each prompt; the request may make more, to choose from.
    n: usize,
    has_logprobs: bool,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: RequestBody<CompletionRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let (is_stream, include_usage) = (body.fields.is_stream(), body.fields.include_usage());
    let name = body.fields.name(&model);
    let (shared, owner) = (Arc::clone(&app), Arc::clone(&model));
    let prepared = tokio::task::spawn_blocking(move || prepare(&shared, &owner, &body, caller)).await;
    let Prepared { prompts, request, splitter, echoes, n, has_logprobs } =
        prepared.map_err(|error| ApiError::internal(error.to_string()))??;
    let start = |prompt: &Vec<TokenId>| {
        generation::start(&app, &model, &GenerationRequest { prompt: prompt.clone(), ..request.clone() }, &splitter)
    };
    let answers = prompts.iter().map(start).collect::<Result<Vec<_>>>()?;
    let made = request.n;
    let answers = Answers::join(answers, made).ok_or_else(|| ApiError::bad("there is no prompt").param("prompt"))?;
    let (id, created) = (ids::new("cmpl-"), now_s());
    let first_tokens = prompts.iter().map(|prompt| prompt[0]).collect();
    let echoes = Echoes { texts: echoes, first_tokens, is_scored: request.prompt_logprobs, n };
    if is_stream {
        let encoder = CompletionEncoder::new(id, created, name, model, include_usage, echoes);
        return Ok(stream::respond(answers, encoder, Framing::EventsWithDone));
    }
    let mut whole = whole::collect(answers, made * prompts.len()).await?;
    let total = total(whole.iter().map(|one| &one.usage), made);
    if made > n {
        let likeliest = |chunk: &[WholeAnswer]| {
            let mut chunk = chunk.to_vec();
            chunk.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
            chunk.truncate(n);
            chunk
        };
        whole = whole.chunks(made).flat_map(likeliest).collect();
    }
    let choice = |(i, one): (usize, &WholeAnswer)| {
        let logprobs = has_logprobs.then(|| {
            let mut lists = Lists::default();
            match request.prompt_logprobs {
                true => lists.add_prompt(echoes.first_tokens[i / n], &one.prompt, &model),
                false => lists.skip(&echoes.texts[i / n]),
            }
            one.logprobs.iter().for_each(|token| lists.add(token, &model));
            lists.take()
        });
        json!({"index": i, "text": format!("{}{}", echoes.texts[i / n], one.text), "logprobs": logprobs,
            "finish_reason": finish_reason(one.finish)})
    };
    let choices: Vec<Value> = whole.iter().enumerate().map(choice).collect();
    let value = json!({"id": id, "object": "text_completion", "created": created, "model": name, "choices": choices,
        "usage": usage(&total), "system_fingerprint": app.fingerprint});
    Ok(axum::Json(value).into_response())
}

/// How likely the model found its own answer, a token.
fn mean_logprob(answer: &WholeAnswer) -> f64 {
    let sum: f64 = answer.logprobs.iter().map(|token| f64::from(token.logprob)).sum();
    sum / answer.logprobs.len().max(1) as f64
}

fn prepare(app: &App, model: &Loaded, body: &RequestBody<CompletionRequest>, caller: Caller) -> Result<Prepared> {
    let RequestBody { fields, params, output_format, own } = body;
    let sampling = params.sampling(model, &app.defaults)?;
    if let Some(top) = own.logprobs.filter(|&top| top > MAX_TOP_LOGPROBS) {
        let text = format!("logprobs is {top}, expected at most {MAX_TOP_LOGPROBS}");
        return Err(ApiError::bad(text).param("logprobs"));
    }
    let n = check_n(fields.n)?;
    // OpenAI takes 0 for not given.
    let made = own.best_of.filter(|&best_of| best_of > 0).map_or(Ok(n), |best_of| check_n(Some(best_of)))?;
    if made < n || (made > n && fields.is_stream()) {
        let text = format!("best_of is {made}, expected at least n ({n}), and no more than that in a stream");
        return Err(ApiError::bad(text).param("best_of"));
    }
    let prompts = encode(model, own)?;
    let show = |prompt: &Vec<TokenId>| {
        let mut detokenizer = text::Detokenizer::new(Arc::clone(&model.tokenizer));
        let text: String = prompt.iter().map(|token| detokenizer.push(token.0)).collect();
        text + &detokenizer.finish()
    };
    let has_echo = own.echo == Some(true);
    let echoes = prompts.iter().map(|prompt| if has_echo { show(prompt) } else { String::new() }).collect();
    let max_tokens = fields.max_tokens.map(count).or(app.defaults.max_tokens).or(Some(DEFAULT_MAX_TOKENS));
    let has_logprobs = own.logprobs.is_some();
    let logprobs = own.logprobs.map(|n| n as usize).or((made > n).then_some(0));
    let prompt_logprobs = has_echo && has_logprobs;
    let splitter = Splitter::plain(&model.tokenizer, fields.stops()?, logprobs.is_some());
    let (prompt, constraint) = (Vec::new(), tools::shape_constraint(model, &output_format.shape()?)?);
    let request = GenerationRequest {
        prompt,
        sampling,
        max_tokens,
        logprobs,
        prompt_logprobs,
        progress: false,
        constraint,
        guesses: params.guesses(None),
        n: made,
        caller,
    };
    Ok(Prepared { prompts, request, splitter, echoes, n, has_logprobs })
}

fn encode(model: &Loaded, body: &CompletionRequest) -> Result<Vec<Vec<TokenId>>> {
    match (&body.prompt, &body.suffix) {
        (Some(CompletionPrompt::Text(before)), Some(after)) if !after.is_empty() => {
            Ok(vec![match llama::encode_middle(model, before, after)? {
                Some(tokens) => tokens,
                None => llama::encode_in_words(model, before, after)?,
            }])
        }
        (Some(prompt), _) => prompt.encode(model, "prompt", MAX_PROMPTS),
        // Nothing to go on from: the beginning of a text.
        (None, _) => Ok(vec![model.encode_start()]),
    }
}

/// `/v1/completions/render`: the tokens the model would read.
pub async fn render(State(app): State<Arc<App>>, body: RequestBody<CompletionRequest>) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let work = move || -> Result<Vec<Value>> {
        let shown = encode(&model, &body.own)?.into_iter().map(|tokens| {
            let text: String = tokens.iter().map(|token| model.tokenizer.token_text(token.0)).collect();
            let tokens: Vec<u32> = tokens.into_iter().map(|token| token.0).collect();
            json!({"prompt": text, "n_tokens": tokens.len(), "tokens": tokens})
        });
        Ok(shown.collect())
    };
    Ok(axum::Json(json!({"prompts": blocking::run(work).await?})).into_response())
}
