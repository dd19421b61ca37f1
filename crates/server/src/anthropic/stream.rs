//! A message as a stream: blocks start, grow and stop, in order.

use super::{stop_reason, usage};
use crate::error::ApiError;
use crate::stream::{Encoder, StreamMessage};
use rocinante::{AnswerEvent, Finished, Piece};
use serde_json::{Value, json};

pub struct MessageEncoder {
    id: String,
    model: String,
    n_prompt: usize,
    n_blocks: usize,
    open: Option<BlockKind>,
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum BlockKind {
    Text,
    Thinking,
    Tool,
}

impl MessageEncoder {
    pub fn new(id: String, model: String, n_prompt: usize) -> Self {
        Self { id, model, n_prompt, n_blocks: 0, open: None }
    }

    fn begin(&mut self, kind: BlockKind, block: Value, out: &mut Vec<StreamMessage>) {
        if kind != BlockKind::Tool && self.open == Some(kind) {
            return;
        }
        self.close(out);
        out.push(event("content_block_start", json!({"index": self.n_blocks, "content_block": block})));
        self.open = Some(kind);
    }

    fn grow(&self, delta: Value) -> StreamMessage {
        event("content_block_delta", json!({"index": self.n_blocks, "delta": delta}))
    }

    fn close(&mut self, out: &mut Vec<StreamMessage>) {
        let Some(kind) = self.open.take() else { return };
        if kind == BlockKind::Thinking {
            out.push(self.grow(json!({"type": "signature_delta", "signature": ""})));
        }
        out.push(event("content_block_stop", json!({"index": self.n_blocks})));
        self.n_blocks += 1;
    }
}

fn event(name: &'static str, mut data: Value) -> StreamMessage {
    data["type"] = name.into();
    StreamMessage { event: Some(name), data }
}

impl Encoder for MessageEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        let usage = json!({"input_tokens": self.n_prompt, "output_tokens": 0,
            "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0});
        let message = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
        vec![event("message_start", json!({"message": message})), event("ping", json!({}))]
    }

    fn update(&mut self, _choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        let mut out = Vec::new();
        match update {
            AnswerEvent::Piece(Piece::Text { text, .. }) => {
                self.begin(BlockKind::Text, json!({"type": "text", "text": ""}), &mut out);
                out.push(self.grow(json!({"type": "text_delta", "text": text})));
            }
            AnswerEvent::Piece(Piece::Reasoning(text)) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.begin(BlockKind::Thinking, block, &mut out);
                out.push(self.grow(json!({"type": "thinking_delta", "thinking": text})));
            }
            AnswerEvent::Piece(Piece::ToolCall { id, name, .. }) => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin(BlockKind::Tool, block, &mut out);
            }
            AnswerEvent::Piece(Piece::ToolArguments { text, .. }) => {
                out.push(self.grow(json!({"type": "input_json_delta", "partial_json": text})));
            }
            AnswerEvent::Progress { .. } | AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => {}
            AnswerEvent::Finished(Finished { finish, stop, usage: used }) => {
                self.close(&mut out);
                let delta = json!({"stop_reason": stop_reason(finish), "stop_sequence": stop});
                out.push(event("message_delta", json!({"delta": delta, "usage": usage(&used)})));
            }
        }
        out
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        vec![event("message_stop", json!({}))]
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        vec![StreamMessage { event: Some("error"), data: error.anthropic() }]
    }
}
