//! `/infill`: text between two others, for models that were trained for it; and the same for `suffix` of completions.

use super::App;
use super::answer;
use super::error::{ApiError, Result};
use super::generation::{self, Caller, Request};
use super::json::Json;
use super::loaded::Loaded;
use super::pieces::Splitter;
use super::sampling::{Knobs, Stop};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use model::TokenId;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use text::Specials;

/// What families call the marks before, after and between.
const MARKS: [(&str, &str, &str); 6] = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
];

#[derive(Debug, Deserialize)]
pub struct InfillRequest {
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub input_prefix: String,
    #[serde(default)]
    pub input_suffix: String,
    /// More of the beginning.
    #[serde(default)]
    pub prompt: String,
    #[serde(default, alias = "max_tokens")]
    pub n_predict: Option<i64>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<i64>,
    #[serde(default)]
    pub min_p: Option<f32>,
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub stop: Option<Stop>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<InfillRequest>,
) -> Result<Response> {
    let model = app.models.get(&body.model).await?;
    let before = format!("{}{}", body.input_prefix, body.prompt);
    let prompt = encode(&model, &before, &body.input_suffix).ok_or_else(|| {
        ApiError::bad(format!("`{}` was not trained to fill in: its vocabulary has no marks for it", model.name))
            .code("unsupported_model")
    })?;
    let knobs = Knobs {
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        seed: body.seed,
        ..Knobs::default()
    };
    let stop = body.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default();
    let max_tokens = body.n_predict.and_then(|n| usize::try_from(n).ok()).or(app.defaults.max_tokens);
    let sampling = knobs.sampling(&model, &app.defaults)?;
    let request = Request {
        prompt,
        sampling,
        max_tokens,
        logprobs: None,
        prompt_logprobs: false,
        constraint: None,
        n: 1,
        caller,
    };
    let answers = generation::start(&app, &model, &request, &Splitter::plain(&model.tokenizer, stop, false))?;
    let whole = answer::collect(answers, 1).await?.remove(0);
    Ok(axum::Json(json!({"content": whole.text, "model": model.name, "stop": true,
        "tokens_evaluated": whole.usage.n_prompt, "tokens_cached": whole.usage.n_cached,
        "tokens_predicted": whole.usage.n_generated}))
    .into_response())
}

/// Beginning, end, and the mark after which the model writes what is between. `None`: the model knows no such marks.
pub fn encode(model: &Loaded, before: &str, after: &str) -> Option<Vec<TokenId>> {
    let id = |mark: &str| model.tokenizer.token_id(mark).map(TokenId);
    let (prefix, suffix, middle) = MARKS.iter().find_map(|(a, b, c)| Some((id(a)?, id(b)?, id(c)?)))?;
    let plain = |text: &str| model.tokenizer.encode(text, Specials::Plain).into_iter().map(TokenId);
    let mut tokens = model.encode_start_or_nothing();
    tokens.push(prefix);
    tokens.extend(plain(before));
    tokens.push(suffix);
    tokens.extend(plain(after));
    tokens.push(middle);
    Some(tokens)
}

/// For models without marks: the end is told first, then the beginning is gone on from.
pub fn encode_in_words(model: &Loaded, before: &str, after: &str) -> Vec<TokenId> {
    model.encode_raw(&format!("The text ends with:\n{after}\n\nThe whole text:\n{before}"))
}
