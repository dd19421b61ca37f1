//! Request bodies: read up to a limit, parsed with the path of what is wrong. Unknown fields are no error anywhere:
//! clients send what newer servers know.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Limits of a body, put on every request by the router.
#[derive(Copy, Clone, Debug)]
pub struct BodyLimits {
    pub max_bytes: usize,
    pub time: Duration,
}

/// A JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse(&read(request).await?).map(Self)
    }
}

/// The whole body, within the limits.
pub async fn read(request: Request) -> Result<Bytes, ApiError> {
    let limits = request.extensions().get::<BodyLimits>().copied();
    let limits = limits.unwrap_or(BodyLimits { max_bytes: 1 << 20, time: Duration::from_secs(30) });
    let body: Body = request.into_body();
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request's body took too long to arrive");
    let whole =
        tokio::time::timeout(limits.time, Limited::new(body, limits.max_bytes).collect()).await.map_err(late)?;
    whole.map(|body| body.to_bytes()).map_err(|error| match error.is::<LengthLimitError>() {
        true => {
            let text = format!("the request's body is larger than {} bytes", limits.max_bytes);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        }
        false => ApiError::bad(format!("the request's body could not be read: {error}")),
    })
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let param = (path != ".").then_some(path);
        let what = in_words(&error.inner().to_string());
        let text = match &param {
            Some(path) => format!("`{path}`: {what}"),
            None => format!("the request's body is not what was expected: {what}"),
        };
        ApiError { param, ..ApiError::bad(text) }
    })?;
    let rest = |error| ApiError::bad(format!("the request's body is not what was expected: {error}"));
    reader.end().map_err(rest)?;
    Ok(value)
}

/// What serde says, without Rust's names for numbers.
fn in_words(text: &str) -> String {
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
        None => text.to_owned(),
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
            let error = parse::<Body>(text.as_bytes()).unwrap_err();
            assert_eq!((error.message.as_str(), error.param.as_deref()), (expected, param));
        };
        let at = "at line 1 column";
        check(r#"{"t": "hot"}"#, &format!("`t`: invalid type: string \"hot\", expected a number {at} 11"), Some("t"));
        check(
            r#"{"n": -1}"#,
            &format!("`n`: invalid value: integer `-1`, expected a whole number from 0 {at} 8"),
            Some("n"),
        );
        check("{}}", &format!("the request's body is not what was expected: trailing characters {at} 3"), None);
    }
}
