//! A request in flight: what the caller asked, where its events go, and when things happened. The scheduler's view of
//! the same request is its `Sequence`.

use std::time::Instant;

use batch::{Choice, TokenId};

use crate::{
    handle::{QueueSlot, Sink},
    mask::{Mask, TokenSet},
    protocol::{Event, FailureKind, FinishReason, Normalize, Pooling, RequestId, Sampling, Scored, Timings, Usage},
    sampler::{self, SampleError, Sampled, Sampler, SamplerState},
    sequence::Sequence,
};

pub(crate) struct Request {
    pub id: RequestId,
    pub job: Job,
    sink: Box<dyn Sink>,
    /// Its place in the queue, given up when it first runs.
    slot: Option<QueueSlot>,
    submitted: Instant,
    started: Option<Instant>,
    first_output: Option<Instant>,
    last_output: Option<Instant>,
}

#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub(crate) enum Job {
    Generate(Generate),
    Embed(Vector),
}

pub(crate) struct Generate {
    pub sampling: Sampling,
    pub max_tokens: usize,
    pub stop_tokens: Vec<TokenId>,
    pub logprobs: Option<usize>,
    /// The scores of the prompt's tokens so far, where they are asked for.
    pub scores: Option<Vec<Scored>>,
    pub mask: Option<Box<dyn Mask>>,
    pub state: SamplerState,
    pub n_prompt: usize,
    /// Tokens of an earlier engine that `state` has seen.
    pub n_replayed: usize,
}

/// What choosing a token works in: one for all requests, since one at a time is chosen for.
pub(crate) struct Chooser {
    sampler: Sampler,
    allowed: TokenSet,
}

impl Chooser {
    pub fn new(n_vocab: usize) -> Self {
        Self { sampler: Sampler::new(n_vocab), allowed: TokenSet::new(n_vocab) }
    }

    pub fn n_vocab(&self) -> usize {
        self.allowed.n_vocab()
    }
}

/// The pooled hidden states so far.
pub(crate) struct Vector {
    pub pooling: Pooling,
    pub normalize: Normalize,
    pub sum: Vec<f64>,
    pub n_rows: usize,
}

/// How a request ends.
pub(crate) enum Ending {
    Finished(FinishReason),
    Vector(Vec<f32>),
    Failed(FailureKind, String),
    /// Nobody listens any more.
    Gone,
}

impl Request {
    pub fn new(id: RequestId, job: Job, sink: Box<dyn Sink>, slot: Option<QueueSlot>, submitted: Instant) -> Self {
        Self { id, job, sink, slot, submitted, started: None, first_output: None, last_output: None }
    }

    /// It takes part in a step for the first time, or again after a preemption.
    pub fn start(&mut self, now: Instant) {
        self.slot = None;
        self.started.get_or_insert(now);
    }

    /// Its tokens will be computed again from the first.
    pub fn preempt(&mut self) {
        if let Job::Embed(vector) = &mut self.job {
            vector.sum.clear();
            vector.n_rows = 0;
        }
    }

    pub fn send_token(&mut self, index: usize, sampled: Sampled, now: Instant) -> Result<(), Ending> {
        self.first_output.get_or_insert(now);
        self.last_output = Some(now);
        let Sampled { token, logprob, top } = sampled;
        self.sink.send(Event::Token { id: self.id, index, token, logprob, top }).map_err(|_| Ending::Gone)
    }

    /// Sends the scores of the prompt, if they are complete and not sent yet.
    pub fn send_prompt(&mut self) -> Result<(), Ending> {
        let Job::Generate(generate) = &mut self.job else { return Ok(()) };
        let n_scored = generate.n_prompt - 1;
        match generate.scores.take_if(|scores| scores.len() == n_scored) {
            Some(tokens) => self.sink.send(Event::Prompt { id: self.id, tokens }).map_err(|_| Ending::Gone),
            None => Ok(()),
        }
    }

    /// Sends the last event. Nobody listening is no error here.
    pub fn end(mut self, ending: Ending, seq: Option<&Sequence>) {
        let id = self.id;
        if matches!(ending, Ending::Vector(_)) {
            self.first_output = Some(Instant::now());
        }
        let event = match ending {
            Ending::Finished(reason) => Event::Finished { id, reason, usage: self.usage(seq) },
            Ending::Vector(vector) => Event::Vector { id, vector, usage: self.usage(seq) },
            Ending::Failed(kind, error) => Event::Failed { id, kind, error },
            Ending::Gone => return,
        };
        let _ = self.sink.send(event);
    }

    fn usage(&self, seq: Option<&Sequence>) -> Usage {
        let Some(seq) = seq else { return Usage::default() };
        let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_duration_since(from),
            _ => Default::default(),
        };
        let submitted = Some(self.submitted);
        Usage {
            n_prompt: seq.n_prompt,
            n_cached_prompt: seq.n_cached_prompt.unwrap_or(0),
            n_generated: seq.tokens.len() - seq.n_prompt,
            n_preemptions: seq.n_preemptions,
            timings: Timings {
                queue: since(submitted, self.started),
                prefill: since(self.started, self.first_output),
                decode: since(self.first_output, self.last_output),
                ttft: since(submitted, self.first_output),
            },
        }
    }
}

impl Generate {
    /// How the model may choose the token after `position` tokens, if nothing about it needs the logits here.
    pub fn choice(&self, position: usize) -> Option<Choice> {
        let is_plain = self.mask.is_none() && self.logprobs.is_none();
        is_plain.then(|| sampler::choice(&self.sampling, position)).flatten()
    }

    /// The next token, given the tokens so far.
    pub fn choose(&mut self, logits: &[f32], tokens: &[TokenId], chooser: &mut Chooser) -> Result<Sampled, Ending> {
        let allowed = self.allowed(tokens.len(), &mut chooser.allowed).map_err(constraint_failed)?;
        let sampled = chooser
            .sampler
            .sample_with(&mut self.state, logits, tokens, &self.sampling, allowed, self.logprobs)
            .map_err(|error| {
                let kind = match error {
                    SampleError::NotNumbers { .. } => FailureKind::Numeric,
                    SampleError::NothingAllowed { .. } => FailureKind::Constraint,
                };
                Ending::Failed(kind, error.to_string())
            })?;
        if let Some(mask) = &mut self.mask {
            mask.accept(sampled.token).map_err(constraint_failed)?;
        }
        Ok(sampled)
    }

    /// What may come at this position: the mask, and no stop token while the answer is too short.
    fn allowed<'a>(&mut self, position: usize, set: &'a mut TokenSet) -> Result<Option<&'a TokenSet>, String> {
        let is_early = position - self.n_prompt < self.sampling.min_tokens;
        match &mut self.mask {
            Some(mask) => {
                set.clear();
                mask.allowed(set)?;
            }
            None if is_early => set.fill(),
            None => return Ok(None),
        }
        // A constraint that allows nothing but the end goes before.
        let has_others =
            |set: &TokenSet| set.len() > self.stop_tokens.iter().filter(|&&token| set.contains(token)).count();
        if is_early && has_others(set) {
            self.stop_tokens.iter().for_each(|&token| set.remove(token));
        }
        Ok(Some(set))
    }

    /// The next token of the prompt, given those before.
    pub fn score(
        &mut self,
        logits: &[f32],
        tokens: &[TokenId],
        token: TokenId,
        chooser: &mut Chooser,
    ) -> Result<(), Ending> {
        let Some(scores) = &mut self.scores else { return Ok(()) };
        // Computed again after a preemption.
        if tokens.len() <= scores.len() {
            return Ok(());
        }
        let scored = chooser.sampler.score(logits, token, self.logprobs.unwrap_or(0), tokens.len());
        let Sampled { token, logprob, top } =
            scored.map_err(|error| Ending::Failed(FailureKind::Numeric, error.to_string()))?;
        scores.push(Scored { token, logprob, top });
        Ok(())
    }

    /// The next token of an earlier engine, which chose it after `tokens` from these logits.
    pub fn replay(
        &mut self,
        logits: &[f32],
        tokens: &[TokenId],
        token: TokenId,
        chooser: &mut Chooser,
    ) -> Result<(), Ending> {
        // Computed again after a preemption.
        if tokens.len() - self.n_prompt < self.n_replayed {
            return Ok(());
        }
        self.n_replayed += 1;
        let allowed = self.allowed(tokens.len(), &mut chooser.allowed).map_err(constraint_failed)?;
        chooser.sampler.replay(&mut self.state, logits, tokens, &self.sampling, allowed, token);
        match &mut self.mask {
            Some(mask) => mask.accept(token).map_err(constraint_failed),
            None => Ok(()),
        }
    }

    /// Whether generation ends here. `generated` is all of it, up to now.
    pub fn finish_reason(&self, generated: &[TokenId], n_tokens: usize, n_ctx: usize) -> Option<FinishReason> {
        if generated.last().is_some_and(|token| self.stop_tokens.contains(token)) {
            Some(FinishReason::Stop)
        } else if generated.len() >= self.max_tokens {
            Some(FinishReason::Length)
        } else if n_tokens >= n_ctx {
            Some(FinishReason::Context)
        } else {
            None
        }
    }
}

fn constraint_failed(text: String) -> Ending {
    Ending::Failed(FailureKind::Constraint, format!("the constraint failed: {text}"))
}

impl Vector {
    /// Adds hidden states, `[n_rows, n_embd]`.
    pub fn add(&mut self, hidden: &[f32], n_rows: usize) {
        if n_rows == 0 {
            return;
        }
        let n_embd = hidden.len() / n_rows;
        self.sum.resize(n_embd, 0.0);
        for row in hidden.chunks_exact(n_embd) {
            self.sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        self.n_rows += n_rows;
    }

    pub fn finish(&self) -> Ending {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Ending::Failed(FailureKind::Numeric, "the model gave hidden states that are not numbers".into());
        }
        let scale = match self.normalize {
            Normalize::Unit if length > 0.0 => 1.0 / length,
            Normalize::Unit => 0.0,
            Normalize::None => 1.0 / self.n_rows.max(1) as f64,
        };
        Ending::Vector(self.sum.iter().map(|x| (x * scale) as f32).collect())
    }
}
