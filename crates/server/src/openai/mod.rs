//! OpenAI's API: wire types and handlers, one file for each resource. All generate through `server::generation`.

pub mod background;
pub mod chat;
pub mod chat_answer;
pub mod chat_store;
pub mod chat_tools;
pub mod completions;
mod completions_stream;
pub mod embeddings;
pub mod messages;
pub mod models;
pub mod response_format;
pub mod responses;
mod responses_input;
mod responses_stream;
pub mod store;

use rocinante::{AnswerUsage, Finish, Timings};
use serde_json::{Value, json};

pub fn usage(usage: &AnswerUsage) -> Value {
    let drafted = usage.drafted;
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.n_reasoning, "audio_tokens": 0,
            "accepted_prediction_tokens": drafted.n_accepted,
            "rejected_prediction_tokens": drafted.n_tokens - drafted.n_accepted},
    })
}

/// The usage of all answers, `n` to each prompt: a prompt counts once.
pub fn total<'a>(usages: impl Iterator<Item = &'a AnswerUsage>, n: usize) -> AnswerUsage {
    usages.enumerate().fold(AnswerUsage::default(), |mut total, (i, one)| {
        if i % n.max(1) == 0 {
            total.n_prompt += one.n_prompt;
            total.n_cached += one.n_cached;
        }
        total.n_generated += one.n_generated;
        total.n_reasoning += one.n_reasoning;
        total.drafted += one.drafted;
        add_timings(&mut total.timings, &one.timings, i % n.max(1) == 0);
        total
    })
}

/// Answers are made at once, so that they wait together; the time that a prompt and each answer took adds up.
fn add_timings(total: &mut Timings, one: &Timings, is_new_prompt: bool) {
    total.queue = total.queue.max(one.queue);
    total.ttft = total.ttft.max(one.ttft);
    total.decode += one.decode;
    if is_new_prompt {
        total.prefill += one.prefill;
    }
}

pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::StopString => "stop",
        Finish::Length | Finish::Context | Finish::Cancelled => "length",
        Finish::ToolCalls => "tool_calls",
    }
}
