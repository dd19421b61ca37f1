//! `/v1/chat/completions`.

use super::chat_stream::ChatEncoder;
use super::messages::{self, ChatMessage};
use super::response_format::ResponseFormat;
use super::{finish_reason, total, usage};
use crate::server::App;
use crate::server::answer::{self, Whole};
use crate::server::ask::{self, Ask, Shape, ToolChoice};
use crate::server::error::{ApiError, Result};
use crate::server::generation::{self, Caller, Request};
use crate::server::ids;
use crate::server::json::Json;
use crate::server::loaded::Loaded;
use crate::server::models::now_s;
use crate::server::pieces::TokenLogprob;
use crate::server::sampling::{Knobs, MAX_TOP_LOGPROBS, Stop, check_n};
use crate::server::stream::{self, Framing};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug, Default, Deserialize)]
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
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
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
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
    /// The last message is the beginning of the answer, as vLLM takes it.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// A regular expression or a grammar for the answer, as vLLM and llama.cpp take them.
    #[serde(default, alias = "regex")]
    pub guided_regex: Option<String>,
    #[serde(default, alias = "guided_grammar")]
    pub grammar: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Tool {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub function: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    Word(String),
    Object(Value),
}

impl ChatRequest {
    /// Messages and nothing else.
    pub fn of(messages: Vec<ChatMessage>) -> Self {
        Self { messages, ..Self::default() }
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<ChatRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    let is_stream = body.stream == Some(true);
    let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let (request, splitter) = ask::prepare(&app, &model, to_ask(&body)?, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let (id, created) = (ids::new("chatcmpl-"), now_s());
    if is_stream {
        let encoder = ChatEncoder::new(id, created, name, Arc::clone(&model), request.n, include_usage);
        return Ok(stream::respond(answers, encoder, Framing::EventsWithDone));
    }
    let whole = answer::collect(answers, request.n).await?;
    let total = total(whole.iter().map(|one| one.usage), request.n);
    let choices: Vec<Value> = whole.iter().enumerate().map(|(i, one)| choice(i, one, &model, &request)).collect();
    let value = json!({"id": id, "object": "chat.completion", "created": created, "model": name, "choices": choices,
        "usage": usage(&total), "service_tier": "default", "system_fingerprint": app.fingerprint});
    Ok(axum::Json(value).into_response())
}

pub fn to_ask(body: &ChatRequest) -> Result<Ask> {
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
    let shape = match (&body.response_format, &body.guided_regex, &body.grammar) {
        (_, Some(regex), _) => Shape::Regex(regex.clone()),
        (_, _, Some(grammar)) => Shape::Grammar(grammar.clone()),
        (Some(format), ..) => format.shape("response_format")?,
        (None, ..) => Shape::Text,
    };
    Ok(Ask {
        messages: messages::to_template(&body.messages)?,
        tools: body.tools.iter().flatten().enumerate().map(|(i, tool)| tool.checked(i)).collect::<Result<_>>()?,
        choice: body.tool_choice.as_ref().map_or(Ok(ToolChoice::Auto), Choice::read)?,
        is_parallel: body.parallel_tool_calls.unwrap_or(true),
        shape,
        thinking: body.reasoning_effort.as_deref().map(|effort| !matches!(effort, "none" | "minimal")),
        continues: body.continue_final_message.unwrap_or(false),
        extra: body.chat_template_kwargs.clone().unwrap_or_default(),
        knobs: Knobs {
            temperature: body.temperature,
            top_p: body.top_p,
            top_k: body.top_k,
            min_p: body.min_p,
            presence_penalty: body.presence_penalty,
            frequency_penalty: body.frequency_penalty,
            repetition_penalty: body.repetition_penalty,
            seed: body.seed,
            logit_bias: body.logit_bias.clone(),
        },
        stop: body.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default(),
        logprobs,
        n: check_n(body.n)?,
        max_tokens: body.max_completion_tokens.or(body.max_tokens).map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
    })
}

impl Tool {
    /// The tool as templates read it.
    fn checked(&self, i: usize) -> Result<Value> {
        let bad = |text: String| ApiError::bad(text).param(format!("tools[{i}]"));
        match (self.kind.as_deref().unwrap_or("function"), &self.function) {
            ("function", Some(function)) => function_tool(function).map_err(bad),
            ("function", None) => Err(bad("a tool of type `function` needs a `function`".into())),
            (kind, _) => Err(bad(format!("tools of type `{kind}` are not known here: function"))),
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
}

fn choice(index: usize, answer: &Whole, model: &Loaded, request: &Request) -> Value {
    let has_content = !answer.text.is_empty() || answer.tool_calls.is_empty();
    let mut message = json!({"role": "assistant", "content": has_content.then_some(&answer.text), "refusal": null});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.as_str().into();
    }
    if !answer.tool_calls.is_empty() {
        let call = |call: &answer::ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message["tool_calls"] = answer.tool_calls.iter().map(call).collect();
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
pub async fn render(State(app): State<Arc<App>>, Json(body): Json<ChatRequest>) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let ask = to_ask(&body)?;
    let text = ask::render(&model, &ask)?;
    let tokens: Vec<u32> = model.encode_rendered(&text).into_iter().map(|token| token.0).collect();
    Ok(axum::Json(json!({"prompt": text, "n_tokens": tokens.len(), "tokens": tokens})).into_response())
}
