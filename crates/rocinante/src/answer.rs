//! An answer as it grows: a stream of events for a thread (an iterator) or for any executor (async). Dropping it
//! stops the model.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::model::TokenId;
use engine::{Command, Drafted, Event, FinishReason, Handle, RequestId, Submit, Timings};
use futures_core::Stream;
use text::constraint::Constraint;
use text::{Specials, Tokenizer};

use crate::mailbox::{self, Receiver, Waited};
use crate::request::Request;
use crate::splitter::{Piece, Splitter, TokenLogprob};
use crate::whole::WholeAnswer;
use crate::{Error, Result};

/// Something that happened to an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// So many of the prompt's tokens are read, where [`Request::progress`] asks for it.
    Progress {
        /// Read so far.
        n_read: usize,
        /// Of so many.
        n_prompt: usize,
    },
    /// The prompt's tokens from the second on, where they were asked for.
    Prompt(Vec<TokenLogprob>),
    /// A token was generated; what it adds to the answer follows when it is certain.
    Token(TokenLogprob),
    /// Text, reasoning, or a part of a tool call.
    Piece(Piece),
    /// The last event.
    Finished(Finished),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub finish: Finish,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// What it cost.
    pub usage: AnswerUsage,
}

/// Why an answer ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum Finish {
    /// The model ended it.
    End,
    /// A stop string was found.
    StopString,
    /// The model calls tools, and the last call is complete.
    ToolCalls,
    /// It has as many tokens as it may have.
    #[default]
    Length,
    /// The context is full.
    Context,
    /// The caller, or a deadline, stopped it.
    Cancelled,
}

/// What an answer cost.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AnswerUsage {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of those, tokens that were in the cache.
    pub n_cached: usize,
    /// Tokens of the answer.
    pub n_generated: usize,
    /// Of those, tokens of reasoning.
    pub n_reasoning: usize,
    /// What was guessed ahead, and how much of it was right.
    pub drafted: Drafted,
    /// Where the time went.
    pub timings: Timings,
}

impl AnswerUsage {
    /// Prompt tokens computed a second; those from the cache do not count.
    pub fn prompt_speed(&self) -> Option<f64> {
        rate(self.n_prompt.saturating_sub(self.n_cached), self.timings.prefill)
    }

    /// Part of the guessed tokens that were right.
    pub fn acceptance(&self) -> Option<f64> {
        let Drafted { n_tokens, n_accepted, .. } = self.drafted;
        (n_tokens > 0).then(|| n_accepted as f64 / n_tokens as f64)
    }

    /// Tokens after the first a second: the first one is the prompt's.
    pub fn decode_speed(&self) -> Option<f64> {
        rate(self.n_generated.saturating_sub(1), self.timings.decode)
    }
}

/// The tokens of what the answer is expected to be like; no more than an answer can have.
fn prediction(tokenizer: &Tokenizer, request: &Request, n_ctx: usize) -> Vec<TokenId> {
    let Some(text) = request.prediction.as_ref().filter(|_| request.max_draft != Some(0)) else { return Vec::new() };
    tokenizer.encode(text, Specials::Plain).into_iter().take(n_ctx).map(TokenId).collect()
}

fn rate(n_tokens: usize, time: Duration) -> Option<f64> {
    (n_tokens > 0 && !time.is_zero()).then(|| n_tokens as f64 / time.as_secs_f64())
}

/// The outcome of a wait with a time limit.
#[derive(Debug)]
pub enum Next {
    /// Something happened.
    Event(AnswerEvent),
    /// Nothing happened within the limit.
    TimedOut,
    /// The answer is over.
    Ended,
}

/// An answer being made. As an [`Iterator`] it blocks the thread that reads it; by [`next_event`](Self::next_event), or
/// [as a stream](Self::into_stream), it can be awaited on any executor.
#[derive(Debug)]
pub struct Answer {
    handle: Handle,
    id: RequestId,
    events: Receiver,
    splitter: Splitter,
    ready: VecDeque<AnswerEvent>,
    n_generated: usize,
    is_stopped: bool,
    is_done: bool,
}

impl Answer {
    pub(crate) fn start(
        handle: &Handle,
        tokenizer: &Tokenizer,
        prompt: Vec<TokenId>,
        request: &Request,
        splitter: Splitter,
    ) -> Result<Self> {
        let n_ctx = handle.n_ctx();
        let max_tokens = request.max_tokens.unwrap_or(n_ctx).min(n_ctx);
        let mut submit = Submit::new(handle.next_request_id(), prompt, max_tokens);
        submit.sampling = request.sampling.clone();
        submit.stop_tokens = tokenizer.end_ids().iter().map(|&id| TokenId(id)).collect();
        submit.logprobs = request.logprobs;
        submit.prompt_logprobs = request.prompt_logprobs;
        submit.progress = request.progress;
        submit.constraint = request.constraint.as_ref().map(Constraint::to_spec);
        submit.adapter = request.adapter.as_ref().map(|adapter| adapter.source().clone());
        submit.max_draft = request.max_draft;
        submit.prediction = prediction(tokenizer, request, n_ctx);
        submit.priority = request.priority;
        submit.group = request.group;
        let (id, (sender, events)) = (submit.id, mailbox::mailbox());
        handle.send_into(Command::Submit(submit), Box::new(sender))?;
        Ok(Self {
            handle: handle.clone(),
            id,
            events,
            splitter,
            ready: VecDeque::new(),
            n_generated: 0,
            is_stopped: false,
            is_done: false,
        })
    }

    /// Stops it; the last event still comes, with what it cost.
    pub fn cancel(&self) {
        // An engine that is gone has nothing to cancel.
        let _ = self.handle.cancel(self.id);
    }

    /// Waits for the next event without blocking a thread; `None` when it is over.
    pub async fn next_event(&mut self) -> Option<Result<AnswerEvent>> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// The same events, to be awaited.
    pub fn into_stream(self) -> AnswerStream {
        AnswerStream(self)
    }

    /// Waits for the next event, but no longer than this.
    pub fn next_timeout(&mut self, limit: Duration) -> Result<Next> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Next::Event(event));
            }
            if self.is_done {
                return Ok(Next::Ended);
            }
            match self.events.recv_timeout(limit) {
                Waited::TimedOut => return Ok(Next::TimedOut),
                Waited::Closed => self.take(None)?,
                Waited::Event(event) => self.take(Some(event))?,
            }
        }
    }

    /// Its text alone, piece by piece.
    pub fn texts(&mut self) -> impl Iterator<Item = Result<String>> {
        self.filter_map(|event| match event {
            Ok(AnswerEvent::Piece(Piece::Text { text, .. })) => Some(Ok(text)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The rest of its text, as one.
    pub fn text(mut self) -> Result<String> {
        self.texts().collect()
    }

    /// All of it: text, reasoning, tool calls, tokens and what it cost.
    pub fn whole(self) -> Result<WholeAnswer> {
        let mut whole = WholeAnswer::default();
        for event in self {
            whole.add(event?);
        }
        Ok(whole)
    }

    /// As [`whole`](Self::whole), without blocking a thread.
    pub async fn collect_whole(mut self) -> Result<WholeAnswer> {
        let mut whole = WholeAnswer::default();
        while let Some(event) = self.next_event().await {
            whole.add(event?);
        }
        Ok(whole)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerEvent>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.is_done {
                return Poll::Ready(None);
            }
            let Poll::Ready(event) = self.events.poll_recv(context) else { return Poll::Pending };
            if let Err(error) = self.take(event) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    /// Reads what the engine sent; `None` where it broke down.
    fn take(&mut self, event: Option<Event>) -> Result<()> {
        match event {
            // Tokens that were under way when the answer ended are not part of it.
            Some(Event::Token { .. }) if self.is_stopped => {}
            Some(Event::Token { token, logprob, top, .. }) => {
                self.n_generated += 1;
                let generated = TokenLogprob { token, logprob, top: top.clone() };
                self.ready.push_back(AnswerEvent::Token(generated));
                self.is_stopped = self.splitter.push(token, logprob, top);
                self.show();
                if self.is_stopped {
                    // The engine's last event brings the usage.
                    self.cancel();
                }
            }
            Some(Event::Progress { n_computed, n_prompt, .. }) => {
                self.ready.push_back(AnswerEvent::Progress { n_read: n_computed, n_prompt });
            }
            Some(Event::Prompt { tokens, .. }) => {
                let one = |engine::Scored { token, logprob, top }| TokenLogprob { token, logprob, top };
                self.ready.push_back(AnswerEvent::Prompt(tokens.into_iter().map(one).collect()));
            }
            Some(Event::Finished { reason, usage, .. }) => {
                self.is_done = true;
                self.splitter.finish();
                self.show();
                let finished = self.finished(reason, usage);
                self.ready.push_back(AnswerEvent::Finished(finished));
            }
            Some(Event::Failed { kind, error, .. }) => {
                self.is_done = true;
                return Err(match kind {
                    engine::FailureKind::Constraint => Error::Constraint(error),
                    kind => Error::Failed { kind, error },
                });
            }
            Some(Event::Vector { .. } | Event::Stats(_)) => {}
            None => {
                self.is_done = true;
                let why = self.handle.stopped().unwrap_or_else(|| "it ended in the middle of the answer".to_owned());
                return Err(Error::Stopped(why));
            }
        }
        Ok(())
    }

    fn show(&mut self) {
        self.ready.extend(self.splitter.take().map(AnswerEvent::Piece));
    }

    fn finished(&self, reason: FinishReason, usage: engine::Usage) -> Finished {
        let stop = self.splitter.stop_string();
        let finish = match reason {
            // A truncated call is reported as `Length`.
            _ if self.splitter.has_whole_tool_calls() => Finish::ToolCalls,
            _ if self.is_stopped => Finish::StopString,
            FinishReason::Stop => Finish::End,
            FinishReason::Length => Finish::Length,
            FinishReason::Context => Finish::Context,
            FinishReason::Cancelled => Finish::Cancelled,
        };
        let usage = AnswerUsage {
            n_prompt: usage.n_prompt,
            n_cached: usage.n_cached_prompt,
            n_generated: self.n_generated,
            n_reasoning: self.splitter.n_reasoning_tokens(),
            drafted: usage.drafted,
            timings: usage.timings,
        };
        Finished { finish, stop, usage }
    }
}

impl Iterator for Answer {
    type Item = Result<AnswerEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.is_done {
                return None;
            }
            let event = self.events.recv();
            if let Err(error) = self.take(event) {
                return Some(Err(error));
            }
        }
    }
}

/// An [`Answer`] as a [`Stream`], for any executor.
#[derive(Debug)]
pub struct AnswerStream(Answer);

impl Stream for AnswerStream {
    type Item = Result<AnswerEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_event(context)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_done {
            self.cancel();
        }
    }
}
