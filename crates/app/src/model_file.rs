//! A model file as the commands need it: opened, and its tokenizer and chat template made. The one place
//! that knows how GGUF spells what the `text` crate takes.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow};
use std::path::Path;
use text::{ChatTemplate, Tokenizer, Vocab};
use weights::{Checkpoint, Metadata};

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Maps the file and reads its header.
pub fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path).hint("roci reads GGUF files (v2 and v3); a download that was cut must be fetched again")
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
        .hint("supported: byte-level BPE (gpt2) with the pre-tokenizers smollm, llama-bpe and qwen2")
}

fn read_vocab(metadata: &Metadata) -> Result<Vocab> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let pre = metadata.string(&key("pre"))?.unwrap_or("default").to_owned();
    Ok(Vocab {
        model: metadata.string(&key("model"))?.unwrap_or_default().to_owned(),
        tokens: metadata.strings(&key("tokens"))?.unwrap_or_default().to_vec(),
        types: metadata.i32s(&key("token_type"))?.map(|types| types.into_owned()).unwrap_or_default(),
        merges: metadata.strings(&key("merges"))?.unwrap_or_default().to_vec(),
        scores: metadata.f32s(&key("scores"))?.unwrap_or_default().to_vec(),
        bos: metadata.u32(&key("bos_token_id"))?,
        eos: metadata.u32(&key("eos_token_id"))?,
        eot: metadata.u32(&key("eot_token_id"))?,
        add_bos: metadata.bool(&key("add_bos_token"))?.unwrap_or_else(|| text::adds_bos_by_default(&pre)),
        add_eos: metadata.bool(&key("add_eos_token"))?.unwrap_or(false),
        pre,
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
