//! What a model's files say about text: its tokenizer and its chat template. The one place that knows how GGUF and a
//! Hugging Face folder spell what the `text` crate takes.

use serde_json::Value as Json;
use text::{ChatTemplate, JsonConfig, Tokenizer, Vocab};
use weights::{Array, Checkpoint, Metadata, Value};

use crate::{Error, Result};

/// The tokenizer of a GGUF file's vocabulary, or of the `tokenizer.json` beside safetensors.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    if let Some(hub) = checkpoint.hub() {
        let Some(json) = &hub.tokenizer_json else {
            return Err(Error::NoVocabulary("the folder has no tokenizer.json"));
        };
        return Ok(Tokenizer::from_json(json, &json_config(hub))?);
    }
    let metadata = checkpoint.metadata();
    if metadata.get("tokenizer.ggml.tokens").is_none() {
        return Err(Error::NoVocabulary("the file has no `tokenizer.ggml.tokens`"));
    }
    Ok(Tokenizer::new(vocab(metadata)?)?)
}

/// Whether there is one at all.
pub fn has_tokenizer(checkpoint: &Checkpoint) -> bool {
    match checkpoint.hub() {
        Some(hub) => hub.tokenizer_json.is_some(),
        None => checkpoint.metadata().get("tokenizer.ggml.tokens").is_some(),
    }
}

fn json_config(hub: &weights::HubFiles) -> JsonConfig {
    let null = Json::Null;
    let tokenizer_config = hub.tokenizer_config.as_ref().unwrap_or(&null);
    let mut config = JsonConfig::from_values(tokenizer_config, hub.generation_config.as_ref().unwrap_or(&null));
    // Where there is no generation_config.json, config.json names the tokens that end an answer.
    if config.end_ids.is_empty() {
        config.end_ids = JsonConfig::from_values(&null, &hub.config).end_ids;
    }
    config
}

/// A GGUF file's vocabulary, field by field.
pub fn vocab(metadata: &Metadata) -> Result<Vocab> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.u32(&key(&format!("{name}_token_id")));
    let flag = |name: &str| metadata.bool(&key(name));
    let name = metadata.string("general.name")?.unwrap_or_default().to_lowercase();
    Ok(Vocab {
        model: metadata.string(&key("model"))?.unwrap_or_default().to_owned(),
        pre: metadata.string(&key("pre"))?.unwrap_or_default().to_owned(),
        tokens: metadata.strings(&key("tokens"))?.unwrap_or_default().to_vec(),
        types: metadata.i32s(&key("token_type"))?.map(|types| types.into_owned()).unwrap_or_default(),
        merges: metadata.strings(&key("merges"))?.unwrap_or_default().to_vec(),
        scores: metadata.f32s(&key("scores"))?.unwrap_or_default().to_vec(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        unk: id("unknown")?,
        sep: id("seperator")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
        precompiled_charsmap: match metadata.get(&key("precompiled_charsmap")) {
            Some(Value::Array(Array::U8(bytes))) => bytes.clone(),
            Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|&byte| byte as u8).collect(),
            _ => Vec::new(),
        },
        lowercase: flag("normalizer.lowercase")?,
        // The file does not say it; Phi-3's own tokenizer does it.
        strips_after_specials: name.contains("phi-3") || name.contains("phi3"),
    })
}

/// What GGUF says about text in its metadata, from the files of a Hugging Face folder, for a model with `n_rows`
/// embeddings: vocabulary and chat template.
pub fn text_metadata(hub: &weights::HubFiles, n_rows: usize) -> Result<Metadata> {
    let Some(json) = &hub.tokenizer_json else {
        return Err(Error::NoVocabulary("the folder has no tokenizer.json"));
    };
    let vocab = Vocab::from_json(json, &json_config(hub), n_rows)?;
    let mut metadata = Metadata::new();
    let mut set = |name: &str, value: Value| metadata.set(format!("tokenizer.ggml.{name}"), value);
    set("model", vocab.model.into());
    if !vocab.pre.is_empty() {
        set("pre", vocab.pre.into());
    }
    set("tokens", vocab.tokens.into());
    set("token_type", vocab.types.into());
    if !vocab.scores.is_empty() {
        set("scores", vocab.scores.into());
    }
    if vocab.remove_extra_whitespaces {
        set("remove_extra_whitespaces", true.into());
    }
    if !vocab.precompiled_charsmap.is_empty() {
        set("precompiled_charsmap", Value::Array(Array::U8(vocab.precompiled_charsmap)));
    }
    if let Some(lowercase) = vocab.lowercase {
        set("normalizer.lowercase", lowercase.into());
    }
    // How many kinds of text the embeddings of encoders tell apart.
    if let Some(n) = hub.config["type_vocab_size"].as_u64() {
        set("token_type_count", (n as u32).into());
    }
    if !vocab.merges.is_empty() {
        set("merges", vocab.merges.into());
    }
    for (name, id) in
        [("bos", vocab.bos), ("eos", vocab.eos), ("eot", vocab.eot), ("unknown", vocab.unk), ("seperator", vocab.sep)]
    {
        if let Some(id) = id {
            set(&format!("{name}_token_id"), id.into());
        }
    }
    let flags = [
        ("add_bos_token", vocab.add_bos),
        ("add_eos_token", vocab.add_eos),
        ("add_space_prefix", vocab.add_space_prefix),
    ];
    for (name, flag) in flags {
        if let Some(flag) = flag {
            set(name, flag.into());
        }
    }
    if let Some(template) = &hub.chat_template {
        metadata.set("tokenizer.chat_template", template.clone());
    }
    Ok(metadata)
}

/// The source of the model's chat template, if it has one.
pub fn template_source(checkpoint: &Checkpoint) -> Result<Option<String>> {
    match checkpoint.hub() {
        Some(hub) => Ok(hub.chat_template.clone()),
        None => Ok(checkpoint.metadata().string("tokenizer.chat_template")?.map(str::to_owned)),
    }
}

/// The chat template of this source; ChatML for `None`.
pub fn template(source: Option<&str>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let name = |id: Option<u32>| id.map(|id| tokenizer.token_text(id)).unwrap_or_default();
    let source = source.unwrap_or(text::DEFAULT_TEMPLATE);
    Ok(ChatTemplate::new(source, &name(tokenizer.bos()), &name(tokenizer.eos()))?)
}
