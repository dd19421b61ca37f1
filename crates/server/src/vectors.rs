//! Vectors of texts, for the embedding endpoints of all families and for reranking.

use super::error::{ApiError, Result};
use super::generation::{self, Caller};
use super::loaded::Loaded;
use super::{llama, tally};
use engine::VectorRequest;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use rocinante::TokenId;
use std::sync::Arc;
use std::time::Instant;

/// Texts in one request, as OpenAI has it.
pub const MAX_TEXTS: usize = 2048;
/// Of those, how many are with the engine at a time: enough to fill its steps, and the queue stays open for others.
const MAX_AT_ONCE: usize = 32;

/// Vectors of length 1, in the order of the texts, and how many tokens they took.
pub async fn embed(model: &Arc<Loaded>, texts: Vec<Vec<TokenId>>, caller: Caller) -> Result<(Vec<Vec<f32>>, usize)> {
    let n_tokens = texts.iter().map(Vec::len).sum();
    if let Some(text) = texts.iter().find(|text| text.len() > model.n_ctx()) {
        let (n_tokens, n_ctx) = (text.len(), model.n_ctx());
        let text = format!("this model's context holds {n_ctx} tokens, the input has {n_tokens}");
        return Err(ApiError::too_long(text, n_tokens, n_ctx).param("input"));
    }
    let requests = texts.into_iter().map(|tokens| model.engine().embed_request(tokens));
    Ok((all(model, requests, caller).await?, n_tokens))
}

/// The reranker's scores of texts that hold a question and a document each, and how many tokens they took.
pub async fn score(
    model: &Arc<Loaded>,
    pairs: Vec<(Vec<TokenId>, usize)>,
    caller: Caller,
) -> Result<(Vec<f32>, usize)> {
    let n_tokens = pairs.iter().map(|(tokens, _)| tokens.len()).sum();
    let requests = pairs.into_iter().map(|(tokens, n_first)| model.engine().score_request(tokens, n_first));
    let first = |scores: Vec<f32>| scores.first().copied().unwrap_or(f32::NAN);
    Ok((all(model, requests, caller).await?.into_iter().map(first).collect(), n_tokens))
}

/// The results in the order of the requests. The first error ends the rest.
async fn all(
    model: &Arc<Loaded>,
    requests: impl Iterator<Item = VectorRequest>,
    caller: Caller,
) -> Result<Vec<Vec<f32>>> {
    let waiting = stream::iter(requests.map(|request| one(model, request, caller)));
    waiting.buffered(MAX_AT_ONCE).try_collect().await
}

async fn one(model: &Arc<Loaded>, request: VectorRequest, caller: Caller) -> Result<Vec<f32>> {
    if let Some(adapted) = &model.preset.adapted {
        let text = format!("vectors are computed without adapters: use the model `{}` itself", adapted.parent);
        return Err(ApiError::bad(text).param("model"));
    }
    let embed = VectorRequest { priority: caller.priority, group: caller.group, ..request };
    let n_tokens = embed.tokens.len();
    let _turn = generation::take_turn(model, caller)?;
    let pending = model.vector(embed).map_err(|error| generation::refused(model, error))?;
    let start = Instant::now();
    let vector = pending.await?;
    llama::TOTALS.read(n_tokens, start.elapsed());
    if let Some(tally) = tally::current() {
        tally.add(n_tokens, 0);
    }
    Ok(vector)
}

/// Only the first numbers of a vector, of length 1 again.
pub fn shorten(vector: &mut Vec<f32>, n: usize) {
    vector.truncate(n);
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}

/// Of two vectors of length 1.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
