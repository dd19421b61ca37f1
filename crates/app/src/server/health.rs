//! Signs of life: `/health` while the program runs and its engines do, `/ready` while it takes requests.

use super::App;
use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub struct State {
    is_draining: AtomicBool,
}

impl State {
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

pub async fn health(Shared(app): Shared<Arc<App>>) -> (StatusCode, Json<Value>) {
    let broken: Vec<String> =
        app.models.loaded().filter(|model| !model.is_alive()).map(|model| model.name.clone()).collect();
    match broken.is_empty() {
        true => (StatusCode::OK, Json(json!({"status": "ok"}))),
        // The next request for them starts them again.
        false => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "broken", "models": broken}))),
    }
}

pub async fn ready(Shared(app): Shared<Arc<App>>) -> (StatusCode, Json<Value>) {
    let loaded: Vec<String> = app.models.loaded().map(|model| model.name.clone()).collect();
    match app.state.is_draining() {
        false => (StatusCode::OK, Json(json!({"status": "ready", "loaded": loaded}))),
        true => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "draining"}))),
    }
}
