//! An answer as it grows: pieces of text in whole characters, with stop strings taken out.

use std::sync::Arc;

use ::model::TokenId;
use engine::{Event, Events, FinishReason, Handle, RequestId, Sampling, Submit, Usage};
use text::constraint::Constraint;
use text::{Detokenizer, StopMatcher, Tokenizer};

use crate::{Error, Result};

/// What is wanted of an answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Greedy unless it says otherwise.
    pub sampling: Sampling,
    pub max_tokens: usize,
    /// The answer ends before one of these.
    pub stop: Vec<String>,
    /// The form it must have.
    ///
    /// ```
    /// # use rocinante::{Constraint, Model, Request};
    /// # fn main() -> rocinante::Result<()> {
    /// # let Some(path) = std::env::var_os("ROCI_SMOLLM2") else { return Ok(()) };
    /// let model = Model::open(path)?;
    /// let form = Constraint::Regex("(yes|no)".to_owned());
    /// let request = Request { constraint: Some(form), ..Request::default() };
    /// let answer = model.complete("Is water wet? Answer: ", request)?.text()?;
    /// assert!(answer == "yes" || answer == "no");
    /// # Ok(())
    /// # }
    /// ```
    pub constraint: Option<Constraint>,
}

impl Default for Request {
    fn default() -> Self {
        Self { sampling: Sampling::default(), max_tokens: 512, stop: Vec::new(), constraint: None }
    }
}

/// An answer being made: an iterator over its text. Dropping it stops the model.
#[derive(Debug)]
pub struct Answer {
    handle: Handle,
    id: RequestId,
    events: Events,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    tokens: Vec<u32>,
    usage: Usage,
    reason: Option<FinishReason>,
    is_stopped: bool,
    is_done: bool,
}

impl Answer {
    pub(crate) fn start(
        handle: &Handle,
        tokenizer: &Arc<Tokenizer>,
        prompt: Vec<u32>,
        request: Request,
    ) -> Result<Self> {
        let prompt = prompt.into_iter().map(TokenId).collect();
        let mut submit = Submit::new(handle.next_request_id(), prompt, request.max_tokens);
        submit.sampling = request.sampling;
        submit.stop_tokens = tokenizer.end_ids().iter().map(|&id| TokenId(id)).collect();
        submit.constraint = request.constraint.as_ref().map(Constraint::to_spec);
        let id = submit.id;
        Ok(Self {
            handle: handle.clone(),
            id,
            events: handle.submit(submit)?,
            detokenizer: Detokenizer::new(Arc::clone(tokenizer)),
            matcher: StopMatcher::new(request.stop),
            tokens: Vec::new(),
            usage: Usage::default(),
            reason: None,
            is_stopped: false,
            is_done: false,
        })
    }

    /// The rest of the answer as one text.
    pub fn text(mut self) -> Result<String> {
        let mut text = String::new();
        for piece in &mut self {
            text.push_str(&piece?);
        }
        Ok(text)
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What it cost; complete after the last piece.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Why it ended; `None` before it did.
    pub fn reason(&self) -> Option<FinishReason> {
        self.reason
    }

    /// Text that is now certain; `None` if the answer is over.
    fn take(&mut self, event: Event) -> Result<Option<String>> {
        match event {
            // Tokens that were under way when the answer ended are not part of it.
            Event::Token { .. } if self.is_stopped => Ok(Some(String::new())),
            Event::Token { token, .. } => {
                self.tokens.push(token.0);
                let step = self.matcher.push(&self.detokenizer.push(token.0));
                if step.is_stopped {
                    self.is_stopped = true;
                    self.handle.cancel(self.id)?;
                }
                Ok(Some(step.text))
            }
            Event::Finished { reason, usage, .. } => {
                self.is_done = true;
                self.reason = Some(if self.is_stopped { FinishReason::Stop } else { reason });
                self.usage = usage;
                if self.is_stopped {
                    return Ok(None);
                }
                let last = self.matcher.push(&self.detokenizer.finish());
                Ok(Some(last.text + &self.matcher.finish()))
            }
            Event::Failed { error, .. } => Err(Error::Failed(error)),
            Event::Prompt { .. } | Event::Vector { .. } | Event::Stats(_) => Ok(Some(String::new())),
        }
    }
}

impl Iterator for Answer {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_done {
            let step = match self.events.recv() {
                Ok(event) => self.take(event),
                Err(_) => Err(Error::Failed("the engine ended in the middle of the answer".to_owned())),
            };
            match step {
                Ok(Some(text)) if text.is_empty() => {}
                Ok(Some(text)) => return Some(Ok(text)),
                Ok(None) => {}
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
