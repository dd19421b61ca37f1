//! `/v1/models`: what can be asked for.

use crate::App;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::models::ServedModel;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    let entries = app.models.entries();
    let names = |entry: &ServedModel| [std::slice::from_ref(&entry.name), entry.aliases.as_slice()].concat();
    // Files are read the first time.
    let data = tokio::task::spawn_blocking(move || {
        let shown = entries.iter().flat_map(|entry| {
            let app = &app;
            names(entry).into_iter().map(move |name| describe(app, entry, &name))
        });
        shown.collect::<Vec<Value>>()
    });
    let data = data.await.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Json(json!({"object": "list", "data": data})))
}

pub async fn retrieve(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>> {
    let entry = app.models.seek(&name).await?;
    let shown = tokio::task::spawn_blocking(move || describe(&app, &entry, &name)).await;
    shown.map(Json).map_err(|error| ApiError::internal(error.to_string()))
}

/// Files are not removed over the network: the model only leaves memory.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let entry = app.models.find(&name)?;
    if caller.keeps_models {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "this key may not take models out of memory (unload=yes)"));
    }
    let was_loaded = entry.is_named(&name) && (entry.loaded().is_some() || entry.unavailable().is_some());
    if was_loaded {
        app.models.unload(&entry).await;
    }
    Ok(Json(json!({"id": name, "object": "model", "deleted": was_loaded})))
}

fn describe(app: &App, entry: &ServedModel, name: &str) -> Value {
    let (loaded, headers, defaults) = (entry.loaded(), entry.headers(), &app.defaults);
    json!({
        "id": name,
        "object": "model",
        "created": entry.created_s,
        "owned_by": "roci",
        "max_model_len": loaded.as_ref().map(|model| model.n_ctx()),
        "meta": {"is_loaded": loaded.is_some(), "file_bytes": entry.file_bytes,
            "family": headers.map(|headers| headers.info.architecture.as_str()),
            "quantization": headers.map(|headers| headers.info.quantization.as_str()),
            "n_params": headers.map(|headers| headers.info.n_params),
            "n_ctx_train": headers.map(|headers| headers.n_ctx_train),
            // What a request that asks for nothing gets.
            "sampling": {"temperature": defaults.temperature, "top_p": defaults.top_p, "top_k": defaults.top_k,
                "min_p": defaults.min_p, "max_tokens": defaults.max_tokens}},
    })
}
