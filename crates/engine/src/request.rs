//! A request in flight: what the caller asked for, where its events go, and when things happened. The scheduler's view
//! of the same request is its `Sequence`.

use std::{collections::BTreeMap, time::Instant};

use batch::{AdapterSource, Adjustment, Choice, Penalties, TokenId};

use crate::{
    handle::{QueueSlot, Sink},
    mask::{Mask, TokenSet},
    protocol::{
        Drafted, Event, FailureKind, FinishReason, Normalize, Pooling, RequestId, Sampling, Scored, Timings, Usage,
    },
    rows::ModelChoice,
    sampler::{self, SampleError, Sampled, Sampler, SamplerState},
    sequence::Sequence,
};

pub(crate) struct ActiveRequest {
    pub id: RequestId,
    pub job: Job,
    sink: Box<dyn Sink>,
    /// Its place in the queue, given up when it first runs.
    slot: Option<QueueSlot>,
    submitted: Instant,
    started: Option<Instant>,
    first_output: Option<Instant>,
    last_output: Option<Instant>,
    drafted: Drafted,
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
    /// Whether the caller wants to know how much of the prompt is computed.
    pub progress: bool,
    /// Tokens that may be drafted for a step; `None`: as many as it pays.
    pub max_draft: Option<usize>,
    /// What the client expects the answer to be like.
    pub prediction: Vec<TokenId>,
    pub mask: Option<Box<dyn Mask>>,
    pub adapter: Option<AdapterSource>,
    pub state: SamplerState,
    pub n_prompt: usize,
    /// Tokens of the answer that `mask` and `state` have seen. After a preemption their logits may be computed again,
    /// but they count once.
    pub n_seen: usize,
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

impl ActiveRequest {
    pub fn new(id: RequestId, job: Job, sink: Box<dyn Sink>, slot: Option<QueueSlot>, submitted: Instant) -> Self {
        let drafted = Drafted::default();
        Self { id, job, sink, slot, submitted, started: None, first_output: None, last_output: None, drafted }
    }

    /// It takes part in a step for the first time, or again after a preemption.
    pub fn start(&mut self, now: Instant) {
        self.slot = None;
        if self.started.is_none() {
            self.started = Some(now);
            self.sink.started();
        }
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

    /// So many tokens were drafted in a step, and so many of them were right.
    pub fn note_drafted(&mut self, drafted: Drafted) {
        self.drafted += drafted;
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

    /// Tells how much of the prompt is computed, where that is asked for.
    pub fn send_progress(&mut self, n_computed: usize, n_prompt: usize) -> Result<(), Ending> {
        match &self.job {
            Job::Generate(Generate { progress: true, .. }) if n_computed < n_prompt => {
                let event = Event::Progress { id: self.id, n_computed, n_prompt };
                self.sink.send(event).map_err(|_| Ending::Gone)
            }
            _ => Ok(()),
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
            drafted: self.drafted,
            timings: Timings {
                queue: since(submitted, self.started),
                prefill: since(self.started, self.first_output),
                decode: since(self.first_output, self.last_output),
                ttft: since(submitted, self.first_output),
            },
        }
    }
}

impl ActiveRequest {
    /// Whether what the request's constraint allows is known by then.
    pub fn has_mask_until(&mut self, until: Instant) -> bool {
        match &mut self.job {
            Job::Generate(generate) => generate.has_mask_until(until),
            Job::Embed(_) => true,
        }
    }
}

impl Generate {
    /// Whether what its constraint allows is known by then; without one it always is.
    pub fn has_mask_until(&mut self, until: Instant) -> bool {
        let limit = until.saturating_duration_since(Instant::now());
        self.mask.as_mut().is_none_or(|mask| mask.is_ready_within(limit))
    }

    /// How the model may choose the token after `position` tokens, of which `tokens` are known; `None` where the logits
    /// are needed here.
    pub fn model_choice(&mut self, tokens: &[TokenId], position: usize, chooser: &mut Chooser) -> Option<ModelChoice> {
        let choice = sampler::choice(&self.sampling, position)?;
        let n_top = self.logprobs.map(|n| n as u32);
        if n_top.is_some_and(|n| n as usize > Choice::MAX_TOP) {
            return None;
        }
        let adjustment = self.adjustment(tokens, position, chooser)?;
        let adjustment = (adjustment != Adjustment::default()).then_some(adjustment);
        // What is reported are the model's own numbers, which an adjustment changes.
        let is_possible = adjustment.is_none() || n_top.is_none();
        is_possible.then_some(ModelChoice { choice, adjustment, n_top, waits: false })
    }

    /// The same where the mask is not known yet: how the model will choose when it is.
    pub fn waiting_choice(&self, position: usize) -> Option<ModelChoice> {
        let choice = sampler::choice(&self.sampling, position).filter(|_| self.logprobs.is_none())?;
        Some(ModelChoice { choice, adjustment: None, n_top: None, waits: true })
    }

    /// Bias, bans, mask and penalties as the model takes them; `None` where they are too much for it, or where nothing
    /// is allowed, which is told on the way through the host.
    fn adjustment(&mut self, tokens: &[TokenId], position: usize, chooser: &mut Chooser) -> Option<Adjustment> {
        let mut bias = BTreeMap::new();
        for &(token, value) in &self.sampling.logit_bias {
            if bias.insert(token, value).is_some() {
                return None;
            }
        }
        bias.extend(self.sampling.banned.iter().map(|&token| (token, f32::NEG_INFINITY)));
        let n_vocab = chooser.n_vocab();
        let mut allowed = self.allowed(position, &mut chooser.allowed).ok()?.cloned();
        if let Some(only) = &self.sampling.allowed {
            let mut set = TokenSet::new(n_vocab);
            only.iter().for_each(|&token| set.insert(token));
            if let Some(allowed) = &allowed {
                set.intersect(allowed);
            }
            allowed = Some(set);
        }
        let counts = self.sampling.has_penalties().then(|| self.counts(tokens, position));
        let is_small = bias.len() <= Adjustment::MAX_BIAS
            && counts.as_ref().is_none_or(|counts| counts.len() <= Adjustment::MAX_COUNTS)
            && allowed.as_ref().is_none_or(|allowed| !allowed.is_empty());
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        is_small.then(|| Adjustment {
            bias: bias.into_iter().collect(),
            allowed: allowed.map(|allowed| allowed.words().to_vec()),
            penalties: counts.map(|counts| Penalties {
                repetition: repetition_penalty,
                presence: presence_penalty,
                frequency: frequency_penalty,
                counts,
                counts_own: position > tokens.len(),
            }),
        })
    }

    /// How often each known token occurs in the window before `position`.
    fn counts(&self, tokens: &[TokenId], position: usize) -> Vec<(TokenId, u32)> {
        let n_known = self.sampling.penalty_window.saturating_sub(position - tokens.len());
        let mut counts: BTreeMap<TokenId, u32> = BTreeMap::new();
        for &token in &tokens[tokens.len().saturating_sub(n_known)..] {
            *counts.entry(token).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    /// A token that was chosen, here or by the model.
    pub fn accept(&mut self, token: TokenId) -> Result<(), Ending> {
        self.n_seen += 1;
        match &mut self.mask {
            Some(mask) => mask.accept(token).map_err(constraint_failed),
            None => Ok(()),
        }
    }

    /// The model found no token to choose: nothing was left, or the logits were not numbers.
    pub fn nothing_chosen(&self, position: usize) -> Ending {
        let Sampling { logit_bias, banned, allowed, .. } = &self.sampling;
        let is_restricted = self.mask.is_some() || !logit_bias.is_empty() || !banned.is_empty() || allowed.is_some();
        sample_failed(match is_restricted {
            true => SampleError::NothingAllowed { position },
            false => SampleError::NotNumbers { position },
        })
    }

    /// The next token, given the tokens so far.
    pub fn choose(&mut self, logits: &[f32], tokens: &[TokenId], chooser: &mut Chooser) -> Result<Sampled, Ending> {
        let allowed = self.allowed(tokens.len(), &mut chooser.allowed).map_err(constraint_failed)?;
        let sampled = chooser
            .sampler
            .sample_with(&mut self.state, logits, tokens, &self.sampling, allowed, self.logprobs)
            .map_err(sample_failed)?;
        self.accept(sampled.token)?;
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
        if tokens.len() - self.n_prompt < self.n_seen {
            return Ok(());
        }
        let allowed = self.allowed(tokens.len(), &mut chooser.allowed).map_err(constraint_failed)?;
        chooser.sampler.replay(&mut self.state, logits, tokens, &self.sampling, allowed, token);
        self.accept(token)
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

fn sample_failed(error: SampleError) -> Ending {
    let kind = match error {
        SampleError::NotNumbers { .. } => FailureKind::Numeric,
        SampleError::NothingAllowed { .. } => FailureKind::Constraint,
    };
    Ending::Failed(kind, error.to_string())
}

fn constraint_failed(text: String) -> Ending {
    // What is wrong with the constraint itself says so.
    let is_told = text.starts_with("the constraint ");
    let text = if is_told { text } else { format!("the constraint failed: {text}") };
    Ending::Failed(FailureKind::Constraint, text)
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

    /// The mean of what was added.
    pub fn finish(&self) -> Ending {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Ending::Failed(FailureKind::Numeric, "the model gave hidden states that are not numbers".into());
        }
        let scale = 1.0 / self.n_rows.max(1) as f64;
        Ending::Vector(self.sum.iter().map(|x| (x * scale) as f32).collect())
    }

    /// The vector as long as the request wants it.
    pub fn scaled(&self, mut vector: Vec<f32>) -> Vec<f32> {
        let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        if self.normalize == Normalize::Unit && length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        vector
    }
}
