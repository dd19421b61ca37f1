//! Request bodies: read up to a limit, parsed with the path of what is wrong. Unknown fields are told in a header of the
//! answer, since clients send what newer servers know; with `--strict-fields` they are an error.
//!
//! Two bytes of JSON can become a hundred in memory, so values are counted before anything is parsed, and large bodies
//! share two budgets: one for bytes that arrive, asked when they begin to, and one for what becomes of them until the
//! end of the answer. A body takes from the second in one go while it holds its part of the first, so bodies never wait
//! for each other in a circle.

use super::budget::BodyBudget;
use super::error::ApiError;
use super::tally;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, MatchedPath, Request};
use axum::http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Values in a body. A schema or a conversation of more is no use to any model.
const MAX_VALUES: usize = 200_000;
/// The same where lists of tokens are sent.
const MAX_TOKEN_VALUES: usize = 1 << 20;
/// Bodies that take so much are parsed where nobody waits.
const LARGE_BYTES: usize = 512 << 10;
/// Unknown fields that are remembered.
const MAX_UNKNOWN: usize = 32;
/// Of each of them.
const MAX_UNKNOWN_CHARS: usize = 64;
/// What a byte of a body, and a value in it, take while a request is prepared.
const BYTES_PER_BYTE: usize = 4;
const BYTES_PER_VALUE: usize = 200;
/// What all large bodies together may take.
const BUDGET_BYTES: usize = 512 << 20;
/// The unit in which the budget is given out, and the bodies that ask for none.
const UNIT_BYTES: usize = 64 << 10;
const FREE_BYTES: usize = 4 * UNIT_BYTES;
/// Conversations with files and tools take less, and have a part of the budget to themselves.
const SMALL_BYTES: usize = 4 << 20;
/// What all bodies that are arriving may take.
const ARRIVING_BYTES: usize = 128 << 20;
/// Its unit; smaller bodies ask for none.
const ARRIVING_UNIT: usize = 16 << 10;
const SMALL_ARRIVING: usize = 1 << 20;

/// llama.cpp's clients send null for the only model.
pub fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Limits of a body, put on every request by the router.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    pub max_bytes: usize,
    pub time: Duration,
    /// An unknown field is an error.
    is_strict: bool,
    budget: BodyBudget,
    arriving: BodyBudget,
}

impl BodyLimits {
    pub fn new(max_bytes: usize, time: Duration) -> Self {
        let budget = BodyBudget::new(BUDGET_BYTES, UNIT_BYTES, SMALL_BYTES);
        let arriving = BodyBudget::new(ARRIVING_BYTES, ARRIVING_UNIT, SMALL_ARRIVING);
        Self { max_bytes, time, is_strict: false, budget, arriving }
    }

    pub fn strict(self, is_strict: bool) -> Self {
        Self { is_strict, ..self }
    }

    /// Bytes that large bodies take now.
    pub fn used_bytes(&self) -> usize {
        self.budget.used_bytes() + self.arriving.used_bytes()
    }
}

/// A request's part of the budget, held until the request ends.
#[derive(Clone, Debug, Default)]
pub struct Share(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

/// A JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        read(request, parse_part).await.map(Self)
    }
}

/// The body, within the limits, as `parse` reads it.
pub async fn read<T: Send + 'static>(
    request: Request,
    parse: impl FnOnce(&[u8], &mut UnknownFields) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let limits = request.extensions().get::<BodyLimits>().cloned();
    let limits = limits.unwrap_or_else(|| BodyLimits::new(1 << 20, Duration::from_secs(30)));
    let share = request.extensions().get::<Share>().cloned().unwrap_or_default();
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let max_values = if takes_tokens(route) { MAX_TOKEN_VALUES } else { MAX_VALUES };
    let (bytes, arriving) = collect(request, &limits).await?;
    let n_values = count_values(&bytes);
    if n_values > max_values {
        let text = format!("the request's body has {n_values} values; the limit is {max_values}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    let n_bytes = bytes.len() * BYTES_PER_BYTE + n_values * BYTES_PER_VALUE;
    if n_bytes > FREE_BYTES {
        let permit = limits.budget.take(n_bytes, limits.time).await?;
        *share.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
    }
    drop(arriving);
    let work = move || -> Result<(T, Vec<String>), ApiError> {
        let mut unknown = UnknownFields::default();
        Ok((parse(&bytes, &mut unknown)?, unknown.fields()))
    };
    let (value, unknown) = match n_bytes < LARGE_BYTES {
        true => work()?,
        false => {
            let done = tokio::task::spawn_blocking(work).await;
            done.map_err(|error| ApiError::internal(error.to_string()))??
        }
    };
    match unknown.first() {
        Some(first) if limits.is_strict => Err(ApiError::bad(format!("unknown field `{first}`")).param(first)),
        _ => {
            if let Some(tally) = tally::current() {
                tally.ignore(unknown);
            }
            Ok(value)
        }
    }
}

/// Fields that nobody reads. Where a body is read in parts, those that no part reads.
#[derive(Debug, Default)]
pub struct UnknownFields {
    parts: Vec<Vec<String>>,
}

impl UnknownFields {
    fn fields(mut self) -> Vec<String> {
        let is_within = |field: &str, other: &str| {
            field.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut fields = self.parts.pop().unwrap_or_default();
        for part in &self.parts {
            // What one part does not know at all another may know in part.
            let finer = part.iter().filter(|field| fields.iter().any(|other| is_within(field, other)));
            let finer: Vec<String> = finer.cloned().collect();
            fields.retain(|field| part.iter().any(|other| is_within(field, other)));
            fields.extend(finer);
            fields.sort();
            fields.dedup();
        }
        fields
    }
}

/// Reads a body, or one part of it.
pub fn parse_part<T: DeserializeOwned>(bytes: &[u8], unknown: &mut UnknownFields) -> Result<T, ApiError> {
    let mut fields = Vec::new();
    let value = parse_noting(bytes, &mut |field| {
        if fields.len() < MAX_UNKNOWN {
            fields.push(field.chars().take(MAX_UNKNOWN_CHARS).collect());
        }
    })?;
    unknown.parts.push(fields);
    Ok(value)
}

/// Whether token ids may be sent there.
fn takes_tokens(route: &str) -> bool {
    matches!(
        route,
        "/v1/completions"
            | "/v1/completions/render"
            | "/v1/embeddings"
            | "/api/embed"
            | "/api/generate"
            | "/detokenize"
            | "/completion"
            | "/completions"
            | "/embedding"
            | "/embeddings"
    )
}

/// A body, and its part of the budget for what arrives.
async fn collect(request: Request, limits: &BodyLimits) -> Result<(Bytes, Vec<OwnedSemaphorePermit>), ApiError> {
    let too_large = || {
        let text = format!("the request's body is larger than {} bytes", limits.max_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    if declared > limits.max_bytes as u64 {
        return Err(too_large());
    }
    let mut arriving =
        BodyReservation { limits, permits: Vec::new(), n_bytes: ARRIVING_UNIT, declared: declared as usize };
    let mut body: Body = request.into_body();
    let read = async {
        let mut bytes = Vec::with_capacity((declared as usize).min(UNIT_BYTES));
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| ApiError::bad(format!("the request's body could not be read: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let n_bytes = bytes.len() + data.len();
            if n_bytes > limits.max_bytes {
                return Err(too_large());
            }
            arriving.reserve(n_bytes).await?;
            bytes.extend_from_slice(&data);
        }
        Ok((Bytes::from(bytes), arriving.permits))
    };
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request's body took too long to arrive");
    tokio::time::timeout(limits.time, read).await.map_err(late)?
}

/// A body's part of the budget for what arrives. The first bytes are free: who declares megabytes and sends nothing holds
/// none of it. Then it asks for all that was declared at once; where nothing was, it doubles as the body grows.
struct BodyReservation<'a> {
    limits: &'a BodyLimits,
    permits: Vec<OwnedSemaphorePermit>,
    /// What it may hold so far.
    n_bytes: usize,
    declared: usize,
}

impl BodyReservation<'_> {
    async fn reserve(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        if n_bytes <= self.n_bytes {
            return Ok(());
        }
        let grown = if self.declared > 0 { self.declared } else { (2 * self.n_bytes).min(self.limits.max_bytes) };
        let wanted = n_bytes.max(grown);
        self.permits.push(self.limits.arriving.take(wanted - self.n_bytes, self.limits.time).await?);
        self.n_bytes = wanted;
        Ok(())
    }
}

/// How many values a text of JSON holds at most: its commas, colons and brackets outside of strings.
fn count_values(bytes: &[u8]) -> usize {
    let mut n_values = 1;
    let mut is_string = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if is_string => at += 1,
            b'"' => is_string = !is_string,
            b',' | b':' | b'[' | b'{' if !is_string => n_values += 1,
            _ => {}
        }
        at += 1;
    }
    n_values
}

fn parse_noting<T: DeserializeOwned>(bytes: &[u8], note: &mut dyn FnMut(String)) -> Result<T, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad("the request's body is empty: send a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // It writes `?` for what may be there or not.
    let mut note = |path: serde_ignored::Path<'_>| note(path.to_string().replace(".?", ""));
    let noting = serde_ignored::Deserializer::new(&mut reader, &mut note);
    let value = serde_path_to_error::deserialize(noting).map_err(|error| {
        use serde_json::error::Category;
        let what = in_words(&error.inner().to_string());
        // Where the text itself is broken, the field that was being read is a matter of chance.
        if matches!(error.inner().classify(), Category::Syntax | Category::Eof) {
            return ApiError::bad(format!("the request's body is not valid JSON: {what}"));
        }
        // A `?` stands for a value without a name.
        let path = error.path().to_string();
        let param = (path != "." && path != "?").then_some(path);
        let text = match &param {
            Some(path) => format!("`{path}`: {what}"),
            None => format!("the request's body is invalid: {what}"),
        };
        param.into_iter().fold(ApiError::bad(text), ApiError::param)
    })?;
    let rest = |error| ApiError::bad(format!("the request's body is not valid JSON: {error}"));
    reader.end().map_err(rest)?;
    Ok(value)
}

/// What serde says, without Rust's names.
fn in_words(text: &str) -> String {
    let text = text.replace("expected a sequence", "expected a list").replace("expected a map", "expected an object");
    if let Some((before, after)) = text.split_once("expected struct ") {
        let place = after.find(" at line").map_or("", |at| &after[at..]);
        return format!("{before}expected an object{place}");
    }
    let word = |word: &str| match word {
        "f32" | "f64" => "a number".to_owned(),
        "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0".to_owned(),
        word => word.to_owned(),
    };
    match text.split_once("expected ") {
        Some((before, after)) => {
            let end = after.find(' ').unwrap_or(after.len());
            format!("{before}expected {}{}", word(&after[..end]), &after[end..])
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Body {
        #[serde(rename = "n")]
        _n: Option<u32>,
        #[serde(rename = "t")]
        _t: Option<f32>,
    }

    #[test]
    fn mistakes_are_told_in_words() {
        let check = |text: &str, expected: &str, param: Option<&str>| {
            let error = parse_part::<Body>(text.as_bytes(), &mut UnknownFields::default()).unwrap_err();
            assert_eq!((error.message.as_str(), error.param.as_deref()), (expected, param));
        };
        let at = "at line 1 column";
        check(r#"{"t": "hot"}"#, &format!("`t`: invalid type: string \"hot\", expected a number {at} 11"), Some("t"));
        check(
            r#"{"n": -1}"#,
            &format!("`n`: invalid value: integer `-1`, expected a whole number from 0 {at} 8"),
            Some("n"),
        );
        check("[]", &format!("the request's body is invalid: invalid length 0, expected an object {at} 2"), None);
        check("{}}", &format!("the request's body is not valid JSON: trailing characters {at} 3"), None);
        check(r#"{"n": "#, &format!("the request's body is not valid JSON: EOF while parsing a value {at} 6"), None);
        check(r#"{"n": 1, }"#, &format!("the request's body is not valid JSON: trailing comma {at} 10"), None);
        check(" ", "the request's body is empty: send a JSON object", None);
    }

    /// However many large bodies come at once, those that wait are not read.
    #[tokio::test]
    async fn a_flood_of_bodies_stays_within_the_budget() {
        use futures_util::StreamExt;
        use std::sync::atomic::{AtomicUsize, Ordering};
        const BODY: usize = 16 << 20;
        let limits = BodyLimits::new(BODY, Duration::from_secs(60));
        let n_read = Arc::new(AtomicUsize::new(0));
        let flood = (0..64).map(|i| {
            let n_read = Arc::clone(&n_read);
            let chunk = Bytes::from(vec![b' '; 1 << 20]);
            // They never end: each keeps what it holds until its time is over.
            let body = futures_util::stream::repeat(chunk).take(BODY >> 20).chain(futures_util::stream::pending());
            let body = body.map(move |chunk| {
                n_read.fetch_add(chunk.len(), Ordering::Relaxed);
                Ok::<_, std::convert::Infallible>(chunk)
            });
            let mut request = Request::new(axum::body::Body::from_stream(body));
            if i % 2 == 0 {
                request.headers_mut().insert(header::CONTENT_LENGTH, BODY.into());
            }
            request.extensions_mut().insert(limits.clone());
            read::<serde_json::Value>(request, parse_part)
        });
        let all = futures_util::future::join_all(flood);
        assert!(tokio::time::timeout(Duration::from_millis(300), all).await.is_err(), "none of them ends");
        let taken = n_read.load(Ordering::Relaxed);
        // The last chunk of each is read before it is known that there is no room for it.
        assert!(taken <= ARRIVING_BYTES + (64 << 20), "{} MiB were read", taken >> 20);
        assert_eq!(limits.used_bytes(), 0, "all of it is given back");
    }

    /// Nine of them took all of the budget, and whoever sent more than a few kilobytes waited behind them.
    #[tokio::test]
    async fn bodies_that_are_declared_and_never_sent_hold_up_nobody() {
        const BODY: usize = 16 << 20;
        let limits = BodyLimits::new(BODY, Duration::from_secs(60));
        let request = |body: axum::body::Body| {
            let mut request = Request::new(body);
            request.headers_mut().insert(header::CONTENT_LENGTH, BODY.into());
            request.extensions_mut().insert(limits.clone());
            read::<serde_json::Value>(request, parse_part)
        };
        let silent = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>;
        let silent = (0..64).map(|_| request(axum::body::Body::from_stream(silent())));
        let silent = futures_util::future::join_all(silent);
        let text = format!("\"{}\"", "a".repeat(8 << 20));
        let heard = tokio::select! {
            _ = silent => panic!("they never end"),
            heard = request(axum::body::Body::from(text)) => heard,
        };
        assert_eq!(heard.unwrap().as_str().map(str::len), Some(8 << 20));
    }

    #[test]
    fn values_are_counted_and_strings_are_one() {
        let check = |text: &str, expected: usize| assert_eq!(count_values(text.as_bytes()), expected, "{text}");
        check("0", 1);
        check("[0,0,0]", 4);
        check(r#"{"a": [1, 2], "b": "c"}"#, 7);
        check(r#"{"a": "[,:{\",:[\\"}"#, 3);
    }

    #[test]
    fn only_lists_of_tokens_may_be_long() {
        for route in ["/v1/completions", "/v1/completions/render", "/v1/embeddings", "/api/embed", "/detokenize"] {
            assert!(takes_tokens(route), "{route}");
        }
        for route in ["/v1/chat/completions", "/v1/chat/completions/render", "/v1/responses", "/tokenize", ""] {
            assert!(!takes_tokens(route), "{route}");
        }
    }

    #[test]
    fn fields_that_no_part_reads_are_unknown() {
        #[derive(Deserialize)]
        struct Other {
            #[serde(rename = "o")]
            _o: Option<Inner>,
        }
        #[derive(Deserialize)]
        struct Inner {
            #[serde(rename = "a")]
            _a: Option<u32>,
        }
        let text = br#"{"n": 1, "o": {"a": 1, "b": 2}, "x": [{}]}"#;
        let mut unknown = UnknownFields::default();
        parse_part::<Body>(text, &mut unknown).unwrap();
        parse_part::<Other>(text, &mut unknown).unwrap();
        assert_eq!(unknown.fields(), ["o.b", "x"]);
    }
}
