//! What llama.cpp's server reports about itself: `/props`, `/slots`, `/lora-adapters`, and `/apply-template`.

use super::RANDOM_SEED;
use super::completion::usual;
use crate::App;
use crate::adapters::Adapted;
use crate::chat_input;
use crate::error::{ApiError, Result};
use crate::json::Json;
use crate::openai::chat::{self, ChatRequest, RequestBody};
use crate::served_model::ServedModel;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/apply-template`: what the model would read.
pub async fn apply_template(State(app): State<Arc<App>>, body: RequestBody<ChatRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.fields.model).await?;
    let input = chat::to_chat_input(&body)?;
    let text = tokio::task::spawn_blocking(move || chat_input::render(&model, &input)).await;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(axum::Json(json!({"prompt": text::unshield(&text)})))
}

/// `/props`: about the first model.
pub async fn props(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let model = app.models.get("").await?;
    let special = |id: Option<u32>| id.map(|id| model.tokenizer.token_text(id)).unwrap_or_default();
    let path = app.models.find("").map(|entry| entry.path.clone()).unwrap_or_default();
    let usual = model.preset.params.or(&usual(&app.defaults)).sampling(&model, &app.defaults)?;
    // Where files are is nobody's business.
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(axum::Json(json!({
        "default_generation_settings": {"id": 0, "id_task": -1, "n_ctx": model.n_ctx(), "speculative": false,
            "is_processing": false, "params": {"temperature": usual.temperature, "top_k": usual.top_k, "top_p": usual.top_p,
                "min_p": usual.min_p, "n_predict": -1, "seed": app.defaults.seed.unwrap_or(RANDOM_SEED), "stream": true}},
        "total_slots": model.plan().schedule.max_running, "model_alias": model.name, "model_path": file,
        "modalities": {"vision": false, "audio": false},
        "chat_template": model.template().source().unwrap_or_default(),
        "bos_token": special(model.tokenizer.bos()), "eos_token": special(model.tokenizer.eos()),
        "build_info": concat!("roci-", env!("CARGO_PKG_VERSION")), "is_sleeping": false,
    })))
}

/// `/slots`: as many as can run at once, of which some do.
pub async fn slots(State(app): State<Arc<App>>) -> Result<axum::Json<Value>> {
    let model = app.models.get("").await?;
    let (n_running, n_ctx) = (model.engine().latest_stats().n_running, model.n_ctx());
    let slot = |id: usize| {
        json!({"id": id, "id_task": if id < n_running { id as i64 } else { -1 }, "n_ctx": n_ctx,
            "speculative": false, "is_processing": id < n_running})
    };
    Ok(axum::Json((0..model.plan().schedule.max_running).map(slot).collect()))
}

/// Those that can be asked for. None counts in requests that do not name it, so all scales are 0.
pub async fn lora_adapters(State(app): State<Arc<App>>) -> axum::Json<Value> {
    let entries = app.models.entries();
    let adapters = entries.iter().filter_map(|entry| Some((entry, entry.preset.adapted.as_ref()?)));
    let one = |(id, (entry, adapted)): (usize, (&Arc<ServedModel>, &Adapted))| {
        // Where files are is nobody's business.
        let file = adapted.adapter.path().file_name().map(|file| file.to_string_lossy().into_owned());
        json!({"id": id, "name": entry.name, "path": file, "scale": 0.0, "parent": adapted.parent})
    };
    axum::Json(adapters.enumerate().map(one).collect())
}

pub async fn set_lora_adapters(Json(body): Json<Vec<Value>>) -> Result<axum::Json<Value>> {
    match body.is_empty() {
        true => Ok(axum::Json(json!({"success": true}))),
        false => {
            let text = "each request chooses its adapter by `model`";
            Err(ApiError::bad(text).code("not_supported"))
        }
    }
}
