//! A prompt as clients send it: a text, token ids, several of either, and llama.cpp's mixtures of them. It becomes one
//! list of tokens for each prompt.

use super::blocking;
use super::error::{ApiError, Result};
use super::loaded::{Loaded, ids};
use model::TokenId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::Arc;
use text::{Ends, Specials};

/// Text or tokens, one or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of token ids, or a list of such lists")]
pub enum CompletionPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
    Object(PromptObject),
    /// With a token id among them, one prompt; else several.
    Mixed(Vec<PromptItem>),
}

/// One of several prompts, or a part of one.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a token id, an object, or a list of texts and token ids")]
pub enum PromptItem {
    Token(u32),
    Text(String),
    Object(PromptObject),
    Parts(Vec<PromptPart>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a token id")]
pub enum PromptPart {
    Token(u32),
    Text(String),
}

/// `{"prompt_string": TEXT}`, or `{"content": [{"type": "text", "text": TEXT}, ...]}`.
#[derive(Clone, Debug, Deserialize)]
pub struct PromptObject {
    #[serde(default)]
    prompt_string: Option<String>,
    #[serde(default)]
    content: Option<Vec<ObjectPart>>,
    #[serde(default)]
    multimodal_data: Option<Vec<IgnoredAny>>,
}

#[derive(Clone, Debug, Deserialize)]
struct ObjectPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

impl PromptObject {
    fn text(&self, param: &str) -> Result<String> {
        let bad = |text: String| Err(ApiError::bad(text).param(param));
        if self.multimodal_data.as_ref().is_some_and(|data| !data.is_empty()) {
            return bad("models here read text only, and there is `multimodal_data`".to_owned());
        }
        match (&self.prompt_string, &self.content) {
            (Some(text), None) => Ok(text.clone()),
            (None, Some(parts)) => match parts.iter().find(|part| part.kind != "text" || part.text.is_none()) {
                Some(part) => bad(format!("models here read text only, and there is a part of type `{}`", part.kind)),
                None => Ok(parts.iter().filter_map(|part| part.text.as_deref()).collect()),
            },
            _ => bad("an object needs either `prompt_string` or `content`".to_owned()),
        }
    }
}

impl CompletionPrompt {
    /// Whether the answer is a list, too.
    pub fn is_list(&self) -> bool {
        match self {
            Self::Texts(_) | Self::TokenLists(_) => true,
            Self::Mixed(items) => !is_one(items),
            Self::Text(_) | Self::Tokens(_) | Self::Object(_) => false,
        }
    }

    /// With a prompt of the model's files before each text, for vectors; tokens stay as they are.
    pub fn prompted(self, model: &Loaded, name: Option<&str>) -> Result<Self> {
        let add = |text: String| -> Result<String> {
            Ok(model
                .text_forms()
                .prompted(name, &text)
                .map_err(|error| ApiError::from(error).param("prompt_name"))?
                .into())
        };
        Ok(match self {
            Self::Text(text) => Self::Text(add(text)?),
            Self::Texts(texts) => Self::Texts(texts.into_iter().map(add).collect::<Result<_>>()?),
            other => other,
        })
    }

    /// The same on a thread that may take its time.
    pub async fn encode_aside(self, model: &Arc<Loaded>, param: &'static str, max: usize) -> Result<Vec<Vec<TokenId>>> {
        let model = Arc::clone(model);
        blocking::run(move || self.encode(&model, param, max)).await
    }

    /// The tokens of each; more than `max` are an error.
    pub fn encode(&self, model: &Loaded, param: &str, max: usize) -> Result<Vec<Vec<TokenId>>> {
        let n = match self {
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
            Self::Mixed(items) if !is_one(items) => items.len(),
            _ => 1,
        };
        if n == 0 || n > max {
            return Err(ApiError::bad(format!("{n} texts, expected 1 to {max}")).param(param));
        }
        let prompts = match self {
            Self::Text(text) => vec![model.encode_raw(text)?],
            Self::Tokens(tokens) => vec![ids(tokens.clone())],
            Self::Texts(texts) => texts.iter().map(|text| model.encode_raw(text)).collect::<Result<_>>()?,
            Self::TokenLists(lists) => lists.iter().cloned().map(ids).collect(),
            Self::Object(object) => vec![model.encode_raw(&object.text(param)?)?],
            Self::Mixed(items) if is_one(items) => {
                let parts = items.iter().map(|item| item.part(param)).collect::<Result<Vec<_>>>()?;
                vec![encode_parts(model, &parts)?]
            }
            Self::Mixed(items) => items.iter().map(|item| item.encode(model, param)).collect::<Result<_>>()?,
        };
        let n_vocab = model.engine().n_vocab();
        if let Some(token) = prompts.iter().flatten().find(|token| token.0 as usize >= n_vocab) {
            return Err(
                ApiError::bad(format!("there is no token {}: the vocabulary has {n_vocab}", token.0)).param(param)
            );
        }
        Ok(prompts)
    }
}

impl PromptItem {
    /// As a prompt of its own.
    fn encode(&self, model: &Loaded, param: &str) -> Result<Vec<TokenId>> {
        match self {
            Self::Token(id) => Ok(vec![TokenId(*id)]),
            Self::Text(text) => model.encode_raw(text),
            Self::Object(object) => model.encode_raw(&object.text(param)?),
            Self::Parts(parts) => encode_parts(model, parts),
        }
    }

    /// As a part of a prompt.
    fn part(&self, param: &str) -> Result<PromptPart> {
        match self {
            Self::Token(id) => Ok(PromptPart::Token(*id)),
            Self::Text(text) => Ok(PromptPart::Text(text.clone())),
            Self::Object(_) | Self::Parts(_) => {
                let text = "a list with a token id is a single prompt, and may contain only texts and token ids";
                Err(ApiError::bad(text).param(param))
            }
        }
    }
}

fn is_one(items: &[PromptItem]) -> bool {
    items.iter().any(|item| matches!(item, PromptItem::Token(_)))
}

/// Texts and tokens after one another. Only a text at the beginning gets the vocabulary's BOS.
fn encode_parts(model: &Loaded, parts: &[PromptPart]) -> Result<Vec<TokenId>> {
    let mut tokens = Vec::new();
    for part in parts {
        match part {
            PromptPart::Token(id) => tokens.push(TokenId(*id)),
            PromptPart::Text(text) => {
                let ends = if tokens.is_empty() { Ends::Add } else { Ends::None };
                tokens.extend(model.encode(text, Specials::Parse, ends)?);
            }
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CompletionPrompt {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_token_among_texts_makes_one_prompt_of_a_list() {
        for text in [r#""a""#, "[1, 2]", r#"[1, "a", 2]"#, r#"["a", 1]"#, r#"{"prompt_string": "a"}"#] {
            assert!(!parse(text).is_list(), "{text}");
        }
        for text in [r#"["a", "b"]"#, "[[1], [2]]", r#"["a", [1]]"#, r#"[[1, "a"], "b"]"#, r#"["a", {"content": []}]"#]
        {
            assert!(parse(text).is_list(), "{text}");
        }
        assert!(serde_json::from_str::<CompletionPrompt>(r#"{"content": "a"}"#).is_err());
    }

    #[test]
    fn objects_hold_text_and_nothing_else() {
        let text = |text: &str| match parse(text) {
            CompletionPrompt::Object(object) => object.text("prompt").map_err(|error| error.message),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(r#"{"prompt_string": "a"}"#).as_deref(), Ok("a"));
        let parts = r#"{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(text(parts).as_deref(), Ok("ab"));
        for wrong in [
            "{}",
            r#"{"prompt_string": "a", "multimodal_data": ["x"]}"#,
            r#"{"content": [{"type": "image_url"}]}"#,
            r#"{"content": [{"type": "text"}]}"#,
        ] {
            assert!(text(wrong).is_err(), "{wrong}");
        }
    }
}
