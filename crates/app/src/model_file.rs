//! A model file as the commands need it: opened, and its tokenizer and chat template made by `rocinante`, with a hint
//! for whoever reads the error.

use crate::report::HintExt;
use anyhow::{Context, Result};
use std::path::Path;
use text::{ChatTemplate, Tokenizer};
use weights::Checkpoint;

/// Maps the file and reads its header.
pub fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path)
        .hint("roci reads GGUF and safetensors, files and folders; a download that was cut must be fetched again")
}

/// Builds the tokenizer that the file describes.
pub fn open_tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    let tokenizer = rocinante::files::tokenizer(checkpoint);
    let hint = match &tokenizer {
        Err(rocinante::Error::NoVocabulary(_)) => {
            "it may be a part of a model, or made for tests; use a file that carries its tokenizer"
        }
        _ => "`roci inspect MODEL` shows what the file says; please report the kind that is missing",
    };
    tokenizer.hint(hint)
}

/// The file's chat template, or ChatML where it has none.
pub struct Template {
    pub template: ChatTemplate,
    pub is_default: bool,
}

pub fn open_template(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Template> {
    let source = rocinante::files::template_source(checkpoint)?;
    let template = rocinante::files::template(source.as_deref(), tokenizer)
        .context("the file's chat template cannot be read")
        .hint("--raw sends the prompt as it is, without a template")?;
    Ok(Template { template, is_default: source.is_none() })
}
