//! A chat completion as one JSON object, and the log-probabilities that streamed ones have too.

use super::{finish_reason, total, usage};
use crate::llama::timings;
use crate::loaded::Loaded;
use rocinante::{TokenLogprob, ToolCall, WholeAnswer};
use serde_json::{Value, json};
use std::sync::Arc;

/// What is known of an answer before there is one.
pub struct ChatFrame {
    pub id: String,
    pub created: u64,
    pub name: String,
    pub model: Arc<Loaded>,
    pub n: usize,
    pub has_logprobs: bool,
    /// Where the time went is told, as llama.cpp does.
    pub has_timings: bool,
    pub fingerprint: String,
}

impl ChatFrame {
    /// The answer as a whole.
    pub fn completion(&self, whole: &[WholeAnswer]) -> Value {
        let total = total(whole.iter().map(|one| &one.usage), self.n);
        let choices: Vec<Value> = whole.iter().enumerate().map(|(i, one)| self.choice(i, one)).collect();
        let mut value = json!({"id": self.id, "object": "chat.completion", "created": self.created,
            "model": self.name, "choices": choices, "usage": usage(&total), "service_tier": "default",
            "system_fingerprint": self.fingerprint});
        if self.has_timings {
            value["timings"] = timings(&total, whole.len());
        }
        value
    }

    fn choice(&self, index: usize, answer: &WholeAnswer) -> Value {
        let has_content = !answer.text.is_empty() || answer.tool_calls.is_empty();
        let mut message = json!({"role": "assistant", "content": has_content.then_some(&answer.text), "refusal": null});
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.as_str().into();
        }
        if !answer.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = answer.tool_calls.iter().map(call).collect();
        }
        let content = self.has_logprobs.then(|| logprobs(&answer.logprobs, &self.model));
        json!({
            "index": index,
            "message": message,
            "logprobs": content.map(|content| json!({"content": content, "refusal": null})),
            "finish_reason": finish_reason(answer.finish),
        })
    }
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
