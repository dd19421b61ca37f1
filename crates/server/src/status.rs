//! `GET /v1/status`: what the server is doing now, for the dashboard and for people: memory, devices, models with their
//! queues and how quickly they answer, and what each key uses. A key sees itself unless it is an administrator's.

use super::App;
use super::generation::Caller;
use super::loaded::Loaded;
use super::models::now_s;
use super::served_model::ServedModel;
use super::usage::Account;
use axum::Extension;
use axum::extract::State;
use rocinante::{DeviceChoice, DeviceMemory};
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    account: Option<Extension<Arc<Account>>>,
) -> axum::Json<Value> {
    let own = account.map(|Extension(account)| account.name.clone());
    let keys = app.gate.show_keys(|name| !caller.is_guest || own.as_deref() == Some(name));
    let kept: serde_json::Map<String, Value> =
        super::metrics::kept(&app).into_iter().map(|(what, n_bytes)| (what.to_owned(), n_bytes.into())).collect();
    let entries = app.models.entries();
    let mut choices: Vec<(DeviceChoice, Option<DeviceMemory>)> = app.models.loaded().map(|model| on(&model)).collect();
    choices.dedup_by_key(|(choice, _)| *choice);
    // Asking a driver may take a while.
    let devices = tokio::task::spawn_blocking(move || devices(choices)).await.unwrap_or_default();
    axum::Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": now_s(),
        "uptime_s": app.state.uptime().as_secs(),
        "state": if app.state.is_draining() { "draining" } else { "ready" },
        "memory": {"resident_bytes": super::metrics::resident_bytes(), "kept_bytes": kept},
        "devices": devices,
        "models": entries.iter().map(|entry| model(entry)).collect::<Vec<_>>(),
        "keys": keys,
    }))
}

/// The device a model is on. Where a process of its own has a GPU, this one leaves the driver alone: what was free when
/// the model was loaded is told instead.
fn on(model: &Loaded) -> (DeviceChoice, Option<DeviceMemory>) {
    let (plan, choice) = (model.plan(), model.plan().options.device);
    let is_elsewhere = choice != DeviceChoice::Cpu && model.engine_status().is_some();
    (choice, plan.fit.room.clone().filter(|_| is_elsewhere))
}

/// The memory of the devices that models are on.
fn devices(choices: Vec<(DeviceChoice, Option<DeviceMemory>)>) -> Vec<Value> {
    let read = |(choice, known): (DeviceChoice, Option<DeviceMemory>)| {
        known.or_else(|| DeviceMemory::read(choice).ok().flatten())
    };
    let show = |memory: DeviceMemory| {
        json!({"name": memory.device, "is_gpu": memory.kind != rocinante::MemoryKind::Host,
            "total_bytes": memory.total_bytes, "free_bytes": memory.usable_bytes})
    };
    choices.into_iter().filter_map(read).map(show).collect()
}

fn model(entry: &ServedModel) -> Value {
    let state = |is_loading: bool| if is_loading { "loading" } else { "unloaded" };
    let Some(model) = entry.loaded() else {
        return json!({"name": entry.name, "state": state(entry.is_loading()), "file_bytes": entry.file_bytes});
    };
    let (stats, memory, schedule) = (model.engine().latest_stats(), model.plan().memory(), model.plan().schedule);
    let mut value = model.pace.show();
    let own = json!({
        "name": entry.name, "state": if model.is_alive() { "ready" } else { "broken" },
        "file_bytes": entry.file_bytes, "device": model.device(), "context": model.n_ctx(),
        "weights_bytes": memory.weights_bytes, "kv_bytes": memory.kv_bytes, "scratch_bytes": memory.scratch_bytes,
        "kv": {"block_tokens": model::BLOCK_TOKENS, "blocks": stats.n_blocks, "blocks_held": stats.n_blocks_held,
            "blocks_cached": stats.n_blocks_cached,
            "window_blocks": stats.n_window_blocks, "window_blocks_held": stats.n_window_blocks_held,
            "used_ratio": stats.kv_used_ratio()},
        "running": stats.n_running, "max_running": schedule.max_running,
        "waiting": stats.n_waiting, "max_queue": schedule.max_queue,
        "preemptions": stats.n_preemptions,
    });
    if let (Value::Object(value), Value::Object(own)) = (&mut value, own) {
        value.extend(own);
    }
    value
}
