//! A name of the store: which file it stands for, and how that file is used. One small TOML file per name; made when a
//! model of the library is fetched, by `roci cp` and by `roci create`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Settings as Ollama names them: `temperature`, `num_ctx`, `stop` (a list).
pub type Parameters = BTreeMap<String, serde_json::Value>;

/// What a name stands for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// Below the store's folder, or absolute where it lies elsewhere.
    pub file: PathBuf,
    /// What it was made from, for people: `hf:OWNER/REPO:FILE`, a path, another name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// A chat template (Jinja) to use instead of the file's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// A conversation that every conversation starts with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<ExampleMessage>,
}

/// One message of such a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExampleMessage {
    pub role: String,
    pub content: String,
}
