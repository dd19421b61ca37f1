//! `/api/pull`, `/api/create`, `/api/copy`, `/api/delete`: models that clients add and remove. Downloads are told as
//! they grow, one JSON object a line; a client that hangs up ends its download, and what has arrived is kept.

use crate::App;
use crate::blocking;
use crate::error::{ApiError, Result};
use crate::generation::Caller;
use crate::json::Json;
use crate::library;
use crate::served_model::ServedModel;
use crate::stream::{Framing, with_headers};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hub::{ExampleMessage, Modelfile, Observer, PullEvent};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Lines that a client has not read yet.
const MAX_LINES: usize = 64;
/// A recipe is kept in memory for as long as its model is offered: at most so many bytes of it.
const MAX_RECIPE_BYTES: usize = 256 << 10;

#[derive(Debug, Deserialize)]
pub struct PullRequest {
    #[serde(default, alias = "name")]
    model: String,
    #[serde(default)]
    stream: Option<bool>,
    /// Certificates are always checked.
    #[serde(default, rename = "insecure")]
    _insecure: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub struct DeleteRequest {
    #[serde(default, alias = "name")]
    model: String,
}

#[derive(Debug, Deserialize)]
pub struct CopyRequest {
    source: String,
    destination: String,
}

#[derive(Debug, Deserialize)]
pub struct CreateRequest {
    #[serde(default, alias = "name")]
    model: String,
    /// The whole recipe, as older clients send it.
    #[serde(default)]
    modelfile: Option<String>,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    template: Option<String>,
    #[serde(default)]
    license: Option<Value>,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    #[serde(default)]
    messages: Option<Vec<ExampleMessage>>,
    /// Uploaded files, which are not taken.
    #[serde(default)]
    files: Option<Value>,
    #[serde(default)]
    adapters: Option<Value>,
    #[serde(default)]
    quantize: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
}

fn check_admin(caller: Caller) -> Result<()> {
    match caller.is_guest {
        true => Err(ApiError::new(StatusCode::FORBIDDEN, "this key may not add or remove models (admin=yes)")),
        false => Ok(()),
    }
}

pub async fn pull(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<PullRequest>,
) -> Result<Response> {
    check_admin(caller)?;
    let name = body.model;
    app.models.check_changeable(&name)?;
    run(app, body.stream, move |observer| library::fetch(&name, observer)).await
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<CreateRequest>,
) -> Result<Response> {
    check_admin(caller)?;
    if body.model.is_empty() {
        return Err(ApiError::bad("the new model has no name").param("model"));
    }
    app.models.check_changeable(&body.model)?;
    app.models.check_room(&body.model)?;
    let (name, is_streamed, recipe) = (body.model.clone(), body.stream, body.recipe()?);
    run(app, is_streamed, move |observer| library::create(&name, &recipe, observer)).await
}

impl CreateRequest {
    fn recipe(self) -> Result<Modelfile> {
        let refuse = |what: &str, why: &str| ApiError::bad(format!("{what} {why}")).param(what);
        if self.files.is_some() || self.adapters.is_some() {
            let what = if self.files.is_some() { "files" } else { "adapters" };
            return Err(refuse(what, "cannot be uploaded here; `from` names a model of the store or hf:OWNER/REPO"));
        }
        if self.quantize.is_some() {
            return Err(refuse("quantize", "is not done by the server; `roci quantize` does it"));
        }
        let bad = |error: anyhow::Error| ApiError::bad(format!("{error:#}")).param("modelfile");
        let mut recipe = match &self.modelfile {
            Some(text) => Modelfile::parse(text).map_err(bad)?,
            None => Modelfile::default(),
        };
        if let Some(from) = self.from {
            recipe.from = from;
        }
        if recipe.from.is_empty() {
            return Err(ApiError::bad("there is no `from`: the model to derive this one from").param("from"));
        }
        recipe.system = self.system.or(recipe.system);
        recipe.template = self.template.or(recipe.template);
        recipe.messages = self.messages.unwrap_or(recipe.messages);
        recipe.license = match self.license {
            Some(Value::String(text)) => Some(text),
            Some(Value::Array(texts)) => Some(texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")),
            _ => recipe.license,
        };
        for (name, value) in self.parameters.unwrap_or_default() {
            let values = match value {
                Value::Array(values) => values,
                value => vec![value],
            };
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                recipe.set(&name, &text).map_err(|error| ApiError::bad(format!("{error:#}")).param("parameters"))?;
            }
        }
        let n_bytes = recipe.to_string().len();
        if n_bytes > MAX_RECIPE_BYTES {
            let text = format!("the Modelfile has {n_bytes} bytes; the limit is {MAX_RECIPE_BYTES}");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text).param("modelfile"));
        }
        Ok(recipe)
    }
}

pub async fn copy(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<CopyRequest>,
) -> Result<StatusCode> {
    check_admin(caller)?;
    app.models.check_changeable(&body.destination)?;
    app.models.check_room(&body.destination)?;
    let (from, to) = (body.source.clone(), body.destination);
    match blocking::run(move || library::copy(&from, &to)).await? {
        Some(entry) => {
            app.models.insert(entry);
            Ok(StatusCode::OK)
        }
        None => Err(ApiError::not_found(format!("there is no model `{}` in the store", body.source))),
    }
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<DeleteRequest>,
) -> Result<StatusCode> {
    check_admin(caller)?;
    app.models.check_changeable(&body.model)?;
    let (registry, name) = (Arc::clone(&app.models), body.model.clone());
    match blocking::run(move || library::remove(&registry, &name)).await? {
        true => {
            app.models.remove(&body.model).await;
            Ok(StatusCode::OK)
        }
        false => Err(ApiError::not_found(format!("there is no model `{}` in the store", body.model))),
    }
}

/// Runs something that may download, and tells its client how far it is.
async fn run(
    app: Arc<App>,
    is_streamed: Option<bool>,
    work: impl FnOnce(&dyn Observer) -> Result<ServedModel> + Send + 'static,
) -> Result<Response> {
    let place = app.models.begin_download()?;
    let (lines, mut inbox) = mpsc::channel(MAX_LINES);
    let reporter = PullReporter { lines, digest: Mutex::default() };
    let task = tokio::task::spawn_blocking(move || {
        reporter.say(json!({"status": "pulling manifest"}));
        let outcome = work(&reporter);
        drop(place);
        match outcome {
            Ok(entry) => {
                app.models.insert(entry);
                reporter.say(json!({"status": "success"}));
                Ok(())
            }
            Err(error) => {
                reporter.say(error.ollama());
                Err(error)
            }
        }
    });
    if is_streamed == Some(false) {
        // Nobody reads the lines, but their writer must not block.
        while inbox.recv().await.is_some() {}
        let done = task.await.map_err(|error| ApiError::internal(error.to_string()))?;
        return done.map(|()| axum::Json(json!({"status": "success"})).into_response());
    }
    let body = futures_util::stream::unfold(inbox, |mut inbox| async move {
        let line = inbox.recv().await?;
        Some((Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))), inbox))
    });
    Ok(with_headers(Body::from_stream(body), Framing::Lines))
}

/// Reports progress to a client in Ollama's format.
struct PullReporter {
    lines: mpsc::Sender<Value>,
    /// Of the file that is arriving.
    digest: Mutex<Option<String>>,
}

impl PullReporter {
    fn say(&self, line: Value) {
        // A client that is gone is noticed by `is_cancelled`.
        let _ = self.lines.blocking_send(line);
    }

    fn digest(&self) -> Option<String> {
        self.digest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn progress(&self, n_done: u64, n_total: Option<u64>) -> Value {
        let digest = self.digest();
        let short: String = digest.as_deref().unwrap_or("model").chars().take(12).collect();
        let mut line = json!({"status": format!("pulling {short}"), "completed": n_done});
        if let Some(total) = n_total {
            line["total"] = total.into();
        }
        if let Some(digest) = digest {
            line["digest"] = format!("sha256:{digest}").into();
        }
        line
    }
}

impl Observer for PullReporter {
    fn on(&self, event: PullEvent<'_>) {
        match event {
            PullEvent::Note(text) => self.say(json!({"status": text})),
            PullEvent::Begin { n_total, digest, .. } => {
                *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = digest.map(str::to_owned);
                self.say(self.progress(0, n_total));
            }
            // There will be another: a client that reads slowly does not slow the download.
            PullEvent::Progress { n_done, n_total } => drop(self.lines.try_send(self.progress(n_done, n_total))),
            PullEvent::End => {
                self.say(json!({"status": "verifying sha256 digest"}));
                self.say(json!({"status": "writing manifest"}));
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.lines.is_closed()
    }
}
