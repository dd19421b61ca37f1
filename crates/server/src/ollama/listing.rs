//! What is here, as Ollama's clients ask for it.

use super::timestamp;
use crate::App;
use crate::error::{ApiError, Result};
use crate::json::Json;
use crate::models::{ServedModel, now_s};
use axum::extract::State;
use rocinante::{ModelFiles, ModelInfo, Template};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn version() -> axum::Json<Value> {
    axum::Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

fn details(info: Option<&ModelInfo>, entry: &ServedModel) -> Value {
    let family = info.map_or("unknown", |info| info.architecture.as_str());
    let size = info.map_or_else(String::new, |info| match info.n_params {
        n if n >= 1_000_000_000 => format!("{:.1}B", n as f64 / 1e9),
        n => format!("{:.1}M", n as f64 / 1e6),
    });
    let format = if entry.path.is_dir() { "safetensors" } else { "gguf" };
    json!({"parent_model": "", "format": format, "family": family, "families": [family], "parameter_size": size,
        "quantization_level": info.map_or("", |info| info.quantization.as_str())})
}

fn describe(entry: &ServedModel) -> Value {
    json!({"name": entry.name, "model": entry.name, "modified_at": timestamp(entry.created_s),
        "size": entry.file_bytes, "digest": entry.digest().unwrap_or_default(),
        "details": details(entry.headers().map(|headers| &headers.info), entry)})
}

pub async fn tags(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let entries = app.models.entries();
    // Files are read the first time.
    let models = tokio::task::spawn_blocking(move || entries.iter().map(|entry| describe(entry)).collect::<Vec<_>>());
    let models = models.await.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(axum::Json(json!({"models": models})))
}

/// The models in memory.
pub async fn ps(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let shown = tokio::task::spawn_blocking(move || loaded(&app)).await;
    shown.map(axum::Json).map_err(|error| ApiError::internal(error.to_string()))
}

fn loaded(app: &App) -> Value {
    let entries = app.models.entries();
    let loaded = entries.iter().filter_map(|entry| {
        let model = entry.loaded()?;
        let mut value = describe(entry);
        let memory = model.plan().memory();
        let n_bytes = memory.total_bytes();
        let left = entry
            .time_to_stay(app.models.idle_unload())
            .map(|stay| stay.saturating_sub(entry.last_used().elapsed()).as_secs());
        let is_on_gpu = matches!(model.plan().options.device, rocinante::DeviceChoice::Gpu { .. });
        value["size"] = n_bytes.into();
        value["size_vram"] = if is_on_gpu { n_bytes } else { 0 }.into();
        // Year 1 is Go's way to say never.
        value["expires_at"] =
            left.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |left_s| timestamp(now_s() + left_s)).into();
        value["context_length"] = model.n_ctx().into();
        // Ours: Ollama tells no more than how much of it is in a GPU's memory.
        value["device"] = model.device().into();
        value["weights_bytes"] = memory.weights_bytes.into();
        value["kv_bytes"] = memory.kv_bytes.into();
        value["expires_in_s"] = left.into();
        Some(value)
    });
    json!({"models": loaded.collect::<Vec<_>>()})
}

#[derive(Debug, Deserialize)]
pub struct ShowRequest {
    #[serde(default, alias = "name")]
    model: String,
}

/// From the files alone: nothing is loaded for it.
pub async fn show(State(app): State<Arc<App>>, Json(body): Json<ShowRequest>) -> Result<axum::Json<Value>> {
    let entry = app.models.seek(&body.model).await?;
    let shown = tokio::task::spawn_blocking(move || show_files(&entry)).await;
    shown.map_err(|error| ApiError::internal(error.to_string()))?.map(axum::Json)
}

fn show_files(entry: &ServedModel) -> Result<Value> {
    let files = ModelFiles::open(&entry.path).map_err(|error| {
        // Where files are is nobody's business.
        let file = entry.path.file_name().unwrap_or_default().to_string_lossy();
        ApiError::internal(error.to_string().replace(&entry.path.display().to_string(), &file))
    })?;
    let (config, model_info) = (files.config()?, files.info()?);
    let tokenizer = files.tokenizer()?;
    let template = match &entry.preset.template {
        Some(source) => Template::new(Some(source.clone()), &tokenizer)?,
        None => files.template(&tokenizer)?,
    };
    let arch = &model_info.architecture;
    let mut info = serde_json::Map::new();
    info.insert("general.architecture".into(), arch.as_str().into());
    info.insert("general.parameter_count".into(), model_info.n_params.into());
    info.insert(format!("{arch}.context_length"), config.n_ctx_train.into());
    let is_encoder = config.is_encoder();
    let mut capabilities = vec!["embedding"];
    capabilities.extend((!is_encoder).then_some("completion"));
    capabilities.extend((!is_encoder && template.knows_tools()).then_some("tools"));
    let preset = &entry.preset;
    let mut value = json!({"modelfile": preset.modelfile, "parameters": preset.parameter_lines(),
        "template": template.source().unwrap_or_default(), "details": details(Some(&model_info), entry),
        "model_info": info, "capabilities": capabilities, "modified_at": timestamp(entry.created_s)});
    for (name, text) in [("system", &preset.system), ("license", &preset.license)] {
        if let Some(text) = text {
            value[name] = text.as_str().into();
        }
    }
    Ok(value)
}
