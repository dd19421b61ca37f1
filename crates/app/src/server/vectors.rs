//! Vectors of texts, for the embedding endpoints of all families and for reranking.

use super::error::{ApiError, Result};
use super::generation::Caller;
use super::loaded::Loaded;
use engine::{Command, Embed, Event};
use futures_util::future::join_all;
use model::TokenId;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The engine's side of the channel.
struct Outlet(mpsc::UnboundedSender<Event>);

impl engine::Sink for Outlet {
    fn send(&self, event: Event) -> std::result::Result<(), engine::Closed> {
        self.0.send(event).map_err(|_| engine::Closed)
    }
}

/// Vectors of length 1, in the order of the texts, and how many tokens they took.
pub async fn embed(model: &Arc<Loaded>, texts: Vec<Vec<TokenId>>, caller: Caller) -> Result<(Vec<Vec<f32>>, usize)> {
    let n_tokens = texts.iter().map(Vec::len).sum();
    if let Some(text) = texts.iter().find(|text| text.len() > model.n_ctx()) {
        let text = format!("this model's context holds {} tokens, the input has {}", model.n_ctx(), text.len());
        return Err(ApiError::bad(text).code("context_length_exceeded").param("input"));
    }
    let requests = texts.into_iter().map(|tokens| model.handle.embed_request(tokens));
    let vectors = join_all(requests.map(|request| one(model, request, caller))).await;
    Ok((vectors.into_iter().collect::<Result<_>>()?, n_tokens))
}

/// What a reranker's head makes of texts that hold a question and a document each, and how many tokens they took.
pub async fn score(
    model: &Arc<Loaded>,
    pairs: Vec<(Vec<TokenId>, usize)>,
    caller: Caller,
) -> Result<(Vec<f32>, usize)> {
    let n_tokens = pairs.iter().map(|(tokens, _)| tokens.len()).sum();
    let requests = pairs.into_iter().map(|(tokens, n_first)| model.handle.score_request(tokens, n_first));
    let scores = join_all(requests.map(|request| one(model, request, caller))).await;
    let first = |scores: Vec<f32>| scores.first().copied().unwrap_or(f32::NAN);
    Ok((scores.into_iter().map(|scores| scores.map(first)).collect::<Result<_>>()?, n_tokens))
}

async fn one(model: &Arc<Loaded>, request: Embed, caller: Caller) -> Result<Vec<f32>> {
    let (sender, mut events) = mpsc::unbounded_channel();
    let embed = Embed { priority: caller.priority, group: caller.group, ..request };
    let mut cancel = Cancel { model: Arc::clone(model), id: embed.id, is_done: false };
    model.handle.send_into(Command::Embed(embed), Box::new(Outlet(sender)))?;
    while let Some(event) = events.recv().await {
        match event {
            Event::Vector { vector, .. } => {
                cancel.is_done = true;
                return Ok(vector);
            }
            Event::Failed { kind: engine::FailureKind::Request, error, .. } => return Err(ApiError::bad(error)),
            Event::Failed { error, .. } => return Err(ApiError::internal(error)),
            _ => {}
        }
    }
    Err(ApiError::internal("the engine stopped"))
}

/// Takes the request back when whoever asked is gone.
struct Cancel {
    model: Arc<Loaded>,
    id: engine::RequestId,
    is_done: bool,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = self.model.handle.cancel(self.id);
        }
    }
}

/// Of two vectors of length 1.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
