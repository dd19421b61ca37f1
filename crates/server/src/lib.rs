//! HTTP in front of the runtime: the API families (OpenAI, Anthropic, Ollama, llama.cpp's), keys and limits, metrics and
//! traces, and the pages. Handlers translate between a family's wire format and `generation`; nothing here computes.
//!
//! What this crate does not know: commands and their arguments, names of models and where they are fetched from. It is
//! given files under names ([`models::ServedModel`]) and options of the runtime.

#![forbid(unsafe_code)]

pub mod adapters;
mod anthropic;
pub mod audit;
mod blocking;
mod budget;
mod chat_input;
pub mod connection;
pub mod constraint_probe;
pub mod disk;
mod error;
pub mod gate;
mod generation;
pub mod health;
mod served_model;
pub use hub::hint;
pub mod json;
pub mod keys;
pub mod kv_events;
pub mod library;
mod limits;
pub mod listen;
mod llama;
mod load_clock;
pub mod loaded;
pub mod log;
mod logit_bias;
pub mod metrics;
pub mod models;
mod ollama;
pub mod openai;
mod openapi;
pub mod origin;
mod pace;
pub mod preset;
mod prompt;
pub mod reload;
mod rerank;
pub mod sampling;
mod shared;
mod shares;
mod status;
mod stream;
pub mod systemd;
mod tally;
mod tokens;
mod tools;
pub mod traces;
pub mod usage;
mod vectors;
pub mod web;
mod whole;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

pub use listen::run;

/// The route of what no other takes: files of the page.
const ANY_PATH: &str = "/{*path}";

/// What every handler sees.
pub struct App {
    pub models: Arc<models::Registry>,
    pub gate: gate::Gate,
    pub defaults: sampling::Defaults,
    /// Changes when answers to the same seed may.
    pub fingerprint: String,
    pub body: json::BodyLimits,
    /// After which an answer ends with what it has.
    pub request_time: Duration,
    pub log_prompts: bool,
    /// Clients may name adapters on this machine to be loaded.
    pub allows_runtime_lora: bool,
    /// Embeddings may be sent as base64, which strict clients do not take.
    pub has_base64: bool,
    pub has_page: bool,
    /// Which web pages may ask.
    pub pages: origin::OriginPolicy,
    /// Responses that are kept, and chat completions.
    pub store: openai::store::ResponseStore,
    pub chats: openai::store::ResponseStore,
    /// Where they and the keys' accounts survive a restart.
    pub disk: Option<Arc<disk::Disk>>,
    pub metrics: Option<PrometheusHandle>,
    pub state: health::HealthState,
}

impl App {
    /// Writes what keys have used to the disk, if there is one.
    pub fn save_usage(&self) {
        let Some(disk) = &self.disk else { return };
        for (name, bytes) in self.gate.usage.save() {
            disk.put(disk::DiskTable::Usage, &name, &bytes);
        }
    }
}

pub fn router(app: Arc<App>) -> Router {
    let openai = Router::new()
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::retrieve).delete(openai::models::delete))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/v1/chat/completions", post(openai::chat::create).get(openai::chat_store::list))
        .route(
            "/v1/chat/completions/{id}",
            get(openai::chat_store::retrieve).post(openai::chat_store::update).delete(openai::chat_store::delete),
        )
        .route("/v1/chat/completions/{id}/messages", get(openai::chat_store::messages))
        .route("/v1/chat/completions/render", post(openai::chat::render))
        .route("/v1/chat/completions/input_tokens", post(openai::chat::input_tokens))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/completions/render", post(openai::completions::render))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/responses/input_tokens", post(openai::responses::input_tokens))
        .route("/v1/responses/{id}", get(openai::responses::retrieve).delete(openai::responses::delete))
        .route("/v1/responses/{id}/cancel", post(openai::responses::cancel))
        .route("/v1/responses/{id}/input_items", get(openai::responses::input_items));
    let anthropic = Router::new()
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens));
    let ollama = Router::new()
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/pull", post(ollama::pull))
        .route("/api/create", post(ollama::create))
        .route("/api/copy", post(ollama::copy))
        .route("/api/delete", delete(ollama::delete))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version));
    let others = Router::new()
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/infill", post(llama::infill))
        .route("/completion", post(llama::completion))
        .route("/completions", post(llama::completion))
        .route("/chat/completions", post(openai::chat::create))
        .route("/chat/completions/input_tokens", post(openai::chat::input_tokens))
        .route("/responses", post(openai::responses::create))
        .route("/apply-template", post(llama::apply_template))
        .route("/props", get(llama::props))
        .route("/slots", get(llama::slots))
        .route("/models", get(openai::models::list))
        .route("/lora-adapters", get(llama::lora_adapters).post(llama::set_lora_adapters))
        .route("/embedding", post(llama::embedding))
        .route("/embeddings", post(llama::embedding))
        .route("/reranking", post(rerank::create))
        .route("/v1/reranking", post(rerank::create))
        .route("/rerank", post(rerank::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/live", get(health::live))
        .route("/v1/status", get(status::show))
        .route("/v1/usage", get(usage::export))
        .route("/metrics", get(show_metrics))
        .route("/openapi.json", get(openapi::document));
    let index = |State(app): State<Arc<App>>, headers: HeaderMap| async move { asset(&app, "index.html", &headers) };
    let file = |State(app): State<Arc<App>>, Path(path): Path<String>, headers: HeaderMap| async move {
        asset(&app, &path, &headers)
    };
    let page = Router::new().route("/", get(index)).route(ANY_PATH, get(file));
    let routes = openai.merge(anthropic).merge(ollama).merge(others).merge(page);
    let routes = routes
        .layer(middleware::from_fn_with_state(Arc::clone(&app), gate::admit))
        .layer(middleware::from_fn(gate::harden));
    match cors(&app.pages.origins) {
        Some(layer) => routes.layer(layer).with_state(app),
        None => routes.with_state(app),
    }
}

/// No other page may ask, unless the operator named it.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request());
    match origins {
        [] => None,
        _ if origins.iter().any(|origin| origin == "*") => Some(layer.allow_origin(Any)),
        _ => {
            let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
            Some(layer.allow_origin(AllowOrigin::list(origins)))
        }
    }
}

async fn show_metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::render(&app)).into_response();
    // llama.cpp's readers tell a restart by it.
    response.headers_mut().insert("process-start-time-unix", llama::TOTALS.start_s().into());
    response
}

/// A file of the web page, which is part of this program.
fn asset(app: &App, path: &str, headers: &HeaderMap) -> Response {
    match app.has_page {
        true => web::respond(path, headers),
        false => StatusCode::NOT_FOUND.into_response(),
    }
}
