//! What every request passes before a handler sees it: an id for the logs, its key, its limits. It holds its place
//! among its key's requests, and its log line, until the last byte of the answer has been sent or the client has
//! disconnected.

use super::audit::Audit;
use super::error::{self, ApiError};
use super::generation::Caller;
use super::json::Share;
use super::keys::{Key, Keys};
use super::limits::{Limiter, OverLimit, RequestPlace};
use super::listen::Peer;
use super::models::now_s;
use super::tally::{self, Tally};
use super::traces::{self, Span};
use super::usage::{self, Account, UsageAccounts};
use super::{App, metrics, ollama};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rocinante::ids;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Instant;

/// Longest request id that is taken over from a client.
const MAX_ID: usize = 128;

/// The keys with where their clients stand.
pub struct Gate {
    access: RwLock<Arc<Access>>,
    /// Whether `/metrics` is behind a key too.
    pub metrics_need_key: bool,
    pub usage: UsageAccounts,
    pub audit: Option<Audit>,
}

/// Who may ask, and how much: replaced as a whole when the settings are read again.
struct Access {
    keys: Keys,
    limiters: Vec<Arc<Limiter>>,
    /// For those without a key, where none is needed.
    anyone: Arc<Limiter>,
}

/// The sender of a request.
struct Requester {
    caller: Caller,
    /// The name of the key, where keys are asked for.
    name: Option<String>,
    limiter: Arc<Limiter>,
    account: Arc<Account>,
    day_tokens: Option<u64>,
    month_tokens: Option<u64>,
}

impl Requester {
    /// Takes a place among the client's requests, unless it has had enough.
    fn enter(&self, now: Instant) -> Result<RequestPlace, OverLimit> {
        let now_s = now_s();
        let (day_left, month_left) = usage::seconds_left(now_s);
        if let Some(tokens) = self.day_tokens.filter(|&max| self.account.today(now_s).tokens() >= max) {
            return Err(OverLimit::Quota { tokens, period: "a day", retry_after_s: day_left });
        }
        if let Some(tokens) = self.month_tokens.filter(|&max| self.account.this_month(now_s).tokens() >= max) {
            return Err(OverLimit::Quota { tokens, period: "a month", retry_after_s: month_left });
        }
        self.limiter.enter(now)
    }
}

impl Gate {
    pub fn new(keys: Keys, rate: Option<u32>, concurrent: Option<u32>) -> Self {
        let access = Access::new(keys, rate, concurrent, None);
        Self {
            access: RwLock::new(Arc::new(access)),
            metrics_need_key: true,
            usage: UsageAccounts::default(),
            audit: None,
        }
    }

    /// Other keys and limits from now on. Keys that stay keep their running requests and what they have used.
    pub fn reload(&self, keys: Keys, rate: Option<u32>, concurrent: Option<u32>) {
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        *access = Arc::new(Access::new(keys, rate, concurrent, Some(&access)));
    }

    fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who asks, by the key they sent.
    fn identify(&self, headers: &HeaderMap) -> Result<Requester, ApiError> {
        let access = self.access();
        if access.keys.all().is_empty() {
            return Ok(Requester {
                caller: Caller::default(),
                name: None,
                limiter: Arc::clone(&access.anyone),
                account: self.usage.account(""),
                day_tokens: None,
                month_tokens: None,
            });
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let denied = |text: &str| ApiError::new(StatusCode::UNAUTHORIZED, text).code("invalid_api_key");
        let sent = bearer.or_else(|| text("x-api-key")).or_else(|| text("api-key"));
        let sent = sent.ok_or_else(|| denied("an API key is required: Authorization: Bearer KEY"))?;
        let idx = access.keys.find(sent.as_bytes()).ok_or_else(|| denied("unknown API key"))?;
        let key = &access.keys.all()[idx];
        let caller = Caller {
            group: group(&key.name),
            priority: key.priority,
            has_rivals: access.keys.all().len() > 1,
            keeps_models: !key.may_unload && !key.is_admin,
            is_guest: !key.is_admin,
            max_tokens: key.request_tokens,
        };
        Ok(Requester {
            caller,
            name: Some(key.name.clone()),
            limiter: Arc::clone(&access.limiters[idx]),
            account: self.usage.account(&key.name),
            day_tokens: key.day_tokens,
            month_tokens: key.month_tokens,
        })
    }

    /// The keys that may be seen, with their limits and what they have used. Without keys, what everybody has used.
    pub fn show_keys(&self, is_seen: impl Fn(&str) -> bool) -> Vec<Value> {
        let (access, now_s) = (self.access(), now_s());
        let show = |name: &str, key: Option<&Key>, limiter: &Limiter| {
            let account = self.usage.account(name);
            let (rate, concurrent) = limiter.limits();
            json!({"name": name, "running": limiter.n_running(), "rate": rate, "concurrent": concurrent,
                "priority": key.map_or(0, |key| key.priority), "total": account.total(),
                "day": {"tokens": account.today(now_s).tokens(), "limit": key.and_then(|key| key.day_tokens)},
                "month": {"tokens": account.this_month(now_s).tokens(), "limit": key.and_then(|key| key.month_tokens)}})
        };
        if access.keys.all().is_empty() {
            return vec![show("", None, &access.anyone)];
        }
        let seen = access.keys.all().iter().zip(&access.limiters).filter(|(key, _)| is_seen(&key.name));
        seen.map(|(key, limiter)| show(&key.name, Some(key), limiter)).collect()
    }
}

impl Access {
    fn new(keys: Keys, rate: Option<u32>, concurrent: Option<u32>, before: Option<&Self>) -> Self {
        let now = Instant::now();
        let limiter = |key: &Key| {
            let (rate, concurrent) = (key.rate.or(rate), key.concurrent.or(concurrent));
            let known = before.and_then(|before| {
                let idx = before.keys.all().iter().position(|other| other.name == key.name)?;
                Some(Arc::clone(&before.limiters[idx]))
            });
            let limiter = known.unwrap_or_else(|| Arc::new(Limiter::new(rate, concurrent, now)));
            limiter.set(rate, concurrent);
            limiter
        };
        let limiters = keys.all().iter().map(limiter).collect();
        let anyone = before.map(|before| Arc::clone(&before.anyone));
        let anyone = anyone.unwrap_or_else(|| Arc::new(Limiter::new(rate, concurrent, now)));
        anyone.set(rate, concurrent);
        Self { keys, limiters, anyone }
    }
}

/// A key's number, which is the same after a restart and whatever else is in the file. 0 is for no key.
fn group(name: &str) -> u64 {
    let hash = Sha256::digest(name.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|i| hash[i])).max(1)
}

/// Paths that need no key: signs of life, and the page, which asks for the key itself.
fn is_open(app: &App, method: &Method, path: &str) -> bool {
    let is_api = path.starts_with("/v1/") || path.starts_with("/api/");
    match path {
        "/health" | "/ready" | "/live" | "/openapi.json" => true,
        "/metrics" => !app.gate.metrics_need_key,
        "/props" | "/slots" | "/lora-adapters" | "/models" => false,
        _ => matches!(*method, Method::GET | Method::HEAD) && !is_api,
    }
}

/// A request on its way in: who sent it, and what it holds until it is over.
struct Admission {
    /// For whom it is answered, or why it is not.
    caller: Result<Caller, ApiError>,
    key_name: Option<String>,
    account: Option<Arc<Account>>,
    place: Option<Arc<RequestPlace>>,
}

impl Admission {
    /// Where there is no key to check: `caller` says whether the request may pass at all.
    fn open(caller: Result<Caller, ApiError>) -> Self {
        Self { caller, key_name: None, account: None, place: None }
    }

    /// Checks the page a request comes from, its key, and the key's limits.
    fn check(app: &App, request: &Request, route: &str, now: Instant) -> Self {
        let (method, path) = (request.method(), request.uri().path());
        let page = match is_sign_of_life(route) {
            true => Ok(()),
            false => app.pages.check(method, request.uri(), request.headers()),
        };
        if page.is_err() || is_open(app, method, path) || method == Method::OPTIONS {
            return Self::open(page.map(|()| Caller::default()));
        }
        let client = match app.gate.identify(request.headers()) {
            Ok(client) => client,
            Err(error) => return Self::open(Err(error)),
        };
        let (caller, place) = match client.enter(now) {
            Ok(place) => (Ok(client.caller), Some(Arc::new(place))),
            Err(refused) => (Err(refuse(refused)), None),
        };
        Self { caller, key_name: client.name, account: Some(client.account), place }
    }

    /// Gives the handlers what they may ask for.
    fn extend(self, request: &mut Request, app: &App, caller: Caller, share: &Share) {
        let extensions = request.extensions_mut();
        extensions.insert(app.body.clone());
        extensions.insert(share.clone());
        extensions.insert(caller);
        if let Some(account) = self.account {
            extensions.insert(account);
        }
        // For work that continues after the answer.
        if let Some(place) = self.place {
            extensions.insert(place);
        }
    }
}

pub async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let mut admission = Admission::check(&app, &request, &route, start);
    // From here on it is written down however it ends: a client that gives up drops all of this.
    let mut record = Record::new(&app, &request, route, start, &admission);
    let context = record.span.as_ref().map(Span::context);
    let caller = std::mem::replace(&mut admission.caller, Ok(Caller::default()));
    let mut response = match caller {
        Err(error) => error.into_response(),
        Ok(caller) => {
            admission.extend(&mut request, &app, caller, &record._share);
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
    response.map(|body| Body::new(RecordedBody { body, record }))
}

/// What nginx writes for a client that gave up before there was an answer.
fn gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT)
}

fn refuse(refused: OverLimit) -> ApiError {
    metrics::refused();
    match refused {
        OverLimit::Rate { rate, retry_after_s } => {
            ApiError::busy(format!("this key may send {rate} requests per minute"), retry_after_s)
                .code("rate_limit_exceeded")
        }
        OverLimit::Quota { tokens, period, retry_after_s } => {
            let text = format!("this key may use {tokens} tokens {period}, and has used them");
            ApiError::busy(text, retry_after_s).code("insufficient_quota")
        }
        OverLimit::Concurrent(max) => {
            let requests = rocinante::counted(max as usize, "request");
            ApiError::busy(format!("this key may have {requests} at once"), 1).code("rate_limit_exceeded")
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
    _place: Option<Arc<RequestPlace>>,
    _share: Share,
    app: Arc<App>,
    /// All of the answer was sent.
    is_whole: bool,
    span: Option<Span>,
}

/// RequestBody all the time, and of no interest.
fn is_sign_of_life(route: &str) -> bool {
    matches!(route, "/health" | "/ready" | "/live" | "/metrics")
}

impl Record {
    fn new(app: &Arc<App>, request: &Request, route: String, start: Instant, admission: &Admission) -> Self {
        let id = request_id(request.headers());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        let is_watched = !is_sign_of_life(&route);
        let mut span = is_watched.then(|| traces::request(|| format!("{method} {route}"), traceparent)).flatten();
        if let Some(span) = &mut span {
            span.text("http.request.method", method.as_str());
            span.text("http.route", &route);
            span.text("url.path", &path);
            span.text("roci.request_id", &id);
        }
        Self {
            start,
            id,
            method,
            path,
            route,
            status: gone(),
            peer: request.extensions().get::<Peer>().copied(),
            tally: Tally::new(admission.key_name.clone(), admission.account.clone()),
            _place: admission.place.clone(),
            _share: Share::default(),
            app: Arc::clone(app),
            is_whole: false,
            span,
        }
    }

    /// It came with a key, or with one that is not known.
    fn is_audited(&self) -> bool {
        self.tally.key().is_some() || self.status == StatusCode::UNAUTHORIZED
    }
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
        self.tally.end();
        let (n_prompt, n_generated) = self.tally.counts();
        if let Some(audit) = self.app.gate.audit.as_ref().filter(|_| self.is_audited()) {
            audit.write(&json!({"time": ollama::timestamp(now_s()), "id": self.id, "key": self.tally.key(),
                "peer": self.peer.map(|Peer(address)| address.to_string()), "method": self.method.as_str(),
                "path": self.path, "status": status, "ms": elapsed.as_millis() as u64, "prompt_tokens": n_prompt,
                "generated_tokens": n_generated}));
        }
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
struct RecordedBody {
    body: Body,
    record: Record,
}

impl HttpBody for RecordedBody {
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
