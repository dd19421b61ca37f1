//! Chat completions as a stream of chunks.

use super::chat::logprobs;
use super::{finish_reason, total, usage};
use crate::server::error::ApiError;
use crate::server::generation::{Update, Usage};
use crate::server::loaded::Loaded;
use crate::server::pieces::Piece;
use crate::server::stream::{Encoder, Message};
use serde_json::{Value, json};
use std::sync::Arc;

pub struct ChatEncoder {
    id: String,
    created: u64,
    name: String,
    model: Arc<Loaded>,
    n: usize,
    include_usage: bool,
    usages: Vec<Usage>,
}

impl ChatEncoder {
    pub fn new(id: String, created: u64, name: String, model: Arc<Loaded>, n: usize, include_usage: bool) -> Self {
        Self { id, created, name, model, n, include_usage, usages: vec![Usage::default(); n] }
    }

    fn chunk(&self, choices: Value) -> Message {
        let mut value = json!({"id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.name, "choices": choices});
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value.into()
    }

    fn delta(&self, choice: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Message {
        self.chunk(json!([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }
}

impl Encoder for ChatEncoder {
    fn start(&mut self) -> Vec<Message> {
        let delta = || json!({"role": "assistant", "content": "", "refusal": null});
        (0..self.n).map(|choice| self.delta(choice, delta(), Value::Null, None)).collect()
    }

    fn update(&mut self, choice: usize, update: Update) -> Vec<Message> {
        let (delta, shown) = match update {
            Update::Piece(Piece::Text { text, logprobs: tokens }) => {
                let shown = match tokens.is_empty() {
                    true => Value::Null,
                    false => json!({"content": logprobs(&tokens, &self.model), "refusal": null}),
                };
                (json!({"content": text}), shown)
            }
            Update::Piece(Piece::Reasoning(text)) => (json!({"reasoning_content": text}), Value::Null),
            Update::Piece(Piece::ToolCall { index, id, name }) => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                (json!({"tool_calls": [call]}), Value::Null)
            }
            Update::Piece(Piece::ToolArguments { index, text }) => {
                (json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}), Value::Null)
            }
            Update::Finished { finish, usage, .. } => {
                self.usages[choice] = usage;
                return vec![self.delta(choice, json!({}), Value::Null, Some(finish_reason(finish)))];
            }
        };
        vec![self.delta(choice, delta, shown, None)]
    }

    fn end(&mut self) -> Vec<Message> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut message = self.chunk(json!([]));
        message.data["usage"] = usage(&total(self.usages.iter().copied(), self.n));
        vec![message]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Message> {
        vec![error.openai().into()]
    }
}
