//! The messages of a conversation as OpenAI's clients send them, turned into what a chat template reads.

use crate::error::{ApiError, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use text::Message;

#[derive(Clone, Debug, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub tool_calls: Option<Vec<MessageToolCall>>,
    #[serde(default)]
    pub tool_call_id: Option<String>,
    #[serde(default, alias = "reasoning")]
    pub reasoning_content: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of content parts")]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContentPart {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub refusal: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct MessageToolCall {
    #[serde(default)]
    pub id: Option<String>,
    pub function: FunctionCall,
}

#[derive(Clone, Debug, Deserialize)]
pub struct FunctionCall {
    pub name: String,
    #[serde(default)]
    pub arguments: Value,
}

impl Content {
    /// The text of all parts; a part that is no text is an error with its kind.
    pub fn text(&self, param: &str) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Parts(parts) => parts.iter().map(|part| part.text(param)).collect(),
        }
    }
}

impl ContentPart {
    fn text(&self, param: &str) -> Result<String> {
        match (self.kind.as_str(), &self.text, &self.refusal) {
            ("text" | "input_text" | "output_text", Some(text), _) | ("refusal", _, Some(text)) => Ok(text.clone()),
            ("text" | "input_text" | "output_text" | "refusal", ..) => {
                Err(ApiError::bad(format!("a part of type `{}` has no text", self.kind)).param(param))
            }
            (kind, ..) => {
                let text = format!("this model reads text only, not `{kind}`");
                Err(ApiError::bad(text).param(param).code("unsupported_content"))
            }
        }
    }
}

pub fn to_template(messages: &[ChatMessage]) -> Result<Vec<Message>> {
    if messages.is_empty() {
        return Err(ApiError::bad("there are no messages").param("messages"));
    }
    messages.iter().enumerate().map(|(i, message)| one(i, message)).collect()
}

fn one(i: usize, message: &ChatMessage) -> Result<Message> {
    let role = match message.role.as_str() {
        // Templates know it by its older name.
        "developer" => "system",
        "function" => "tool",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        role => {
            let text = format!("unknown role `{role}`: expected system, developer, user, assistant or tool");
            return Err(ApiError::bad(text).param(format!("messages[{i}].role")));
        }
    };
    let param = format!("messages[{i}].content");
    let content = message.content.as_ref().map(|content| content.text(&param)).transpose()?;
    if content.is_none() && role != "assistant" {
        return Err(ApiError::bad(format!("a message of role `{role}` needs content")).param(param));
    }
    let mut extra = Map::new();
    if let Some(name) = &message.name {
        extra.insert("name".into(), name.as_str().into());
    }
    if let Some(id) = &message.tool_call_id {
        extra.insert("tool_call_id".into(), id.as_str().into());
    }
    if let Some(text) = &message.reasoning_content {
        extra.insert("reasoning_content".into(), text.as_str().into());
    }
    if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
        let calls = calls.iter().enumerate().map(|(j, call)| {
            let arguments = arguments(&call.function.arguments).map_err(|text| {
                ApiError::bad(text).param(format!("messages[{i}].tool_calls[{j}].function.arguments"))
            })?;
            Ok(json!({"id": call.id, "type": "function",
                "function": {"name": call.function.name, "arguments": arguments}}))
        });
        extra.insert("tool_calls".into(), Value::Array(calls.collect::<Result<_>>()?));
    }
    Ok(Message { role: role.to_owned(), content: content.unwrap_or_default(), extra })
}

/// Templates want the arguments as an object; on the wire they are its text.
fn arguments(value: &Value) -> std::result::Result<Value, String> {
    match value {
        Value::String(text) if text.trim().is_empty() => Ok(json!({})),
        Value::String(text) => {
            serde_json::from_str(text).map_err(|error| format!("the arguments are not valid JSON: {error}"))
        }
        Value::Null => Ok(json!({})),
        other => Ok(other.clone()),
    }
}
