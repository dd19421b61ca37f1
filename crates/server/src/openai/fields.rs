//! The fields that chat and completion requests share, and the extractor that reads them. A body is parsed once for
//! each part: one struct inside another (`serde(flatten)`) would lose the field's name in errors.

use super::response_format::Guide;
use crate::error::{ApiError, Result};
use crate::json::{self, Unknown};
use crate::loaded::Loaded;
use crate::sampling::{Knobs, Stop};
use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A body with the fields that both have, and those of its own.
#[derive(Clone, Debug, Default)]
pub struct Asked<T> {
    pub fields: Fields,
    pub knobs: Knobs,
    pub guide: Guide,
    pub own: T,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fields {
    pub model: String,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<u64>,
    pub n: Option<u32>,
    pub stop: Option<Stop>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> std::result::Result<Self, ApiError> {
        let parse = |bytes: &[u8], unknown: &mut Unknown| {
            Ok(Self {
                own: json::parse_part(bytes, unknown)?,
                fields: json::parse_part(bytes, unknown)?,
                knobs: json::parse_part(bytes, unknown)?,
                guide: json::parse_part(bytes, unknown)?,
            })
        };
        json::read(request, parse).await
    }
}

impl Fields {
    pub fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    pub fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The name the client knows the model by.
    pub fn name(&self, model: &Loaded) -> String {
        if self.model.is_empty() { model.name.clone() } else { self.model.clone() }
    }

    pub fn stops(&self) -> Result<Vec<String>> {
        Ok(self.stop.as_ref().map(Stop::texts).transpose()?.unwrap_or_default())
    }
}

/// A count of tokens; what no machine can hold is as good as no limit.
pub fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
