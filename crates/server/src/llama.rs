//! llama.cpp's own API: `/completion`, `/apply-template`, `/props`, `/slots`, `/lora-adapters` and `/embedding`, with its
//! fields, its defaults and its way to stream. Slots are what it calls places for requests; here any request takes the
//! next one.

use super::App;
use super::ask;
use super::error::{ApiError, Result};
use super::generation::{self, Answers, Caller, GenerationRequest};
use super::json::Json;
use super::loaded::Loaded;
use super::openai::chat::{self, Asked, ChatRequest};
use super::openai::chat_answer;
use super::openai::completions::CompletionPrompt;
use super::sampling::{Knobs, MAX_TOP_LOGPROBS};
use super::stream::{Encoder, Framing, StreamMessage, respond};
use super::{tools, vectors, whole};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use rocinante::{AnswerEvent, AnswerUsage, Finish, Finished, Piece, Splitter, TokenLogprob, WholeAnswer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// llama.cpp's own defaults.
const TEMPERATURE: f32 = 0.8;
const TOP_K: i64 = 40;
const TOP_P: f32 = 0.95;
const MIN_P: f32 = 0.05;
/// Its way to say that every request gets a seed of its own.
const RANDOM_SEED: u32 = u32::MAX;
/// Prompts in one request.
const MAX_PROMPTS: usize = 64;

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
    /// What is cached, and where a request runs, is decided here.
    #[serde(rename = "cache_prompt")]
    _cache_prompt: Option<bool>,
    #[serde(rename = "id_slot")]
    _id_slot: Option<i64>,
    #[serde(rename = "timings_per_token")]
    _timings_per_token: Option<bool>,
}

/// An answer in llama.cpp's words.
#[derive(Clone)]
struct LlamaFrame {
    model: Arc<Loaded>,
    name: String,
    prompt: String,
    settings: Value,
    has_probs: bool,
    returns_tokens: bool,
}

pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Asked<LlamaCompletion>,
) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let prompt = body.own.prompt.clone().ok_or_else(|| ApiError::bad("there is no `prompt`").param("prompt"))?;
    let is_list = matches!(prompt, CompletionPrompt::Texts(_) | CompletionPrompt::TokenLists(_));
    let (owned, shape) = (Arc::clone(&model), body.guide.shape()?);
    let work = move || -> Result<_> {
        Ok((prompt.encode(&owned, "prompt", MAX_PROMPTS)?, tools::shape_constraint(&owned, &shape)?))
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?;
    let (prompts, constraint) = done?;
    let knobs = knobs(&body.knobs, &model);
    let mut sampling = knobs.sampling(&model, &app.defaults)?;
    if body.own.ignore_eos == Some(true) {
        sampling.banned.extend(model.tokenizer.end_ids().iter().map(|&id| TokenId(id)));
    }
    let n_probs = body.own.n_probs()?;
    let asked = body.own.n_predict.and_then(|n| usize::try_from(n).ok());
    let max_tokens = asked.or(body.fields.max_tokens.map(chat::count)).or(knobs.max_tokens());
    let stop = if body.fields.stop.is_some() { body.fields.stops()? } else { knobs.stops()? };
    let settings = json!({"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
        "min_p": sampling.min_p, "seed": sampling.seed, "repeat_penalty": sampling.repetition_penalty, "stop": stop,
        "n_predict": max_tokens.map_or(-1, |n| n as i64), "n_probs": n_probs.unwrap_or(0),
        "stream": body.fields.is_stream()});
    let splitter = Splitter::plain(&model.tokenizer, stop, n_probs.is_some());
    let mut started = Vec::with_capacity(prompts.len());
    let mut frames = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        frames.push(LlamaFrame {
            name: body.fields.name(&model),
            prompt: prompt.iter().map(|token| model.tokenizer.token_text(token.0)).collect(),
            model: Arc::clone(&model),
            settings: settings.clone(),
            has_probs: n_probs.is_some(),
            returns_tokens: body.own.return_tokens == Some(true),
        });
        let max_tokens = knobs.limit(max_tokens.or(app.defaults.max_tokens), prompt.len(), &model);
        let request = GenerationRequest {
            prompt,
            sampling: sampling.clone(),
            max_tokens,
            logprobs: n_probs.map(|n| n as usize),
            prompt_logprobs: false,
            progress: false,
            constraint: constraint.clone(),
            guesses: knobs.guesses(None),
            n: 1,
            caller,
        };
        started.push(generation::start(&app, &model, &request, &splitter)?);
    }
    let answers = Answers::join(started, 1).ok_or_else(|| ApiError::bad("there is no prompt").param("prompt"))?;
    if body.fields.is_stream() {
        let n_sent = vec![0; frames.len()];
        return Ok(respond(answers, LlamaEncoder { frames, n_sent }, Framing::Events));
    }
    let mut values = collected(answers, &frames).await?;
    let value = if is_list { Value::Array(values) } else { values.remove(0) };
    Ok(axum::Json(value).into_response())
}

/// The answers as a whole, one value each.
async fn collected(answers: Answers, frames: &[LlamaFrame]) -> Result<Vec<Value>> {
    let whole = whole::collect(answers, frames.len()).await?;
    let one = |(i, (answer, frame)): (usize, (&WholeAnswer, &LlamaFrame))| {
        let mut value = frame.last(i, &answer.text, &answer.usage, answer.finish, answer.stop.as_deref());
        frame.add_tokens(&mut value, &answer.text, &answer.logprobs);
        value
    };
    Ok(whole.iter().zip(frames).enumerate().map(one).collect())
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
}

fn knobs(asked: &Knobs, model: &Loaded) -> Knobs {
    let usual = Knobs {
        temperature: Some(TEMPERATURE),
        top_k: Some(TOP_K),
        top_p: Some(TOP_P),
        min_p: Some(MIN_P),
        ..Knobs::default()
    };
    asked.or(&model.preset.knobs).or(&usual)
}

impl LlamaFrame {
    /// What stands at the end of an answer, or is all of it.
    fn last(&self, index: usize, text: &str, usage: &AnswerUsage, finish: Finish, stop: Option<&str>) -> Value {
        let why = match finish {
            Finish::Length | Finish::Context | Finish::Cancelled => "limit",
            Finish::StopString => "word",
            Finish::End | Finish::ToolCalls => "eos",
        };
        json!({"index": index, "content": text, "tokens": [], "id_slot": 0, "stop": true, "model": self.name,
            "tokens_predicted": usage.n_generated, "tokens_evaluated": usage.n_prompt,
            "generation_settings": self.settings, "prompt": self.prompt, "has_new_line": text.contains('\n'),
            "truncated": false, "stop_type": why, "stopping_word": stop.unwrap_or_default(),
            "tokens_cached": usage.n_cached, "timings": timings(usage)})
    }

    fn add_tokens(&self, value: &mut Value, text: &str, logprobs: &[TokenLogprob]) {
        if self.returns_tokens {
            let ids = self.model.tokenizer.encode(text, text::Specials::Plain);
            value["tokens"] = ids.into();
        }
        if self.has_probs {
            let mut probs = chat_answer::logprobs(logprobs, &self.model);
            for (prob, token) in probs.iter_mut().zip(logprobs) {
                prob["id"] = token.token.0.into();
            }
            value["completion_probabilities"] = probs.into();
        }
    }
}

fn timings(usage: &AnswerUsage) -> Value {
    let speed = |n: usize, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
    let (prompt_n, predicted_n) = (usage.n_prompt.saturating_sub(usage.n_cached), usage.n_generated);
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let (prompt_ms, predicted_ms) = (ms(usage.timings.prefill), ms(usage.timings.decode));
    json!({"cache_n": usage.n_cached, "prompt_n": prompt_n, "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n.max(1) as f64, "prompt_per_second": speed(prompt_n, prompt_ms),
        "predicted_n": predicted_n, "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / predicted_n.max(1) as f64,
        "predicted_per_second": speed(predicted_n, predicted_ms)})
}

struct LlamaEncoder {
    frames: Vec<LlamaFrame>,
    /// Pieces of each answer so far.
    n_sent: Vec<usize>,
}

impl Encoder for LlamaEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        let frame = &self.frames[choice];
        match update {
            AnswerEvent::Piece(Piece::Text { text, logprobs }) => {
                self.n_sent[choice] += 1;
                let mut value = json!({"index": choice, "content": text, "tokens": [], "stop": false, "id_slot": -1,
                    "tokens_predicted": self.n_sent[choice], "tokens_evaluated": 0});
                let frame = LlamaFrame { returns_tokens: true, ..frame.clone() };
                frame.add_tokens(&mut value, &text, &logprobs);
                vec![value.into()]
            }
            AnswerEvent::Finished(Finished { finish, usage, stop }) => {
                vec![frame.last(choice, "", &usage, finish, stop.as_deref()).into()]
            }
            AnswerEvent::Piece(_) | AnswerEvent::Progress { .. } | AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => {
                Vec::new()
            }
        }
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![error.openai().into()]
    }
}

/// `/apply-template`: what the model would read.
pub async fn apply_template(State(app): State<Arc<App>>, body: Asked<ChatRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.fields.model).await?;
    let ask = chat::to_ask(&body)?;
    let text = tokio::task::spawn_blocking(move || ask::render(&model, &ask)).await;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(axum::Json(json!({"prompt": text::unshield(&text)})))
}

/// `/props`: about the first model.
pub async fn props(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let model = app.models.get("").await?;
    let special = |id: Option<u32>| id.map(|id| model.tokenizer.token_text(id)).unwrap_or_default();
    let path = app.models.find("").map(|entry| entry.path.clone()).unwrap_or_default();
    // Where files are is nobody's business.
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(axum::Json(json!({
        "default_generation_settings": {"id": 0, "id_task": -1, "n_ctx": model.n_ctx(), "speculative": false,
            "is_processing": false, "params": {"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P,
                "min_p": MIN_P, "n_predict": -1, "seed": RANDOM_SEED, "stream": true}},
        "total_slots": model.plan().schedule.max_running, "model_alias": model.name, "model_path": file,
        "modalities": {"vision": false, "audio": false},
        "chat_template": model.template().source().unwrap_or_default(),
        "bos_token": special(model.tokenizer.bos()), "eos_token": special(model.tokenizer.eos()),
        "build_info": concat!("roci-", env!("CARGO_PKG_VERSION")), "is_sleeping": false,
    })))
}

/// `/slots`: as many as can run at once, of which some do.
pub async fn slots(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let model = app.models.get("").await?;
    let (n_running, n_ctx) = (model.engine().latest_stats().n_running, model.n_ctx());
    let slot = |id: usize| {
        json!({"id": id, "id_task": if id < n_running { id as i64 } else { -1 }, "n_ctx": n_ctx,
            "speculative": false, "is_processing": id < n_running})
    };
    Ok(axum::Json((0..model.plan().schedule.max_running).map(slot).collect()))
}

/// There are no adapters.
pub async fn lora_adapters() -> axum::Json<Value> {
    axum::Json(json!([]))
}

pub async fn set_lora_adapters(Json(body): Json<Vec<Value>>) -> Result<axum::Json<Value>> {
    match body.is_empty() {
        true => Ok(axum::Json(json!({"success": true}))),
        false => Err(ApiError::bad("there are no adapters here").code("not_supported")),
    }
}

#[derive(Debug, Deserialize)]
pub struct LlamaEmbedding {
    #[serde(default)]
    model: String,
    #[serde(alias = "input")]
    content: CompletionPrompt,
}

/// `/embedding`: each text's vector, as a list of one.
pub async fn embedding(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<LlamaEmbedding>,
) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    let texts = body.content.encode_aside(&model, "content", vectors::MAX_TEXTS).await?;
    let (vectors, _) = vectors::embed(&model, texts, caller).await?;
    let all = vectors.into_iter().enumerate().map(|(i, vector)| json!({"index": i, "embedding": [vector]}));
    Ok(axum::Json(all.collect()))
}
