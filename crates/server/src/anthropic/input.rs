//! Messages as Anthropic's clients send them: texts, or blocks of text, thinking, calls of tools and their results.

use crate::error::{ApiError, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::Message;

#[derive(Clone, Debug, Deserialize)]
pub struct AnthropicMessage {
    pub role: String,
    pub content: AnthropicContent,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of content blocks")]
pub enum AnthropicContent {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

#[derive(Clone, Debug, Deserialize)]
pub struct ContentBlock {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub thinking: Option<String>,
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub input: Option<Value>,
    #[serde(default)]
    pub tool_use_id: Option<String>,
    #[serde(default)]
    pub content: Option<Box<AnthropicContent>>,
}

impl AnthropicContent {
    /// The text, where nothing but text makes sense.
    pub fn text(&self, param: &str) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Blocks(blocks) => blocks.iter().map(|block| block.text(param).map(str::to_owned)).collect(),
        }
    }
}

impl ContentBlock {
    fn text(&self, param: &str) -> Result<&str> {
        match (self.kind.as_str(), &self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(ApiError::bad("a block of type `text` has no text").param(param)),
            (kind, _) => Err(ApiError::bad(format!("this model reads text only, not `{kind}`")).param(param)),
        }
    }
}

pub fn to_template(input: &[AnthropicMessage], messages: &mut Vec<Message>) -> Result<()> {
    if input.is_empty() {
        return Err(ApiError::bad("there are no messages").param("messages"));
    }
    for (i, message) in input.iter().enumerate() {
        match (message.role.as_str(), &message.content) {
            (role @ ("user" | "assistant" | "system"), AnthropicContent::Text(text)) => {
                messages.push(Message::new(role, text.as_str()));
            }
            ("user" | "system", AnthropicContent::Blocks(blocks)) => user(i, &message.role, blocks, messages)?,
            ("assistant", AnthropicContent::Blocks(blocks)) => assistant(i, blocks, messages)?,
            (role, _) => {
                let text = format!("unknown role `{role}`: expected user or assistant");
                return Err(ApiError::bad(text).param(format!("messages.{i}.role")));
            }
        }
    }
    Ok(())
}

/// Results of tools are messages of their own, in front of what the user says besides.
fn user(i: usize, role: &str, blocks: &[ContentBlock], messages: &mut Vec<Message>) -> Result<()> {
    let mut text = String::new();
    let mut has_results = false;
    for (j, block) in blocks.iter().enumerate() {
        let param = format!("messages.{i}.content.{j}");
        if block.kind == "tool_result" {
            let result = block.content.as_ref().map(|content| content.text(&param)).transpose()?;
            let mut message = Message::new("tool", result.unwrap_or_default());
            if let Some(id) = &block.tool_use_id {
                message.extra.insert("tool_call_id".into(), id.as_str().into());
            }
            messages.push(message);
            has_results = true;
        } else {
            text.push_str(block.text(&param)?);
        }
    }
    if !text.is_empty() || !has_results {
        messages.push(Message::new(role, text));
    }
    Ok(())
}

fn assistant(i: usize, blocks: &[ContentBlock], messages: &mut Vec<Message>) -> Result<()> {
    let mut extra = Map::new();
    let mut text = String::new();
    let mut calls = Vec::new();
    for (j, block) in blocks.iter().enumerate() {
        let param = format!("messages.{i}.content.{j}");
        match (block.kind.as_str(), &block.name) {
            ("thinking", _) => {
                extra.insert("reasoning_content".into(), block.thinking.clone().unwrap_or_default().into());
            }
            ("redacted_thinking", _) => {}
            ("tool_use", Some(name)) => {
                let arguments = block.input.clone().unwrap_or_else(|| json!({}));
                let function = json!({"name": name, "arguments": arguments});
                calls.push(json!({"id": block.id, "type": "function", "function": function}));
            }
            ("tool_use", None) => return Err(ApiError::bad("a block of type `tool_use` needs a name").param(param)),
            _ => text.push_str(block.text(&param)?),
        }
    }
    if !calls.is_empty() {
        extra.insert("tool_calls".into(), calls.into());
    }
    messages.push(Message { role: "assistant".into(), content: text, extra });
    Ok(())
}
