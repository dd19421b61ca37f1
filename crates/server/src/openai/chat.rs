//! `/v1/chat/completions`, from the body of a request to the chunks of its stream. [`RequestBody`] reads the body, [`create`]
//! answers it, [`to_chat_input`] translates it to what all API families share, and [`ChatEncoder`] translates events back. A
//! new field of chat requests goes into [`ChatRequest`] and `to_chat_input`; one that completions have too, into [`Fields`]; one
//! that changes sampling, into [`SamplingParams`] alone, which is passed on whole.

use super::chat_answer::{ChatFrame, logprobs};
use super::chat_store::{ChatKeeper, check_metadata};
use super::chat_tools::{ChatTool, OpenAiToolChoice};
use super::messages::{self, ChatMessage};
use super::response_format::OutputFormat;
use super::{finish_reason, total, usage};
use crate::App;
use crate::blocking;
use crate::chat_input::{self, ChatInput, ToolChoice};
use crate::error::{ApiError, Result};
use crate::generation::{self, Caller};
use crate::json::{self, UnknownFields, text_or_null};
use crate::llama::timings;
use crate::loaded::Loaded;
use crate::models::now_s;
use crate::sampling::{MAX_TOP_LOGPROBS, SamplingParams, Stop, check_n};
use crate::stream::{self, Encoder, Framing, StreamMessage};
use crate::whole;
use axum::Extension;
use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use rocinante::{AnswerEvent, AnswerUsage, Finished, Piece, WholeAnswer, ids};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A body of a chat or completion request: the fields that both have, and those of its own. It is parsed once for each
/// part: one struct inside another (`serde(flatten)`) would lose the field's name in errors.
#[derive(Clone, Debug, Default)]
pub struct RequestBody<T> {
    pub fields: Fields,
    pub params: SamplingParams,
    pub output_format: OutputFormat,
    pub own: T,
}

/// The fields that chat and completion requests share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fields {
    #[serde(deserialize_with = "text_or_null")]
    pub model: String,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<u64>,
    pub n: Option<u32>,
    pub stop: Option<Stop>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ChatRequest {
    pub messages: Vec<ChatMessage>,
    /// The newer name of `max_tokens`.
    #[serde(default)]
    pub max_completion_tokens: Option<u64>,
    #[serde(default)]
    pub logprobs: Option<bool>,
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    #[serde(default)]
    pub tools: Option<Vec<ChatTool>>,
    #[serde(default)]
    pub tool_choice: Option<OpenAiToolChoice>,
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Further variables for the chat template, as vLLM and llama.cpp take them.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// The last message is the beginning of the answer, as vLLM takes it.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Whether what begins an answer is put after the messages; not where the last one is continued.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Control tokens written in messages are read as such, as llama.cpp takes it; else they are text.
    #[serde(default)]
    pub parse_special: Option<bool>,
    /// In a stream, tell how much of the prompt is read, as llama.cpp does.
    #[serde(default)]
    pub return_progress: Option<bool>,
    /// Tell with the usage where the time went, as llama.cpp does.
    #[serde(default)]
    pub timings_per_token: Option<bool>,
    /// Keep the answer, with `metadata`, to be asked for later.
    #[serde(default)]
    pub store: Option<bool>,
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
    /// What the answer will probably be like, such as a file of which a new version is asked for.
    #[serde(default)]
    pub prediction: Option<Prediction>,
    #[serde(default)]
    pub modalities: Option<Vec<String>>,
    /// The deprecated predecessor of `tools`.
    #[serde(default)]
    pub functions: Option<Vec<Value>>,
    #[serde(default)]
    pub function_call: Option<Value>,
}

/// `{"type": "content", "content": TEXT}`, or a list of parts of a text.
#[derive(Clone, Debug, Deserialize)]
pub struct Prediction {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    pub content: Predicted,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of {\"type\": \"text\", \"text\": ...}")]
pub enum Predicted {
    Text(String),
    Parts(Vec<PredictedPart>),
}

#[derive(Clone, Debug, Deserialize)]
pub struct PredictedPart {
    pub text: String,
}

impl Prediction {
    fn text(&self) -> Result<String> {
        match (self.kind.as_deref().unwrap_or("content"), &self.content) {
            ("content", Predicted::Text(text)) => Ok(text.clone()),
            ("content", Predicted::Parts(parts)) => Ok(parts.iter().map(|part| part.text.as_str()).collect()),
            (kind, _) => {
                let text = format!("predictions of type `{kind}` are not supported: only content");
                Err(ApiError::bad(text).param("prediction"))
            }
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for RequestBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> std::result::Result<Self, ApiError> {
        json::read(request, Self::parse).await
    }
}

impl<T: DeserializeOwned> RequestBody<T> {
    pub fn parse(bytes: &[u8], unknown: &mut UnknownFields) -> Result<Self> {
        Ok(Self {
            own: json::parse_part(bytes, unknown)?,
            fields: json::parse_part(bytes, unknown)?,
            params: json::parse_part(bytes, unknown)?,
            output_format: json::parse_part(bytes, unknown)?,
        })
    }
}

impl RequestBody<ChatRequest> {
    /// Messages and nothing else.
    pub fn of(messages: Vec<ChatMessage>) -> Self {
        Self { own: ChatRequest { messages, ..ChatRequest::default() }, ..Self::default() }
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: RequestBody<ChatRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let (request, splitter) = chat_input::prepare(&app, &model, to_chat_input(&body)?, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let keeper = (body.own.store == Some(true)).then(|| ChatKeeper::new(&app, &body.own, caller));
    let frame = ChatFrame {
        id: ids::new("chatcmpl-"),
        created: now_s(),
        name: body.fields.name(&model),
        model,
        n: request.n,
        has_logprobs: request.logprobs.is_some(),
        has_timings: body.own.timings_per_token == Some(true),
        fingerprint: app.fingerprint.clone(),
    };
    if body.fields.is_stream() {
        let encoder = ChatEncoder::new(frame, body.fields.include_usage(), keeper);
        return Ok(stream::respond(answers, encoder, Framing::EventsWithDone));
    }
    let value = frame.completion(&whole::collect(answers, request.n).await?);
    if let Some(keeper) = keeper {
        keeper.keep(&value);
    }
    Ok(axum::Json(value).into_response())
}

/// Rejects fields that would have no effect.
fn check_offered(body: &ChatRequest) -> Result<()> {
    check_metadata(body.metadata.as_ref().unwrap_or(&Map::new()))?;
    if body.modalities.iter().flatten().any(|kind| kind != "text") {
        return Err(ApiError::bad("answers are text only: modalities may be [\"text\"]").param("modalities"));
    }
    if body.continue_final_message == Some(true) && body.add_generation_prompt == Some(true) {
        let text = "add_generation_prompt begins a new answer, and continue_final_message continues the last message";
        return Err(ApiError::bad(text).param("add_generation_prompt"));
    }
    let is_off = body.function_call.as_ref().is_some_and(|call| call == "none");
    if body.functions.as_ref().is_some_and(|functions| !functions.is_empty()) && !is_off && body.tools.is_none() {
        return Err(ApiError::bad("`functions` is no longer supported; send `tools` instead").param("functions"));
    }
    Ok(())
}

pub fn to_chat_input(asked: &RequestBody<ChatRequest>) -> Result<ChatInput> {
    let (fields, body) = (&asked.fields, &asked.own);
    check_offered(body)?;
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
    let shape = asked.output_format.shape()?;
    let tools = body.tools.iter().flatten().enumerate().map(|(i, tool)| tool.checked(i)).collect::<Result<_>>()?;
    Ok(ChatInput {
        messages: messages::to_template(&body.messages)?,
        tools: OpenAiToolChoice::allowed(body.tool_choice.as_ref(), tools)?,
        choice: body.tool_choice.as_ref().map_or(Ok(ToolChoice::Auto), OpenAiToolChoice::read)?,
        is_parallel: body.parallel_tool_calls.unwrap_or(true),
        shape,
        thinking: body.reasoning_effort.as_deref().map(|effort| !matches!(effort, "none" | "minimal")),
        continues: body.continue_final_message.unwrap_or(false),
        is_open: body.add_generation_prompt == Some(false),
        extra: body.chat_template_kwargs.clone().unwrap_or_default(),
        params: asked.params.clone(),
        stop: fields.stops()?,
        logprobs,
        n: check_n(fields.n)?,
        max_tokens: body.max_completion_tokens.or(fields.max_tokens).map(count),
        parses_specials: body.parse_special.unwrap_or(false),
        progress: body.return_progress.unwrap_or(false),
        prediction: body.prediction.as_ref().map(Prediction::text).transpose()?,
    })
}

pub struct ChatEncoder {
    frame: ChatFrame,
    include_usage: bool,
    usages: Vec<AnswerUsage>,
    /// Who keeps the answers, and the answers so far.
    keeper: Option<(ChatKeeper, Vec<WholeAnswer>)>,
}

impl ChatEncoder {
    pub fn new(frame: ChatFrame, include_usage: bool, keeper: Option<ChatKeeper>) -> Self {
        let keeper = keeper.map(|keeper| (keeper, vec![WholeAnswer::default(); frame.n]));
        Self { usages: vec![AnswerUsage::default(); frame.n], frame, include_usage, keeper }
    }

    fn chunk(&self, choices: Value) -> StreamMessage {
        let mut value = json!({"id": self.frame.id, "object": "chat.completion.chunk", "created": self.frame.created,
            "model": self.frame.name, "system_fingerprint": self.frame.fingerprint, "choices": choices});
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value.into()
    }

    /// How much of the prompt is read, with the names that llama.cpp gives it.
    fn progress(&self, n_read: usize, n_prompt: usize) -> StreamMessage {
        json!({"id": self.frame.id, "object": "chat.completion.chunk", "created": self.frame.created,
            "model": self.frame.name, "choices": [],
            "prompt_progress": {"total": n_prompt, "processed": n_read}})
        .into()
    }

    fn delta(&self, choice: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> StreamMessage {
        self.chunk(json!([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }
}

impl Encoder for ChatEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        let delta = || json!({"role": "assistant", "content": "", "refusal": null});
        (0..self.frame.n).map(|choice| self.delta(choice, delta(), Value::Null, None)).collect()
    }

    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        if let Some((_, whole)) = &mut self.keeper {
            whole[choice].add(update.clone());
        }
        let (delta, shown) = match update {
            AnswerEvent::Piece(Piece::Text { text, logprobs: tokens }) => {
                let shown = match tokens.is_empty() {
                    true => Value::Null,
                    false => json!({"content": logprobs(&tokens, &self.frame.model), "refusal": null}),
                };
                (json!({"content": text}), shown)
            }
            AnswerEvent::Piece(Piece::Reasoning(text)) => (json!({"reasoning_content": text}), Value::Null),
            AnswerEvent::Piece(Piece::ToolCall { index, id, name }) => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                (json!({"tool_calls": [call]}), Value::Null)
            }
            AnswerEvent::Piece(Piece::ToolArguments { index, text }) => {
                (json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}), Value::Null)
            }
            AnswerEvent::Progress { n_read, n_prompt } => return vec![self.progress(n_read, n_prompt)],
            AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => return Vec::new(),
            AnswerEvent::Finished(Finished { finish, usage, .. }) => {
                let mut message = self.delta(choice, json!({}), Value::Null, Some(finish_reason(finish)));
                if self.frame.has_timings {
                    message.data["timings"] = timings(&usage, 1);
                }
                self.usages[choice] = usage;
                return vec![message];
            }
        };
        vec![self.delta(choice, delta, shown, None)]
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        if let Some((keeper, whole)) = self.keeper.take() {
            keeper.keep(&self.frame.completion(&whole));
        }
        if !self.include_usage {
            return Vec::new();
        }
        let mut message = self.chunk(json!([]));
        let total = total(self.usages.iter(), self.frame.n);
        message.data["usage"] = usage(&total);
        if self.frame.has_timings {
            message.data["timings"] = timings(&total, self.usages.len());
        }
        vec![message]
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![error.openai().into()]
    }
}

/// `/v1/chat/completions/render`: what the model would read, and nothing is generated.
pub async fn render(State(app): State<Arc<App>>, body: RequestBody<ChatRequest>) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let input = to_chat_input(&body)?;
    let text = chat_input::render(&model, &input)?;
    let tokens: Vec<u32> = model.encode_rendered(&text)?.into_iter().map(|token| token.0).collect();
    let text = text::unshield(&text);
    Ok(axum::Json(json!({"prompt": text, "n_tokens": tokens.len(), "tokens": tokens})).into_response())
}

/// `/v1/chat/completions/input_tokens`: how long the prompt would be.
pub async fn input_tokens(State(app): State<Arc<App>>, body: RequestBody<ChatRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.fields.model).await?;
    let input = to_chat_input(&body)?;
    let n_tokens =
        blocking::run(move || Ok(model.encode_rendered(&chat_input::render(&model, &input)?)?.len())).await?;
    Ok(axum::Json(json!({"object": "response.input_tokens", "input_tokens": n_tokens})))
}

impl Fields {
    pub fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    pub fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The name the client knows the model by.
    pub fn name(&self, model: &Loaded) -> String {
        if self.model.is_empty() { model.name.clone() } else { self.model.clone() }
    }

    pub fn stops(&self) -> Result<Vec<String>> {
        Ok(self.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default())
    }
}

/// A count of tokens; what no machine can hold is as good as no limit.
pub fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
