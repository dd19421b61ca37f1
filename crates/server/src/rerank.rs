//! `/rerank`, `/v1/rerank`: texts in the order in which they fit a question, as Jina's and Cohere's clients ask for it.

use super::App;
use super::blocking;
use super::error::{ApiError, Result};
use super::generation::Caller;
use super::json::{Json, text_or_null};
use super::loaded::Loaded;
use super::vectors::{self, cosine};
use axum::Extension;
use axum::extract::State;
use rocinante::{SearchSide, TokenId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

const MAX_DOCUMENTS: usize = 1024;
/// Tokens around texts of which a pair needs fewer.
const MAX_MARKS: usize = 8;

#[derive(Debug, Deserialize)]
pub struct RerankRequest {
    #[serde(default, deserialize_with = "text_or_null")]
    pub model: String,
    pub query: String,
    #[serde(default)]
    pub documents: Vec<Document>,
    /// The documents under the name that text-embeddings-inference has for them, whose answer is a plain list.
    #[serde(default)]
    pub texts: Vec<Document>,
    #[serde(default)]
    pub return_text: Option<bool>,
    #[serde(default)]
    pub top_n: Option<usize>,
    #[serde(default)]
    pub return_documents: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, or an object with a `text`")]
pub enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(mut body): Json<RerankRequest>,
) -> Result<axum::Json<Value>> {
    let is_plain = body.documents.is_empty() && !body.texts.is_empty();
    body.documents.append(&mut body.texts);
    if body.documents.is_empty() || body.documents.len() > MAX_DOCUMENTS {
        let text = format!("{} documents, expected 1 to {MAX_DOCUMENTS}", body.documents.len());
        return Err(ApiError::bad(text).param("documents"));
    }
    if body.query.is_empty() || body.documents.iter().any(|document| document.text().is_empty()) {
        return Err(ApiError::bad("the query and the documents must not be empty").param("documents"));
    }
    let model = app.models.get(&body.model).await?;
    let (body, owned) = (Arc::new(body), Arc::clone(&model));
    let request = Arc::clone(&body);
    let (scores, n_tokens): (Vec<f32>, usize) = match blocking::run(move || encode(&owned, &request)).await? {
        Encoded::Pairs(pairs) => vectors::score(&model, pairs, caller).await?,
        Encoded::Texts(texts) => {
            let (vectors, n_tokens) = vectors::embed(&model, texts, caller).await?;
            (vectors[1..].iter().map(|vector| cosine(&vectors[0], vector)).collect(), n_tokens)
        }
    };
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(body.top_n.unwrap_or(ranked.len()));
    if is_plain {
        let result = |(i, score): (usize, f32)| match body.return_text {
            Some(true) => json!({"index": i, "score": score, "text": body.documents[i].text()}),
            _ => json!({"index": i, "score": score}),
        };
        return Ok(axum::Json(ranked.into_iter().map(result).collect()));
    }
    let results = ranked.into_iter().map(|(i, score)| {
        let mut result = json!({"index": i, "relevance_score": score});
        if body.return_documents == Some(true) {
            result["document"] = json!({"text": body.documents[i].text()});
        }
        result
    });
    let results: Vec<Value> = results.collect();
    let name = if body.model.is_empty() { &model.name } else { &body.model };
    let usage = json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens});
    Ok(axum::Json(json!({"object": "list", "model": name, "results": results, "usage": usage})))
}

/// What the model reads.
enum Encoded {
    /// The query and each document together, for a reranker.
    Pairs(Vec<(Vec<TokenId>, usize)>),
    /// The query, then the documents, each for itself.
    Texts(Vec<Vec<TokenId>>),
}

fn encode(model: &Loaded, body: &RerankRequest) -> Result<Encoded> {
    let forms = model.text_forms();
    let has_head = model.engine().embeds().head.is_some();
    let side = |i: usize| if i == 0 { SearchSide::Query } else { SearchSide::Document };
    let texts = std::iter::once(body.query.as_str()).chain(body.documents.iter().map(Document::text));
    // A head reads the texts themselves.
    let prompted = |(i, text)| if has_head { Cow::Borrowed(text) } else { forms.prompted_for_search(side(i), text) };
    let texts = texts.enumerate().map(prompted);
    let texts: Vec<_> = texts.map(|text| model.encode_raw(&text)).collect::<Result<_>>()?;
    if !has_head {
        return Ok(Encoded::Texts(texts));
    }
    // The query is read once with each document: one that leaves them no room is refused before that.
    if let Some(text) = texts[1..].iter().find(|text| texts[0].len() + text.len() > model.n_ctx() + MAX_MARKS) {
        let n_tokens = texts[0].len() + text.len();
        let text =
            format!("this model's context holds {} tokens, a document with the query has {n_tokens}", model.n_ctx());
        return Err(ApiError::bad(text).code("context_length_exceeded").param("documents"));
    }
    let pairs = body.documents.iter().map(|document| forms.pair(&model.tokenizer, &body.query, document.text()));
    Ok(Encoded::Pairs(pairs.collect()))
}
