//! `/v1/chat/completions`.

use super::chat_stream::ChatEncoder;
use super::messages::{self, ChatMessage};
use super::{add_usage, finish_reason, usage};
use crate::server::App;
use crate::server::answer::{self, Whole};
use crate::server::error::{ApiError, Result};
use crate::server::generation::{self, Caller, Request, Usage};
use crate::server::ids;
use crate::server::json::Json;
use crate::server::loaded::Loaded;
use crate::server::models::now_s;
use crate::server::pieces::{Splitter, TokenLogprob};
use crate::server::sampling::{Knobs, MAX_TOP_LOGPROBS, Stop, check_n};
use crate::server::stream::{self, Framing};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use text::RenderOptions;

#[derive(Debug, Deserialize)]
pub struct ChatRequest {
    #[serde(default)]
    pub model: String,
    pub messages: Vec<ChatMessage>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub max_tokens: Option<u64>,
    #[serde(default)]
    pub max_completion_tokens: Option<u64>,
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
    pub logprobs: Option<bool>,
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Further variables for the chat template, as vLLM and llama.cpp take them.
    #[serde(default)]
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<ChatRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let body = Arc::new(body);
    let (request, splitter) = prepare(&app, &model, &body, caller).await?;
    let answers = generation::start(&model, &request, &splitter)?;
    let (id, created) = (ids::new("chatcmpl-"), now_s());
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    if body.stream == Some(true) {
        let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        let encoder = ChatEncoder::new(id, created, name, Arc::clone(&model), request.n, include_usage);
        return Ok(stream::respond(answers, encoder, Framing::EventsWithDone));
    }
    let whole = answer::collect(answers, request.n).await?;
    let mut total = Usage::default();
    whole.iter().for_each(|one| add_usage(&mut total, &one.usage));
    let choices: Vec<Value> = whole.iter().enumerate().map(|(i, one)| choice(i, one, &model, &request)).collect();
    let value = json!({"id": id, "object": "chat.completion", "created": created, "model": name, "choices": choices,
        "usage": usage(&total), "service_tier": "default", "system_fingerprint": app.fingerprint});
    Ok(axum::Json(value).into_response())
}

async fn prepare(
    app: &App,
    model: &Arc<Loaded>,
    body: &Arc<ChatRequest>,
    caller: Caller,
) -> Result<(Request, Splitter)> {
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
    let stop = body.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default();
    let n = check_n(body.n)?;
    let logprobs = match (body.logprobs, body.top_logprobs) {
        (_, Some(top)) if top > MAX_TOP_LOGPROBS => {
            let text = format!("top_logprobs is {top}, expected at most {MAX_TOP_LOGPROBS}");
            return Err(ApiError::bad(text).param("top_logprobs"));
        }
        (Some(true), top) => Some(top.unwrap_or(0) as usize),
        (_, Some(1..)) => {
            return Err(ApiError::bad("top_logprobs needs logprobs to be true").param("top_logprobs"));
        }
        _ => None,
    };
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    let max_tokens = max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX)).or(app.defaults.max_tokens);
    let prompt = encode(model, body).await?;
    let splitter = Splitter::new(Arc::clone(&model.tokenizer), stop.clone(), logprobs.is_some());
    let request = Request { prompt, sampling, max_tokens, stop, logprobs, constraint: None, n, caller };
    Ok((request, splitter))
}

/// Renders and tokenizes, on a thread that may take its time.
async fn encode(model: &Arc<Loaded>, body: &Arc<ChatRequest>) -> Result<Vec<model::TokenId>> {
    let (model, body) = (Arc::clone(model), Arc::clone(body));
    let work = move || -> Result<_> { Ok(model.encode_rendered(&render(&model, &body)?)) };
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
}

fn render(model: &Loaded, body: &ChatRequest) -> Result<String> {
    let messages = messages::to_template(&body.messages)?;
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: None,
        extra: body.chat_template_kwargs.clone().unwrap_or_default(),
    };
    model.render(&messages, &options).map_err(|error| {
        ApiError::bad(format!("the model's chat template refused the conversation: {error}")).param("messages")
    })
}

fn choice(index: usize, answer: &Whole, model: &Loaded, request: &Request) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text, "refusal": null});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.as_str().into();
    }
    let content = request.logprobs.map(|_| logprobs(&answer.logprobs, model));
    json!({
        "index": index,
        "message": message,
        "logprobs": content.map(|content| json!({"content": content, "refusal": null})),
        "finish_reason": finish_reason(answer.finish),
    })
}

pub fn logprobs(tokens: &[TokenLogprob], model: &Loaded) -> Vec<Value> {
    let show = |token: model::TokenId, logprob: f32| {
        let bytes = model.tokenizer.token_bytes(token.0).unwrap_or_default();
        // JSON has no infinities.
        let logprob = logprob.max(-9999.0);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let one = |token: &TokenLogprob| {
        let mut value = show(token.token, token.logprob);
        value["top_logprobs"] = token.top.iter().map(|&(token, logprob)| show(token, logprob)).collect();
        value
    };
    tokens.iter().map(one).collect()
}
