//! The input of `/v1/responses`: a text, or items (messages, calls of tools and their results) in order.

use super::messages::Content;
use crate::error::{ApiError, Result};
use rocinante::ids;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use text::Message;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of items")]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<Item>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Item {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub role: Option<String>,
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub arguments: Option<String>,
    #[serde(default)]
    pub output: Option<Content>,
}

/// The messages a template reads.
pub fn to_template(input: &ResponsesInput) -> Result<Vec<Message>> {
    let items = match input {
        ResponsesInput::Text(text) => return Ok(vec![Message::new("user", text.as_str())]),
        ResponsesInput::Items(items) => items,
    };
    let mut messages: Vec<Message> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        one(i, item, &mut messages)?;
    }
    Ok(messages)
}

fn one(i: usize, item: &Item, messages: &mut Vec<Message>) -> Result<()> {
    let missing = |what: &str| ApiError::bad(format!("this item needs `{what}`")).param(format!("input[{i}].{what}"));
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = match item.role.as_deref().ok_or_else(|| missing("role"))? {
                "developer" => "system",
                role @ ("system" | "user" | "assistant") => role,
                role => {
                    let text = format!("unknown role `{role}`: expected system, developer, user or assistant");
                    return Err(ApiError::bad(text).param(format!("input[{i}].role")));
                }
            };
            let content = item.content.as_ref().ok_or_else(|| missing("content"))?;
            messages.push(Message::new(role, content.text(&format!("input[{i}].content"))?));
        }
        "function_call" => {
            let name = item.name.as_deref().ok_or_else(|| missing("name"))?;
            let text = item.arguments.as_deref().unwrap_or("{}");
            let arguments: Value = serde_json::from_str(text).map_err(|error| {
                ApiError::bad(format!("the arguments are not valid JSON: {error}"))
                    .param(format!("input[{i}].arguments"))
            })?;
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"id": item.call_id, "type": "function", "function": function});
            // Calls made together are one message.
            match messages.last_mut() {
                Some(last) if last.role == "assistant" && last.extra.contains_key("tool_calls") => {
                    if let Some(Value::Array(calls)) = last.extra.get_mut("tool_calls") {
                        calls.push(call);
                    }
                }
                _ => {
                    let mut extra = Map::new();
                    extra.insert("tool_calls".into(), json!([call]));
                    messages.push(Message { role: "assistant".into(), content: String::new(), extra });
                }
            }
        }
        "function_call_output" => {
            let output = item.output.as_ref().ok_or_else(|| missing("output"))?;
            let mut message = Message::new("tool", output.text(&format!("input[{i}].output"))?);
            if let Some(id) = &item.call_id {
                message.extra.insert("tool_call_id".into(), id.as_str().into());
            }
            messages.push(message);
        }
        // What was thought before is not told again.
        "reasoning" | "item_reference" => {}
        kind => {
            let text = format!("items of type `{kind}` are not supported");
            return Err(ApiError::bad(text).param(format!("input[{i}].type")));
        }
    }
    Ok(())
}

/// The items as they are listed later: with ids.
pub fn to_items(input: &ResponsesInput) -> Vec<Value> {
    let message = |role: &str, text: String| {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        let mut part = json!({"type": kind, "text": text});
        if role == "assistant" {
            part["annotations"] = json!([]);
        }
        json!({"id": ids::new("msg_"), "type": "message", "status": "completed", "role": role, "content": [part]})
    };
    let items = match input {
        ResponsesInput::Text(text) => return vec![message("user", text.clone())],
        ResponsesInput::Items(items) => items,
    };
    let one = |item: &Item| match item.kind.as_deref().unwrap_or("message") {
        "function_call" => json!({"id": ids::new("fc_"), "type": "function_call", "status": "completed",
            "call_id": item.call_id, "name": item.name, "arguments": item.arguments}),
        "function_call_output" => json!({"id": ids::new("fco_"), "type": "function_call_output",
            "status": "completed", "call_id": item.call_id,
            "output": item.output.as_ref().and_then(|output| output.text("").ok())}),
        _ => {
            let text = item.content.as_ref().and_then(|content| content.text("").ok()).unwrap_or_default();
            message(item.role.as_deref().unwrap_or("user"), text)
        }
    };
    items.iter().map(one).collect()
}
