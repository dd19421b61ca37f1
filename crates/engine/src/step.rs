//! One step: plan, forward, distribute. A model that takes several steps at once is given the next step before the last
//! one is read, so that the device never waits for the host: sequences continue with tokens that only the device knows,
//! and the host learns them one step late.
//!
//! A request that ends in the meantime (a stop token, a cancel, a failure) leaves rows that nobody owns in a step under
//! way. They are dropped when that step is distributed: their tokens are not sent and their blocks are not published.

use std::time::{Duration, Instant};

use batch::{AdapterId, Adjustment, Ticket};

use crate::{
    engine::Engine,
    masking::{LateRow, MASKS_WAIT},
    protocol::{Drafted, FailureKind, FinishReason, Pooling, STEP_BOUNDS, Stats},
    request::{ActiveRequest, Chooser, Ending, Generate, Job},
    rows::{ChunkRows, ModelChoice, RowCounts, RowRanges, fill_batch, offset_of},
    sampler::Sampled,
    scheduler::{Chunk, Scheduler, StepPlan},
    sequence::{SeqId, Sequence, Wanted},
    speculation::Speculator,
};

/// How long the engine waits for a late mask when there is nothing else to do, before it looks at its messages again.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// A step that was submitted.
pub(crate) struct StepInFlight {
    pub ticket: Ticket,
    pub plan: StepPlan,
    /// Of each chunk of the plan.
    pub ranges: Vec<RowRanges>,
    pub counts: RowCounts,
    n_rows: usize,
    /// When it was begun.
    pub start: Instant,
    /// Its tokens are still to be [chosen](Engine::choose_open).
    pub is_open: bool,
}

/// A planned step: what the scheduler wants, and how the model is to choose the tokens after each chunk, if it is.
pub(crate) struct PlannedStep {
    plan: StepPlan,
    choices: Vec<Vec<ModelChoice>>,
}

impl Engine {
    /// Submits the next step if there is one, and distributes the oldest where the model takes no more or nothing else
    /// is left to do. An error is the end of the device.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.take_late(Duration::ZERO);
        self.restore()?;
        self.propose();
        let planned = self.plan();
        let is_planned = planned.is_some();
        if let Some(step) = planned {
            self.forward(step)?;
            self.choose_open()?;
        }
        if !is_planned && self.in_flight.is_empty() {
            // What is copied in next is no reason to wait.
            let wait = if self.scheduler.is_restoring() { Duration::ZERO } else { IDLE_WAIT };
            self.take_late(wait);
        } else if !is_planned || self.in_flight.len() >= self.model.max_in_flight().max(1) {
            self.distribute_oldest()?;
        }
        Ok(())
    }

    /// What the next step computes; `None` while everything depends on steps under way.
    fn plan(&mut self) -> Option<PlannedStep> {
        let mut plan = self.scheduler.plan();
        self.note_spills();
        assert!(
            !plan.chunks.is_empty()
                || self.scheduler.is_restoring()
                || !self.in_flight.is_empty()
                || !self.late.is_empty()
                || self.scheduler.is_idle(),
            "sequences wait and none can run"
        );
        let now = Instant::now();
        for seq in &plan.preempted {
            self.requests.entry(*seq).and_modify(ActiveRequest::preempt);
        }
        for seq in &plan.admitted {
            self.requests.entry(*seq).and_modify(|request| request.start(now));
        }
        self.load_adapters(&mut plan);
        let (mut n_adjusted, masks_until) = (0, now + MASKS_WAIT);
        let mut choices: Vec<_> = Vec::with_capacity(plan.chunks.len());
        for chunk in &plan.chunks {
            let mut choice = self.choices(chunk, masks_until);
            n_adjusted += choice.iter().filter(|choice| choice.adjustment.is_some() || choice.waits).count();
            if n_adjusted > Adjustment::MAX_ROWS {
                choice.retain(|choice| choice.adjustment.is_none() && !choice.waits);
            }
            choices.push((*chunk, choice));
        }
        // Rows that are read back come first, so that they are one piece, and then those that may have to be.
        choices.sort_by_key(|(_, choice)| (!choice.is_empty(), !choice.iter().any(|choice| choice.waits)));
        plan.chunks = choices.iter().map(|(chunk, _)| *chunk).collect();
        let choices = choices.into_iter().map(|(_, choice)| choice).collect();
        (!plan.chunks.is_empty()).then_some(PlannedStep { plan, choices })
    }

    /// Makes the adapters of those who start ready. A request whose adapter cannot be loaded leaves the step and fails.
    fn load_adapters(&mut self, plan: &mut StepPlan) {
        let in_use: Vec<AdapterId> = self.scheduler.running().iter().filter_map(|seq| seq.adapter).collect();
        for seq in std::mem::take(&mut plan.admitted) {
            let Some(Job::Generate(generate)) = self.requests.get(&seq).map(|request| &request.job) else { continue };
            let Some(adapter) = &generate.adapter else { continue };
            if let Err(error) = self.model.load_adapter(adapter, &in_use) {
                if let Some(at) = plan.chunks.iter().position(|chunk| chunk.seq == seq) {
                    self.scheduler.abandon(&plan.chunks.remove(at));
                }
                self.end(seq, Ending::Failed(FailureKind::Request, describe(error.as_ref())));
            }
        }
    }

    /// How the model may choose the tokens after a chunk, if it can and the request needs no look at the logits.
    fn choices(&mut self, chunk: &Chunk, masks_until: Instant) -> Vec<ModelChoice> {
        if !chunk.is_last || !self.model.chooses() {
            return Vec::new();
        }
        let choices = (0..=chunk.n_drafted).map(|i| self.choice(chunk, chunk.n_certain() + i, masks_until));
        // What comes before a drafted token changes an adjustment, and is known after the step.
        let is_possible = |choice: &ModelChoice| chunk.n_drafted == 0 || choice.adjustment.is_none();
        choices.map(|choice| choice.filter(is_possible)).collect::<Option<_>>().unwrap_or_default()
    }

    fn choice(&mut self, chunk: &Chunk, position: usize, masks_until: Instant) -> Option<ModelChoice> {
        let seq = self.scheduler.get(chunk.seq).filter(|seq| seq.wanted == Wanted::Logits)?;
        let Job::Generate(generate) = &mut self.requests.get_mut(&seq.id)?.job else { return None };
        // Host and model may differ in the last bit. Where that must not show, who chooses may not depend on the time a
        // mask takes, nor on how many other rows are adjusted.
        let is_invariant = self.model.is_row_invariant();
        if is_invariant && generate.mask.is_some() {
            return None;
        }
        // Where the model can choose later, the masks are computed while it computes. One that is known while a token is
        // under way is the mask for that token.
        let can_wait = self.model.chooses_later() && chunk.n_drafted == 0;
        let is_ahead = chunk.n_drafted == 0 && generate.mask.is_some() && position > seq.tokens.len();
        if is_ahead || !generate.has_mask_until(if can_wait { Instant::now() } else { masks_until }) {
            return if can_wait { generate.waiting_choice(position) } else { None };
        }
        let choice = generate.model_choice(&seq.tokens, position, &mut self.chooser)?;
        (!is_invariant || choice.adjustment.is_none()).then_some(choice)
    }

    /// Submits a step. One that the model refuses fails its requests, after they got what steps under way have for them.
    fn forward(&mut self, step: PlannedStep) -> Result<(), String> {
        let PlannedStep { plan, choices } = step;
        let start = Instant::now();
        let reads_hidden = self.speculator.as_ref().is_some_and(Speculator::reads_hidden);
        let max_hidden = if reads_hidden { self.scheduler.limits().max_output_rows } else { 0 };
        let ranges = fill_batch(&mut self.batch, &plan, &self.scheduler, choices, max_hidden);
        self.spill_before(&plan)?;
        self.counters.n_steps += 1;
        let ticket = match self.model.submit(&self.batch) {
            Ok(ticket) => ticket,
            Err(error) => {
                while !self.in_flight.is_empty() {
                    self.distribute_oldest()?;
                }
                return self.fail(&plan, &describe(error.as_ref()));
            }
        };
        self.scheduler.commit(&plan);
        for (chunk, ranges) in plan.chunks.iter().zip(&ranges) {
            if chunk.is_last && matches!(self.requests[&chunk.seq].job, Job::Generate(_)) {
                self.scheduler.expect_token(chunk.seq);
                // One whose mask is not known yet may come too late to be chosen by the model.
                if ranges.chosen.len() == 1 && !ranges.waits {
                    self.feed_from(chunk.seq, ranges.chosen.start);
                }
            }
        }
        let (counts, n_rows, is_open) = (RowCounts::of(&self.batch), self.batch.n_rows(), self.batch.chooses_later);
        self.in_flight.push_back(StepInFlight { ticket, plan, ranges, counts, n_rows, start, is_open });
        Ok(())
    }

    /// The next step may take this sequence's token from the choices of the step that was submitted last.
    pub(crate) fn feed_from(&mut self, seq: SeqId, choice_idx: usize) {
        // What a constraint allows after it must not have to be known when the next step is submitted.
        let is_masked = || match self.requests.get(&seq).map(|request| &request.job) {
            Some(Job::Generate(generate)) => generate.mask.is_some(),
            _ => true,
        };
        let can_be_fed = self.model.max_in_flight() > 1 && (self.model.chooses_later() || !is_masked());
        if can_be_fed && !self.waits_to_draft(seq) {
            self.scheduler.feed_from(seq, choice_idx as u32);
        }
    }

    /// Waits for the oldest step, and gives everyone what it has for them.
    pub(crate) fn distribute_oldest(&mut self) -> Result<(), String> {
        let Some(step) = self.in_flight.pop_front() else { return Ok(()) };
        let StepInFlight { ticket, plan, ranges, counts, n_rows, start, .. } = step;
        let rows = self.model.wait(ticket).map_err(|error| describe(error.as_ref()));
        let rows = rows.and_then(|rows| counts.check(&rows, self.n_vocab).map(|()| rows));
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.fail(&plan, &error),
        };
        let now = Instant::now();
        self.step_time = now - self.last_read.max(start);
        self.last_read = now;
        self.speculator.iter_mut().for_each(|speculator| speculator.note_step(&plan, start));
        self.counters.n_tokens_computed += n_rows as u64;
        self.counters.n_logits_read += counts.n_logits as u64;
        self.counters.n_steps_by_rows[STEP_BOUNDS.partition_point(|&bound| bound < n_rows)] += 1;
        let masks_until = Instant::now() + MASKS_WAIT;
        let (n_vocab, n_embd) = (self.n_vocab, counts.n_embd(&rows));
        let mut endings = Vec::new();
        for (chunk, ranges) in plan.chunks.iter().zip(&ranges) {
            self.scheduler.publish(chunk);
            let Some(request) = self.requests.get_mut(&chunk.seq) else { continue };
            let rows = ranges.of(&rows, n_vocab, n_embd);
            if chunk.is_last && rows.chosen.is_empty() && !request.has_mask_until(masks_until) {
                self.late.push(LateRow { chunk: *chunk, logits: rows.logits.to_vec() });
                if let (Some(speculator), Some(seq)) = (&mut self.speculator, self.scheduler.get(chunk.seq)) {
                    speculator.observe(seq, chunk, rows);
                }
                continue;
            }
            let consumer =
                RowConsumer { scheduler: &mut self.scheduler, chooser: &mut self.chooser, n_ctx: self.n_ctx };
            let ending = match &request.job {
                Job::Generate(_) => consumer.take_logits(request, chunk, rows, masks_until, &mut self.counters),
                Job::Embed(_) => consumer.take_hidden(request, chunk, rows),
            };
            endings.extend(ending.map(|ending| (chunk.seq, ending)));
            if let (Some(speculator), Some(seq)) = (&mut self.speculator, self.scheduler.get(chunk.seq)) {
                speculator.observe(seq, chunk, rows);
            }
        }
        for (seq, ending) in endings {
            let ending = self.complete_vector(seq, ending);
            self.end(seq, ending);
        }
        Ok(())
    }

    /// From pooled hidden states to what was asked for: a reranker's scores, or a vector.
    fn complete_vector(&self, seq: SeqId, ending: Ending) -> Ending {
        let (Ending::Vector(pooled), Some(Job::Embed(vector))) =
            (&ending, self.requests.get(&seq).map(|request| &request.job))
        else {
            return ending;
        };
        match vector.pooling {
            Pooling::Score { .. } => match self.model.score(pooled) {
                Some(scores) => Ending::Vector(scores),
                None => Ending::Failed(FailureKind::Request, "this model has no head to score texts with".into()),
            },
            _ => Ending::Vector(vector.scaled(self.model.project(pooled).unwrap_or_else(|| pooled.clone()))),
        }
    }

    /// Fails everyone in a step. An error is the end of the device.
    pub(crate) fn fail(&mut self, plan: &StepPlan, error: &str) -> Result<(), String> {
        for chunk in &plan.chunks {
            self.scheduler.abandon(chunk);
            let text = format!("the forward pass failed: {error}");
            self.end(chunk.seq, Ending::Failed(FailureKind::Forward, text));
        }
        self.model.fault().map_or(Ok(()), Err)
    }
}

/// What taking the rows of one chunk needs, besides the request itself.
pub(crate) struct RowConsumer<'a> {
    pub scheduler: &'a mut Scheduler,
    pub chooser: &'a mut Chooser,
    pub n_ctx: usize,
}

impl RowConsumer<'_> {
    fn take_hidden(self, request: &mut ActiveRequest, chunk: &Chunk, rows: ChunkRows) -> Option<Ending> {
        let Job::Embed(vector) = &mut request.job else { return None };
        // A sequence that was preempted is pooled from its start again.
        let n_preemptions = self.scheduler.get(chunk.seq).map(|seq| seq.n_preemptions);
        if n_preemptions != Some(chunk.n_preemptions) {
            return None;
        }
        vector.add(rows.hidden, rows.n_hidden);
        chunk.is_last.then(|| vector.finish())
    }

    /// The tokens that follow a chunk: one, and as many more as were drafted right. Each is chosen as it would have been
    /// without a draft, and what comes after the first that is not the drafted one is dropped.
    /// Logits are good also for a sequence that was preempted meanwhile.
    pub fn take_logits(
        self,
        request: &mut ActiveRequest,
        chunk: &Chunk,
        rows: ChunkRows,
        masks_until: Instant,
        counters: &mut Stats,
    ) -> Option<Ending> {
        let seq = self.scheduler.get(chunk.seq)?;
        let n_given = match self.chooser.look_at_given(request, seq, chunk, rows) {
            Ok(n_given) => n_given,
            Err(ending) => return Some(ending),
        };
        if !chunk.is_last {
            return request.send_progress(chunk.end(), seq.n_prompt).err();
        }
        let (mut n_accepted, mut ending) = (0, None);
        let mut is_going_on = true;
        while is_going_on {
            let seq = self.scheduler.get(chunk.seq)?;
            let sampled = match self.chooser.choose_row(request, seq, rows, n_given, n_accepted) {
                Ok(sampled) => sampled,
                Err(failed) => {
                    ending = Some(failed);
                    break;
                }
            };
            counters.n_tokens_generated += 1;
            let index = seq.tokens.len() - seq.n_prompt;
            let is_as_drafted = n_accepted < chunk.n_drafted && seq.draft[n_accepted] == sampled.token;
            n_accepted += usize::from(is_as_drafted);
            let seq = self.scheduler.push_token(chunk.seq, sampled.token);
            ending = request.send_token(index, sampled, Instant::now()).err();
            if let (None, Job::Generate(generate)) = (&ending, &request.job) {
                let reason = generate.finish_reason(&seq.tokens[seq.n_prompt..], seq.tokens.len(), self.n_ctx);
                ending = reason.map(Ending::Finished);
            }
            // A mask that takes its time is not waited for: the rest of the draft is dropped.
            is_going_on = is_as_drafted && ending.is_none() && request.has_mask_until(masks_until);
        }
        if chunk.n_drafted > 0 {
            self.scheduler.settle_draft(chunk, n_accepted);
            let (n_tokens, n_accepted) = (chunk.n_drafted as u64, n_accepted as u64);
            let drafted = Drafted { n_drafts: 1, n_tokens, n_accepted };
            counters.drafted += drafted;
            request.note_drafted(drafted);
        }
        ending
    }
}

impl Chooser {
    /// Looks again at tokens that are given. Says how many rows were for them.
    fn look_at_given(
        &mut self,
        request: &mut ActiveRequest,
        seq: &Sequence,
        chunk: &Chunk,
        rows: ChunkRows,
    ) -> Result<usize, Ending> {
        let (Job::Generate(generate), Wanted::LogitsFrom(from)) = (&mut request.job, seq.wanted) else { return Ok(0) };
        let logits = rows.logits.chunks_exact(self.n_vocab().max(1));
        let first = chunk.first + offset_of(from, chunk);
        let end = chunk.end().min(seq.tokens.len() - 1);
        for (at, row) in (first..end).zip(logits) {
            self.look_again(generate, row, seq, at)?;
        }
        request.send_prompt()?;
        Ok(end.saturating_sub(first))
    }

    /// Takes or chooses the token after a row of the chunk: the `idx`th of those after what is given.
    fn choose_row(
        &mut self,
        request: &mut ActiveRequest,
        seq: &Sequence,
        rows: ChunkRows,
        n_given: usize,
        idx: usize,
    ) -> Result<Sampled, Ending> {
        let Job::Generate(generate) = &mut request.job else { unreachable!("only a request for tokens gets any") };
        if seq.tokens.len() - seq.n_prompt >= generate.max_tokens {
            // Only the prompt was to be scored.
            return Err(Ending::Finished(FinishReason::Length));
        }
        match rows.chosen.get(idx) {
            Some(&Some(token)) => {
                generate.accept(token)?;
                let described = rows.described.get(idx).and_then(Option::as_ref);
                let (logprob, top) = described.map_or((f32::NAN, Vec::new()), |d| (d.logprob, d.top.clone()));
                Ok(Sampled { token, logprob, top })
            }
            Some(None) => Err(generate.nothing_chosen(seq.tokens.len())),
            None => {
                let n_vocab = self.n_vocab();
                let row = &rows.logits[(n_given + idx) * n_vocab..][..n_vocab];
                generate.choose(row, &seq.tokens, self)
            }
        }
    }

    /// The token after index `at` is given: a prompt is scored, or the choice of an earlier engine is repeated.
    fn look_again(&mut self, generate: &mut Generate, row: &[f32], seq: &Sequence, at: usize) -> Result<(), Ending> {
        let (tokens, token) = (&seq.tokens[..=at], seq.tokens[at + 1]);
        match at + 1 < seq.n_prompt {
            true => generate.score(row, tokens, token, self),
            false => generate.replay(row, tokens, token, self),
        }
    }
}

/// An error with what caused it.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
