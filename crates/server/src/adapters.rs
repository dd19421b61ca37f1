//! Adapters as models of their own: each is an entry that shares the engine of its base and names the adapter in every
//! request. vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` add and remove them while the server runs.

use super::App;
use super::error::{ApiError, Result};
use super::generation::Caller;
use super::json::Json;
use super::preset::Preset;
use super::served_model::ServedModel;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use rocinante::{Adapter, ModelFiles};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Adapters that clients may have named at once.
const MAX_NAMED: usize = 1000;

/// The adapter that a name stands for.
#[derive(Clone, Debug)]
pub struct Adapted {
    pub adapter: Adapter,
    /// The model that it changes.
    pub parent: String,
}

/// A model that is `base` with an adapter. It answers to the adapter's name, and to that behind the base's.
pub fn entry(base: &ServedModel, name: &str, adapter: Adapter) -> std::io::Result<ServedModel> {
    let adapted = Adapted { adapter, parent: base.name.clone() };
    let preset = Preset { adapted: Some(adapted), ..Preset::clone(&base.preset) };
    let aliases = vec![format!("{}:{name}", base.name)];
    Ok(ServedModel::new(name.to_owned(), base.path.clone())?.renamed(name.to_owned(), aliases).with_preset(preset))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadRequest {
    lora_name: String,
    lora_path: PathBuf,
    base_model_name: Option<String>,
    /// Replaces an adapter of the same name.
    load_inplace: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct UnloadRequest {
    lora_name: String,
}

pub async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<LoadRequest>,
) -> Result<String> {
    check_allowed(&app, caller)?;
    let LoadRequest { lora_name: name, lora_path: path, base_model_name, load_inplace } = body;
    if name.is_empty() || path.as_os_str().is_empty() {
        return Err(ApiError::bad("both `lora_name` and `lora_path` must be given"));
    }
    let entries = app.models.entries();
    let known = entries.iter().find(|entry| entry.is_named(&name));
    if let Some(known) = known {
        let text = format!(
            "`{name}` is the name of {} already",
            if known.preset.adapted.is_some() { "an adapter" } else { "a model" }
        );
        if known.preset.adapted.is_none() || known.is_given || !load_inplace {
            return Err(ApiError::bad(text).param("lora_name"));
        }
    }
    if entries.iter().filter(|entry| entry.preset.adapted.is_some()).count() >= MAX_NAMED {
        return Err(ApiError::bad(format!("there are {MAX_NAMED} adapters already; unload one first")));
    }
    let base = app.models.base(base_model_name.as_deref().unwrap_or_default())?;
    let limits = app.models.options().adapters;
    let base_path = base.path.clone();
    let opened = tokio::task::spawn_blocking(move || -> rocinante::Result<Adapter> {
        let adapter = Adapter::open(&path)?;
        adapter.check(&ModelFiles::open(&base_path)?)?;
        Ok(adapter)
    });
    let adapter = opened.await.map_err(|error| ApiError::internal(error.to_string()))?;
    let adapter = adapter.map_err(|error| ApiError::bad(error.to_string()).param("lora_path"))?;
    if adapter.rank() > limits.max_rank {
        let (rank, max_rank) = (adapter.rank(), limits.max_rank);
        let text = format!("the adapter's rank is {rank}, this server has room for {max_rank} (--max-lora-rank)");
        return Err(ApiError::bad(text).param("lora_path"));
    }
    if adapter.has_experts() && !limits.has_experts {
        let text = "the adapter changes experts of a mixture, for which this server made no room; start it with such an \
                    adapter (--lora)";
        return Err(ApiError::bad(text).param("lora_path"));
    }
    let entry = entry(&base, &name, adapter).map_err(|error| ApiError::internal(error.to_string()))?;
    if known.is_some() {
        app.models.remove(&name).await;
    }
    app.models.insert(entry);
    tracing::info!(model = name, "an adapter was added");
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

pub async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<UnloadRequest>,
) -> Result<String> {
    check_allowed(&app, caller)?;
    let name = body.lora_name;
    if name.is_empty() {
        return Err(ApiError::bad("`lora_name` must be given"));
    }
    let entries = app.models.entries();
    match entries.iter().find(|entry| entry.name == name && entry.preset.adapted.is_some()) {
        Some(known) if known.is_given => {
            let text = format!("the server was started with `{name}`: it cannot be unloaded");
            return Err(ApiError::bad(text).param("lora_name"));
        }
        Some(_) => {}
        None => {
            let text = format!("there is no adapter `{name}`");
            return Err(ApiError::not_found(text).code("model_not_found").param("lora_name"));
        }
    }
    app.models.remove(&name).await;
    tracing::info!(model = name, "an adapter was removed");
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

/// Paths from clients are read by this process: only where the operator said so, and never for guests.
fn check_allowed(app: &App, caller: Caller) -> Result<()> {
    if !app.allows_runtime_lora {
        let text = "this server only loads adapters at start (--lora); --allow-runtime-lora lets clients load more";
        return Err(ApiError::new(StatusCode::FORBIDDEN, text));
    }
    match caller.is_guest {
        true => Err(ApiError::new(StatusCode::FORBIDDEN, "this key may not load adapters (admin=yes)")),
        false => Ok(()),
    }
}
