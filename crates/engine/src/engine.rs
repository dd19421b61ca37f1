//! The engine's loop: takes messages, runs steps (`step.rs`), ends requests. It owns everything it touches and lives on
//! one thread; when there is nothing to do it sleeps in `recv`. Whatever goes wrong with a request ends that request,
//! and the loop continues.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ops::ControlFlow,
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    time::{Duration, Instant},
};

use batch::{AdapterId, Attention, Batch, Forward, TokenId};

use crate::{
    handle::{EngineMessage, Helpers, QueueSlot, SharedStats, Sink},
    keeping::{Keeper, Saving},
    mask::{Mask, MaskFactory},
    masking::LateRow,
    protocol::{Event, FailureKind, FinishReason, RequestId, Stats, Submit, VectorRequest},
    request::{ActiveRequest, Chooser, Ending, Generate, Job, Vector},
    sampler::SamplerState,
    scheduler::{Arrival, Reuse, ScheduleLimits, Scheduler},
    sequence::{SeqId, Sequence, Wanted},
    speculation::{Drafting, Speculator},
    step::StepInFlight,
};

/// How long the engine waits for a disk that does not keep up, when it has nothing else to do.
const DISK_WAIT: Duration = Duration::from_millis(20);

pub struct Engine {
    pub(crate) model: Box<dyn Forward>,
    pub(crate) scheduler: Scheduler,
    pub(crate) requests: HashMap<SeqId, ActiveRequest>,
    pub(crate) chooser: Chooser,
    pub(crate) batch: Batch,
    /// Oldest first.
    pub(crate) in_flight: VecDeque<StepInFlight>,
    /// How long the device took for the latest step, about: from when it was begun, or the one before it was read.
    pub(crate) step_time: Duration,
    /// When the latest step was read.
    pub(crate) last_read: Instant,
    /// Rows whose masks were not known when their step was done.
    pub(crate) late: Vec<LateRow>,
    pub(crate) n_vocab: usize,
    pub(crate) n_ctx: usize,
    pub(crate) speculator: Option<Speculator>,
    pub(crate) keeper: Option<Keeper>,
    /// Only the counters; the rest is filled in when asked.
    pub(crate) counters: Stats,
    masks: Option<Box<dyn MaskFactory>>,
    by_id: HashMap<RequestId, SeqId>,
    shared_stats: SharedStats,
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
    /// Whether the changes of the prefix cache are told ([`Handle::kv_log`](crate::Handle::kv_log)).
    pub tells_cache: bool,
    /// When drafts are made, if there is a drafter.
    pub drafting: Drafting,
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
            tells_cache: false,
            drafting: Drafting::default(),
        }
    }
}

/// Where a request's events go, and since when it waits.
pub struct ReplyTo {
    pub seq: SeqId,
    pub sink: Box<dyn Sink>,
    pub slot: Option<QueueSlot>,
    pub at: Instant,
}

impl Engine {
    pub(crate) fn new(
        model: Box<dyn Forward>,
        options: &EngineOptions,
        helpers: Helpers,
        shared_stats: SharedStats,
    ) -> Self {
        let Helpers { masks, drafter, store } = helpers;
        let capacity = model.capacity();
        let limits = ScheduleLimits {
            n_blocks: capacity.n_blocks,
            max_batch_tokens: options.max_batch_tokens.min(capacity.max_batch_tokens),
            max_output_rows: capacity.max_output_rows,
            max_running: options.max_running,
            max_queue: options.max_queue,
            prefill_chunk: options.prefill_chunk,
            reuse: options.reuse,
            max_adapters: model.max_adapters(),
        };
        let mut scheduler = Scheduler::new(limits).with_states(model.n_states()).with_windows(model.windows());
        if options.tells_cache {
            scheduler.changes().record();
        }
        let bytes = model.cache_bytes();
        let keeper = store.filter(|_| bytes.block > 0 || bytes.state > 0).map(|store| Keeper::new(store, bytes));
        if let Some(keeper) = &keeper {
            scheduler.keep(keeper.store().names());
        }
        // A sequence can never be longer than the whole pool.
        let n_ctx = options.n_ctx.map_or(capacity.n_ctx, |n| n.min(capacity.n_ctx)).min(scheduler.max_len());
        Self {
            speculator: drafter.map(|drafter| Speculator::new(drafter, options.drafting, model.n_states())),
            keeper,
            model,
            masks,
            scheduler,
            requests: HashMap::new(),
            by_id: HashMap::new(),
            chooser: Chooser::new(capacity.n_vocab),
            batch: Batch::default(),
            in_flight: VecDeque::new(),
            step_time: Duration::ZERO,
            last_read: Instant::now(),
            late: Vec::new(),
            n_vocab: capacity.n_vocab,
            n_ctx,
            counters: Stats { n_blocks: capacity.n_blocks, ..Stats::default() },
            shared_stats,
        }
    }

    /// Runs until it is told to stop, until nobody is left to send anything, or until its device is dead: then the
    /// answer is why.
    pub(crate) fn run(mut self, inbox: &Receiver<EngineMessage>) -> Option<String> {
        loop {
            if self.is_idle() {
                self.publish();
                self.speculator.iter_mut().for_each(Speculator::rest);
                let Some(message) = self.rest(inbox) else {
                    self.save_the_rest();
                    return None;
                };
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
            if !self.is_idle() {
                let broken = self.step().err();
                self.shared_stats.kv_log.push(self.scheduler.changes().take());
                self.publish();
                if let Some(fault) = broken {
                    self.break_down(inbox, &fault);
                    return Some(fault);
                }
            }
        }
    }

    /// Waits for a message, and uses the time. `None`: nobody is left to send one.
    fn rest(&mut self, inbox: &Receiver<EngineMessage>) -> Option<EngineMessage> {
        loop {
            match inbox.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            match self.save_some() {
                Saving::Done => {
                    self.publish();
                    return inbox.recv().ok();
                }
                Saving::More => {}
                Saving::Later => match inbox.recv_timeout(DISK_WAIT) {
                    Ok(message) => return Some(message),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return None,
                },
            }
        }
    }

    /// Nothing to do, and nothing under way.
    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.in_flight.is_empty()
    }

    fn publish(&self) {
        self.shared_stats.publish(self.stats());
    }

    fn take(&mut self, message: EngineMessage) -> ControlFlow<()> {
        match message {
            EngineMessage::Submit(submit, reply_to) => self.submit(submit, reply_to),
            EngineMessage::Embed(embed, reply_to) => self.embed(embed, reply_to),
            EngineMessage::Stats(sink) => drop(sink.send(Event::Stats(Box::new(self.stats())))),
            EngineMessage::Gone(seq) => self.end(seq, Ending::Gone),
            EngineMessage::Cancel(id) => {
                if let Some(&seq) = self.by_id.get(&id) {
                    self.end(seq, Ending::Finished(FinishReason::Cancelled));
                }
            }
            EngineMessage::Shutdown => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn submit(&mut self, mut submit: Submit, reply_to: ReplyTo) {
        let session = submit.session.take().map(|session| self.write_session(&session, &submit));
        let (priority, group, constraint) = (submit.priority, submit.group, submit.constraint);
        let (is_scored, progress, adapter) = (submit.prompt_logprobs, submit.progress, submit.adapter);
        let (max_draft, prediction) = (submit.max_draft, submit.prediction);
        let Submit { id, prompt, generated, sampling, max_tokens, stop_tokens, logprobs, .. } = submit;
        // Mirostat's state follows from every choice so far, so those are looked at again one by one.
        let is_replay = sampling.mirostat.is_some() && !generated.is_empty();
        let seen: &[TokenId] = if is_replay { &[] } else { &generated };
        let n_seen = seen.len();
        let mask = constraint.map(|constraint| self.build_mask(&constraint, seen)).transpose();
        let (mask, mut ending) = match mask {
            Ok(mask) => (mask, None),
            Err(error) => (None, Some(Ending::Failed(FailureKind::Constraint, error))),
        };
        if adapter.is_some() && self.model.max_adapters() == 0 {
            let text = "this model was loaded without room for adapters";
            ending = Some(Ending::Failed(FailureKind::Request, text.into()));
        }
        if let Some(Err(error)) = session {
            ending = Some(Ending::Failed(FailureKind::Request, error));
        }
        let adapter_id = adapter.as_ref().map(|adapter| adapter.id);
        let (n_prompt, mut tokens) = (prompt.len(), prompt);
        let state = SamplerState::new(&sampling);
        let scores = is_scored.then(Vec::new);
        let generate = Generate {
            sampling,
            max_tokens,
            stop_tokens,
            logprobs,
            scores,
            progress,
            max_draft,
            prediction,
            mask,
            adapter,
            state,
            n_prompt,
            n_seen,
        };
        tokens.extend(generated);
        // With nothing to generate there is still a prompt to score.
        if ending.is_none() && (!is_scored || max_tokens > tokens.len() - n_prompt) {
            let reason = generate.finish_reason(&tokens[n_prompt..], tokens.len(), self.n_ctx);
            ending = reason.map(Ending::Finished);
        }
        let wanted = match (is_scored, is_replay) {
            (true, _) => Wanted::LogitsFrom(0),
            (false, true) => Wanted::LogitsFrom(n_prompt - 1),
            (false, false) => Wanted::Logits,
        };
        let (attention, max_len) = (Attention::Causal, n_prompt.saturating_add(max_tokens).min(self.n_ctx));
        let (id_of_seq, adapter) = (reply_to.seq, adapter_id);
        let arrival = Arrival { id: id_of_seq, tokens, n_prompt, max_len, priority, group, wanted, attention, adapter };
        self.add(id, arrival, Job::Generate(generate), reply_to, ending);
    }

    fn embed(&mut self, embed: VectorRequest, reply_to: ReplyTo) {
        let VectorRequest { id, tokens, pooling, attention, normalize, priority, group } = embed;
        let vector = Vector { pooling, normalize, sum: Vec::new(), n_rows: 0 };
        let (n_prompt, wanted) = (tokens.len(), Wanted::Hidden(pooling));
        let arrival = Arrival {
            id: reply_to.seq,
            tokens,
            n_prompt,
            max_len: n_prompt,
            priority,
            group,
            wanted,
            attention,
            adapter: None,
        };
        self.add(id, arrival, Job::Embed(vector), reply_to, None);
    }

    /// Queues a request, or ends it at once with `ending` or because it cannot be queued.
    fn add(&mut self, id: RequestId, arrival: Arrival, job: Job, reply_to: ReplyTo, ending: Option<Ending>) {
        let request = ActiveRequest::new(id, job, reply_to.sink, reply_to.slot, reply_to.at);
        let refuse = |text: &str| Ending::Failed(FailureKind::Request, format!("request {}: {text}", id.0));
        let (ending, seq) = if self.by_id.contains_key(&id) {
            (refuse("another request with this id is in flight"), None)
        } else if let Some(ending) = ending {
            (ending, Some(Sequence::unscheduled(arrival)))
        } else if let Err(refused) = self.scheduler.add(arrival) {
            (refuse(&format!("the scheduler refused it: {refused:?}")), None)
        } else {
            self.by_id.insert(id, reply_to.seq);
            self.requests.insert(reply_to.seq, request);
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

    /// Takes a request out, releases its blocks, and tells its caller. Unknown ones ended before.
    pub(crate) fn end(&mut self, seq: SeqId, ending: Ending) {
        let (Some(request), Some(sequence)) = (self.requests.remove(&seq), self.scheduler.remove(seq)) else { return };
        self.by_id.remove(&request.id);
        self.speculator.iter_mut().for_each(|speculator| speculator.end(seq));
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
    fn break_down(mut self, inbox: &Receiver<EngineMessage>, fault: &str) {
        while let Ok(message) = inbox.try_recv() {
            let _ = self.take(message);
        }
        let seqs: Vec<SeqId> = self.requests.keys().copied().collect();
        let error = format!("the device is lost: {fault}");
        seqs.into_iter().for_each(|seq| self.end(seq, Ending::Failed(FailureKind::Forward, error.clone())));
    }

    fn shut_down(mut self, inbox: &Receiver<EngineMessage>) {
        // What was sent before the thread ends still gets an answer.
        while let Ok(message) = inbox.try_recv() {
            let _ = self.take(message);
        }
        let seqs: Vec<SeqId> = self.requests.keys().copied().collect();
        seqs.into_iter().for_each(|seq| self.end(seq, Ending::Finished(FinishReason::Cancelled)));
        self.publish();
        self.save_the_rest();
    }

    fn stats(&self) -> Stats {
        let pool = self.scheduler.pool();
        let windows = self.scheduler.windows().map(|windows| windows.pool());
        Stats {
            n_window_blocks: windows.map_or(0, |pool| pool.n_blocks()),
            n_window_blocks_held: windows.map_or(0, |pool| pool.n_blocks() - pool.n_available()),
            n_running: self.scheduler.running().len(),
            n_waiting: self.scheduler.n_waiting(),
            n_blocks_held: pool.n_blocks() - pool.n_available(),
            n_blocks_cached: pool.n_idle(),
            n_preemptions: self.scheduler.n_preemptions(),
            n_tokens_cached: self.scheduler.n_tokens_cached(),
            kept: self.keeper.as_ref().map(Keeper::stats).unwrap_or_default(),
            running_adapters: each_once(self.scheduler.running().iter().filter_map(|seq| seq.adapter)),
            waiting_adapters: match self.model.max_adapters() {
                0 => Vec::new(),
                _ => each_once(self.scheduler.waiting().filter_map(|seq| seq.adapter)),
            },
            ..self.counters.clone()
        }
    }
}

fn each_once(ids: impl Iterator<Item = AdapterId>) -> Vec<AdapterId> {
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}
