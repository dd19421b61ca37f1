//! What every request passes before a handler sees it: a name for the logs, its key, its limits. What it holds here
//! (a place among its key's requests, the log line) it holds until the last byte of the answer is sent or the client
//! is gone.

use super::error::{self, ApiError};
use super::generation::Caller;
use super::json::Share;
use super::keys::Keys;
use super::limits::{Limiter, Place, Refused};
use super::listen::Peer;
use super::tally::{self, Tally};
use super::traces::{self, Span};
use super::{App, metrics};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rocinante::ids;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Longest request id that is taken over from a client.
const MAX_ID: usize = 128;

/// The keys with where their clients stand.
pub struct Gate {
    keys: Keys,
    limiters: Vec<Arc<Limiter>>,
    /// For those without a key, where none is needed.
    anyone: Arc<Limiter>,
    /// Whether `/metrics` is behind a key too.
    pub metrics_need_key: bool,
}

impl Gate {
    pub fn new(keys: Keys, rate: Option<u32>, concurrent: Option<u32>) -> Self {
        let now = Instant::now();
        let limiter =
            |key: &super::keys::Key| Arc::new(Limiter::new(key.rate.or(rate), key.concurrent.or(concurrent), now));
        let limiters = keys.all().iter().map(limiter).collect();
        Self { keys, limiters, anyone: Arc::new(Limiter::new(rate, concurrent, now)), metrics_need_key: true }
    }

    /// Who asks, by the key they sent.
    fn identify(&self, headers: &HeaderMap) -> Result<(Caller, Option<String>, &Arc<Limiter>), ApiError> {
        if self.keys.all().is_empty() {
            return Ok((Caller::default(), None, &self.anyone));
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let denied = |text: &str| ApiError::new(StatusCode::UNAUTHORIZED, text).code("invalid_api_key");
        let sent = bearer.or_else(|| text("x-api-key")).or_else(|| text("api-key"));
        let sent = sent.ok_or_else(|| denied("an API key is required: Authorization: Bearer KEY"))?;
        let idx = self.keys.find(sent.as_bytes()).ok_or_else(|| denied("unknown API key"))?;
        let key = &self.keys.all()[idx];
        let caller = Caller {
            group: idx as u64 + 1,
            priority: key.priority,
            has_rivals: self.keys.all().len() > 1,
            keeps_models: !key.may_unload,
        };
        Ok((caller, Some(key.name.clone()), &self.limiters[idx]))
    }
}

/// Paths that need no key: signs of life, and the page, which asks for the key itself.
fn is_open(app: &App, method: &Method, path: &str) -> bool {
    let is_api = path.starts_with("/v1/") || path.starts_with("/api/");
    match path {
        "/health" | "/ready" | "/openapi.json" => true,
        "/metrics" => !app.gate.metrics_need_key,
        _ => matches!(*method, Method::GET | Method::HEAD) && !is_api,
    }
}

pub async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let is_watched = !is_sign_of_life(&route);
    let mut span = is_watched.then(|| traces::request(|| format!("{method} {route}"), traceparent)).flatten();
    let mut key_name = None;
    let mut place = None;
    let page = match is_sign_of_life(&route) {
        true => Ok(()),
        false => app.pages.check(&method, request.uri(), request.headers()),
    };
    let admitted = if page.is_err() || is_open(&app, &method, &path) || method == Method::OPTIONS {
        page.map(|()| Caller::default())
    } else {
        app.gate.identify(request.headers()).and_then(|(caller, name, limiter)| {
            key_name = name;
            place = Some(Arc::new(limiter.enter(start).map_err(refuse)?));
            Ok(caller)
        })
    };
    if let Some(span) = &mut span {
        span.text("http.request.method", method.as_str());
        span.text("http.route", &route);
        span.text("url.path", &path);
        span.text("roci.request_id", &id);
    }
    let context = span.as_ref().map(Span::context);
    // From here on it is written down however it ends: a client that gives up drops all of this.
    let mut record = Record {
        start,
        id,
        method,
        path,
        route,
        status: gone(),
        peer: request.extensions().get::<Peer>().copied(),
        tally: Tally::new(key_name),
        _place: place.clone(),
        _share: Share::default(),
        is_whole: false,
        span,
    };
    let mut response = match admitted {
        Err(error) => error.into_response(),
        Ok(caller) => {
            request.extensions_mut().insert(app.body.clone());
            request.extensions_mut().insert(record._share.clone());
            request.extensions_mut().insert(caller);
            // For work that goes on after the answer.
            if let Some(place) = place {
                request.extensions_mut().insert(place);
            }
            traces::within(context, tally::within(Arc::clone(&record.tally), next.run(request))).await
        }
    };
    error::shape(&mut response, &record.method, &record.path, &record.route);
    if let Ok(value) = HeaderValue::from_str(&record.id) {
        // Anthropic's clients read the second name.
        response.headers_mut().insert("x-request-id", value.clone());
        response.headers_mut().insert("request-id", value);
    }
    if let Some(fields) = record.tally.ignored() {
        response.headers_mut().insert("x-ignored-fields", fields);
    }
    record.status = response.status();
    response.map(|body| Body::new(Recorded { body, record }))
}

/// What nginx writes for a client that gave up before there was an answer.
fn gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT)
}

fn refuse(refused: Refused) -> ApiError {
    metrics::refused();
    match refused {
        Refused::Rate { rate, retry_after_s } => {
            ApiError::busy(format!("this key may ask {rate} times a minute"), retry_after_s).code("rate_limit_exceeded")
        }
        Refused::Concurrent(max) => {
            ApiError::busy(format!("this key may have {max} requests at once"), 1).code("rate_limit_exceeded")
        }
    }
}

/// The client's own id if it is fit for a log, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let sent = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let is_fit = |id: &&str| !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    sent.filter(is_fit).map_or_else(|| ids::new("req_"), str::to_owned)
}

/// What is written about a request when it is over.
struct Record {
    start: Instant,
    id: String,
    method: Method,
    path: String,
    route: String,
    status: StatusCode,
    peer: Option<Peer>,
    tally: Arc<Tally>,
    _place: Option<Arc<Place>>,
    _share: Share,
    /// All of the answer was sent.
    is_whole: bool,
    span: Option<Span>,
}

/// Asked all the time, and of no interest.
fn is_sign_of_life(route: &str) -> bool {
    matches!(route, "/health" | "/ready" | "/metrics")
}

impl Drop for Record {
    fn drop(&mut self) {
        let (elapsed, status) = (self.start.elapsed(), self.status.as_u16());
        metrics::request(&self.route, status, elapsed);
        if let Some(mut span) = self.span.take() {
            span.number("http.response.status_code", status.into());
            if self.status.is_server_error() {
                span.fail(self.status.canonical_reason().unwrap_or_default());
            }
            span.end();
        }
        if let Some(key) = self.tally.key() {
            metrics::key_request(key, status);
        }
        if is_sign_of_life(&self.route) {
            return;
        }
        let (n_prompt, n_generated) = self.tally.counts();
        tracing::info!(
            id = self.id,
            peer = self.peer.map(|Peer(address)| address.to_string()).unwrap_or_default(),
            method = self.method.as_str(),
            path = self.path,
            status,
            ms = elapsed.as_millis() as u64,
            key = self.tally.key().unwrap_or("-"),
            prompt_tokens = n_prompt,
            generated_tokens = n_generated,
            whole = self.is_whole,
            "request"
        );
    }
}

/// A body that keeps the record until it is sent or dropped.
struct Recorded {
    body: Body,
    record: Record,
}

impl HttpBody for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.record.is_whole = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// What a browser may do with an answer: nothing but read it.
pub async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
