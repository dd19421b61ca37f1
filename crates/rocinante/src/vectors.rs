//! Vectors and scores of texts, computed as the model was trained to. A pending one can be waited for by a thread or
//! awaited; dropping it cancels the request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::model::TokenId;
use engine::{Command, Event, Handle, RequestId, VectorRequest};
use text::{Ends, Specials, Tokenizer};

use crate::mailbox::{self, Receiver};
use crate::{Error, Result};

/// A vector that is being made.
#[derive(Debug)]
pub struct PendingVector {
    handle: Handle,
    id: RequestId,
    events: Receiver,
    is_done: bool,
}

impl PendingVector {
    pub(crate) fn start(handle: &Handle, embed: VectorRequest) -> Result<Self> {
        let (sender, events) = mailbox::mailbox();
        let id = embed.id;
        handle.send_into(Command::Embed(embed), Box::new(sender))?;
        Ok(Self { handle: handle.clone(), id, events, is_done: false })
    }

    /// Waits for it.
    pub fn wait(mut self) -> Result<Vec<f32>> {
        loop {
            let event = self.events.recv();
            if let Some(result) = self.take(event) {
                return result;
            }
        }
    }

    fn take(&mut self, event: Option<Event>) -> Option<Result<Vec<f32>>> {
        let result = match event {
            Some(Event::Vector { vector, .. }) => Ok(vector),
            Some(Event::Failed { kind, error, .. }) => Err(Error::Failed { kind, error }),
            Some(_) => return None,
            None => Err(Error::Stopped(self.handle.stopped().unwrap_or_else(|| "it ended".to_owned()))),
        };
        self.is_done = true;
        Some(result)
    }
}

impl Future for PendingVector {
    type Output = Result<Vec<f32>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let Poll::Ready(event) = self.events.poll_recv(context) else { return Poll::Pending };
            if let Some(result) = self.take(event) {
                return Poll::Ready(result);
            }
        }
    }
}

impl Drop for PendingVector {
    fn drop(&mut self) {
        if !self.is_done {
            // An engine that is gone has nothing to cancel.
            let _ = self.handle.cancel(self.id);
        }
    }
}

/// A question and a text as encoders are trained to read them: the second without its own start, and for RoBERTa and
/// its descendants with two ends between. Also how many tokens come before the text's own.
pub fn encode_pair(tokenizer: &Tokenizer, query: &str, document: &str) -> (Vec<TokenId>, usize) {
    let encode = |text: &str| tokenizer.encode_with(text, Specials::Plain, Ends::Add);
    let (mut ids, document, nothing) = (encode(query), encode(document), encode(""));
    // What the vocabulary puts around nothing: a start and an end, where it has both.
    let (start, end) = match nothing[..] {
        [start, .., end] => (Some(start), Some(end)),
        _ => (None, tokenizer.eos()),
    };
    let skip = usize::from(start.is_some() && document.first().copied() == start);
    if let Some(end) = end.filter(|&end| is_roberta_end(tokenizer, end)) {
        ids.push(end);
    }
    let n_first = ids.len();
    ids.extend(&document[skip..]);
    (crate::template::ids(ids), n_first)
}

/// Special tokens may show as nothing; then their bytes tell.
fn is_roberta_end(tokenizer: &Tokenizer, end: u32) -> bool {
    tokenizer.token_text(end) == "</s>" || tokenizer.token_bytes(end).is_some_and(|bytes| bytes == b"</s>")
}
