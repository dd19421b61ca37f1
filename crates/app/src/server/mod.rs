//! `roci serve`: HTTP in front of the engines. Handlers translate between an API family's wire format and
//! `generation`; nothing here computes.

#![allow(dead_code, reason = "the families that use the rest are being added")]

mod answer;
mod error;
mod generation;
mod ids;
mod json;
mod listen;
pub mod loaded;
mod metrics;
pub mod models;
mod openai;
mod pieces;
pub mod sampling;
mod stream;

use crate::web;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use std::time::Duration;

pub use listen::run;

/// What every handler sees.
pub struct App {
    pub models: models::Registry,
    pub defaults: sampling::Defaults,
    /// Changes when answers to the same seed may.
    pub fingerprint: String,
    pub body: json::BodyLimits,
}

impl App {
    pub fn new(models: models::Registry, defaults: sampling::Defaults) -> Self {
        let body = json::BodyLimits { max_bytes: 8 << 20, time: Duration::from_secs(30) };
        Self { models, defaults, fingerprint: format!("roci-{}", env!("CARGO_PKG_VERSION")), body }
    }
}

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::retrieve).delete(openai::models::delete))
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/health", get(|| async { "ok" }))
        .route("/", get(|| async { asset("index.html") }))
        .route("/{*path}", get(|Path(path): Path<String>| async move { asset(&path) }))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), admit))
        .layer(middleware::from_fn(error::shape))
        .with_state(app)
}

/// Before any handler: limits, and for whom the request is.
async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(app.body);
    request.extensions_mut().insert(generation::Caller::default());
    next.run(request).await
}

/// A file of the web page, which is part of this program.
fn asset(path: &str) -> Response {
    match web::asset(path) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.content_type),
                (header::CONTENT_SECURITY_POLICY, web::CONTENT_SECURITY_POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                // A new version of the program brings new pages.
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (headers, asset.bytes).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
