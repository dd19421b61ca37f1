//! How a conversation becomes the text that a model reads: by the chat template of its files, by ChatML where its
//! vocabulary has ChatML's marks, or, for base models that know neither, as plain text to be continued.

use ::model::TokenId;
use serde_json::Value;
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

/// Control tokens that are written out in what users and tools said.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlTokens {
    /// They are text.
    #[default]
    Text,
    /// They are read as control tokens.
    Parsed,
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

    /// The conversation as the model was trained to read it, up to where its answer begins. Control tokens that are text
    /// carry a mark of [`Tokenizer::shield`]: show the text after [`text::unshield`].
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
        control_tokens: ControlTokens,
    ) -> Result<String> {
        let messages = match control_tokens {
            ControlTokens::Text => &shield(tokenizer, messages),
            ControlTokens::Parsed => messages,
        };
        match &self.template {
            Some(template) => Ok(template.render(messages, options)?),
            None => Ok(messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n\n")),
        }
    }

    /// The tokens of rendered text. A template writes BOS itself where the model wants one.
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

/// What users and tools wrote, with the control tokens in it marked as text. What the model wrote itself comes back as
/// it was: templates look for its marks.
fn shield(tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Message> {
    let one = |message: &Message| {
        let mut message = message.clone();
        if message.role != "assistant" {
            message.content = tokenizer.shield(&message.content).into_owned();
            message.extra.values_mut().for_each(|value| shield_value(tokenizer, value));
        }
        message
    };
    messages.iter().map(one).collect()
}

fn shield_value(tokenizer: &Tokenizer, value: &mut Value) {
    match value {
        Value::String(text) => *text = tokenizer.shield(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| shield_value(tokenizer, item)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shield_value(tokenizer, field)),
        _ => {}
    }
}

/// Token ids of the engine's type.
pub(crate) fn ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
