//! The small files that lie beside safetensors in a Hugging Face model folder: configuration, tokenizer, template. They
//! are read and parsed here, and understood elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Bytes, Error, Result};

/// What the folder of a Hugging Face model says besides the weights.
#[derive(Clone, Debug)]
pub struct HubFiles {
    /// Where they lie; `None` for files made in memory.
    pub folder: Option<PathBuf>,
    /// `config.json`
    pub config: Value,
    /// `generation_config.json`
    pub generation_config: Option<Value>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<Value>,
    /// `special_tokens_map.json`
    pub special_tokens_map: Option<Value>,
    /// `added_tokens.json`, which old tokenizers have
    pub added_tokens: Option<Value>,
    /// `tokenizer.json`, as it is
    pub tokenizer_json: Option<Bytes>,
    /// `tokenizer.model`, SentencePiece's own file
    pub tokenizer_model: Option<Bytes>,
    /// From `chat_template.jinja`, `chat_template.json`, or the tokenizer's configuration
    pub chat_template: Option<String>,
    /// `1_Pooling/config.json`, as sentence-transformers writes it
    pub pooling: Option<Value>,
    /// `modules.json`, sentence-transformers' list of what makes a vector
    pub modules: Option<Value>,
    /// `config_sentence_transformers.json`
    pub sentences: Option<Value>,
}

impl HubFiles {
    /// The configuration alone, as for tests.
    pub fn of_config(config: Value) -> Self {
        Self {
            folder: None,
            config,
            generation_config: None,
            tokenizer_config: None,
            special_tokens_map: None,
            added_tokens: None,
            tokenizer_json: None,
            tokenizer_model: None,
            chat_template: None,
            pooling: None,
            modules: None,
            sentences: None,
        }
    }
}

/// What a folder holds of them; `None` where it has no `config.json`.
pub(crate) fn in_folder(folder: &Path) -> Result<Option<HubFiles>> {
    // The parent of a bare file name is the empty path.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Some(config) = json(folder, "config.json")? else { return Ok(None) };
    let tokenizer_config = json(folder, "tokenizer_config.json")?;
    let chat_template = match bytes(folder, "chat_template.jinja")? {
        Some(text) => Some(text_of(folder, "chat_template.jinja", text)?),
        None => match json(folder, "chat_template.json")? {
            Some(file) => template_in(&file),
            None => tokenizer_config.as_ref().and_then(template_in),
        },
    };
    Ok(Some(HubFiles {
        folder: Some(folder.to_owned()),
        config,
        generation_config: json(folder, "generation_config.json")?,
        tokenizer_config,
        special_tokens_map: json(folder, "special_tokens_map.json")?,
        added_tokens: json(folder, "added_tokens.json")?,
        tokenizer_json: bytes(folder, "tokenizer.json")?.map(Bytes::from_vec),
        tokenizer_model: bytes(folder, "tokenizer.model")?.map(Bytes::from_vec),
        chat_template,
        pooling: json(folder, "1_Pooling/config.json")?,
        modules: json(folder, "modules.json")?,
        sentences: json(folder, "config_sentence_transformers.json")?,
    }))
}

/// One template, or the one called `default` of several.
fn template_in(file: &Value) -> Option<String> {
    match file.get("chat_template")? {
        Value::String(template) => Some(template.clone()),
        Value::Array(templates) => {
            let default = templates.iter().find(|template| template["name"] == "default").or(templates.first())?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

fn bytes(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path, action: "read", source }),
    }
}

fn text_of(folder: &Path, name: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let source = Error::invalid("text", format!("not UTF-8: {error}"));
        Error::InFile { path: folder.join(name), source: Box::new(source) }
    })
}

fn json(folder: &Path, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = bytes(folder, name)? else { return Ok(None) };
    // Some writers of configurations start with a byte order mark.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    serde_json::from_slice(text).map(Some).map_err(|error| {
        let source = Error::invalid("JSON", error.to_string());
        Error::InFile { path: folder.join(name), source: Box::new(source) }
    })
}
