//! Anthropic's messages API: `/v1/messages` and `/v1/messages/count_tokens`.

mod input;
mod stream;

use super::App;
use super::chat_input::{self, AnswerShape, ChatInput, ToolChoice};
use super::error::{ApiError, Result};
use super::generation::{self, Caller};
use super::openai::chat_tools::function_tool;
use super::sampling::{SamplingParams, Stop};
use super::stream::{Framing, respond};
use super::whole;
use crate::json::{Json, text_or_null};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use input::{AnthropicContent, AnthropicMessage};
use rocinante::{AnswerUsage, Finish, WholeAnswer, ids};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use stream::MessageEncoder;
use text::Message;

#[derive(Clone, Debug, Deserialize)]
pub struct MessagesRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    pub model: String,
    pub messages: Vec<AnthropicMessage>,
    #[serde(default)]
    pub max_tokens: Option<u64>,
    #[serde(default)]
    pub system: Option<AnthropicContent>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<i64>,
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    #[serde(default)]
    pub tool_choice: Option<AnthropicToolChoice>,
    #[serde(default)]
    pub thinking: Option<Thinking>,
    #[serde(default)]
    pub output_config: Option<OutputConfig>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AnthropicToolChoice {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Thinking {
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct OutputConfig {
    #[serde(default)]
    pub format: Option<AnthropicOutputFormat>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AnthropicOutputFormat {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub schema: Option<Value>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<MessagesRequest>,
) -> Result<Response> {
    if body.max_tokens.is_none() {
        return Err(ApiError::bad("max_tokens is required").param("max_tokens"));
    }
    let model = app.models.get(&body.model).await?;
    let input = to_chat_input(&body)?;
    let (request, splitter) = chat_input::prepare(&app, &model, input, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    let name = if body.model.is_empty() { model.name.clone() } else { body.model.clone() };
    let id = ids::new("msg_");
    if body.stream == Some(true) {
        return Ok(respond(answers, MessageEncoder::new(id, name, request.prompt.len()), Framing::Events));
    }
    let whole = whole::collect(answers, 1).await?.remove(0);
    let value = json!({"id": id, "type": "message", "role": "assistant", "model": name, "content": content(&whole),
        "stop_reason": stop_reason(whole.finish), "stop_sequence": whole.stop, "usage": usage(&whole.usage)});
    Ok(axum::Json(value).into_response())
}

pub async fn count_tokens(State(app): State<Arc<App>>, Json(body): Json<MessagesRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    let text = chat_input::render(&model, &to_chat_input(&body)?)?;
    Ok(axum::Json(json!({"input_tokens": model.encode_rendered(&text)?.len()})))
}

fn to_chat_input(body: &MessagesRequest) -> Result<ChatInput> {
    let mut messages = Vec::new();
    if let Some(system) = &body.system {
        messages.push(Message::new("system", system.text("system")?));
    }
    input::to_template(&body.messages, &mut messages)?;
    let tool = |(i, tool): (usize, &Value)| {
        let bad = |text: String| ApiError::bad(text).param(format!("tools.{i}"));
        match tool["type"].as_str() {
            None | Some("custom") => {
                let function = json!({"name": tool["name"], "description": tool["description"],
                    "parameters": tool["input_schema"]});
                function_tool(&function).map_err(bad)
            }
            Some(kind) => Err(bad(format!("tools of type `{kind}` are not supported: only custom"))),
        }
    };
    let tools = body.tools.iter().flatten().enumerate().map(tool).collect::<Result<Vec<_>>>()?;
    let choice = match &body.tool_choice {
        None => ToolChoice::Auto,
        Some(choice) => match (choice.kind.as_str(), &choice.name) {
            ("auto", _) => ToolChoice::Auto,
            ("none", _) => ToolChoice::None,
            ("any", _) => ToolChoice::Required,
            ("tool", Some(name)) => ToolChoice::Named(name.clone()),
            _ => return Err(ApiError::bad("expected auto, any, none or tool with a name").param("tool_choice")),
        },
    };
    let format = body.output_config.as_ref().and_then(|config| config.format.as_ref());
    let shape = match format.map(|format| (format.kind.as_str(), &format.schema)) {
        None => AnswerShape::Text,
        Some(("json_schema", Some(schema))) => AnswerShape::Schema(schema.clone()),
        Some(_) => return Err(ApiError::bad("expected json_schema with a schema").param("output_config.format")),
    };
    let thinking = match body.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
        // As Anthropic has it, a model thinks only where it is asked to.
        None | Some("disabled") => Some(false),
        Some("enabled") => Some(true),
        Some(_) => None,
    };
    Ok(ChatInput {
        messages,
        tools,
        choice,
        is_parallel: body.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use) != Some(true),
        shape,
        thinking,
        continues: true,
        params: SamplingParams {
            temperature: body.temperature,
            top_p: body.top_p,
            top_k: body.top_k,
            ..SamplingParams::default()
        },
        stop: body.stop_sequences.clone().map_or(Ok(Vec::new()), |texts| Stop::Many(texts).texts())?,
        n: 1,
        max_tokens: body.max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        ..ChatInput::default()
    })
}

fn content(answer: &WholeAnswer) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.text.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.text}));
    }
    blocks.extend(answer.tool_calls.iter().map(|call| {
        // Arguments that were cut are no object.
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
    }));
    blocks
}

fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end_turn",
        Finish::StopString => "stop_sequence",
        Finish::Length | Finish::Context | Finish::Cancelled => "max_tokens",
        Finish::ToolCalls => "tool_use",
    }
}

fn usage(usage: &AnswerUsage) -> Value {
    json!({"input_tokens": usage.n_prompt - usage.n_cached.min(usage.n_prompt), "output_tokens": usage.n_generated,
        "cache_read_input_tokens": usage.n_cached, "cache_creation_input_tokens": 0})
}
