//! The one road from a request to an answer, for every API family: prompt tokens and settings in, a stream of pieces
//! (text, reasoning, tool calls) out. Families translate their wire format to [`Request`] and pieces back; what a
//! model does, and what a dropped connection does, is decided here alone. Dropping an [`Answers`] cancels it.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use super::pieces::{Piece, Splitter, TokenLogprob};
use super::shares::Turn;
use super::tally::{self, Tally};
use super::traces::{self, Span};
use super::{App, metrics};
use engine::{Command, Event, FailureKind, RequestId, Sampling, Submit};
use futures_util::FutureExt;
use futures_util::future::select_all;
use model::TokenId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// What to generate, whatever the API it was asked through.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    /// `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// `Some(n)`: with the log-probabilities of the n best tokens at each step.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: bool,
    /// Which texts are possible, as the mask factory reads it.
    pub constraint: Option<String>,
    /// Answers to the same prompt.
    pub n: usize,
    pub caller: Caller,
}

/// For whom: decides order and fairness.
#[derive(Copy, Clone, Debug, Default)]
pub struct Caller {
    pub group: u64,
    pub priority: i32,
    /// There are other keys, which want their share of the queue.
    pub has_rivals: bool,
    /// Models do not leave memory for this caller.
    pub keeps_models: bool,
}

/// Why an answer ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Finish {
    /// The model ended it.
    End,
    /// A stop string was found.
    StopString,
    /// `max_tokens`, or the context is full.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// What an answer cost.
#[derive(Copy, Clone, Debug, Default)]
pub struct Usage {
    pub n_prompt: usize,
    pub n_cached: usize,
    pub n_generated: usize,
    pub n_reasoning: usize,
    pub timings: Timings,
}

#[derive(Copy, Clone, Debug, Default)]
pub struct Timings {
    pub prefill: std::time::Duration,
    pub decode: std::time::Duration,
}

/// Something that happened to the answer of index `choice`.
#[derive(Clone, Debug)]
pub enum Update {
    Piece(Piece),
    /// The prompt's tokens from the second on, where they were asked for.
    Prompt(Vec<TokenLogprob>),
    Finished {
        finish: Finish,
        stop: Option<String>,
        usage: Usage,
    },
}

/// The answers to one request, as they grow.
pub struct Answers {
    open: Vec<Answer>,
    pending: VecDeque<(usize, Update)>,
    /// When they end with what they have.
    deadline: tokio::time::Instant,
}

/// One answer being made.
struct Answer {
    choice: usize,
    id: RequestId,
    model: Arc<Loaded>,
    events: mpsc::UnboundedReceiver<Event>,
    splitter: Splitter,
    n_generated: usize,
    is_done: bool,
    submitted: Instant,
    last_token: Option<Instant>,
    span: Option<Span>,
    /// All of it, where answers are written into the log.
    said: Option<String>,
    /// Its place in the queue, until its first token.
    turn: Option<Turn>,
    n_prompt: usize,
    tally: Option<Arc<Tally>>,
}

/// The engine's side of the channel.
struct Outlet(mpsc::UnboundedSender<Event>);

impl engine::Sink for Outlet {
    fn send(&self, event: Event) -> std::result::Result<(), engine::Closed> {
        self.0.send(event).map_err(|_| engine::Closed)
    }
}

/// Submits a request. Everything that can be known to be wrong is an error here, before anything is computed.
/// `splitter` is the reader of an answer's text, of which each answer gets its own.
pub fn start(app: &App, model: &Arc<Loaded>, request: &Request, splitter: &Splitter) -> Result<Answers> {
    if model.is_encoder() {
        let text = format!("`{}` is an encoder: it makes vectors and scores of texts, and writes none", model.name);
        return Err(ApiError::bad(text).code("unsupported_model").param("model"));
    }
    let n_ctx = model.n_ctx();
    if request.prompt.is_empty() {
        return Err(ApiError::bad("the prompt is empty"));
    }
    if request.prompt.len() >= n_ctx {
        let text = format!(
            "this model's context holds {n_ctx} tokens, the prompt has {}; please shorten it",
            request.prompt.len()
        );
        return Err(ApiError::bad(text).code("context_length_exceeded"));
    }
    if app.log_prompts {
        let text: String = request.prompt.iter().map(|token| model.tokenizer.token_text(token.0)).collect();
        tracing::info!(model = model.name, prompt = text, "prompt");
    }
    let mut open = Vec::with_capacity(request.n);
    for choice in 0..request.n {
        let id = model.handle.next_request_id();
        let mut submit = Submit::new(id, request.prompt.clone(), request.max_tokens.unwrap_or(n_ctx).min(n_ctx));
        submit.sampling = request.sampling.clone();
        submit.sampling.seed = submit.sampling.seed.wrapping_add(choice as u64);
        submit.stop_tokens = model.tokenizer.end_ids().iter().map(|&id| TokenId(id)).collect();
        (submit.logprobs, submit.prompt_logprobs) = (request.logprobs, request.prompt_logprobs);
        submit.constraint = request.constraint.clone();
        submit.priority = request.caller.priority;
        submit.group = request.caller.group;
        let (sender, events) = mpsc::unbounded_channel();
        let turn = take_turn(model, request.caller)?;
        self::submit(model, Command::Submit(submit), Box::new(Outlet(sender)))?;
        open.push(Answer {
            choice,
            id,
            model: Arc::clone(model),
            events,
            splitter: splitter.fresh(),
            n_generated: 0,
            is_done: false,
            submitted: Instant::now(),
            last_token: None,
            span: traces::child(|| format!("generate {}", model.name)),
            said: app.log_prompts.then(String::new),
            turn,
            n_prompt: request.prompt.len(),
            tally: tally::current(),
        });
    }
    Ok(Answers { open, pending: VecDeque::new(), deadline: tokio::time::Instant::now() + app.request_time })
}

/// A place in the queue, where keys share it.
pub fn take_turn(model: &Loaded, caller: Caller) -> Result<Option<Turn>> {
    if !caller.has_rivals {
        return Ok(None);
    }
    model.shares.enter(caller.group).map(Some).map_err(|n| {
        metrics::refused();
        let text = format!("{n} requests of this key wait already, and others share the queue");
        ApiError::busy(text, retry_after_s(model)).code("queue_full")
    })
}

/// Gives the engine something to do. A queue that is full is told with a time to come back.
pub fn submit(model: &Loaded, command: Command, sink: Box<dyn engine::Sink>) -> Result<()> {
    model.handle.send_into(command, sink).map_err(|error| match error {
        engine::Error::QueueFull { .. } => {
            metrics::refused();
            ApiError { retry_after_s: Some(retry_after_s(model)), ..error.into() }
        }
        error => error.into(),
    })
}

/// A guess at when the queue has moved: a second for each round of running requests that waits.
fn retry_after_s(model: &Loaded) -> u64 {
    let stats = model.handle.latest_stats();
    (stats.n_waiting / stats.n_running.max(1)).clamp(1, 60) as u64
}

impl Answers {
    /// Several prompts, `n` answers to each, as one: the answers are counted through.
    pub fn join(all: Vec<Self>, n: usize) -> Option<Self> {
        let mut all = all.into_iter();
        let mut joined = all.next()?;
        for (i, mut answers) in all.enumerate() {
            answers.open.iter_mut().for_each(|answer| answer.choice += (i + 1) * n);
            joined.open.append(&mut answers.open);
        }
        Some(joined)
    }

    /// The next thing that happens to any of the answers; `None` when all are finished. An error ends all.
    pub async fn next(&mut self) -> Result<Option<(usize, Update)>> {
        loop {
            if let Some(update) = self.pending.pop_front() {
                return Ok(Some(update));
            }
            if self.open.is_empty() {
                return Ok(None);
            }
            let next = tokio::time::timeout_at(self.deadline, next_event(&mut self.open)).await;
            let Ok((idx, event)) = next else {
                self.open.iter().for_each(Answer::cancel);
                // Once: the engine answers with the usage.
                self.deadline += std::time::Duration::from_secs(60);
                continue;
            };
            let answer = &mut self.open[idx];
            let event = event.ok_or_else(|| {
                answer.is_done = true;
                let why = answer.model.handle.stopped().unwrap_or_else(|| "it ended".into());
                ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, format!("the engine stopped: {why}"))
            })?;
            answer.take(event, &mut self.pending)?;
            if answer.is_done {
                self.open.remove(idx);
            }
        }
    }
}

/// The next event of any answer.
async fn next_event(answers: &mut [Answer]) -> (usize, Option<Event>) {
    if let [only] = answers {
        return (0, only.events.recv().await);
    }
    let (event, idx, _) = select_all(answers.iter_mut().map(|answer| answer.events.recv().boxed())).await;
    (idx, event)
}

impl Answer {
    fn take(&mut self, event: Event, out: &mut VecDeque<(usize, Update)>) -> Result<()> {
        self.turn = None;
        match event {
            Event::Token { token, logprob, top, .. } => {
                self.note_token();
                self.n_generated += 1;
                let is_stopped = self.splitter.push(token, logprob, top);
                self.show(out);
                if is_stopped {
                    // The engine's last event brings the usage.
                    self.cancel();
                }
            }
            Event::Prompt { tokens, .. } => {
                let one = |engine::Scored { token, logprob, top }| TokenLogprob { token, logprob, top };
                out.push_back((self.choice, Update::Prompt(tokens.into_iter().map(one).collect())));
            }
            Event::Finished { reason, usage, .. } => {
                self.is_done = true;
                metrics::finished(&self.model.name, &usage, reason);
                if let Some(tally) = &self.tally {
                    tally.add(usage.n_prompt, usage.n_generated);
                }
                self.end_span(&usage, reason);
                self.splitter.finish();
                self.show(out);
                if let Some(said) = self.said.take() {
                    tracing::info!(model = self.model.name, answer = said, "answer");
                }
                let stop = self.splitter.stop_string();
                let finish = match reason {
                    // A call that was cut is told as a length.
                    _ if self.splitter.has_whole_tool_calls() => Finish::ToolCalls,
                    _ if stop.is_some() => Finish::StopString,
                    engine::FinishReason::Stop => Finish::End,
                    engine::FinishReason::Length | engine::FinishReason::Context => Finish::Length,
                    engine::FinishReason::Cancelled => Finish::Length,
                };
                let timings = Timings { prefill: usage.timings.prefill, decode: usage.timings.decode };
                let usage = Usage {
                    n_prompt: usage.n_prompt,
                    n_cached: usage.n_cached_prompt,
                    n_generated: self.n_generated,
                    n_reasoning: self.splitter.n_reasoning_tokens(),
                    timings,
                };
                out.push_back((self.choice, Update::Finished { finish, stop, usage }));
            }
            Event::Failed { kind, error, .. } => {
                self.is_done = true;
                if let Some(mut span) = self.span.take() {
                    span.fail(&error);
                    span.end();
                }
                return Err(match kind {
                    FailureKind::Request | FailureKind::Constraint => ApiError::bad(error),
                    FailureKind::Numeric | FailureKind::Forward => ApiError::internal(error),
                });
            }
            Event::Vector { .. } | Event::Stats(_) => {}
        }
        Ok(())
    }

    /// What of the answer can be shown now.
    fn show(&mut self, out: &mut VecDeque<(usize, Update)>) {
        for piece in self.splitter.take() {
            if let Some(said) = &mut self.said {
                match &piece {
                    Piece::Text { text, .. } | Piece::Reasoning(text) | Piece::ToolArguments { text, .. } => {
                        said.push_str(text);
                    }
                    Piece::ToolCall { name, .. } => said.push_str(name),
                }
            }
            out.push_back((self.choice, Update::Piece(piece)));
        }
    }

    fn end_span(&mut self, usage: &engine::Usage, reason: engine::FinishReason) {
        let Some(mut span) = self.span.take() else { return };
        let finish = match reason {
            engine::FinishReason::Stop => "stop",
            engine::FinishReason::Length | engine::FinishReason::Context => "length",
            engine::FinishReason::Cancelled => "cancelled",
        };
        span.text("gen_ai.request.model", &self.model.name);
        span.texts("gen_ai.response.finish_reasons", &[finish]);
        span.number("gen_ai.usage.input_tokens", usage.n_prompt as u64);
        span.number("gen_ai.usage.output_tokens", usage.n_generated as u64);
        span.number("roci.cached_tokens", usage.n_cached_prompt as u64);
        span.seconds("gen_ai.server.time_to_first_token", usage.timings.ttft);
        span.seconds("roci.queue_seconds", usage.timings.queue);
        span.end();
    }

    fn note_token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => metrics::first_token(&self.model.name, now - self.submitted),
            Some(last) => metrics::next_token(&self.model.name, now - last),
        }
    }

    fn cancel(&self) {
        // An engine that is gone has nothing to cancel.
        let _ = self.model.handle.cancel(self.id);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_done {
            // With the first token all of the prompt was computed; before it, nobody knows here how much.
            let n_prompt = if self.n_generated > 0 { self.n_prompt } else { 0 };
            metrics::abandoned(&self.model.name, n_prompt, self.n_generated);
            if let Some(tally) = &self.tally {
                tally.add(n_prompt, self.n_generated);
            }
            if let Some(mut span) = self.span.take() {
                span.fail("the client went away");
                span.end();
            }
            self.cancel();
        }
    }
}
