//! Spans for an OpenTelemetry collector, where the operator names one: one for each request, and below it one for each
//! answer. Sent as OTLP over HTTP in JSON by a thread of their own; a collector that is slow or gone costs spans, never
//! a request. Names of attributes are those of OpenTelemetry's conventions for HTTP and for generative AI. No texts.

use rocinante::ids;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Spans that may wait to be sent; more are dropped.
const MAX_WAITING: usize = 4096;
const MAX_BATCH: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

static EXPORTER: OnceLock<Exporter> = OnceLock::new();

tokio::task_local! {
    static CURRENT: Option<SpanContext>;
}

struct Exporter {
    /// Taken out to end the thread.
    sender: Mutex<Option<SyncSender<Value>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where spans go.
#[derive(Clone, Debug)]
pub struct Collector {
    pub endpoint: String,
    pub headers: Vec<(String, String)>,
    pub service: String,
}

/// What a span's children need to know of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SpanContext {
    trace_id: u128,
    span_id: u64,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
}

/// Something that takes time; sent when it ends.
#[derive(Debug)]
pub struct Span {
    context: SpanContext,
    parent_id: Option<u64>,
    name: String,
    kind: SpanKind,
    started: Instant,
    start: Duration,
    attributes: Vec<Value>,
    error: Option<String>,
}

impl Collector {
    /// The collector named by the flag, or by the variables that all of OpenTelemetry's programs read.
    pub fn from_env(flag: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let given = |name: &str| env(name).filter(|value| !value.is_empty());
        let traces = || given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let base = || flag.map(str::to_owned).or_else(|| given("OTEL_EXPORTER_OTLP_ENDPOINT"));
        let endpoint = match (flag, traces()) {
            (None, Some(whole)) => whole,
            _ => format!("{}/v1/traces", base()?.trim_end_matches('/')),
        };
        let headers = given("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let headers = headers.split(',').filter_map(|pair| pair.split_once('='));
        let headers = headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
        Some(Self { endpoint, headers, service: given("OTEL_SERVICE_NAME").unwrap_or_else(|| "roci".into()) })
    }
}

/// Starts the thread that sends; once in a process.
pub fn install(collector: Collector) {
    let (sender, spans) = sync_channel(MAX_WAITING);
    let thread = std::thread::Builder::new().name("spans".into()).spawn(move || send_all(&collector, &spans)).ok();
    let _ = EXPORTER.set(Exporter { sender: Mutex::new(Some(sender)), thread: Mutex::new(thread) });
}

/// Sends what waits and ends the thread.
pub fn shut_down() {
    let Some(exporter) = EXPORTER.get() else { return };
    drop(exporter.sender.lock().unwrap_or_else(PoisonError::into_inner).take());
    if let Some(thread) = exporter.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = thread.join();
    }
}

/// Runs what a request causes; spans that are opened inside are its children.
pub async fn within<F: Future>(context: Option<SpanContext>, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

/// A child of the request at hand, if that is traced.
pub fn child(name: impl FnOnce() -> String) -> Option<Span> {
    let parent = CURRENT.try_with(|context| *context).ok().flatten()?;
    Some(Span::new(name(), SpanKind::Internal, parent.trace_id, Some(parent.span_id)))
}

/// A request's own span, where spans are sent anywhere. `traceparent` is the caller's, as W3C writes it: then the span
/// is a part of the caller's trace, unless the caller does not record it.
pub fn request(name: impl FnOnce() -> String, traceparent: Option<&str>) -> Option<Span> {
    EXPORTER.get()?;
    match traceparent.and_then(parse_parent) {
        Some((_, IsRecorded::No)) => None,
        Some((parent, IsRecorded::Yes)) => {
            Some(Span::new(name(), SpanKind::Server, parent.trace_id, Some(parent.span_id)))
        }
        None => {
            let mut bytes = [0; 16];
            ids::fill(&mut bytes);
            Some(Span::new(name(), SpanKind::Server, u128::from_le_bytes(bytes) | 1, None))
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum IsRecorded {
    Yes,
    No,
}

/// `00-TRACE-SPAN-FLAGS`, in lower-case hex.
fn parse_parent(text: &str) -> Option<(SpanContext, IsRecorded)> {
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, n: usize| part.len() == n && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_shape = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    // Later versions may add parts; the first one has none.
    if !has_shape || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace_id = u128::from_str_radix(trace, 16).ok().filter(|&id| id != 0)?;
    let span_id = u64::from_str_radix(span, 16).ok().filter(|&id| id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let is_recorded = if flags & 1 == 1 { IsRecorded::Yes } else { IsRecorded::No };
    Some((SpanContext { trace_id, span_id }, is_recorded))
}

impl Span {
    fn new(name: String, kind: SpanKind, trace_id: u128, parent_id: Option<u64>) -> Self {
        let mut bytes = [0; 8];
        ids::fill(&mut bytes);
        let context = SpanContext { trace_id, span_id: u64::from_le_bytes(bytes) | 1 };
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = Instant::now();
        Self { context, parent_id, name, kind, started, start, attributes: Vec::new(), error: None }
    }

    pub fn context(&self) -> SpanContext {
        self.context
    }

    pub fn text(&mut self, key: &str, value: &str) {
        self.attributes.push(json!({"key": key, "value": {"stringValue": value}}));
    }

    pub fn texts(&mut self, key: &str, values: &[&str]) {
        let values: Vec<Value> = values.iter().map(|value| json!({"stringValue": value})).collect();
        self.attributes.push(json!({"key": key, "value": {"arrayValue": {"values": values}}}));
    }

    /// 64-bit integers are texts in protobuf's JSON.
    pub fn number(&mut self, key: &str, value: u64) {
        self.attributes.push(json!({"key": key, "value": {"intValue": value.to_string()}}));
    }

    pub fn seconds(&mut self, key: &str, value: Duration) {
        self.attributes.push(json!({"key": key, "value": {"doubleValue": value.as_secs_f64()}}));
    }

    pub fn fail(&mut self, error: &str) {
        self.error = Some(error.to_owned());
    }

    /// It is over: off to the collector.
    pub fn end(self) {
        let Some(exporter) = EXPORTER.get() else { return };
        let sender = exporter.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.as_ref().is_some_and(|sender| sender.try_send(self.to_json()).is_err()) {
            metrics::counter!("roci_spans_dropped_total").increment(1);
        }
    }

    fn to_json(&self) -> Value {
        let end = self.start + self.started.elapsed();
        let status = match &self.error {
            Some(error) => json!({"code": 2, "message": error}),
            None => json!({}),
        };
        json!({
            "traceId": format!("{:032x}", self.context.trace_id),
            "spanId": format!("{:016x}", self.context.span_id),
            "parentSpanId": self.parent_id.map_or_else(String::new, |id| format!("{id:016x}")),
            "name": self.name,
            "kind": self.kind as u32,
            "startTimeUnixNano": self.start.as_nanos().to_string(),
            "endTimeUnixNano": end.as_nanos().to_string(),
            "attributes": self.attributes,
            "status": status,
        })
    }
}

/// Gathers spans for a second or until there are many, and posts them.
fn send_all(collector: &Collector, spans: &Receiver<Value>) {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(true);
    let agent = ureq::Agent::new_with_config(config.build());
    let mut is_open = true;
    let mut has_failed = false;
    while is_open {
        let mut batch = VecDeque::new();
        match spans.recv() {
            Ok(span) => batch.push_back(span),
            Err(_) => return,
        }
        let until = Instant::now() + EVERY;
        while batch.len() < MAX_BATCH {
            match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(span) => batch.push_back(span),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    break;
                }
            }
        }
        let n_spans = batch.len() as u64;
        let result = post(&agent, collector, batch);
        if let Err(error) = &result {
            metrics::counter!("roci_spans_dropped_total").increment(n_spans);
            // Once, until it works again.
            if !has_failed {
                tracing::warn!(%error, endpoint = collector.endpoint, "spans could not be sent");
            }
        }
        has_failed = result.is_err();
    }
}

fn post(agent: &ureq::Agent, collector: &Collector, spans: VecDeque<Value>) -> Result<(), ureq::Error> {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let version = env!("CARGO_PKG_VERSION");
    let resource = json!({"attributes": [text("service.name", &collector.service), text("service.version", version)]});
    let scope = json!({"scope": {"name": "roci", "version": version}, "spans": spans});
    let body = json!({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]});
    let mut request = agent.post(&collector.endpoint).header("content-type", "application/json");
    for (name, value) in &collector.headers {
        request = request.header(name, value);
    }
    request.send(body.to_string()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_as_w3c_writes_them() {
        // The example of the recommendation "Trace Context", section 3.2.
        let (parent, is_recorded) = parse_parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!((parent.trace_id, parent.span_id), (0x4bf92f3577b34da6a3ce929d0e0e4736, 0x00f067aa0ba902b7));
        assert_eq!(is_recorded, IsRecorded::Yes);
        let other = parse_parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").unwrap();
        assert_eq!(other.1, IsRecorded::No);
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(parse_parent(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn where_spans_go() {
        let with = |flag: Option<&str>, env: &[(&str, &str)]| {
            let read = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Collector::from_env(flag, &read)
        };
        assert!(with(None, &[]).is_none());
        assert!(with(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).is_none());
        assert_eq!(with(Some("http://a:4318/"), &[]).unwrap().endpoint, "http://a:4318/v1/traces");
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318");
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x");
        assert_eq!(with(None, &[base]).unwrap().endpoint, "http://b:4318/v1/traces");
        assert_eq!(with(None, &[base, whole]).unwrap().endpoint, "http://c/x");
        assert_eq!(with(Some("http://a"), &[base, whole]).unwrap().endpoint, "http://a/v1/traces");
        let headers = [base, ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=1, b = 2"), ("OTEL_SERVICE_NAME", "mine")];
        let collector = with(None, &headers).unwrap();
        assert_eq!(collector.headers, [("x-key".into(), "1".into()), ("b".into(), "2".into())]);
        assert_eq!(collector.service, "mine");
    }
}
