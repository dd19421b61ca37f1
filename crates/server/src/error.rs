//! What a client reads when a request cannot be served. One type for all API families; each family has its own shape
//! on the wire, chosen by the path in [`shape`], so that handlers never need to know whom they answer.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A refusal or a failure, in OpenAI's terms: they have the most to say.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after_s: Option<u64>,
    /// The prompt is longer than the context.
    pub excess: Option<ContextExcess>,
}

/// By how much a prompt is too long, in tokens.
#[derive(Copy, Clone, Debug)]
pub struct ContextExcess {
    pub n_prompt: usize,
    pub n_ctx: usize,
}

pub type Result<T> = std::result::Result<T, ApiError>;

/// Errors repeat what was sent; a client that sends megabytes gets its beginning.
const MAX_MESSAGE_BYTES: usize = 4096;
const MAX_PARAM_BYTES: usize = 256;

fn shorten(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        text.truncate((0..=max_bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0));
        text.push('…');
    }
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        shorten(&mut message, MAX_MESSAGE_BYTES);
        Self { status, message, param: None, code: None, retry_after_s: None, excess: None }
    }

    /// The request itself is wrong.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, without_folders(&message.into()))
    }

    /// A model that was given up.
    pub fn unavailable(model: &str, why: &str) -> Self {
        let text = format!("`{model}` is unavailable: {}", without_folders(why));
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text).code("model_unavailable")
    }

    /// Too much at once; the same request will work later.
    pub fn busy(message: impl Into<String>, retry_after_s: u64) -> Self {
        Self { retry_after_s: Some(retry_after_s), ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    pub fn param(mut self, param: impl Into<String>) -> Self {
        let mut param = param.into();
        shorten(&mut param, MAX_PARAM_BYTES);
        self.param = Some(param);
        self
    }

    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// A prompt that the context cannot hold.
    pub fn too_long(message: impl Into<String>, n_prompt: usize, n_ctx: usize) -> Self {
        let excess = Some(ContextExcess { n_prompt, n_ctx });
        Self { excess, ..Self::bad(message).code("context_length_exceeded") }
    }

    /// OpenAI's word for the kind of error.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Anthropic's.
    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            413 => "request_too_large",
            503 => "overloaded_error",
            500..=599 => "api_error",
            _ => self.kind(),
        }
    }

    pub fn openai(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }

    /// llama.cpp's: as OpenAI's, but clients find a prompt that is too long by its type and by these words.
    pub fn llama(&self) -> Value {
        let mut value = self.openai();
        if let Some(ContextExcess { n_prompt, n_ctx }) = self.excess {
            let error = &mut value["error"];
            error["type"] = "exceed_context_size_error".into();
            error["message"] =
                format!("the request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens)").into();
            (error["n_prompt_tokens"], error["n_ctx"]) = (n_prompt.into(), n_ctx.into());
        }
        value
    }

    pub fn anthropic(&self) -> Value {
        json!({"type": "error", "error": {"type": self.anthropic_kind(), "message": self.message}})
    }

    pub fn ollama(&self) -> Value {
        json!({"error": self.message})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.openai())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives errors the shape that the path's family reads, also those of the router itself (no such path, wrong method),
/// which have no body.
pub fn shape(response: &mut Response, method: &Method, path: &str, route: &str) {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return;
    }
    let known = response.extensions_mut().remove::<ApiError>();
    let error = match (known, status) {
        (Some(error), _) => error,
        (None, StatusCode::NOT_FOUND) => missing(path),
        // Only files of the page have such a path, and they can only be read.
        (None, StatusCode::METHOD_NOT_ALLOWED) if route == super::ANY_PATH => {
            *response.status_mut() = StatusCode::NOT_FOUND;
            response.headers_mut().remove(header::ALLOW);
            missing(path)
        }
        (None, StatusCode::METHOD_NOT_ALLOWED) => ApiError::new(status, format!("{path} does not take {method}")),
        (None, StatusCode::REQUEST_TIMEOUT) => ApiError::new(status, "the request took too long to arrive"),
        // A handler with an answer of its own, as /health.
        _ => return,
    };
    let body = match path {
        path if path.starts_with("/v1/messages") => error.anthropic(),
        path if path.starts_with("/api/") => error.ollama(),
        path if path.starts_with("/v1/") => error.openai(),
        _ => error.llama(),
    };
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::from(body.to_string());
}

/// Many forget the `/v1` of a base address, and some write it twice.
fn missing(path: &str) -> ApiError {
    const UNDER_V1: [&str; 2] = ["/messages", "/messages/count_tokens"];
    let text = match path.strip_prefix("/v1").unwrap_or(path) {
        plain if UNDER_V1.contains(&plain) => format!("there is no {path} here; there is /v1{plain}"),
        twice if twice.starts_with("/v1/") => format!("there is no {path} here: it contains /v1 twice"),
        _ => format!("there is no {path} here"),
    };
    ApiError::not_found(text)
}

/// A text for clients: of absolute paths, which are none of their business, only the last part stays.
pub fn without_folders(text: &str) -> String {
    let last_part = |word: &str| {
        let name = word.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if word.starts_with('/') && word[1..].contains('/') { name.to_owned() } else { word.to_owned() }
    };
    let ends_word = |c: char| c.is_whitespace() || "`'\"(),;".contains(c);
    text.split_inclusive(ends_word)
        .map(|piece| {
            let word = piece.trim_end_matches(ends_word);
            last_part(word) + &piece[word.len()..]
        })
        .collect()
}

impl From<rocinante::Error> for ApiError {
    fn from(error: rocinante::Error) -> Self {
        use rocinante::{Error as E, FailureKind};
        match error {
            E::Engine(error) => error.into(),
            E::EmptyPrompt | E::Constraint(_) | E::Encoder | E::NoScores | E::NoPrompt { .. } | E::Conversation(_) => {
                Self::bad(error.to_string())
            }
            E::ConstraintBusy(_) => {
                Self { retry_after_s: Some(5), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()) }
            }
            E::PromptTooLong { n_prompt, n_ctx, .. } => Self::too_long(error.to_string(), n_prompt, n_ctx),
            E::Failed { kind: FailureKind::Request | FailureKind::Constraint, error } => Self::bad(error),
            E::Failed { error, .. } => Self::internal(error),
            E::Stopped(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, without_folders(&error.to_string())),
            error => Self::internal(error.to_string()),
        }
    }
}

impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> Self {
        use engine::Error as E;
        let message = match &error {
            // The engine's own number of the request means nothing to a client.
            E::EmptyPrompt { .. } => "the prompt is empty".to_owned(),
            other => match other.to_string().split_once(": ") {
                Some((start, rest)) if start.starts_with("request ") => rest.to_owned(),
                _ => other.to_string(),
            },
        };
        match error {
            E::QueueFull { .. } => Self::busy(message, 1).code("queue_full"),
            E::ContextTooSmall { n_tokens, n_ctx, .. } => Self::too_long(message, n_tokens, n_ctx).param("messages"),
            E::PoolTooSmall { .. } => Self::bad(message).code("context_length_exceeded").param("messages"),
            E::Sampling { field, .. } => Self::bad(message).param(field),
            E::Stopped { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
            E::NoReceiver => Self::internal(message),
            _ => Self::bad(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_not_told() {
        for (text, want) in [
            ("cannot open /home/me/models/a.gguf: not found", "cannot open a.gguf: not found"),
            ("`/a/b` (/c/d/), and/or 3/4 of /v1", "`b` (d), and/or 3/4 of /v1"),
            ("/", "/"),
            ("//", ""),
            ("nothing here\n", "nothing here\n"),
        ] {
            assert_eq!(without_folders(text), want);
        }
    }
}
