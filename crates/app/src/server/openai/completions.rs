//! `/v1/completions`: text that goes on, without a chat template.

use super::{finish_reason, total, usage};
use crate::server::App;
use crate::server::answer;
use crate::server::error::{ApiError, Result};
use crate::server::generation::{self, Answers, Caller, Request, Update, Usage};
use crate::server::ids;
use crate::server::infill;
use crate::server::json::Json;
use crate::server::loaded::{Loaded, ids as to_ids};
use crate::server::models::now_s;
use crate::server::pieces::{Piece, Splitter, TokenLogprob};
use crate::server::sampling::{Knobs, MAX_TOP_LOGPROBS, Stop, check_n};
use crate::server::stream::{self, Encoder, Framing, Message};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prompts in one request.
const MAX_PROMPTS: usize = 64;
/// Tokens of an answer whose length nobody gave, as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;

#[derive(Clone, Debug, Deserialize)]
pub struct CompletionRequest {
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub prompt: Option<Prompt>,
    #[serde(default)]
    pub suffix: Option<String>,
    #[serde(default)]
    pub echo: Option<bool>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub stream_options: Option<super::chat::StreamOptions>,
    #[serde(default)]
    pub max_tokens: Option<u64>,
    #[serde(default)]
    pub n: Option<u32>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<i64>,
    #[serde(default)]
    pub min_p: Option<f32>,
    #[serde(default)]
    pub presence_penalty: Option<f32>,
    #[serde(default)]
    pub frequency_penalty: Option<f32>,
    #[serde(default, alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub logit_bias: Option<BTreeMap<String, f32>>,
    #[serde(default)]
    pub stop: Option<Stop>,
    #[serde(default)]
    pub logprobs: Option<u32>,
}

/// Text or tokens, one or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompt {
    pub fn encode(&self, model: &Loaded, param: &str) -> Result<Vec<Vec<TokenId>>> {
        let prompts = match self {
            Self::Text(text) => vec![model.encode_raw(text)],
            Self::Tokens(tokens) => vec![to_ids(tokens.clone())],
            Self::Texts(texts) => texts.iter().map(|text| model.encode_raw(text)).collect(),
            Self::TokenLists(lists) => lists.iter().cloned().map(to_ids).collect(),
        };
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            return Err(ApiError::bad(format!("{} prompts, expected 1 to {MAX_PROMPTS}", prompts.len())).param(param));
        }
        let n_vocab = model.handle.n_vocab();
        if let Some(token) = prompts.iter().flatten().find(|token| token.0 as usize >= n_vocab) {
            return Err(
                ApiError::bad(format!("there is no token {}: the vocabulary has {n_vocab}", token.0)).param(param)
            );
        }
        Ok(prompts)
    }
}

/// Everything about a request that is not on the wire any more.
struct Prepared {
    prompts: Vec<Vec<TokenId>>,
    request: Request,
    splitter: Splitter,
    /// What is shown before each answer.
    echoes: Vec<String>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<CompletionRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    let (is_stream, options) = (body.stream == Some(true), body.stream_options.clone());
    let (shared, owner) = (Arc::clone(&app), Arc::clone(&model));
    let prepared = tokio::task::spawn_blocking(move || prepare(&shared, &owner, &body, caller)).await;
    let Prepared { prompts, request, splitter, echoes } =
        prepared.map_err(|error| ApiError::internal(error.to_string()))??;
    let n = request.n;
    let start = |prompt: &Vec<TokenId>| {
        generation::start(&app, &model, &Request { prompt: prompt.clone(), ..request.clone() }, &splitter)
    };
    let answers = prompts.iter().map(start).collect::<Result<Vec<_>>>()?;
    let answers = Answers::join(answers, n).ok_or_else(|| ApiError::bad("there is no prompt").param("prompt"))?;
    let (id, created) = (ids::new("cmpl-"), now_s());
    let n_choices = n * prompts.len();
    if is_stream {
        let include_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let usages = vec![Usage::default(); n_choices];
        let encoder = CompletionEncoder { id, created, name, model, n, include_usage, usages, echoes };
        return Ok(stream::respond(answers, encoder, Framing::EventsWithDone));
    }
    let whole = answer::collect(answers, n_choices).await?;
    let choice = |(i, one): (usize, &answer::Whole)| {
        let logprobs = request.logprobs.map(|_| logprobs(&one.logprobs, &model, echoes[i / n].len()));
        json!({"index": i, "text": format!("{}{}", echoes[i / n], one.text), "logprobs": logprobs,
            "finish_reason": finish_reason(one.finish)})
    };
    let choices: Vec<Value> = whole.iter().enumerate().map(choice).collect();
    let total = total(whole.iter().map(|one| one.usage), n);
    let value = json!({"id": id, "object": "text_completion", "created": created, "model": name, "choices": choices,
        "usage": usage(&total), "system_fingerprint": app.fingerprint});
    Ok(axum::Json(value).into_response())
}

fn prepare(app: &App, model: &Loaded, body: &CompletionRequest, caller: Caller) -> Result<Prepared> {
    let knobs = Knobs {
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        presence_penalty: body.presence_penalty,
        frequency_penalty: body.frequency_penalty,
        repetition_penalty: body.repetition_penalty,
        seed: body.seed,
        logit_bias: body.logit_bias.clone(),
    };
    let sampling = knobs.sampling(model, &app.defaults)?;
    if let Some(top) = body.logprobs.filter(|&top| top > MAX_TOP_LOGPROBS) {
        let text = format!("logprobs is {top}, expected at most {MAX_TOP_LOGPROBS}");
        return Err(ApiError::bad(text).param("logprobs"));
    }
    let stop = body.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default();
    let prompts = encode(model, body)?;
    let show = |prompt: &Vec<TokenId>| {
        let mut detokenizer = text::Detokenizer::new(Arc::clone(&model.tokenizer));
        let text: String = prompt.iter().map(|token| detokenizer.push(token.0)).collect();
        text + &detokenizer.finish()
    };
    let echoes = prompts.iter().map(|prompt| if body.echo == Some(true) { show(prompt) } else { String::new() });
    let echoes = echoes.collect();
    let logprobs = body.logprobs.map(|n| n as usize);
    let n = check_n(body.n)?;
    let max_tokens = body.max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let max_tokens = max_tokens.or(app.defaults.max_tokens).or(Some(DEFAULT_MAX_TOKENS));
    let request = Request { prompt: Vec::new(), sampling, max_tokens, logprobs, constraint: None, n, caller };
    Ok(Prepared { prompts, request, splitter: Splitter::plain(&model.tokenizer, stop, logprobs.is_some()), echoes })
}

fn encode(model: &Loaded, body: &CompletionRequest) -> Result<Vec<Vec<TokenId>>> {
    match (&body.prompt, &body.suffix) {
        (Some(Prompt::Text(before)), Some(after)) if !after.is_empty() => Ok(vec![
            infill::encode(model, before, after).unwrap_or_else(|| infill::encode_in_words(model, before, after)),
        ]),
        (Some(prompt), _) => prompt.encode(model, "prompt"),
        // Nothing to go on from: the beginning of a text.
        (None, _) => Ok(vec![model.encode_start()]),
    }
}

/// `/v1/completions/render`: the tokens the model would read.
pub async fn render(State(app): State<Arc<App>>, Json(body): Json<CompletionRequest>) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let shown = encode(&model, &body)?.into_iter().map(|tokens| {
        let text: String = tokens.iter().map(|token| model.tokenizer.token_text(token.0)).collect();
        let tokens: Vec<u32> = tokens.into_iter().map(|token| token.0).collect();
        json!({"prompt": text, "n_tokens": tokens.len(), "tokens": tokens})
    });
    Ok(axum::Json(json!({"prompts": shown.collect::<Vec<_>>()})).into_response())
}

fn logprobs(tokens: &[TokenLogprob], model: &Loaded, mut offset: usize) -> Value {
    let text = |token: TokenId| model.tokenizer.token_text(token.0);
    let finite = |logprob: f32| if logprob.is_finite() { logprob } else { -9999.0 };
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(offset);
        offset += text(token.token).chars().count();
    }
    let top = |token: &TokenLogprob| -> Value {
        token
            .top
            .iter()
            .map(|&(token, logprob)| (text(token), Value::from(finite(logprob))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({
        "tokens": tokens.iter().map(|token| text(token.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

struct CompletionEncoder {
    id: String,
    created: u64,
    name: String,
    model: Arc<Loaded>,
    n: usize,
    include_usage: bool,
    usages: Vec<Usage>,
    echoes: Vec<String>,
}

impl CompletionEncoder {
    fn chunk(&self, choices: Value) -> Value {
        let mut value = json!({"id": self.id, "object": "text_completion", "created": self.created,
            "model": self.name, "choices": choices});
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn text(&self, choice: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Message {
        self.chunk(json!([{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}])).into()
    }
}

impl Encoder for CompletionEncoder {
    fn start(&mut self) -> Vec<Message> {
        let shown = (0..self.usages.len()).filter(|i| !self.echoes[i / self.n].is_empty());
        shown.map(|i| self.text(i, &self.echoes[i / self.n], Value::Null, None)).collect()
    }

    fn update(&mut self, choice: usize, update: Update) -> Vec<Message> {
        match update {
            Update::Piece(Piece::Text { text, logprobs: tokens }) => {
                let shown = if tokens.is_empty() { Value::Null } else { logprobs(&tokens, &self.model, 0) };
                vec![self.text(choice, &text, shown, None)]
            }
            Update::Piece(_) => Vec::new(),
            Update::Finished { finish, usage, .. } => {
                self.usages[choice] = usage;
                vec![self.text(choice, "", Value::Null, Some(finish_reason(finish)))]
            }
        }
    }

    fn end(&mut self) -> Vec<Message> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut value = self.chunk(json!([]));
        value["usage"] = usage(&total(self.usages.iter().copied(), self.n));
        vec![value.into()]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Message> {
        vec![error.openai().into()]
    }
}
