//! The loop: takes messages, plans a step, runs the model, chooses tokens, sends events. It owns everything it touches
//! and lives on one thread; when there is nothing to do it sleeps in `recv`. Whatever goes wrong with a request ends
//! that request, and the loop goes on.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError, mpsc::Receiver},
    time::Instant,
};

use model::{Attention, Batch, TokenId};

use crate::{
    forward::Forward,
    handle::{Message, QueueSlot, Sink},
    mask::{Mask, MaskFactory, TokenSet},
    protocol::{Embed, Event, FailureKind, FinishReason, Pooling, RequestId, Stats, Submit},
    request::{Ending, Generate, Job, Request, Vector},
    rows::{check_rows, fill_batch, n_pool_rows, offset_of},
    sampler::{SampleError, Sampled, Sampler, State},
    scheduler::{Arrival, Limits, Plan, Reuse, Scheduler},
    sequence::{Output, SeqId, Sequence},
};

pub struct Engine {
    model: Box<dyn Forward>,
    masks: Option<Box<dyn MaskFactory>>,
    scheduler: Scheduler,
    requests: HashMap<SeqId, Request>,
    by_id: HashMap<RequestId, SeqId>,
    sampler: Sampler,
    allowed: TokenSet,
    batch: Batch,
    n_vocab: usize,
    n_ctx: usize,
    /// Only the counters; the rest is filled in when asked.
    counters: Stats,
    /// Where others read the stats without asking.
    board: Arc<Mutex<Stats>>,
}

/// Limits of the engine. Those beyond what the model was loaded for are lowered to it.
#[derive(Copy, Clone, Debug)]
pub struct EngineOptions {
    /// Rows in one step.
    pub max_batch_tokens: usize,
    /// Sequences in one step.
    pub max_running: usize,
    /// Requests that wait for their first step; one more is refused.
    pub max_queue: usize,
    /// Prompt tokens in a step that also generates: larger is faster for prompts, smaller for those already talking.
    pub prefill_chunk: usize,
    /// Longest sequence; `None` takes the model's own limit.
    pub n_ctx: Option<usize>,
    pub reuse: Reuse,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_running: 64,
            max_queue: 1024,
            prefill_chunk: 256,
            n_ctx: None,
            reuse: Reuse::On,
        }
    }
}

/// Where a request's events go, and since when it waits.
pub(crate) struct Origin {
    pub seq: SeqId,
    pub sink: Box<dyn Sink>,
    pub slot: Option<QueueSlot>,
    pub at: Instant,
}

impl Engine {
    pub(crate) fn new(
        model: Box<dyn Forward>,
        options: &EngineOptions,
        masks: Option<Box<dyn MaskFactory>>,
        board: Arc<Mutex<Stats>>,
    ) -> Self {
        let capacity = model.capacity();
        let limits = Limits {
            n_blocks: capacity.n_blocks,
            max_batch_tokens: options.max_batch_tokens.min(capacity.max_batch_tokens),
            max_output_rows: capacity.max_output_rows,
            max_running: options.max_running,
            max_queue: options.max_queue,
            prefill_chunk: options.prefill_chunk,
            reuse: options.reuse,
        };
        Self {
            model,
            masks,
            scheduler: Scheduler::new(limits),
            requests: HashMap::new(),
            by_id: HashMap::new(),
            sampler: Sampler::new(capacity.n_vocab),
            allowed: TokenSet::new(capacity.n_vocab),
            batch: Batch::default(),
            n_vocab: capacity.n_vocab,
            // A sequence can never be longer than the whole pool.
            n_ctx: options.n_ctx.map_or(capacity.n_ctx, |n| n.min(capacity.n_ctx)).min(capacity.n_pool_tokens()),
            counters: Stats { n_blocks: capacity.n_blocks, ..Stats::default() },
            board,
        }
    }

    /// Runs until it is told to stop, until nobody is left to send anything, or until its device is dead: then the
    /// answer is why.
    pub(crate) fn run(mut self, inbox: &Receiver<Message>) -> Option<String> {
        loop {
            if self.scheduler.is_idle() {
                self.publish();
                let Ok(message) = inbox.recv() else { return None };
                if self.take(message).is_break() {
                    self.shut_down(inbox);
                    return None;
                }
            }
            while let Ok(message) = inbox.try_recv() {
                if self.take(message).is_break() {
                    self.shut_down(inbox);
                    return None;
                }
            }
            if !self.scheduler.is_idle() {
                let broken = self.step().err();
                self.publish();
                if let Some(fault) = broken {
                    self.break_down(inbox, &fault);
                    return Some(fault);
                }
            }
        }
    }

    fn publish(&self) {
        *self.board.lock().unwrap_or_else(PoisonError::into_inner) = self.stats();
    }

    fn take(&mut self, message: Message) -> ControlFlow<()> {
        match message {
            Message::Submit(submit, origin) => self.submit(submit, origin),
            Message::Embed(embed, origin) => self.embed(embed, origin),
            Message::Stats(sink) => drop(sink.send(Event::Stats(self.stats()))),
            Message::Gone(seq) => self.end(seq, Ending::Gone),
            Message::Cancel(id) => {
                if let Some(&seq) = self.by_id.get(&id) {
                    self.end(seq, Ending::Finished(FinishReason::Cancelled));
                }
            }
            Message::Shutdown => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn submit(&mut self, submit: Submit, origin: Origin) {
        let (priority, group, constraint) = (submit.priority, submit.group, submit.constraint);
        let is_scored = submit.prompt_logprobs;
        let Submit { id, prompt, generated, sampling, max_tokens, stop_tokens, logprobs, .. } = submit;
        // Mirostat's state follows from every choice so far, so those are looked at again one by one.
        let is_replay = sampling.mirostat.is_some() && !generated.is_empty();
        let seen: &[TokenId] = if is_replay { &[] } else { &generated };
        let mask = constraint.map(|constraint| self.build_mask(&constraint, seen)).transpose();
        let (mask, mut ending) = match mask {
            Ok(mask) => (mask, None),
            Err(error) => (None, Some(Ending::Failed(FailureKind::Constraint, error))),
        };
        let (n_prompt, mut tokens) = (prompt.len(), prompt);
        let state = State::new(&sampling);
        let scores = is_scored.then(Vec::new);
        let generate =
            Generate { sampling, max_tokens, stop_tokens, logprobs, scores, mask, state, n_prompt, n_replayed: 0 };
        tokens.extend(generated);
        // With nothing to generate there is still a prompt to score.
        if ending.is_none() && (!is_scored || max_tokens > tokens.len() - n_prompt) {
            let reason = generate.finish_reason(&tokens[n_prompt..], tokens.len(), self.n_ctx);
            ending = reason.map(Ending::Finished);
        }
        let output = match (is_scored, is_replay) {
            (true, _) => Output::LogitsFrom(0),
            (false, true) => Output::LogitsFrom(n_prompt - 1),
            (false, false) => Output::Logits,
        };
        let attention = Attention::Causal;
        let arrival = Arrival { id: origin.seq, tokens, n_prompt, priority, group, output, attention };
        self.add(id, arrival, Job::Generate(generate), origin, ending);
    }

    fn embed(&mut self, embed: Embed, origin: Origin) {
        let Embed { id, tokens, pooling, attention, normalize, priority, group } = embed;
        let vector = Vector { pooling, normalize, sum: Vec::new(), n_rows: 0 };
        let (n_prompt, output) = (tokens.len(), Output::Hidden(pooling));
        let arrival = Arrival { id: origin.seq, tokens, n_prompt, priority, group, output, attention };
        self.add(id, arrival, Job::Embed(vector), origin, None);
    }

    /// Queues a request, or ends it at once with `ending` or because it cannot be queued.
    fn add(&mut self, id: RequestId, arrival: Arrival, job: Job, origin: Origin, ending: Option<Ending>) {
        let request = Request::new(id, job, origin.sink, origin.slot, origin.at);
        let refuse = |text: &str| Ending::Failed(FailureKind::Request, format!("request {}: {text}", id.0));
        let (ending, seq) = if self.by_id.contains_key(&id) {
            (refuse("another request with this id is in flight"), None)
        } else if let Some(ending) = ending {
            (ending, Some(Sequence::unscheduled(arrival)))
        } else if let Err(refused) = self.scheduler.add(arrival) {
            (refuse(&format!("the scheduler refused it: {refused:?}")), None)
        } else {
            self.by_id.insert(id, origin.seq);
            self.requests.insert(origin.seq, request);
            return;
        };
        self.count(&ending);
        request.end(ending, seq.as_ref());
    }

    /// A mask that has seen the tokens of an earlier engine.
    fn build_mask(&mut self, constraint: &str, generated: &[TokenId]) -> Result<Box<dyn Mask>, String> {
        let factory = self.masks.as_mut().ok_or("this engine was started without support for constraints")?;
        let mut mask = factory.build(constraint, self.n_vocab)?;
        generated.iter().try_for_each(|&token| mask.accept(token))?;
        Ok(mask)
    }

    /// An error is the end of the device.
    fn step(&mut self) -> Result<(), String> {
        let plan = self.scheduler.plan();
        assert!(!plan.chunks.is_empty(), "sequences wait and none can run");
        let now = Instant::now();
        for seq in &plan.preempted {
            self.requests.entry(*seq).and_modify(Request::preempt);
        }
        for seq in &plan.admitted {
            self.requests.entry(*seq).and_modify(|request| request.start(now));
        }
        fill_batch(&mut self.batch, &plan, &self.scheduler);
        self.fill_choices(&plan);
        self.counters.n_steps += 1;
        let result = self.model.forward(&self.batch).map_err(|error| describe(error.as_ref()));
        let rows = result.and_then(|rows| check_rows(rows, &self.batch, self.n_vocab));
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                let seqs: Vec<SeqId> = plan.chunks.iter().map(|chunk| chunk.seq).collect();
                for seq in seqs {
                    self.end(seq, Ending::Failed(FailureKind::Forward, format!("the forward pass failed: {error}")));
                }
                return self.model.fault().map_or(Ok(()), Err);
            }
        };
        self.counters.n_tokens_computed += self.batch.n_rows() as u64;
        self.scheduler.advance(&plan);
        let n_embd = rows.hidden.len().checked_div(self.batch.pool_rows.len()).unwrap_or(0);
        let mut logits = rows.logits.chunks_exact(self.n_vocab.max(1));
        let mut chosen = rows.chosen.iter();
        let mut hidden = rows.hidden;
        let mut endings = Vec::new();
        for chunk in &plan.chunks {
            let request = self.requests.get_mut(&chunk.seq).expect("a planned request is in flight");
            let seq = self.scheduler.get(chunk.seq).expect("a planned sequence is running");
            if let (Job::Generate(generate), Output::LogitsFrom(from)) = (&mut request.job, seq.output) {
                let first = chunk.first + offset_of(from, chunk);
                let end = (chunk.first + chunk.n_tokens).min(seq.tokens.len() - 1);
                let mut result = Ok(());
                for at in first..end {
                    let row = logits.next().expect("a row for each token looked at again");
                    let (tokens, token) = (&seq.tokens[..=at], seq.tokens[at + 1]);
                    result = result.and_then(|()| match at + 1 < seq.n_prompt {
                        true => generate.score(row, tokens, token, &mut self.sampler),
                        false => generate.replay(row, tokens, token, &mut self.sampler, &mut self.allowed),
                    });
                }
                let result = result.and_then(|()| request.send_prompt());
                if let Err(ending) = result {
                    if chunk.is_last {
                        logits.next();
                    }
                    endings.push((chunk.seq, ending, false));
                    continue;
                }
            }
            let ending = match &mut request.job {
                Job::Generate(generate) if chunk.is_last && seq.tokens.len() - seq.n_prompt >= generate.max_tokens => {
                    // Only the prompt was to be scored.
                    logits.next();
                    Some(Ending::Finished(FinishReason::Length))
                }
                Job::Generate(generate) if chunk.is_last => {
                    let outcome = match chosen.next() {
                        Some(&token) => take_chosen(token, seq.tokens.len()),
                        None => {
                            let row = logits.next().expect("a row for each last chunk");
                            generate.choose(row, &seq.tokens, &mut self.sampler, &mut self.allowed)
                        }
                    };
                    match outcome {
                        Ok(sampled) => {
                            self.counters.n_tokens_generated += 1;
                            let index = seq.tokens.len() - seq.n_prompt;
                            let seq = self.scheduler.push_token(chunk.seq, sampled.token);
                            give_token(request, seq, index, sampled, self.n_ctx)
                        }
                        Err(ending) => Some(ending),
                    }
                }
                Job::Generate(_) => None,
                Job::Embed(vector) => {
                    let n_rows = n_pool_rows(vector.pooling, chunk);
                    let (own, rest) = hidden.split_at(n_rows * n_embd);
                    hidden = rest;
                    vector.add(own, n_rows);
                    chunk.is_last.then(|| vector.finish())
                }
            };
            let is_scored =
                matches!(&request.job, Job::Embed(vector) if matches!(vector.pooling, Pooling::Score { .. }));
            endings.extend(ending.map(|ending| (chunk.seq, ending, is_scored)));
        }
        for (seq, ending, is_scored) in endings {
            let ending = match ending {
                Ending::Vector(hidden) if is_scored => match self.model.score(&hidden) {
                    Some(scores) => Ending::Vector(scores),
                    None => Ending::Failed(FailureKind::Request, "this model has no head to score texts with".into()),
                },
                ending => ending,
            };
            self.end(seq, ending);
        }
        Ok(())
    }

    /// Lets the model choose the tokens, where it can and every request of the step allows it.
    fn fill_choices(&mut self, plan: &Plan) {
        self.batch.choices.clear();
        if !self.model.chooses() {
            return;
        }
        for chunk in &plan.chunks {
            let (request, seq) = (&self.requests[&chunk.seq], self.scheduler.get(chunk.seq));
            let (Job::Generate(generate), Some(seq)) = (&request.job, seq) else { continue };
            if matches!(seq.output, Output::LogitsFrom(_)) {
                return self.batch.choices.clear();
            }
            if !chunk.is_last {
                continue;
            }
            match generate.choice(seq.tokens.len()) {
                Some(choice) => self.batch.choices.push(choice),
                None => return self.batch.choices.clear(),
            }
        }
    }

    /// Takes a request out, releases its blocks, and tells its caller. Unknown ones ended before.
    fn end(&mut self, seq: SeqId, ending: Ending) {
        let (Some(request), Some(sequence)) = (self.requests.remove(&seq), self.scheduler.remove(seq)) else { return };
        self.by_id.remove(&request.id);
        self.count(&ending);
        request.end(ending, Some(&sequence));
    }

    fn count(&mut self, ending: &Ending) {
        match ending {
            Ending::Failed(..) => self.counters.n_failed += 1,
            _ => self.counters.n_finished += 1,
        }
    }

    /// Every request, also those that only wait, ends with the reason.
    fn break_down(mut self, inbox: &Receiver<Message>, fault: &str) {
        while let Ok(message) = inbox.try_recv() {
            let _ = self.take(message);
        }
        let seqs: Vec<SeqId> = self.requests.keys().copied().collect();
        let error = format!("the device is lost: {fault}");
        seqs.into_iter().for_each(|seq| self.end(seq, Ending::Failed(FailureKind::Forward, error.clone())));
    }

    fn shut_down(mut self, inbox: &Receiver<Message>) {
        // What was sent before the thread ends still gets an answer.
        while let Ok(message) = inbox.try_recv() {
            let _ = self.take(message);
        }
        let seqs: Vec<SeqId> = self.requests.keys().copied().collect();
        seqs.into_iter().for_each(|seq| self.end(seq, Ending::Finished(FinishReason::Cancelled)));
    }

    fn stats(&self) -> Stats {
        let pool = self.scheduler.pool();
        Stats {
            n_running: self.scheduler.running().len(),
            n_waiting: self.scheduler.n_waiting(),
            n_blocks_held: pool.n_blocks() - pool.n_available(),
            n_blocks_cached: pool.n_idle(),
            n_preemptions: self.scheduler.n_preemptions(),
            n_tokens_cached: self.scheduler.n_tokens_cached(),
            ..self.counters.clone()
        }
    }
}

/// Sends a token that was just added to `seq`; says whether it was the last.
fn give_token(request: &mut Request, seq: &Sequence, index: usize, sampled: Sampled, n_ctx: usize) -> Option<Ending> {
    if let Err(ending) = request.send_token(index, sampled, Instant::now()) {
        return Some(ending);
    }
    let Job::Generate(generate) = &request.job else { return None };
    generate.finish_reason(&seq.tokens[seq.n_prompt..], seq.tokens.len(), n_ctx).map(Ending::Finished)
}

/// A token that the model chose for the place after `position` tokens.
fn take_chosen(token: TokenId, position: usize) -> Result<Sampled, Ending> {
    if token.0 == model::NOT_NUMBERS {
        let error = SampleError::NotNumbers { position };
        return Err(Ending::Failed(FailureKind::Numeric, error.to_string()));
    }
    Ok(Sampled { token, logprob: f32::NAN, top: Vec::new() })
}

/// An error with what caused it.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
