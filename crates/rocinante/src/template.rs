//! How a conversation becomes the text that a model reads: by the chat template of its files, by ChatML where its
//! vocabulary has ChatML's marks, or, for base models that know neither, as plain text to be continued.

use ::model::TokenId;
use text::answer::AnswerFormat;
use text::{ChatTemplate, Ends, Message, RenderOptions, Specials, Tokenizer};

use crate::{Result, files};

/// A token that only vocabularies made for ChatML have.
const CHATML_MARK: &str = "<|im_start|>";

/// A model's way with conversations.
#[derive(Debug)]
pub struct Template {
    /// `None`: a base model, which continues text.
    template: Option<ChatTemplate>,
    source: Option<String>,
    format: AnswerFormat,
}

/// A prompt, as text and as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// What was rendered.
    pub text: String,
    /// Its tokens, with those that start a text.
    pub tokens: Vec<TokenId>,
}

impl Template {
    /// From a template's source, or for a model without one.
    pub fn new(source: Option<String>, tokenizer: &Tokenizer) -> Result<Self> {
        let knows_chatml = || tokenizer.token_id(CHATML_MARK).is_some();
        let template = match &source {
            Some(source) => Some(files::template(Some(source), tokenizer)?),
            None if knows_chatml() => Some(files::template(None, tokenizer)?),
            None => None,
        };
        let format = source.as_deref().map_or_else(AnswerFormat::default, AnswerFormat::detect);
        Ok(Self { template, source, format })
    }

    /// The source that is in use: the files' own or ChatML's; `None` for a base model.
    pub fn source(&self) -> Option<&str> {
        self.template.as_ref().map(|_| self.source.as_deref().unwrap_or(text::DEFAULT_TEMPLATE))
    }

    /// Whether the files have no template of their own.
    pub fn is_missing(&self) -> bool {
        self.source.is_none()
    }

    /// Whether this is a base model: conversations are joined to one text, which is continued.
    pub fn is_base(&self) -> bool {
        self.template.is_none()
    }

    /// How the model writes its reasoning and its tool calls.
    pub fn format(&self) -> &AnswerFormat {
        &self.format
    }

    /// Whether conversations can tell the model about tools.
    pub fn knows_tools(&self) -> bool {
        self.format.has_tools() && self.source.as_deref().is_some_and(|source| source.contains("tools"))
    }

    /// The conversation as the model was trained to read it.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        match &self.template {
            Some(template) => Ok(template.render(messages, options)?),
            None => Ok(messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n\n")),
        }
    }

    /// The tokens of rendered text. A template writes BOS itself where the model wants one; control tokens that users
    /// wrote were marked by [`Tokenizer::shield`] and are text.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
        ids(match self.ends() {
            Ends::None => tokenizer.encode_shielded(text),
            ends => tokenizer.encode_with(&text::unshield(text), Specials::Plain, ends),
        })
    }

    /// Whether rendered text still needs the tokens that start a text.
    pub fn ends(&self) -> Ends {
        if self.is_base() { Ends::Add } else { Ends::None }
    }
}

/// Token ids of the engine's type.
pub(crate) fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
