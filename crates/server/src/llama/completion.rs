//! `/completion`: the fields that llama.cpp has, and what becomes of them. `/infill` differs only in its prompt.

use super::answer::{LlamaEncoder, LlamaFrame, generation_settings};
use super::{MIN_P, TEMPERATURE, TOP_K, TOP_P};
use crate::App;
use crate::blocking;
use crate::error::{ApiError, Result};
use crate::generation::{self, Answers, Caller, GenerationRequest};
use crate::loaded::Loaded;
use crate::openai::chat::{RequestBody, count};
use crate::prompt::CompletionPrompt;
use crate::sampling::{Defaults, MAX_TOP_LOGPROBS, SamplingParams};
use crate::stream::{Framing, respond};
use crate::{tools, whole};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use rocinante::Splitter;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Prompts in one request.
const MAX_PROMPTS: usize = 64;
/// Parts of an answer that can be asked for by name.
const MAX_FIELDS: usize = 64;
const MAX_FIELD_LEN: usize = 128;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LlamaCompletion {
    pub prompt: Option<CompletionPrompt>,
    /// -1: until it ends.
    pub n_predict: Option<i64>,
    /// Log-probabilities of so many tokens at each place.
    pub n_probs: Option<u32>,
    pub return_tokens: Option<bool>,
    pub ignore_eos: Option<bool>,
    /// The only parts of the answer to send; `a/b` is `b` in `a`.
    pub response_fields: Option<Vec<String>>,
    /// In a stream, tell how much of the prompt is read.
    pub return_progress: Option<bool>,
    /// What is cached, and where a request runs, is decided here.
    #[serde(rename = "cache_prompt")]
    _cache_prompt: Option<bool>,
    #[serde(rename = "id_slot")]
    _id_slot: Option<i64>,
    #[serde(rename = "timings_per_token")]
    _timings_per_token: Option<bool>,
}

pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: RequestBody<LlamaCompletion>,
) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let prompt = body.own.prompt.clone().ok_or_else(|| ApiError::bad("there is no `prompt`").param("prompt"))?;
    let is_list = prompt.is_list();
    let prompts = prompt.encode_aside(&model, "prompt", MAX_PROMPTS).await?;
    let mut answered = answer(&app, &model, caller, &body, prompts).await?;
    if let Answered::Whole(values) = &mut answered
        && !is_list
    {
        return Ok(axum::Json(values.remove(0)).into_response());
    }
    Ok(answered.into_response())
}

/// What is sent back.
pub enum Answered {
    Stream(Response),
    /// One value for each prompt, of which there is at least one.
    Whole(Vec<Value>),
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        match self {
            Self::Stream(response) => response,
            Self::Whole(values) => axum::Json(Value::Array(values)).into_response(),
        }
    }
}

/// Goes on from each of the prompts.
pub async fn answer(
    app: &App,
    model: &Arc<Loaded>,
    caller: Caller,
    body: &RequestBody<LlamaCompletion>,
    prompts: Vec<Vec<TokenId>>,
) -> Result<Answered> {
    let own = &body.own;
    if body.fields.n.is_some_and(|n| n != 1) {
        return Err(ApiError::bad("only one answer per prompt: repeat the prompt in a list for more").param("n"));
    }
    let (owned, shape) = (Arc::clone(model), body.output_format.shape()?);
    let constraint = blocking::run(move || tools::shape_constraint(&owned, &shape)).await?;
    let params = params(&body.params, model, &app.defaults);
    let mut sampling = params.sampling(model, &app.defaults)?;
    if own.ignore_eos == Some(true) {
        sampling.banned.extend(model.tokenizer.end_ids().iter().map(|&id| TokenId(id)));
    }
    let n_probs = own.n_probs()?;
    let fields = own.response_fields()?;
    let asked = own.n_predict.and_then(|n| usize::try_from(n).ok());
    let max_tokens = asked.or(body.fields.max_tokens.map(count)).or(params.max_tokens());
    let stop = if body.fields.stop.is_some() { body.fields.stops()? } else { params.stops()? };
    let mut settings = generation_settings(&sampling, max_tokens, &stop);
    settings["n_probs"] = n_probs.unwrap_or(0).into();
    settings["stream"] = body.fields.is_stream().into();
    settings["ignore_eos"] = (own.ignore_eos == Some(true)).into();
    let splitter = Splitter::plain(&model.tokenizer, stop, n_probs.is_some());
    let mut started = Vec::with_capacity(prompts.len());
    let mut frames = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        frames.push(LlamaFrame {
            name: body.fields.name(model),
            prompt: prompt.iter().map(|token| model.tokenizer.token_text(token.0)).collect(),
            model: Arc::clone(model),
            settings: settings.clone(),
            has_probs: n_probs.is_some(),
            returns_tokens: own.return_tokens == Some(true),
            fields: fields.clone(),
        });
        let max_tokens = params.limit(max_tokens.or(app.defaults.max_tokens), prompt.len(), model);
        let request = GenerationRequest {
            prompt,
            sampling: sampling.clone(),
            max_tokens,
            logprobs: n_probs.map(|n| n as usize),
            prompt_logprobs: false,
            progress: own.return_progress == Some(true) && body.fields.is_stream(),
            constraint: constraint.clone(),
            guesses: params.guesses(None),
            n: 1,
            caller,
        };
        started.push(generation::start(app, model, &request, &splitter)?);
    }
    let answers = Answers::join(started, 1).ok_or_else(|| ApiError::bad("there is no prompt").param("prompt"))?;
    let answers = answers.telling_tokens();
    if body.fields.is_stream() {
        return Ok(Answered::Stream(respond(answers, LlamaEncoder::new(frames), Framing::Events)));
    }
    let whole = whole::collect(answers, frames.len()).await?;
    Ok(Answered::Whole(whole.iter().zip(&frames).enumerate().map(|(i, (one, frame))| frame.whole(i, one)).collect()))
}

impl LlamaCompletion {
    /// How many log-probabilities are wanted at each place; `None` where none are.
    fn n_probs(&self) -> Result<Option<u32>> {
        match self.n_probs.filter(|&n| n > 0) {
            Some(n) if n > MAX_TOP_LOGPROBS => {
                Err(ApiError::bad(format!("n_probs must be at most {MAX_TOP_LOGPROBS}")).param("n_probs"))
            }
            n => Ok(n),
        }
    }

    fn response_fields(&self) -> Result<Vec<String>> {
        let fields = self.response_fields.as_deref().unwrap_or_default();
        if fields.len() > MAX_FIELDS || fields.iter().any(|field| field.len() > MAX_FIELD_LEN) {
            let what = format!("at most {MAX_FIELDS} fields of at most {MAX_FIELD_LEN} bytes");
            return Err(ApiError::bad(what).param("response_fields"));
        }
        Ok(fields.to_vec())
    }
}

/// llama.cpp's usual values stand where neither the request, nor the model, nor the operator says otherwise.
fn params(asked: &SamplingParams, model: &Loaded, defaults: &Defaults) -> SamplingParams {
    asked.or(&model.preset.params).or(&usual(defaults))
}

/// llama.cpp's values where the operator has left ours as they are.
pub fn usual(defaults: &Defaults) -> SamplingParams {
    let built_in = Defaults::default();
    SamplingParams {
        temperature: (defaults.temperature == built_in.temperature).then_some(TEMPERATURE),
        top_k: (defaults.top_k == built_in.top_k).then_some(TOP_K),
        top_p: (defaults.top_p == built_in.top_p).then_some(TOP_P),
        min_p: (defaults.min_p == built_in.min_p).then_some(MIN_P),
        ..SamplingParams::default()
    }
}
