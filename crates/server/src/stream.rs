//! Answers over HTTP as they are generated: server-sent events, or one JSON object per line. The encoder of an API
//! family turns updates into values; this file frames them. When a client disconnects, the stream is dropped, and with
//! it the answers.

use super::error::ApiError;
use super::generation::Answers;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use rocinante::AnswerEvent;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// Silence after which a comment is sent, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How values are framed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Framing {
    /// `data: ...`, with `event: ...` where the value is named.
    Events,
    /// `data: ...` with a last `data: [DONE]`.
    EventsWithDone,
    Lines,
}

/// One message of a stream.
pub struct StreamMessage {
    pub event: Option<&'static str>,
    pub data: Value,
}

impl From<Value> for StreamMessage {
    fn from(data: Value) -> Self {
        Self { event: None, data }
    }
}

/// Turns what happens to the answers into messages.
pub trait Encoder: Send + 'static {
    fn start(&mut self) -> Vec<StreamMessage>;
    fn update(&mut self, choice: usize, update: AnswerEvent) -> Vec<StreamMessage>;
    /// All answers are finished.
    fn end(&mut self) -> Vec<StreamMessage>;
    fn error(&mut self, error: &ApiError) -> Vec<StreamMessage>;
}

struct StreamState<E> {
    answers: Answers,
    encoder: E,
    framing: Framing,
    pending: VecDeque<Bytes>,
    is_started: bool,
    is_done: bool,
}

pub fn respond<E: Encoder>(answers: Answers, encoder: E, framing: Framing) -> Response {
    let pending = VecDeque::new();
    let state = StreamState { answers, encoder, framing, pending, is_started: false, is_done: false };
    let body = stream::unfold(state, |mut state| async move {
        state.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), state))
    });
    with_headers(Body::from_stream(body), framing)
}

pub fn with_headers(body: Body, framing: Framing) -> Response {
    let mut response = Response::new(body);
    let kind = match framing {
        Framing::Lines => "application/x-ndjson",
        Framing::Events | Framing::EventsWithDone => "text/event-stream",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would gather the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<E: Encoder> StreamState<E> {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.is_started {
            self.is_started = true;
            let messages = self.encoder.start();
            self.queue(messages);
        }
        loop {
            if let Some(bytes) = self.pending.pop_front() {
                return Some(bytes);
            }
            if self.is_done {
                return None;
            }
            let next = match tokio::time::timeout(KEEP_ALIVE, self.answers.next()).await {
                Ok(next) => next,
                Err(_) if self.framing == Framing::Lines => continue,
                Err(_) => return Some(Bytes::from_static(b": waiting\n\n")),
            };
            let messages = match next {
                Ok(Some((choice, update))) => self.encoder.update(choice, update),
                Ok(None) => {
                    self.is_done = true;
                    self.encoder.end()
                }
                Err(error) => {
                    self.is_done = true;
                    self.encoder.error(&error)
                }
            };
            self.queue(messages);
            if self.is_done && self.framing == Framing::EventsWithDone {
                self.pending.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
        }
    }

    fn queue(&mut self, messages: Vec<StreamMessage>) {
        self.pending.extend(messages.into_iter().map(|message| frame(&message, self.framing)));
    }
}

pub fn frame(message: &StreamMessage, framing: Framing) -> Bytes {
    let text = match (framing, message.event) {
        (Framing::Lines, _) => format!("{}\n", message.data),
        (_, Some(event)) => format!("event: {event}\ndata: {}\n\n", message.data),
        (_, None) => format!("data: {}\n\n", message.data),
    };
    text.into()
}
