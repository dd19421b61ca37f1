//! Ollama's API under `/api`: chat and generate (streaming unless told not to), embed, and what is here.

pub mod generate;
mod keep_alive;
pub mod listing;
pub mod manage;

pub use generate::{chat, generate};
pub use listing::{ps, show, tags, version};
pub use manage::{copy, create, delete, pull};

use super::App;
use super::error::Result;
use super::generation::Caller;
use super::prompt::CompletionPrompt;
use super::vectors;
use crate::json::{Json, text_or_null};
use axum::Extension;
use axum::extract::State;
use rocinante::{AnswerUsage, Finish};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, Deserialize)]
pub struct EmbedRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    input: CompletionPrompt,
    /// A text that is too long is cut, unless this is false.
    #[serde(default)]
    truncate: Option<bool>,
    #[serde(default)]
    dimensions: Option<usize>,
}

pub async fn embed(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<EmbedRequest>,
) -> Result<axum::Json<Value>> {
    let start = Instant::now();
    let model = app.models.get(&body.model).await?;
    let mut texts = body.input.prompted(&model, None)?.encode_aside(&model, "input", vectors::MAX_TEXTS).await?;
    if body.truncate != Some(false) {
        texts.iter_mut().for_each(|text| text.truncate(model.n_ctx()));
    }
    let (mut vectors, n_tokens) = vectors::embed(&model, texts, caller).await?;
    if let Some(n) = body.dimensions.filter(|&n| n > 0) {
        vectors.iter_mut().for_each(|vector| vectors::shorten(vector, n));
    }
    let name = if body.model.is_empty() { &model.name } else { &body.model };
    Ok(axum::Json(json!({"model": name, "embeddings": vectors, "total_duration": start.elapsed().as_nanos() as u64,
        "load_duration": 0, "prompt_eval_count": n_tokens})))
}

#[derive(Debug, Deserialize)]
pub struct EmbeddingsRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    #[serde(default)]
    prompt: String,
}

/// The older way to ask for a vector; both official clients still have it.
pub async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<EmbeddingsRequest>,
) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    // An empty prompt loads the model, and that is all.
    if body.prompt.is_empty() {
        return Ok(axum::Json(json!({"embedding": []})));
    }
    let mut texts =
        CompletionPrompt::Text(body.prompt).prompted(&model, None)?.encode_aside(&model, "prompt", 1).await?;
    texts.iter_mut().for_each(|text| text.truncate(model.n_ctx()));
    let (mut vectors, _) = vectors::embed(&model, texts, caller).await?;
    Ok(axum::Json(json!({"embedding": vectors.pop().unwrap_or_default()})))
}

fn done_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length | Finish::Context | Finish::Cancelled => "length",
        Finish::End | Finish::StopString | Finish::ToolCalls => "stop",
    }
}

/// The figures at the end of an answer, in nanoseconds.
fn add_figures(value: &mut Value, finish: Finish, usage: &AnswerUsage, start: Instant) {
    let nanos = |time: std::time::Duration| Value::from(time.as_nanos() as u64);
    value["done"] = true.into();
    value["done_reason"] = done_reason(finish).into();
    value["total_duration"] = nanos(start.elapsed());
    value["load_duration"] = 0.into();
    value["prompt_eval_count"] = usage.n_prompt.into();
    value["prompt_eval_duration"] = nanos(usage.timings.prefill);
    value["eval_count"] = usage.n_generated.into();
    value["eval_duration"] = nanos(usage.timings.decode);
}

/// The time as RFC 3339 has it, in UTC.
pub fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970: years of 400 make eras, March comes first.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn timestamps_are_those_of_date() {
        // By `date -u -d @N +%FT%TZ`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(super::timestamp(seconds), expected);
        }
    }
}
