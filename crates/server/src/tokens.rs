//! `/tokenize` and `/detokenize`.

use super::App;
use super::blocking;
use super::error::{ApiError, Result};
use super::json::{Json, text_or_null};
use super::openai::chat::{self, RequestBody};
use super::{chat_input, openai::messages::ChatMessage};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use text::{Detokenizer, Ends, Specials, Tokenizer};

/// A text may be longer than the context, but not by much: at most so many bytes per token of it.
const MAX_BYTES_PER_TOKEN: usize = 64;
/// Whatever the context is.
const MIN_MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Deserialize)]
pub struct TokenizeRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    pub model: String,
    /// The text, under llama.cpp's and vLLM's names.
    #[serde(default, alias = "prompt")]
    pub content: Option<String>,
    /// Or a conversation.
    #[serde(default)]
    pub messages: Option<Vec<ChatMessage>>,
    /// BOS and EOS as the vocabulary wants them.
    #[serde(default, alias = "add_special_tokens")]
    pub add_special: Option<bool>,
    #[serde(default)]
    pub parse_special: Option<bool>,
    /// Each token with its text: in llama.cpp's way, and in vLLM's.
    #[serde(default)]
    pub with_pieces: Option<bool>,
    #[serde(default)]
    pub return_token_strs: Option<bool>,
}

/// The answer, written as it is: a list of values would take twenty times the memory.
#[derive(Debug, Serialize)]
pub struct Tokenized {
    tokens: Tokens,
    count: usize,
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged, expecting = "expected a list of token ids or of pieces")]
enum Tokens {
    Ids(Vec<u32>),
    Pieces(Vec<TokenPiece>),
}

#[derive(Debug, Serialize)]
struct TokenPiece {
    id: u32,
    piece: TokenText,
}

/// A token's text; its bytes, where they are no text of their own.
#[derive(Debug, Serialize)]
#[serde(untagged, expecting = "expected a text, or a list of bytes")]
enum TokenText {
    Whole(String),
    Bytes(Vec<u8>),
}

pub async fn tokenize(State(app): State<Arc<App>>, Json(body): Json<TokenizeRequest>) -> Result<axum::Json<Tokenized>> {
    let model = app.models.get(&body.model).await?;
    let work = move || -> Result<Tokenized> {
        let ids: Vec<u32> = match (&body.content, &body.messages) {
            (Some(text), _) => {
                let max_bytes = (model.n_ctx() * MAX_BYTES_PER_TOKEN).max(MIN_MAX_BYTES);
                if text.len() > max_bytes {
                    let text = format!("the text has {} bytes; the limit is {max_bytes}", text.len());
                    return Err(ApiError::bad(text).param("content"));
                }
                let specials = if body.parse_special == Some(false) { Specials::Plain } else { Specials::Parse };
                let ends = if body.add_special == Some(true) { Ends::Add } else { Ends::None };
                model.tokenizer.encode_with(text, specials, ends)
            }
            (None, Some(messages)) => {
                let request = RequestBody::of(messages.clone());
                let text = chat_input::render(&model, &chat::to_chat_input(&request)?)?;
                model.encode_rendered(&text)?.into_iter().map(|token| token.0).collect()
            }
            (None, None) => return Err(ApiError::bad("there is no `content`").param("content")),
        };
        let strings = || ids.iter().map(|&id| model.tokenizer.token_text(id)).collect();
        let token_strs = (body.return_token_strs == Some(true)).then(strings);
        let (count, max_model_len) = (ids.len(), model.n_ctx());
        let tokens = match body.with_pieces {
            Some(true) => Tokens::Pieces(
                ids.into_iter().map(|id| TokenPiece { id, piece: piece(&model.tokenizer, id) }).collect(),
            ),
            _ => Tokens::Ids(ids),
        };
        Ok(Tokenized { tokens, count, max_model_len, token_strs })
    };
    blocking::run(work).await.map(axum::Json)
}

fn piece(tokenizer: &Tokenizer, id: u32) -> TokenText {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    std::str::from_utf8(bytes)
        .map_or_else(|_| TokenText::Bytes(bytes.to_vec()), |text| TokenText::Whole(text.to_owned()))
}

#[derive(Debug, Deserialize)]
pub struct DetokenizeRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    pub model: String,
    pub tokens: Vec<u32>,
}

pub async fn detokenize(State(app): State<Arc<App>>, Json(body): Json<DetokenizeRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    if let Some(id) = body.tokens.iter().find(|&&id| id as usize >= model.tokenizer.n_vocab()) {
        let text = format!("there is no token {id}: the vocabulary has {}", model.tokenizer.n_vocab());
        return Err(ApiError::bad(text).param("tokens"));
    }
    let work = move || -> Result<String> {
        // Control tokens are shown, so that what was tokenized comes back.
        let specials: BTreeSet<u32> =
            body.tokens.iter().copied().filter(|&id| model.tokenizer.is_special(id)).collect();
        let specials: Vec<String> = specials.into_iter().map(|id| model.tokenizer.token_text(id)).collect();
        let specials: Vec<&str> = specials.iter().map(String::as_str).collect();
        let mut detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer)).showing(&specials);
        let mut text: String = body.tokens.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        Ok(text)
    };
    let text = blocking::run(work).await?;
    Ok(axum::Json(json!({"content": text, "prompt": text})))
}
