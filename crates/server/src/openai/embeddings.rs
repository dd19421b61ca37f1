//! `/v1/embeddings`.

use crate::App;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::json::{Json, text_or_null};
use crate::prompt::CompletionPrompt;
use crate::vectors;
use axum::Extension;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
pub struct EmbeddingRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    pub model: String,
    pub input: CompletionPrompt,
    #[serde(default)]
    pub encoding_format: Option<String>,
    /// Only so many numbers of each vector, made length 1 again.
    #[serde(default)]
    pub dimensions: Option<usize>,
    /// The prompt to put before each text, by its name in the model's files, as in sentence-transformers.
    #[serde(default)]
    pub prompt_name: Option<String>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<EmbeddingRequest>,
) -> Result<axum::Json<Value>> {
    let is_base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => app.has_base64,
        Some(other) => {
            let text = format!("`{other}` is not an encoding: expected float or base64");
            return Err(ApiError::bad(text).param("encoding_format"));
        }
    };
    if body.dimensions == Some(0) {
        return Err(ApiError::bad("dimensions is 0").param("dimensions"));
    }
    let model = app.models.get(&body.model).await?;
    let texts = body
        .input
        .prompted(&model, body.prompt_name.as_deref())?
        .encode_aside(&model, "input", vectors::MAX_TEXTS)
        .await?;
    if texts.iter().any(Vec::is_empty) {
        return Err(ApiError::bad("a text is empty").param("input"));
    }
    let (vectors, n_tokens) = vectors::embed(&model, texts, caller).await?;
    let data = vectors.into_iter().enumerate().map(|(i, mut vector)| {
        if let Some(n) = body.dimensions {
            vectors::shorten(&mut vector, n);
        }
        let shown = match is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Value::from(BASE64_STANDARD.encode(bytes))
            }
            false => Value::from(vector),
        };
        json!({"object": "embedding", "index": i, "embedding": shown})
    });
    let data: Vec<Value> = data.collect();
    let name = if body.model.is_empty() { &model.name } else { &body.model };
    Ok(axum::Json(json!({"object": "list", "data": data, "model": name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}})))
}
