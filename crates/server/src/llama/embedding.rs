//! `/embedding`: each text's vector, as a list of one.

use crate::App;
use crate::error::Result;
use crate::generation::Caller;
use crate::json::{Json, text_or_null};
use crate::prompt::CompletionPrompt;
use crate::vectors;
use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
pub struct LlamaEmbedding {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    #[serde(alias = "input")]
    content: CompletionPrompt,
}

pub async fn embedding(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<LlamaEmbedding>,
) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    let texts = body.content.prompted(&model, None)?.encode_aside(&model, "content", vectors::MAX_TEXTS).await?;
    let (vectors, _) = vectors::embed(&model, texts, caller).await?;
    let all = vectors.into_iter().enumerate().map(|(i, vector)| json!({"index": i, "embedding": [vector]}));
    Ok(axum::Json(all.collect()))
}
