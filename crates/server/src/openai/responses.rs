//! `/v1/responses`: create, stream, retrieve, cancel, delete, list the input. A response is kept so that another can go
//! on from it.

use super::background;
use super::chat::count;
use super::chat_store::{check_metadata, page};
use super::chat_tools::{OpenAiToolChoice, function_tool};
use super::response_format::ResponseFormat;
use super::responses_input::{self, ResponsesInput};
use super::responses_stream::ResponseEncoder;
use super::store::{StoredResponse, UnknownResponse};
use crate::App;
use crate::chat_input::{self, AnswerShape, ChatInput, ToolChoice};
use crate::error::{ApiError, Result};
use crate::generation::{self, Caller};
use crate::json::Json;
use crate::limits::RequestPlace;
use crate::loaded::Loaded;
use crate::models::now_s;
use crate::sampling::{MAX_TOP_LOGPROBS, SamplingParams};
use crate::stream::{self, Framing};
use crate::tally;
use crate::whole;
use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use rocinante::{Finish, WholeAnswer, ids};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use text::Message;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResponseRequest {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub input: Option<ResponsesInput>,
    #[serde(default)]
    pub instructions: Option<String>,
    #[serde(default)]
    pub previous_response_id: Option<String>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub store: Option<bool>,
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    #[serde(default)]
    pub include: Option<Vec<String>>,
    #[serde(default)]
    pub text: Option<TextConfig>,
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    #[serde(default)]
    pub tool_choice: Option<OpenAiToolChoice>,
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    #[serde(default)]
    pub reasoning: Option<Reasoning>,
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
    #[serde(default)]
    pub user: Option<String>,
    /// Nobody waits for the answer.
    #[serde(default)]
    pub background: Option<bool>,
    /// Conversations and prompts that would be kept here; none are.
    #[serde(default)]
    pub conversation: Option<Value>,
    #[serde(default)]
    pub prompt: Option<Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextConfig {
    #[serde(default)]
    pub format: Option<ResponseFormat>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reasoning {
    #[serde(default)]
    pub effort: Option<String>,
}

/// What is known of a response before there is an answer.
#[derive(Clone)]
pub struct ResponseFrame {
    pub id: String,
    pub fields: Value,
    pub input: Vec<Value>,
    pub messages: Vec<Message>,
    pub group: u64,
    pub is_kept: bool,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    place: Option<Extension<Arc<RequestPlace>>>,
    Json(body): Json<ResponseRequest>,
) -> Result<Response> {
    let name = body.model.clone().unwrap_or_default();
    let model = app.models.get(&name).await?;
    let input = to_chat_input(&app, &body, caller)?;
    let frame = frame(&body, &input, &model, caller);
    let has_logprobs = input.logprobs.is_some();
    let (request, splitter) = chat_input::prepare(&app, &model, input, caller).await?;
    let answers = generation::start(&app, &model, &request, &splitter)?;
    if body.background == Some(true) {
        let fields = frame.fields.clone();
        let key = tally::current().and_then(|tally| tally.key().map(str::to_owned));
        let request = json!({"body": body, "key": key});
        let place = place.map(|Extension(place)| place);
        let job = background::start(&app, model, frame, answers, has_logprobs, place, request);
        return Ok(if body.stream == Some(true) { job.stream(0) } else { axum::Json(fields).into_response() });
    }
    if body.stream == Some(true) {
        let encoder = ResponseEncoder::new(frame, Arc::clone(&app), model, has_logprobs);
        return Ok(stream::respond(answers, encoder, Framing::Events));
    }
    let whole = whole::collect(answers, 1).await?.remove(0);
    let response = finished(&frame, output(&whole, &model, has_logprobs), &whole);
    keep(&app, frame, &response, &whole);
    Ok(axum::Json(response).into_response())
}

/// Fields that would have no effect are refused, not ignored.
fn check_offered(app: &App, body: &ResponseRequest) -> Result<()> {
    check_metadata(body.metadata.as_ref().unwrap_or(&Map::new()))?;
    if body.background == Some(true) && body.store == Some(false) {
        return Err(ApiError::bad("background responses are stored: store cannot be false").param("background"));
    }
    let kept = [("conversation", &body.conversation), ("prompt", &body.prompt)];
    match kept.iter().find(|(_, value)| value.is_some()) {
        Some((what, _)) if app.store.unknown == UnknownResponse::Refuse => {
            let hint = "please send the messages in `input`, or `previous_response_id`";
            Err(ApiError::bad(format!("{what}s are not kept here; {hint}")).param(*what))
        }
        _ => Ok(()),
    }
}

pub fn to_chat_input(app: &App, body: &ResponseRequest, caller: Caller) -> Result<ChatInput> {
    check_offered(app, body)?;
    let mut messages = Vec::new();
    if let Some(text) = &body.instructions {
        messages.push(Message::new("system", text.as_str()));
    }
    if let Some(id) = &body.previous_response_id {
        match (app.store.get(id, caller.group), app.store.unknown) {
            // Instructions are not carried over.
            (Some(stored), _) => messages.extend(stored.messages),
            (None, UnknownResponse::Ignore) => {}
            (None, UnknownResponse::Refuse) => {
                let text = format!("there is no response `{id}` (it may have been evicted)");
                let error = ApiError::not_found(text).code("previous_response_not_found");
                return Err(error.param("previous_response_id"));
            }
        }
    }
    match &body.input {
        Some(input) => messages.extend(responses_input::to_template(input)?),
        None => messages.push(Message::new("user", "")),
    }
    if let Some(top) = body.top_logprobs.filter(|&top| top > MAX_TOP_LOGPROBS) {
        let text = format!("top_logprobs is {top}, expected at most {MAX_TOP_LOGPROBS}");
        return Err(ApiError::bad(text).param("top_logprobs"));
    }
    let wants_logprobs = body.include.iter().flatten().any(|what| what == "message.output_text.logprobs");
    let tool = |(i, tool): (usize, &Value)| {
        let bad = |text: String| ApiError::bad(text).param(format!("tools[{i}]"));
        match tool["type"].as_str() {
            Some("function") => function_tool(tool).map_err(bad),
            kind => Err(bad(format!("tools of type `{}` are not supported: only function", kind.unwrap_or_default()))),
        }
    };
    let format = body.text.as_ref().and_then(|text| text.format.as_ref());
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    Ok(ChatInput {
        messages,
        tools: OpenAiToolChoice::allowed(
            body.tool_choice.as_ref(),
            body.tools.iter().flatten().enumerate().map(tool).collect::<Result<_>>()?,
        )?,
        choice: body.tool_choice.as_ref().map_or(Ok(ToolChoice::Auto), OpenAiToolChoice::read)?,
        is_parallel: body.parallel_tool_calls.unwrap_or(true),
        shape: format.map_or(Ok(AnswerShape::Text), |format| format.shape("text.format"))?,
        thinking: effort.map(|effort| !matches!(effort, "none" | "minimal")),
        params: SamplingParams { temperature: body.temperature, top_p: body.top_p, ..SamplingParams::default() },
        logprobs: wants_logprobs.then(|| body.top_logprobs.unwrap_or(0) as usize),
        n: 1,
        max_tokens: body.max_output_tokens.map(count),
        ..ChatInput::default()
    })
}

fn frame(body: &ResponseRequest, input: &ChatInput, model: &Loaded, caller: Caller) -> ResponseFrame {
    let id = ids::new("resp_");
    let told = |tool: &Value| {
        json!({"type": "function", "name": tool["name"], "description": tool["description"],
            "parameters": tool["parameters"], "strict": tool["strict"].as_bool().unwrap_or(false)})
    };
    let tools: Vec<Value> = body.tools.iter().flatten().map(told).collect();
    let choice = match &input.choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    };
    let asked = body.text.as_ref().and_then(|text| text.format.as_ref());
    let format = match &input.shape {
        AnswerShape::Json => json!({"type": "json_object"}),
        AnswerShape::Schema(schema) => json!({"type": "json_schema", "schema": schema,
            "name": asked.and_then(|format| format.name.as_deref()).unwrap_or("answer"),
            "strict": asked.and_then(|format| format.strict)}),
        _ => json!({"type": "text"}),
    };
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let name = body.model.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| model.name.clone());
    let is_background = body.background == Some(true);
    let fields = json!({
        "id": id, "object": "response", "created_at": now_s(),
        "status": if is_background { "queued" } else { "in_progress" }, "background": is_background,
        "error": null, "incomplete_details": null, "instructions": body.instructions, "model": name, "output": [],
        "max_output_tokens": body.max_output_tokens, "metadata": body.metadata.clone().unwrap_or_default(),
        "parallel_tool_calls": input.is_parallel, "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": effort, "summary": null}, "store": body.store.unwrap_or(true),
        "temperature": body.temperature.unwrap_or(1.0), "top_p": body.top_p.unwrap_or(1.0), "text": {"format": format},
        "tool_choice": choice, "tools": tools, "truncation": "disabled", "usage": null, "user": body.user,
        "service_tier": "default",
    });
    let skip = usize::from(body.instructions.is_some());
    ResponseFrame {
        id,
        fields,
        input: body.input.as_ref().map(responses_input::to_items).unwrap_or_default(),
        messages: input.messages[skip..].to_vec(),
        group: caller.group,
        is_kept: body.store.unwrap_or(true),
    }
}

/// The items of an answer.
pub fn output(answer: &WholeAnswer, model: &Loaded, has_logprobs: bool) -> Vec<Value> {
    let mut items = Vec::new();
    if !answer.reasoning.is_empty() {
        items.push(reasoning_item(&ids::new("rs_"), &answer.reasoning));
    }
    if !answer.text.is_empty() || answer.tool_calls.is_empty() {
        let logprobs = has_logprobs.then(|| super::chat_answer::logprobs(&answer.logprobs, model));
        items.push(message_item(&ids::new("msg_"), &answer.text, logprobs.unwrap_or_default(), "completed"));
    }
    items.extend(
        answer
            .tool_calls
            .iter()
            .map(|call| call_item(&ids::new("fc_"), &call.id, &call.name, &call.arguments, "completed")),
    );
    // Only the last one can be cut.
    if let Some(last) = items.last_mut().filter(|last| last.get("status").is_some()) {
        last["status"] = status(answer.finish).into();
    }
    items
}

/// Of an answer, and of the item that grew last.
pub fn status(finish: Finish) -> &'static str {
    if is_cut(finish) { "incomplete" } else { "completed" }
}

/// Whether the answer would have continued.
pub fn is_cut(finish: Finish) -> bool {
    matches!(finish, Finish::Length | Finish::Context | Finish::Cancelled)
}

pub fn message_item(id: &str, text: &str, logprobs: Vec<Value>, status: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs});
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part]})
}

pub fn reasoning_item(id: &str, text: &str) -> Value {
    json!({"id": id, "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
}

pub fn call_item(id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Value {
    json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
        "arguments": arguments})
}

/// The response as a whole.
pub fn finished(frame: &ResponseFrame, output: Vec<Value>, answer: &WholeAnswer) -> Value {
    let mut response = frame.fields.clone();
    response["output"] = output.into();
    response["status"] = status(answer.finish).into();
    if is_cut(answer.finish) {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    } else {
        response["completed_at"] = now_s().into();
    }
    let usage = &answer.usage;
    response["usage"] = json!({
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
        "output_tokens": usage.n_generated,
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_generated,
    });
    response
}

/// Keeps a response for those that go on from it.
pub fn keep(app: &App, frame: ResponseFrame, response: &Value, answer: &WholeAnswer) {
    if !frame.is_kept {
        return;
    }
    let mut messages = frame.messages;
    let mut message = Message::new("assistant", answer.text.as_str());
    if !answer.tool_calls.is_empty() {
        let calls = answer.tool_calls.iter().map(|call| {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        });
        message.extra.insert("tool_calls".into(), calls.collect());
    }
    messages.push(message);
    let (response, input, group) = (response.clone(), frame.input, frame.group);
    let stored = StoredResponse { response, input, messages, group, job: None, request: None };
    app.store.insert(&frame.id, stored);
}

fn missing(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no response `{id}` (it may have been evicted)")).param("response_id")
}

pub async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let stored = app.store.get(&id, caller.group).ok_or_else(|| missing(&id))?;
    if query.get("stream").is_none_or(|value| value != "true") {
        return Ok(axum::Json(stored.response).into_response());
    }
    let job = stored.job.ok_or_else(|| ApiError::bad("only background responses can be replayed").param("stream"))?;
    let after = query.get("starting_after").map(|text| text.parse::<usize>()).transpose();
    let after =
        after.map_err(|_| ApiError::bad("starting_after must be the number of an event").param("starting_after"))?;
    Ok(job.stream(after.map_or(0, |n| n.saturating_add(1))))
}

/// `/v1/responses/{id}/cancel`: a background response ends with what it has.
pub async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>> {
    let stored = app.store.get(&id, caller.group).ok_or_else(|| missing(&id))?;
    let only = || ApiError::bad("only background responses can be cancelled").param("response_id");
    match stored.job {
        Some(job) => job.cancel(),
        // It is about to be begun again.
        None if stored.request.is_some() => {}
        None => return Err(only()),
    }
    let changed = app.store.update(&id, caller.group, |stored| {
        if matches!(stored.response["status"].as_str(), Some("queued" | "in_progress")) {
            stored.response["status"] = "cancelled".into();
        }
        stored.request = None;
    });
    changed.map(|stored| axum::Json(stored.response)).ok_or_else(|| missing(&id))
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>> {
    let stored = app.store.remove(&id, caller.group).ok_or_else(|| missing(&id))?;
    if let Some(job) = stored.job {
        job.cancel();
    }
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})))
}

pub async fn input_items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(mut query): Query<HashMap<String, String>>,
) -> Result<axum::Json<Value>> {
    let items = app.store.get(&id, caller.group).ok_or_else(|| missing(&id))?.input;
    // The latest first, unlike the lists of chat completions.
    query.entry("order".into()).or_insert_with(|| "desc".into());
    page(items, &query).map(axum::Json)
}

/// `/v1/responses/input_tokens`: how long the prompt would be.
pub async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<ResponseRequest>,
) -> Result<axum::Json<Value>> {
    let model = app.models.get(body.model.as_deref().unwrap_or_default()).await?;
    let text = chat_input::render(&model, &to_chat_input(&app, &body, caller)?)?;
    let n_tokens = model.encode_rendered(&text)?.len();
    Ok(axum::Json(json!({"object": "response.input_tokens", "input_tokens": n_tokens})))
}
