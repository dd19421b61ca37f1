//! Signs of life: `/live` while the program runs, `/health` while its engines do too, `/ready` while it takes requests.

use super::App;
use super::error::{ApiError, without_folders};
use axum::extract::State as Shared;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

#[derive(Debug)]
pub struct HealthState {
    start: Instant,
    is_draining: AtomicBool,
    /// Answers that are still being made end with an error.
    is_cut: watch::Sender<bool>,
    /// Answers that are made in the background.
    n_jobs: watch::Sender<usize>,
}

/// An answer that is made in the background, until it is dropped.
#[derive(Debug)]
pub struct JobGuard(watch::Sender<usize>);

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Default for HealthState {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            is_draining: AtomicBool::default(),
            is_cut: watch::Sender::default(),
            n_jobs: watch::Sender::default(),
        }
    }
}

impl HealthState {
    pub fn begin_job(&self) -> JobGuard {
        self.n_jobs.send_modify(|n| *n += 1);
        JobGuard(self.n_jobs.clone())
    }

    /// Waits until nothing is made in the background.
    pub async fn jobs_done(&self) {
        let _ = self.n_jobs.subscribe().wait_for(|&n| n == 0).await;
    }

    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Waits for nobody any more.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub fn cut_signal(&self) -> watch::Receiver<bool> {
        self.is_cut.subscribe()
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

/// Whether a restart would help: it answers as long as anything does.
pub async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
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
    if app.state.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "draining"})));
    }
    let entries = app.models.entries();
    let unavailable: serde_json::Map<String, Value> = entries
        .iter()
        .filter_map(|entry| Some((entry.name.clone(), without_folders(&entry.unavailable()?).into())))
        .collect();
    if !unavailable.is_empty() {
        let body = json!({"status": "unavailable", "models": unavailable, "loaded": loaded});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body));
    }
    let troubled: serde_json::Map<String, Value> = entries
        .iter()
        .filter_map(|entry| Some((entry.name.clone(), without_folders(&entry.loading_trouble()?).into())))
        .collect();
    if !troubled.is_empty() {
        let body = json!({"status": "loading", "models": troubled, "loaded": loaded});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body));
    }
    let gone = entries.iter().filter(|entry| entry.loaded().is_none() && !entry.path.exists());
    let gone: Vec<&str> = gone.map(|entry| entry.name.as_str()).collect();
    match gone.is_empty() {
        true => (StatusCode::OK, Json(json!({"status": "ready", "loaded": loaded, "engines": engines(&app)}))),
        false => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "file missing", "models": gone}))),
    }
}

/// The processes that engines run in, where they do: those that died, and why the last one did.
fn engines(app: &App) -> Value {
    let describe = |model: Arc<super::loaded::Loaded>| {
        let status = model.engine_status()?;
        let about = json!({"up": model.is_up(), "deaths": status.n_deaths, "last_death": status.last_death.as_deref().map(without_folders)});
        Some((model.name.clone(), about))
    };
    app.models.loaded().filter_map(describe).collect::<serde_json::Map<_, _>>().into()
}

/// What connections beyond the limit are answered: signs of life, and to everything else when to come back.
pub fn reserve(app: Arc<App>) -> Router {
    let full = || async {
        let error = ApiError {
            retry_after_s: Some(5),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections are open")
        };
        error.into_response()
    };
    let close = |mut response: Response| async {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    };
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/live", get(live))
        .fallback(full)
        .layer(axum::middleware::map_response(close))
        .with_state(app)
}
