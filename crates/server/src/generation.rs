//! The one path from a request to an answer, for every API family: prompt tokens and settings in, the runtime's stream
//! of events out. Families translate their wire format to [`GenerationRequest`] and events back. What is counted,
//! logged and traced of an answer, and what a disconnect does, is decided only here. Dropping an [`Answers`] cancels
//! it.

use super::error::{ApiError, Result};
use super::loaded::Loaded;
use super::shares::Turn;
use super::tally::{self, Tally};
use super::traces::{self, Span};
use super::{App, metrics};
use futures_util::FutureExt;
use futures_util::future::select_all;
use rocinante::{Answer, AnswerEvent, Constraint, Finished, Piece, Sampling, Splitter, TokenId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a deadline, the engine has this long to answer with the usage.
const TIME_TO_END: Duration = Duration::from_secs(60);

/// What to generate, whatever the API it was asked through.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    /// `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// `Some(n)`: with the log-probabilities of the n best tokens at each step.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: bool,
    /// With how much of the prompt is read, while it is.
    pub progress: bool,
    /// Which texts are possible.
    pub constraint: Option<Constraint>,
    pub guesses: Guesses,
    /// Answers to the same prompt.
    pub n: usize,
    pub caller: Caller,
}

/// Speculation, where the model was loaded with it.
#[derive(Clone, Debug, Default)]
pub struct Guesses {
    /// Tokens that may be guessed ahead for one step; 0: none.
    pub max_draft: Option<usize>,
    /// A text that the answer is expected to be like.
    pub prediction: Option<String>,
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
    /// It has a key that sees only what is its own, and adds and removes no models.
    pub is_guest: bool,
    /// Tokens that a request may ask for, its prompt and all its answers together.
    pub max_tokens: Option<u64>,
}

/// The answers to one request, as they grow.
pub struct Answers {
    open: Vec<PendingAnswer>,
    /// When they end with what they have.
    deadline: tokio::time::Instant,
    /// Whether the server waits for nobody any more.
    is_cut: tokio::sync::watch::Receiver<bool>,
    /// Tokens are told, too, before the text they become.
    tells_tokens: bool,
}

/// One answer being made.
struct PendingAnswer {
    index: usize,
    model: Arc<Loaded>,
    answer: Answer,
    is_done: bool,
    submitted: Instant,
    last_token: Option<Instant>,
    span: Option<Span>,
    /// All of it, where answers are written into the log.
    said: Option<String>,
    /// Its place in the queue, until its first token.
    turn: Option<Turn>,
    n_prompt: usize,
    n_generated: usize,
    tally: Option<Arc<Tally>>,
}

/// Submits a request. Everything that can be known to be wrong is an error here, before anything is computed.
/// `splitter` is the reader of an answer's text, of which each answer gets its own.
pub fn start(app: &App, model: &Arc<Loaded>, request: &GenerationRequest, splitter: &Splitter) -> Result<Answers> {
    if app.log_prompts {
        let text: String = request.prompt.iter().map(|token| model.tokenizer.token_text(token.0)).collect();
        tracing::info!(model = model.name, prompt = text, "prompt");
    }
    check_cost(model.n_ctx(), request)?;
    let mut open = Vec::with_capacity(request.n);
    for index in 0..request.n {
        let mut wanted = rocinante::Request {
            sampling: request.sampling.clone(),
            max_tokens: request.max_tokens,
            constraint: request.constraint.clone(),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            progress: request.progress,
            adapter: model.preset.adapted.as_ref().map(|adapted| adapted.adapter.clone()),
            max_draft: request.guesses.max_draft,
            prediction: request.guesses.prediction.clone(),
            priority: request.caller.priority,
            group: request.caller.group,
            ..rocinante::Request::default()
        };
        wanted.sampling.seed = seed_of(wanted.sampling.seed, index);
        let turn = take_turn(model, request.caller)?;
        let answer = model.answer(request.prompt.clone(), &wanted, splitter.fresh());
        open.push(PendingAnswer {
            index,
            model: Arc::clone(model),
            answer: answer.map_err(|error| refused(model, error))?,
            is_done: false,
            submitted: Instant::now(),
            last_token: None,
            span: traces::child(|| format!("generate {}", model.name)),
            said: app.log_prompts.then(String::new),
            turn,
            n_prompt: request.prompt.len(),
            n_generated: 0,
            tally: tally::current(),
        });
    }
    let deadline = tokio::time::Instant::now() + app.request_time;
    Ok(Answers { open, deadline, is_cut: app.state.cut_signal(), tells_tokens: false })
}

/// What a request may cost at most must be within what its key allows.
fn check_cost(n_ctx: usize, request: &GenerationRequest) -> Result<()> {
    let n_prompt = request.prompt.len();
    let n_room = n_ctx.saturating_sub(n_prompt);
    let n_answer = request.max_tokens.map_or(n_room, |n| n.min(n_room));
    let n_tokens = n_prompt as u64 + n_answer as u64 * request.n as u64;
    match request.caller.max_tokens.filter(|&max| n_tokens > max) {
        None => Ok(()),
        Some(max) => {
            let text = format!(
                "a request of this key may take {max} tokens; this one may take {n_tokens}: a prompt of {n_prompt} and {} \
                 answers of up to {n_answer}; lower max_tokens or n",
                request.n
            );
            Err(ApiError::bad(text).code("request_too_large").param("max_tokens"))
        }
    }
}

/// The seed of one of several answers: the first has the one that was asked for, the others none that a neighbouring
/// seed leads to.
fn seed_of(seed: u64, choice: usize) -> u64 {
    seed.wrapping_add((choice as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A place in the queue, where keys share it.
pub fn take_turn(model: &Loaded, caller: Caller) -> Result<Option<Turn>> {
    if !caller.has_rivals {
        return Ok(None);
    }
    model.shares.enter(caller.group).map(Some).map_err(|n| {
        metrics::refused();
        let waiting = rocinante::counted(n, "request");
        let text = format!("{waiting} of this key already waiting, and other keys share the queue");
        ApiError::busy(text, retry_after_s(model)).code("queue_full")
    })
}

/// Why the runtime did not take a request. A queue that is full is told with a time to come back.
pub fn refused(model: &Loaded, error: rocinante::Error) -> ApiError {
    use rocinante::Error as E;
    match error {
        E::Encoder => {
            let text =
                format!("`{}` is an encoder: it computes embeddings and scores, and cannot generate text", model.name);
            ApiError::bad(text).code("unsupported_model").param("model")
        }
        E::PromptTooLong { n_prompt, n_ctx, .. } => {
            let text =
                format!("this model's context holds {n_ctx} tokens, the prompt has {n_prompt}; please shorten it");
            ApiError::too_long(text, n_prompt, n_ctx)
        }
        E::Engine(engine::Error::QueueFull { .. }) => {
            metrics::refused();
            ApiError { retry_after_s: Some(retry_after_s(model)), ..error.into() }
        }
        error => error.into(),
    }
}

/// A guess at when the queue has moved: a second for each round of running requests that waits.
fn retry_after_s(model: &Loaded) -> u64 {
    let stats = model.engine().latest_stats();
    (stats.n_waiting / stats.n_running.max(1)).clamp(1, 60) as u64
}

impl Answers {
    pub fn telling_tokens(self) -> Self {
        Self { tells_tokens: true, ..self }
    }

    /// Several prompts, `n` answers to each, as one: the answers are counted through.
    pub fn join(all: Vec<Self>, n: usize) -> Option<Self> {
        let mut all = all.into_iter();
        let mut joined = all.next()?;
        for (i, mut answers) in all.enumerate() {
            answers.open.iter_mut().for_each(|choice| choice.index += (i + 1) * n);
            joined.open.append(&mut answers.open);
        }
        Some(joined)
    }

    /// The next thing that happens to any of the answers, with its index; `None` when all are finished. An error ends
    /// all.
    pub async fn next(&mut self) -> Result<Option<(usize, AnswerEvent)>> {
        while !self.open.is_empty() {
            let next = tokio::select! {
                next = tokio::time::timeout_at(self.deadline, next_event(&mut self.open)) => next,
                Ok(_) = self.is_cut.wait_for(|&is_cut| is_cut) => {
                    let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
                    return Err(ApiError::new(status, "the server is stopping").code("server_stopping"));
                }
            };
            let Ok((idx, event)) = next else {
                self.open.iter().for_each(|choice| choice.answer.cancel());
                // Once: the engine answers with the usage.
                self.deadline += TIME_TO_END;
                continue;
            };
            let choice = &mut self.open[idx];
            let Some(event) = event else {
                self.open.remove(idx);
                continue;
            };
            let event = choice.note(event)?;
            let index = choice.index;
            if choice.is_done {
                self.open.remove(idx);
            }
            // Tokens are counted; most clients are told only of the text they become.
            if self.tells_tokens || !matches!(event, AnswerEvent::Token(_)) {
                return Ok(Some((index, event)));
            }
        }
        Ok(None)
    }
}

/// The next event of any answer.
async fn next_event(choices: &mut [PendingAnswer]) -> (usize, Option<rocinante::Result<AnswerEvent>>) {
    if let [only] = choices {
        return (0, only.answer.next_event().await);
    }
    let (event, idx, _) = select_all(choices.iter_mut().map(|choice| choice.answer.next_event().boxed())).await;
    (idx, event)
}

impl PendingAnswer {
    /// If the engine was given up, the same error that later requests get.
    fn failure(&self, error: rocinante::Error) -> ApiError {
        let is_engines = matches!(
            error,
            rocinante::Error::Stopped(_) | rocinante::Error::Failed { kind: rocinante::FailureKind::Forward, .. }
        );
        match self.model.unavailable().filter(|_| is_engines) {
            Some(why) => ApiError::unavailable(&self.model.name, &why),
            None => error.into(),
        }
    }

    /// Counts, logs and traces what happened.
    fn note(&mut self, event: rocinante::Result<AnswerEvent>) -> Result<AnswerEvent> {
        self.turn = None;
        let event = event.map_err(|error| {
            self.is_done = true;
            if let Some(mut span) = self.span.take() {
                span.fail(&error.to_string());
                span.end();
            }
            self.failure(error)
        })?;
        Ok(match event {
            AnswerEvent::Token(token) => {
                self.n_generated += 1;
                self.note_token();
                AnswerEvent::Token(token)
            }
            AnswerEvent::Piece(piece) => {
                self.note_piece(&piece);
                AnswerEvent::Piece(piece)
            }
            AnswerEvent::Finished(finished) => {
                self.is_done = true;
                metrics::finished(&self.model.name, &finished);
                if let Some(tally) = &self.tally {
                    tally.add(finished.usage.n_prompt, finished.usage.n_generated);
                }
                self.end_span(&finished);
                if let Some(said) = self.said.take() {
                    tracing::info!(model = self.model.name, answer = said, "answer");
                }
                AnswerEvent::Finished(finished)
            }
            event => event,
        })
    }

    fn note_token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                metrics::first_token(&self.model.name, now - self.submitted);
                self.model.pace.first(now - self.submitted);
            }
            Some(last) => {
                metrics::next_token(&self.model.name, now - last);
                self.model.pace.next(now - last);
            }
        }
    }

    fn note_piece(&mut self, piece: &Piece) {
        let Some(said) = &mut self.said else { return };
        match piece {
            Piece::Text { text, .. } | Piece::Reasoning(text) | Piece::ToolArguments { text, .. } => {
                said.push_str(text)
            }
            Piece::ToolCall { name, .. } => said.push_str(name),
        }
    }

    fn end_span(&mut self, finished: &Finished) {
        let Some(mut span) = self.span.take() else { return };
        let usage = &finished.usage;
        span.text("gen_ai.request.model", &self.model.name);
        span.texts("gen_ai.response.finish_reasons", &[metrics::reason(finished.finish)]);
        span.number("gen_ai.usage.input_tokens", usage.n_prompt as u64);
        span.number("gen_ai.usage.output_tokens", usage.n_generated as u64);
        span.number("roci.cached_tokens", usage.n_cached as u64);
        span.seconds("gen_ai.server.time_to_first_token", usage.timings.ttft);
        span.seconds("roci.queue_seconds", usage.timings.queue);
        span.end();
    }
}

impl Drop for PendingAnswer {
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
        }
    }
}
