//! `/v1/chat/completions`.

use super::chat_store::{Keeper, check_metadata};
use super::chat_stream::ChatEncoder;
use super::fields::{Asked, count};
use super::messages::{self, ChatMessage};
use super::{finish_reason, total, usage};
use crate::App;
use crate::ask::{self, Ask, ToolChoice};
use crate::error::{ApiError, Result};
use crate::generation::{self, Caller};
use crate::loaded::Loaded;
use crate::models::now_s;
use crate::sampling::{MAX_TOP_LOGPROBS, check_n};
use crate::stream::{self, Framing};
use crate::whole;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use rocinante::{TokenLogprob, ToolCall, WholeAnswer, ids};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;

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
    pub tools: Option<Vec<Tool>>,
    #[serde(default)]
    pub tool_choice: Option<Choice>,
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
    /// Control tokens written in messages are read as such, as llama.cpp takes it; else they are text.
    #[serde(default)]
    pub parse_special: Option<bool>,
    /// In a stream, tell how much of the prompt is read, as llama.cpp does.
    #[serde(default)]
    pub return_progress: Option<bool>,
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

#[derive(Clone, Debug, Deserialize)]
pub struct Tool {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub function: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    Word(String),
    Object(Value),
}

impl Asked<ChatRequest> {
    /// Messages and nothing else.
    pub fn of(messages: Vec<ChatMessage>) -> Self {
        Self { own: ChatRequest { messages, ..ChatRequest::default() }, ..Self::default() }
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Asked<ChatRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let (request, splitter) = ask::prepare(&app, &model, to_ask(&body)?, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let keeper = (body.own.store == Some(true)).then(|| Keeper::new(&app, &body.own, caller));
    let frame = Frame {
        id: ids::new("chatcmpl-"),
        created: now_s(),
        name: body.fields.name(&model),
        model,
        n: request.n,
        has_logprobs: request.logprobs.is_some(),
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

/// What is known of an answer before there is one.
pub struct Frame {
    pub id: String,
    pub created: u64,
    pub name: String,
    pub model: Arc<Loaded>,
    pub n: usize,
    pub has_logprobs: bool,
    pub fingerprint: String,
}

impl Frame {
    /// The answer as a whole.
    pub fn completion(&self, whole: &[WholeAnswer]) -> Value {
        let total = total(whole.iter().map(|one| &one.usage), self.n);
        let choices: Vec<Value> = whole.iter().enumerate().map(|(i, one)| self.choice(i, one)).collect();
        json!({"id": self.id, "object": "chat.completion", "created": self.created, "model": self.name,
            "choices": choices, "usage": usage(&total), "service_tier": "default",
            "system_fingerprint": self.fingerprint})
    }

    fn choice(&self, index: usize, answer: &WholeAnswer) -> Value {
        let has_content = !answer.text.is_empty() || answer.tool_calls.is_empty();
        let mut message = json!({"role": "assistant", "content": has_content.then_some(&answer.text), "refusal": null});
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.as_str().into();
        }
        if !answer.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = answer.tool_calls.iter().map(call).collect();
        }
        let content = self.has_logprobs.then(|| logprobs(&answer.logprobs, &self.model));
        json!({
            "index": index,
            "message": message,
            "logprobs": content.map(|content| json!({"content": content, "refusal": null})),
            "finish_reason": finish_reason(answer.finish),
        })
    }
}

/// Rejects fields that would have no effect.
fn check_offered(body: &ChatRequest) -> Result<()> {
    check_metadata(body.metadata.as_ref().unwrap_or(&Map::new()))?;
    if body.modalities.iter().flatten().any(|kind| kind != "text") {
        return Err(ApiError::bad("answers are text only: modalities may be [\"text\"]").param("modalities"));
    }
    let is_off = body.function_call.as_ref().is_some_and(|call| call == "none");
    if body.functions.as_ref().is_some_and(|functions| !functions.is_empty()) && !is_off && body.tools.is_none() {
        return Err(ApiError::bad("`functions` is no longer supported; send `tools` instead").param("functions"));
    }
    Ok(())
}

pub fn to_ask(asked: &Asked<ChatRequest>) -> Result<Ask> {
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
    let shape = asked.guide.shape()?;
    let tools = body.tools.iter().flatten().enumerate().map(|(i, tool)| tool.checked(i)).collect::<Result<_>>()?;
    Ok(Ask {
        messages: messages::to_template(&body.messages)?,
        tools: Choice::allowed(body.tool_choice.as_ref(), tools)?,
        choice: body.tool_choice.as_ref().map_or(Ok(ToolChoice::Auto), Choice::read)?,
        is_parallel: body.parallel_tool_calls.unwrap_or(true),
        shape,
        thinking: body.reasoning_effort.as_deref().map(|effort| !matches!(effort, "none" | "minimal")),
        continues: body.continue_final_message.unwrap_or(false),
        extra: body.chat_template_kwargs.clone().unwrap_or_default(),
        knobs: asked.knobs.clone(),
        stop: fields.stops()?,
        logprobs,
        n: check_n(fields.n)?,
        max_tokens: body.max_completion_tokens.or(fields.max_tokens).map(count),
        parses_specials: body.parse_special.unwrap_or(false),
        progress: body.return_progress.unwrap_or(false),
        prediction: body.prediction.as_ref().map(Prediction::text).transpose()?,
    })
}

impl Tool {
    /// The tool as templates read it.
    fn checked(&self, i: usize) -> Result<Value> {
        let bad = |text: String| ApiError::bad(text).param(format!("tools[{i}]"));
        match (self.kind.as_deref().unwrap_or("function"), &self.function) {
            ("function", Some(function)) => function_tool(function).map_err(bad),
            ("function", None) => Err(bad("a tool of type `function` needs a `function`".into())),
            (kind, _) => Err(bad(format!("tools of type `{kind}` are not supported: only function"))),
        }
    }
}

/// A function as `{"type": "function", "function": ...}`, with what templates expect to be there.
pub fn function_tool(function: &Value) -> std::result::Result<Value, String> {
    let name = function["name"].as_str().filter(|name| !name.is_empty()).ok_or("a function needs a `name`")?;
    let parameters = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}}),
        parameters @ Value::Object(_) => parameters.clone(),
        _ => return Err("`parameters` is a JSON schema, an object".to_owned()),
    };
    let description = function["description"].as_str().unwrap_or_default();
    let inner = json!({"name": name, "description": description, "parameters": parameters});
    Ok(json!({"type": "function", "function": inner}))
}

impl Choice {
    pub fn read(&self) -> Result<ToolChoice> {
        let bad = || {
            let text = "expected auto, none, required or {\"type\": \"function\", \"function\": {\"name\": ...}}";
            ApiError::bad(text).param("tool_choice")
        };
        match self {
            Self::Word(word) => match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" | "any" => Ok(ToolChoice::Required),
                _ => Err(bad()),
            },
            Self::Object(value) => {
                let name = value["function"]["name"].as_str().or_else(|| value["name"].as_str());
                match (value["type"].as_str(), name) {
                    (Some("function"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
                    (Some("allowed_tools"), _) => {
                        let mode = value["allowed_tools"]["mode"].as_str().or_else(|| value["mode"].as_str());
                        Ok(if mode == Some("required") { ToolChoice::Required } else { ToolChoice::Auto })
                    }
                    _ => Err(bad()),
                }
            }
        }
    }

    /// The tools the model may call now: with `allowed_tools` those that it names.
    pub fn allowed(choice: Option<&Self>, mut tools: Vec<Value>) -> Result<Vec<Value>> {
        let Some(Self::Object(value)) = choice.filter(|choice| choice.is_list()) else { return Ok(tools) };
        let bad = |text: String| ApiError::bad(text).param("tool_choice");
        let listed = value["allowed_tools"]["tools"].as_array().or_else(|| value["tools"].as_array());
        let listed = listed.ok_or_else(|| bad("`allowed_tools` needs a list of `tools`".into()))?;
        let name = |tool: &Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned);
        let names: Vec<String> = listed.iter().filter_map(name).collect();
        if let Some(missing) =
            names.iter().find(|allowed| !tools.iter().any(|tool| name(tool).as_ref() == Some(allowed)))
        {
            return Err(bad(format!("there is no tool `{missing}` to allow")));
        }
        tools.retain(|tool| name(tool).is_some_and(|name| names.contains(&name)));
        Ok(tools)
    }

    fn is_list(&self) -> bool {
        matches!(self, Self::Object(value) if value["type"] == "allowed_tools")
    }
}

pub fn logprobs(tokens: &[TokenLogprob], model: &Loaded) -> Vec<Value> {
    let show = |token: model::TokenId, logprob: f32| {
        let bytes = model.tokenizer.token_bytes(token.0).unwrap_or_default();
        // JSON has no infinities.
        let logprob = if logprob.is_finite() { logprob } else { -9999.0 };
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let one = |token: &TokenLogprob| {
        let mut value = show(token.token, token.logprob);
        value["top_logprobs"] = token.top.iter().map(|&(token, logprob)| show(token, logprob)).collect();
        value
    };
    tokens.iter().map(one).collect()
}

/// `/v1/chat/completions/render`: what the model would read, and nothing is generated.
pub async fn render(State(app): State<Arc<App>>, body: Asked<ChatRequest>) -> Result<Response> {
    let model = app.models.get(&body.fields.model).await?;
    let ask = to_ask(&body)?;
    let text = ask::render(&model, &ask)?;
    let tokens: Vec<u32> = model.encode_rendered(&text)?.into_iter().map(|token| token.0).collect();
    let text = text::unshield(&text);
    Ok(axum::Json(json!({"prompt": text, "n_tokens": tokens.len(), "tokens": tokens})).into_response())
}
