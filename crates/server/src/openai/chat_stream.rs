//! Chat completions as a stream of chunks.

use super::chat::{Frame, logprobs};
use super::chat_store::Keeper;
use super::{finish_reason, total, usage};
use crate::error::ApiError;
use crate::stream::{Encoder, Message};
use rocinante::{AnswerEvent, AnswerUsage, Finished, Piece, WholeAnswer};
use serde_json::{Value, json};

pub struct ChatEncoder {
    frame: Frame,
    include_usage: bool,
    usages: Vec<AnswerUsage>,
    /// Who keeps the answers, and the answers so far.
    keeper: Option<(Keeper, Vec<WholeAnswer>)>,
}

impl ChatEncoder {
    pub fn new(frame: Frame, include_usage: bool, keeper: Option<Keeper>) -> Self {
        let keeper = keeper.map(|keeper| (keeper, vec![WholeAnswer::default(); frame.n]));
        Self { usages: vec![AnswerUsage::default(); frame.n], frame, include_usage, keeper }
    }

    fn chunk(&self, choices: Value) -> Message {
        let mut value = json!({"id": self.frame.id, "object": "chat.completion.chunk", "created": self.frame.created,
            "model": self.frame.name, "choices": choices});
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value.into()
    }

    /// How much of the prompt is read, with the names that llama.cpp gives it.
    fn progress(&self, n_read: usize, n_prompt: usize) -> Message {
        json!({"id": self.frame.id, "object": "chat.completion.chunk", "created": self.frame.created,
            "model": self.frame.name, "choices": [],
            "prompt_progress": {"total": n_prompt, "processed": n_read}})
        .into()
    }

    fn delta(&self, choice: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Message {
        self.chunk(json!([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }
}

impl Encoder for ChatEncoder {
    fn start(&mut self) -> Vec<Message> {
        let delta = || json!({"role": "assistant", "content": "", "refusal": null});
        (0..self.frame.n).map(|choice| self.delta(choice, delta(), Value::Null, None)).collect()
    }

    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<Message> {
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
                self.usages[choice] = usage;
                return vec![self.delta(choice, json!({}), Value::Null, Some(finish_reason(finish)))];
            }
        };
        vec![self.delta(choice, delta, shown, None)]
    }

    fn end(&mut self) -> Vec<Message> {
        if let Some((keeper, whole)) = self.keeper.take() {
            keeper.keep(&self.frame.completion(&whole));
        }
        if !self.include_usage {
            return Vec::new();
        }
        let mut message = self.chunk(json!([]));
        message.data["usage"] = usage(&total(self.usages.iter(), self.frame.n));
        vec![message]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Message> {
        vec![error.openai().into()]
    }
}
