//! `/tokenize` and `/detokenize`.

use super::App;
use super::error::{ApiError, Result};
use super::json::Json;
use super::openai::chat;
use super::openai::fields::Asked;
use super::{ask, openai::messages::ChatMessage};
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use text::{Detokenizer, Ends, Specials, Tokenizer};

#[derive(Debug, Deserialize)]
pub struct TokenizeRequest {
    #[serde(default)]
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

pub async fn tokenize(State(app): State<Arc<App>>, Json(body): Json<TokenizeRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    let work = move || -> Result<Value> {
        let ids: Vec<u32> = match (&body.content, &body.messages) {
            (Some(text), _) => {
                let specials = if body.parse_special == Some(false) { Specials::Plain } else { Specials::Parse };
                let ends = if body.add_special == Some(true) { Ends::Add } else { Ends::None };
                model.tokenizer.encode_with(text, specials, ends)
            }
            (None, Some(messages)) => {
                let request = Asked::of(messages.clone());
                let text = ask::render(&model, &chat::to_ask(&request)?)?;
                model.encode_rendered(&text).into_iter().map(|token| token.0).collect()
            }
            (None, None) => return Err(ApiError::bad("there is no `content`").param("content")),
        };
        let mut value = json!({"tokens": ids, "count": ids.len(), "max_model_len": model.n_ctx()});
        if body.with_pieces == Some(true) {
            value["tokens"] = ids.iter().map(|&id| json!({"id": id, "piece": piece(&model.tokenizer, id)})).collect();
        }
        if body.return_token_strs == Some(true) {
            value["token_strs"] = ids.iter().map(|&id| model.tokenizer.token_text(id)).collect();
        }
        Ok(value)
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?;
    done.map(axum::Json)
}

/// A token's text; its bytes, where they are no text of their own.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from)
}

#[derive(Debug, Deserialize)]
pub struct DetokenizeRequest {
    #[serde(default)]
    pub model: String,
    pub tokens: Vec<u32>,
}

pub async fn detokenize(State(app): State<Arc<App>>, Json(body): Json<DetokenizeRequest>) -> Result<axum::Json<Value>> {
    let model = app.models.get(&body.model).await?;
    if let Some(id) = body.tokens.iter().find(|&&id| id as usize >= model.tokenizer.n_vocab()) {
        let text = format!("there is no token {id}: the vocabulary has {}", model.tokenizer.n_vocab());
        return Err(ApiError::bad(text).param("tokens"));
    }
    // Control tokens are shown, so that what was tokenized comes back.
    let specials = body.tokens.iter().filter(|&&id| model.tokenizer.is_special(id));
    let specials: Vec<String> = specials.map(|&id| model.tokenizer.token_text(id)).collect();
    let specials: Vec<&str> = specials.iter().map(String::as_str).collect();
    let mut detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer)).showing(&specials);
    let mut text: String = body.tokens.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    Ok(axum::Json(json!({"content": text, "prompt": text})))
}
