//! `/api/chat` and `/api/generate`.

use super::keep_alive::{KeepAlive, UnloadOnDrop};
use super::{add_figures, timestamp};
use crate::App;
use crate::chat_input::{self, AnswerShape, ChatInput};
use crate::error::{ApiError, Result};
use crate::generation::{self, Caller, GenerationRequest};
use crate::json::{Json, text_or_null};
use crate::llama;
use crate::loaded::Loaded;
use crate::models::now_s;
use crate::openai::chat_answer::logprobs as chat_logprobs;
use crate::openai::chat_tools::function_tool;
use crate::prompt::CompletionPrompt;
use crate::sampling::{MAX_TOP_LOGPROBS, SamplingParams};
use crate::stream::{Encoder, Framing, StreamMessage as Line, respond};
use crate::whole;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use rocinante::{AnswerEvent, AnswerUsage, Finish, Finished, Piece, Splitter, ToolCall, WholeAnswer};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;
use text::Message;

/// Ollama's own defaults.
const TEMPERATURE: f32 = 0.8;
const TOP_K: i64 = 40;
const TOP_P: f32 = 0.9;

#[derive(Clone, Debug, Deserialize)]
pub struct OllamaChat {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    #[serde(default)]
    messages: Vec<OllamaMessage>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    format: Option<Value>,
    #[serde(default)]
    options: Option<SamplingParams>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    think: Option<Value>,
    #[serde(default)]
    keep_alive: KeepAlive,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
struct OllamaMessage {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
    #[serde(default, alias = "name")]
    tool_name: Option<String>,
    #[serde(default)]
    images: Option<Vec<Value>>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GenerateRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    system: Option<String>,
    /// Without the chat template.
    #[serde(default)]
    raw: Option<bool>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    format: Option<Value>,
    #[serde(default)]
    options: Option<SamplingParams>,
    #[serde(default)]
    think: Option<Value>,
    #[serde(default)]
    images: Option<Vec<Value>>,
    #[serde(default)]
    keep_alive: KeepAlive,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<u32>,
    /// The tokens of an earlier answer and its prompt, to go on from.
    #[serde(default)]
    context: Option<Vec<u32>>,
}

/// What was asked, then what the model's name says, then Ollama's defaults.
fn params(options: &Option<SamplingParams>, model: &Loaded) -> SamplingParams {
    let usual = SamplingParams {
        temperature: Some(TEMPERATURE),
        top_p: Some(TOP_P),
        top_k: Some(TOP_K),
        ..SamplingParams::default()
    };
    options.clone().unwrap_or_default().or(&model.preset.params).or(&usual)
}

/// Log-probabilities, where they are wanted.
fn logprobs(is_wanted: Option<bool>, top: Option<u32>) -> Result<Option<usize>> {
    match top {
        Some(top) if top > MAX_TOP_LOGPROBS => {
            let text = format!("top_logprobs is {top}, expected at most {MAX_TOP_LOGPROBS}");
            Err(ApiError::bad(text).param("top_logprobs"))
        }
        top => Ok((is_wanted == Some(true)).then(|| top.unwrap_or(0) as usize)),
    }
}

fn shape(format: &Option<Value>) -> Result<AnswerShape> {
    match format {
        None | Some(Value::Null) => Ok(AnswerShape::Text),
        Some(Value::String(word)) if word.is_empty() => Ok(AnswerShape::Text),
        Some(Value::String(word)) if word == "json" => Ok(AnswerShape::Json),
        Some(schema @ Value::Object(_)) => Ok(AnswerShape::Schema(schema.clone())),
        Some(_) => Err(ApiError::bad("format is \"json\" or a JSON schema").param("format")),
    }
}

/// `true`, `false`, or a word for how hard.
fn thinking(think: &Option<Value>) -> Option<bool> {
    match think {
        Some(Value::Bool(think)) => Some(*think),
        Some(Value::String(_)) => Some(true),
        _ => None,
    }
}

fn no_images(images: &Option<Vec<Value>>) -> Result<()> {
    match images.as_ref().is_some_and(|images| !images.is_empty()) {
        true => Err(ApiError::bad("this model reads text only, not images").param("images")),
        false => Ok(()),
    }
}

/// Ollama's way to ask that a model be loaded, or that it leave.
fn nothing_to_say(mut value: Value, leaving: Option<&UnloadOnDrop>) -> Response {
    value["created_at"] = timestamp(now_s()).into();
    value["done"] = true.into();
    value["done_reason"] = if leaving.is_some() { "unload" } else { "load" }.into();
    axum::Json(value).into_response()
}

pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<OllamaChat>,
) -> Result<Response> {
    let start = Instant::now();
    let model = app.models.get(&body.model).await?;
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    let leaving = body.keep_alive.apply(&app, &body.model, caller)?;
    if body.messages.is_empty() {
        let message = json!({"role": "assistant", "content": ""});
        return Ok(nothing_to_say(json!({"model": name, "message": message}), leaving.as_ref()));
    }
    let options = params(&body.options, &model);
    let tool = |(i, tool): (usize, &Value)| {
        function_tool(&tool["function"]).map_err(|text| ApiError::bad(text).param(format!("tools[{i}]")))
    };
    let input = ChatInput {
        messages: body.messages.iter().map(OllamaMessage::to_template).collect::<Result<_>>()?,
        tools: body.tools.iter().flatten().enumerate().map(tool).collect::<Result<_>>()?,
        is_parallel: true,
        shape: shape(&body.format)?,
        thinking: thinking(&body.think),
        params: options.clone(),
        stop: options.stops()?,
        n: 1,
        max_tokens: options.max_tokens(),
        logprobs: logprobs(body.logprobs, body.top_logprobs)?,
        ..ChatInput::default()
    };
    let (request, splitter) = chat_input::prepare(&app, &model, input, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let mut encoder = LineEncoder {
        name,
        model,
        start,
        kind: Endpoint::Chat,
        calls: Vec::new(),
        has_logprobs: request.logprobs.is_some(),
        context: None,
        _leaving: leaving,
    };
    if body.stream != Some(false) {
        return Ok(respond(answers, encoder, Framing::Lines));
    }
    let whole = whole::collect(answers, 1).await?.remove(0);
    Ok(axum::Json(encoder.whole(&whole)).into_response())
}

impl OllamaMessage {
    fn to_template(&self) -> Result<Message> {
        no_images(&self.images)?;
        let role = match self.role.as_str() {
            role @ ("system" | "user" | "assistant" | "tool") => role,
            role => {
                return Err(ApiError::bad(format!("unknown role `{role}`: expected system, user, assistant or tool")));
            }
        };
        let mut extra = Map::new();
        if let Some(calls) = self.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            let calls = calls.iter().map(|call| json!({"type": "function", "function": call["function"]}));
            extra.insert("tool_calls".into(), calls.collect());
        }
        if let Some(name) = &self.tool_name {
            extra.insert("name".into(), name.as_str().into());
        }
        if let Some(text) = &self.thinking {
            extra.insert("reasoning_content".into(), text.as_str().into());
        }
        Ok(Message { role: role.to_owned(), content: self.content.clone().unwrap_or_default(), extra })
    }
}

pub async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<GenerateRequest>,
) -> Result<Response> {
    let start = Instant::now();
    no_images(&body.images)?;
    let model = app.models.get(&body.model).await?;
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    let leaving = body.keep_alive.apply(&app, &body.model, caller)?;
    if body.prompt.is_empty() && body.suffix.is_none() {
        return Ok(nothing_to_say(json!({"model": name, "response": ""}), leaving.as_ref()));
    }
    let (mut request, splitter) = prepare(&app, &model, &body, caller).await?;
    if let Some(context) = &body.context {
        let before = CompletionPrompt::Tokens(context.clone()).encode(&model, "context", 1)?.remove(0);
        request.prompt.splice(0..0, before);
    }
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let mut encoder = LineEncoder {
        name,
        model,
        start,
        kind: Endpoint::Generate,
        calls: Vec::new(),
        has_logprobs: request.logprobs.is_some(),
        context: (body.raw != Some(true)).then(|| request.prompt.iter().map(|token| token.0).collect()),
        _leaving: leaving,
    };
    if body.stream != Some(false) {
        return Ok(respond(answers, encoder, Framing::Lines));
    }
    let whole = whole::collect(answers, 1).await?.remove(0);
    Ok(axum::Json(encoder.whole(&whole)).into_response())
}

async fn prepare(
    app: &App,
    model: &Arc<Loaded>,
    body: &GenerateRequest,
    caller: Caller,
) -> Result<(GenerationRequest, Splitter)> {
    let options = params(&body.options, model);
    let shape = shape(&body.format)?;
    let suffix = body.suffix.as_deref().filter(|suffix| !suffix.is_empty());
    if body.raw != Some(true) && suffix.is_none() {
        let system = body.system.iter().map(|text| Message::new("system", text.as_str()));
        let input = ChatInput {
            messages: system.chain([Message::new("user", body.prompt.as_str())]).collect(),
            shape,
            thinking: thinking(&body.think),
            params: options.clone(),
            stop: options.stops()?,
            n: 1,
            max_tokens: options.max_tokens(),
            logprobs: logprobs(body.logprobs, body.top_logprobs)?,
            ..ChatInput::default()
        };
        return chat_input::prepare(app, model, input, caller).await;
    }
    let (owned, text, after) = (Arc::clone(model), body.prompt.clone(), suffix.map(str::to_owned));
    let work = move || -> Result<_> {
        let prompt = match after {
            Some(after) => llama::encode_middle(&owned, &text, &after)?
                .ok_or_else(|| ApiError::bad(format!("`{}` does not support insert", owned.name)).param("suffix"))?,
            None => owned.encode_raw(&text)?,
        };
        Ok((prompt, crate::tools::shape_constraint(&owned, &shape)?))
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?;
    let (prompt, constraint) = done?;
    let sampling = options.sampling(model, &app.defaults)?;
    let max_tokens = options.limit(options.max_tokens().or(app.defaults.max_tokens), prompt.len(), model);
    let logprobs = logprobs(body.logprobs, body.top_logprobs)?;
    let splitter = Splitter::plain(&model.tokenizer, options.stops()?, logprobs.is_some());
    let request = GenerationRequest {
        prompt,
        sampling,
        max_tokens,
        logprobs,
        prompt_logprobs: false,
        progress: false,
        constraint,
        guesses: options.guesses(None),
        n: 1,
        caller,
    };
    Ok((request, splitter))
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum Endpoint {
    Chat,
    Generate,
}

/// One JSON object a line.
struct LineEncoder {
    name: String,
    model: Arc<Loaded>,
    start: Instant,
    kind: Endpoint,
    /// Calls are sent whole: their arguments are an object here.
    calls: Vec<ToolCall>,
    has_logprobs: bool,
    /// The tokens so far, where a later request may go on from them.
    context: Option<Vec<u32>>,
    /// Takes the model out of memory when the answer is over.
    _leaving: Option<UnloadOnDrop>,
}

impl LineEncoder {
    fn line(&self, text: &str, thinking: &str) -> Value {
        let mut value = json!({"model": self.name, "created_at": timestamp(now_s()), "done": false});
        let target = match self.kind {
            Endpoint::Chat => {
                value["message"] = json!({"role": "assistant", "content": text});
                &mut value["message"]
            }
            Endpoint::Generate => {
                value["response"] = text.into();
                &mut value
            }
        };
        if !thinking.is_empty() {
            target["thinking"] = thinking.into();
        }
        value
    }

    fn whole(&mut self, answer: &WholeAnswer) -> Value {
        let mut value = self.line(&answer.text, &answer.reasoning);
        if self.kind == Endpoint::Chat && !answer.tool_calls.is_empty() {
            value["message"]["tool_calls"] = answer.tool_calls.iter().map(call).collect();
        }
        if self.has_logprobs {
            value["logprobs"] = chat_logprobs(&answer.logprobs, &self.model).into();
        }
        self.add_context(&answer.text);
        self.finish(&mut value, answer.finish, &answer.usage);
        value
    }

    /// A part of the answer's text.
    fn add_context(&mut self, text: &str) {
        if let Some(context) = &mut self.context {
            context.extend(self.model.tokenizer.encode(text, text::Specials::Plain));
        }
    }

    /// What stands on the last line.
    fn finish(&mut self, value: &mut Value, finish: Finish, usage: &AnswerUsage) {
        add_figures(value, finish, usage, self.start);
        if let Some(context) = self.context.take() {
            value["context"] = context.into();
        }
    }
}

fn call(call: &ToolCall) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({"function": {"name": call.name, "arguments": arguments}})
}

impl Encoder for LineEncoder {
    fn start(&mut self) -> Vec<Line> {
        Vec::new()
    }

    fn update(&mut self, _choice: usize, update: AnswerEvent) -> Vec<Line> {
        match update {
            AnswerEvent::Piece(Piece::Text { text, logprobs }) => {
                self.add_context(&text);
                let mut line = self.line(&text, "");
                if self.has_logprobs {
                    line["logprobs"] = chat_logprobs(&logprobs, &self.model).into();
                }
                vec![line.into()]
            }
            AnswerEvent::Piece(Piece::Reasoning(text)) => vec![self.line("", &text).into()],
            AnswerEvent::Piece(Piece::ToolCall { id, name, .. }) => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
                Vec::new()
            }
            AnswerEvent::Piece(Piece::ToolArguments { text, .. }) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
                Vec::new()
            }
            AnswerEvent::Progress { .. } | AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => Vec::new(),
            AnswerEvent::Finished(Finished { finish, usage, .. }) => {
                let mut lines = Vec::new();
                if !self.calls.is_empty() && self.kind == Endpoint::Chat {
                    let mut value = self.line("", "");
                    value["message"]["tool_calls"] = self.calls.iter().map(call).collect();
                    lines.push(value.into());
                }
                let mut value = self.line("", "");
                self.finish(&mut value, finish, &usage);
                lines.push(value.into());
                lines
            }
        }
    }

    fn end(&mut self) -> Vec<Line> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<Line> {
        vec![error.ollama().into()]
    }
}
