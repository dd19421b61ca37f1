//! A model file as the commands need it: opened, and its tokenizer and chat template made. The one place
//! that knows how GGUF spells what the `text` crate takes.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow};
use std::path::Path;
use text::{ChatTemplate, Tokenizer, Vocab};
use weights::{Array, Checkpoint, Metadata, Value};

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Maps the file and reads its header.
pub fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path)
        .hint("roci reads GGUF and safetensors, files and folders; a download that was cut must be fetched again")
}

/// Builds the tokenizer that the file describes.
pub fn open_tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    let metadata = checkpoint.metadata();
    if metadata.get("tokenizer.ggml.tokens").is_none() {
        return Err(anyhow!("the file has no vocabulary (`tokenizer.ggml.tokens`)"))
            .hint("it may be a part of a model, or made for tests; use a file that carries its tokenizer");
    }
    let vocab = read_vocab(metadata).context("the file's vocabulary")?;
    let kind = format!("{}/{}", vocab.model, vocab.pre);
    Tokenizer::new(vocab)
        .with_context(|| format!("tokenizer `{kind}`"))
        .hint("`roci inspect MODEL` shows what the file says; please report the kind that is missing")
}

fn read_vocab(metadata: &Metadata) -> Result<Vocab> {
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

/// The file's chat template, or ChatML where it has none.
pub struct Template {
    pub template: ChatTemplate,
    pub is_default: bool,
}

pub fn open_template(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Template> {
    let metadata = checkpoint.metadata();
    let source = metadata.string(TEMPLATE_KEY)?;
    let token = |name: &str| -> Result<String> {
        let id = metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
        Ok(id.map(|id| tokenizer.token_text(id)).unwrap_or_default())
    };
    let template = ChatTemplate::new(source.unwrap_or(text::DEFAULT_TEMPLATE), &token("bos")?, &token("eos")?)
        .context("the file's chat template cannot be read")
        .hint("--raw sends the prompt as it is, without a template")?;
    Ok(Template { template, is_default: source.is_none() })
}
