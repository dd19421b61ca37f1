//! Responses as a stream of named events: items and their parts open, grow and close, in order.

use super::responses::{ResponseFrame, call_item, finished, is_cut, keep, message_item, reasoning_item, status};
use crate::App;
use crate::error::ApiError;
use crate::loaded::Loaded;
use crate::stream::{Encoder, StreamMessage};
use rocinante::{AnswerEvent, Finish, Finished, Piece, WholeAnswer, ids};
use serde_json::{Value, json};
use std::sync::Arc;

pub struct ResponseEncoder {
    frame: ResponseFrame,
    app: Arc<App>,
    model: Arc<Loaded>,
    has_logprobs: bool,
    answer: WholeAnswer,
    n_events: usize,
    open: Option<OpenItem>,
    output: Vec<Value>,
}

/// The item that grows now.
struct OpenItem {
    id: String,
    kind: ItemKind,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, PartialEq)]
enum ItemKind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

impl ResponseEncoder {
    pub fn new(frame: ResponseFrame, app: Arc<App>, model: Arc<Loaded>, has_logprobs: bool) -> Self {
        let answer = WholeAnswer::default();
        Self { frame, app, model, has_logprobs, answer, n_events: 0, open: None, output: Vec::new() }
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> StreamMessage {
        data["type"] = name.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        StreamMessage { event: Some(name), data }
    }

    /// Makes sure that an item of this kind grows; another one is closed first.
    fn begin(&mut self, kind: ItemKind, out: &mut Vec<StreamMessage>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(Finish::End, out);
        let (id, item) = match &kind {
            ItemKind::Message => {
                let id = ids::new("msg_");
                let item = json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant",
                    "content": []});
                (id, item)
            }
            ItemKind::Reasoning => {
                let id = ids::new("rs_");
                (id.clone(), json!({"id": id, "type": "reasoning", "summary": [], "content": []}))
            }
            ItemKind::Call { call_id, name } => {
                let id = ids::new("fc_");
                (id.clone(), call_item(&id, call_id, name, "", "in_progress"))
            }
        };
        let idx = self.output.len();
        out.push(self.event("response.output_item.added", json!({"output_index": idx, "item": item})));
        let part = match kind {
            ItemKind::Message => Some(json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []})),
            ItemKind::Reasoning => Some(json!({"type": "reasoning_text", "text": ""})),
            ItemKind::Call { .. } => None,
        };
        if let Some(part) = part {
            let data = json!({"item_id": id, "output_index": idx, "content_index": 0, "part": part});
            out.push(self.event("response.content_part.added", data));
        }
        self.open = Some(OpenItem { id, kind, text: String::new(), logprobs: Vec::new() });
    }

    fn grow(&mut self, text: &str, logprobs: Vec<Value>, out: &mut Vec<StreamMessage>) {
        let idx = self.output.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        open.logprobs.extend(logprobs.iter().cloned());
        let (id, kind) = (open.id.clone(), open.kind.clone());
        let (name, mut data) = match kind {
            ItemKind::Message => ("response.output_text.delta", json!({"content_index": 0, "logprobs": logprobs})),
            ItemKind::Reasoning => ("response.reasoning_text.delta", json!({"content_index": 0})),
            ItemKind::Call { .. } => ("response.function_call_arguments.delta", json!({})),
        };
        data["item_id"] = id.into();
        data["output_index"] = idx.into();
        data["delta"] = text.into();
        out.push(self.event(name, data));
    }

    /// `finish`: how the answer ended, if this is its last item.
    fn close(&mut self, finish: Finish, out: &mut Vec<StreamMessage>) {
        let Some(OpenItem { id, kind, text, logprobs }) = self.open.take() else { return };
        let idx = self.output.len();
        let at = || json!({"item_id": id, "output_index": idx, "content_index": 0});
        let with = |mut data: Value, key: &str, value: Value| {
            data[key] = value;
            data
        };
        let item = match &kind {
            ItemKind::Message => {
                let item = message_item(&id, &text, logprobs.clone(), status(finish));
                let data = with(with(at(), "text", text.into()), "logprobs", logprobs.into());
                out.push(self.event("response.output_text.done", data));
                out.push(self.event("response.content_part.done", with(at(), "part", item["content"][0].clone())));
                item
            }
            ItemKind::Reasoning => {
                let item = reasoning_item(&id, &text);
                out.push(self.event("response.reasoning_text.done", with(at(), "text", text.into())));
                out.push(self.event("response.content_part.done", with(at(), "part", item["content"][0].clone())));
                item
            }
            ItemKind::Call { call_id, name } => {
                let item = call_item(&id, call_id, name, &text, status(finish));
                let data = json!({"item_id": id, "output_index": idx, "name": name, "arguments": text});
                out.push(self.event("response.function_call_arguments.done", data));
                item
            }
        };
        out.push(self.event("response.output_item.done", json!({"output_index": idx, "item": item})));
        self.output.push(item);
    }
}

impl Encoder for ResponseEncoder {
    fn start(&mut self) -> Vec<StreamMessage> {
        let response = self.frame.fields.clone();
        vec![
            self.event("response.created", json!({"response": response.clone()})),
            self.event("response.in_progress", json!({"response": response})),
        ]
    }

    fn update(&mut self, _choice: usize, update: AnswerEvent) -> Vec<StreamMessage> {
        let mut out = Vec::new();
        self.answer.add(update.clone());
        match update {
            AnswerEvent::Piece(Piece::Text { text, logprobs }) => {
                self.begin(ItemKind::Message, &mut out);
                let shown =
                    if self.has_logprobs { super::chat_answer::logprobs(&logprobs, &self.model) } else { Vec::new() };
                self.grow(&text, shown, &mut out);
            }
            AnswerEvent::Piece(Piece::Reasoning(text)) => {
                self.begin(ItemKind::Reasoning, &mut out);
                self.grow(&text, Vec::new(), &mut out);
            }
            AnswerEvent::Piece(Piece::ToolCall { id, name, .. }) => {
                self.begin(ItemKind::Call { call_id: id, name }, &mut out);
            }
            AnswerEvent::Piece(Piece::ToolArguments { text, .. }) => self.grow(&text, Vec::new(), &mut out),
            AnswerEvent::Progress { .. } | AnswerEvent::Prompt(_) | AnswerEvent::Token(_) => {}
            AnswerEvent::Finished(Finished { finish, .. }) => {
                if self.output.is_empty() && self.open.is_none() {
                    self.begin(ItemKind::Message, &mut out);
                }
                self.close(finish, &mut out);
            }
        }
        out
    }

    fn end(&mut self) -> Vec<StreamMessage> {
        let response = finished(&self.frame, std::mem::take(&mut self.output), &self.answer);
        keep(&self.app, self.frame.clone(), &response, &self.answer);
        let name = if is_cut(self.answer.finish) { "response.incomplete" } else { "response.completed" };
        vec![self.event(name, json!({"response": response}))]
    }

    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage> {
        let mut response = self.frame.fields.clone();
        response["status"] = "failed".into();
        response["error"] = json!({"code": "server_error", "message": error.message});
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
