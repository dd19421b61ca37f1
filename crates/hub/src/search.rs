//! Looks for models on the hub, by its search. Sends the words and nothing else.

use crate::hint::HintExt;
use crate::http::{Client, host};
use crate::settings::Settings;
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

const MAX_PAGE_BYTES: u64 = 16 << 20;

/// A repository that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// `OWNER/REPO`.
    #[serde(alias = "modelId")]
    pub id: String,
    #[serde(default)]
    pub downloads: u64,
    #[serde(default)]
    pub likes: u64,
}

/// Repositories with GGUF files whose names have these words, the most downloaded first.
pub fn search(words: &str, limit: usize) -> Result<Vec<Hit>> {
    search_with(&Settings::from_env(), words, limit)
}

pub(crate) fn search_with(settings: &Settings, words: &str, limit: usize) -> Result<Vec<Hit>> {
    if words.trim().is_empty() {
        return Err(anyhow!("there is nothing to look for")).hint("roci search qwen3 coder");
    }
    let client = Client::new(settings)?;
    let endpoint = &settings.hub;
    let query = encode(words.trim());
    let url = format!("{endpoint}/api/models?search={query}&filter=gguf&sort=downloads&direction=-1&limit={limit}");
    let mut response = client.get(&url, &[])?;
    if response.status() != 200 {
        bail!("{} answered {}", host(endpoint), response.status());
    }
    let page = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string()?;
    serde_json::from_str(&page).with_context(|| format!("{} sent no list of models", host(endpoint)))
}

/// Percent-encoding for a query.
fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
