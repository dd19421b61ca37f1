//! What is here, as Ollama's clients ask for it.

use super::timestamp;
use crate::App;
use crate::error::Result;
use crate::json::Json;
use crate::loaded::Loaded;
use crate::models::Entry;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn version() -> axum::Json<Value> {
    axum::Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

fn details(model: Option<&Loaded>) -> Value {
    let family = model.map_or("unknown", |model| model.info().architecture.as_str());
    let size = model.map_or_else(String::new, |model| format!("{:.1}M", model.info().n_params as f64 / 1e6));
    json!({"parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": size,
        "quantization_level": model.map_or("", |model| model.info().quantization.as_str())})
}

fn describe(entry: &Entry) -> Value {
    json!({"name": entry.name, "model": entry.name, "modified_at": timestamp(entry.created_s),
        "size": entry.file_bytes, "digest": "", "details": details(entry.loaded().as_deref())})
}

pub async fn tags(State(app): State<Arc<App>>) -> axum::Json<Value> {
    axum::Json(json!({"models": app.models.entries().iter().map(|entry| describe(entry)).collect::<Vec<_>>()}))
}

/// The models in memory.
pub async fn ps(State(app): State<Arc<App>>) -> axum::Json<Value> {
    let entries = app.models.entries();
    let loaded = entries.iter().filter_map(|entry| {
        let model = entry.loaded()?;
        let mut value = describe(entry);
        value["size"] = model.plan().memory().total_bytes().into();
        value["size_vram"] = 0.into();
        value["expires_at"] = "0001-01-01T00:00:00Z".into();
        value["context_length"] = model.n_ctx().into();
        Some(value)
    });
    axum::Json(json!({"models": loaded.collect::<Vec<_>>()}))
}

#[derive(Debug, Deserialize)]
pub struct ShowRequest {
    #[serde(default, alias = "name")]
    model: String,
}

pub async fn show(State(app): State<Arc<App>>, Json(body): Json<ShowRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    let entry = app.models.find(&body.model)?;
    let arch = &model.info().architecture;
    let mut info = serde_json::Map::new();
    info.insert("general.architecture".into(), arch.as_str().into());
    info.insert("general.parameter_count".into(), model.info().n_params.into());
    info.insert(format!("{arch}.context_length"), model.plan().n_ctx_train.into());
    let mut capabilities = vec!["embedding"];
    capabilities.extend((!model.is_encoder()).then_some("completion"));
    capabilities.extend((!model.is_encoder() && model.knows_tools()).then_some("tools"));
    Ok(axum::Json(json!({"modelfile": "", "parameters": "", "template": model.template().source().unwrap_or_default(),
        "details": details(Some(&model)), "model_info": info, "capabilities": capabilities,
        "modified_at": timestamp(entry.created_s)})))
}
