//! The requests of an engine that may die: their inputs, the tokens they have received, and how they continue in the
//! next engine. The supervisor of such an engine tells the ledger what happens, and sends on the commands that it
//! returns.
//!
//! Every token passes through here once, in order. A new engine is given the tokens so far and continues after them.
//!
//! A request that kills engines must not take the others with it. When an engine dies, the requests that it had begun
//! to compute, but had returned nothing for yet, are suspects: the next engine gets them one at a time, before all
//! others. A token, or any other result, clears a suspect, and it continues alongside the next one. A suspect that
//! kills an engine which computed nothing else is refused; if the engine computed others too, the next one gets the
//! suspect first and alone.
//!
//! No process, no wire and no clock policy here: those are in the worker crate.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use crate::{
    engine::ReplyTo,
    handle::{QueueSlot, Sink},
    protocol::{Command, Event, FailureKind, FinishReason, RequestId, Submit, Timings, Usage, VectorRequest},
    sequence::SeqId,
};

/// The requests in flight. Commands that its methods return are for the engine that is up, in this order.
#[derive(Default)]
pub struct Ledger {
    entries: BTreeMap<SeqId, LedgerEntry>,
    by_id: HashMap<RequestId, SeqId>,
    /// Entries that the engine which is up does not have.
    n_unsent: usize,
    /// The suspect that the engine has; all others wait.
    on_trial: Option<SeqId>,
    is_up: bool,
}

/// What the end of an engine says about the requests it was computing.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Blame {
    /// It crashed, hung or lost its device: any of them may be the reason.
    Running,
    /// It was ended from outside.
    Nobody,
}

/// What became of the requests of an engine that died.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub struct Aftermath {
    /// Go on in the next engine.
    pub n_kept: usize,
    /// Were refused, because they were being computed at two breakdowns.
    pub n_refused: usize,
}

struct LedgerEntry {
    id: RequestId,
    job: LedgerJob,
    sink: Box<dyn Sink>,
    slot: Option<QueueSlot>,
    submitted: Instant,
    first_output: Option<Instant>,
    last_output: Option<Instant>,
    /// The engine that is up has it.
    is_sent: bool,
    /// That engine has begun to compute it, ...
    is_started: bool,
    /// ... and given something for it.
    has_result: bool,
    is_cancelled: bool,
    is_suspect: bool,
    /// It was on trial beside others when an engine broke down.
    is_next: bool,
    /// Engines that died under it.
    n_engines_lost: u32,
}

#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
enum LedgerJob {
    Generate(Submit),
    Embed(VectorRequest),
}

/// An event that no engine may send: it cannot be relied on any more.
#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum ProtocolFault {
    #[error("token {index} of a request arrived, expected token {expected}")]
    OutOfOrder { index: usize, expected: usize },
    /// The forward pass failed. Another engine may do better.
    #[error("{0}")]
    Forward(String),
}

impl Ledger {
    /// Requests that have not ended.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the engine that is up has anything to do.
    pub fn is_working(&self) -> bool {
        self.entries.len() > self.n_unsent
    }

    /// Has started and not ended: how many.
    pub fn n_started(&self) -> usize {
        self.entries.values().filter(|entry| entry.is_started).count()
    }

    pub fn submit(&mut self, submit: Submit, reply_to: ReplyTo) -> Vec<Command> {
        self.add(submit.id, LedgerJob::Generate(submit), reply_to)
    }

    pub fn embed(&mut self, embed: VectorRequest, reply_to: ReplyTo) -> Vec<Command> {
        self.add(embed.id, LedgerJob::Embed(embed), reply_to)
    }

    fn add(&mut self, id: RequestId, job: LedgerJob, reply_to: ReplyTo) -> Vec<Command> {
        let ReplyTo { seq, sink, slot, at } = reply_to;
        if self.by_id.contains_key(&id) {
            let error = format!("request {}: another request with this id is in flight", id.0);
            // Nobody listening is no error here.
            let _ = sink.send(Event::Failed { id, kind: FailureKind::Request, error });
            return Vec::new();
        }
        let entry = LedgerEntry {
            id,
            job,
            sink,
            slot,
            submitted: at,
            first_output: None,
            last_output: None,
            is_sent: false,
            is_started: false,
            has_result: false,
            is_cancelled: false,
            is_suspect: false,
            is_next: false,
            n_engines_lost: 0,
        };
        self.by_id.insert(id, seq);
        self.entries.insert(seq, entry);
        self.n_unsent += 1;
        match self.is_up && self.on_trial.is_none() {
            true => self.give(seq).into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// Ends a request; where an engine has it, its last event still comes from there.
    pub fn cancel(&mut self, id: RequestId) -> Option<Command> {
        let &seq = self.by_id.get(&id)?;
        let entry = self.entries.get_mut(&seq)?;
        if entry.is_sent {
            entry.is_cancelled = true;
            return Some(Command::Cancel(wire_id(seq)));
        }
        self.remove(seq)?.finish_cancelled();
        None
    }

    /// Nobody listens to a request any more.
    pub fn gone(&mut self, seq: SeqId) -> Vec<Command> {
        let Some(entry) = self.remove(seq) else { return Vec::new() };
        let cancel = entry.is_sent.then_some(Command::Cancel(wire_id(seq)));
        cancel.into_iter().chain(self.give_next()).collect()
    }

    /// A request takes part in a step for the first time. `id` is the engine's, as in its events.
    pub fn started(&mut self, id: RequestId) {
        if let Some(entry) = self.entries.get_mut(&SeqId(id.0)) {
            (entry.is_started, entry.slot) = (true, None);
        }
    }

    /// An engine is up: what it is given first.
    pub fn engine_up(&mut self) -> Vec<Command> {
        self.is_up = true;
        self.give_next()
    }

    /// The engine is gone. A suspect that was all it computed is refused with `reason`.
    pub fn engine_down(&mut self, blame: Blame, reason: &str) -> Aftermath {
        (self.is_up, self.on_trial) = (false, None);
        let (mut refused, mut cancelled) = (Vec::new(), Vec::new());
        let was_alone = self.n_started() == 1;
        for (&seq, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_sent) {
            let is_fresh = entry.is_started && !entry.has_result;
            entry.n_engines_lost += 1;
            (entry.is_sent, entry.is_started, entry.has_result) = (false, false, false);
            match (blame, is_fresh) {
                _ if entry.is_cancelled => cancelled.push(seq),
                (Blame::Running, true) if entry.is_suspect && was_alone => refused.push(seq),
                (Blame::Running, true) if entry.is_suspect => entry.is_next = true,
                (Blame::Running, true) => entry.is_suspect = true,
                _ => {}
            }
        }
        self.n_unsent = self.entries.len();
        let n_refused = refused.len();
        for entry in refused.into_iter().filter_map(|seq| self.remove(seq)) {
            entry.fail(format!("the engine broke down twice while it computed this request: {reason}"));
        }
        cancelled.into_iter().filter_map(|seq| self.remove(seq)).for_each(LedgerEntry::finish_cancelled);
        Aftermath { n_kept: self.entries.len(), n_refused }
    }

    /// There will be no further engine.
    pub fn fail_all(&mut self, reason: &str) {
        self.by_id.clear();
        self.n_unsent = 0;
        for entry in std::mem::take(&mut self.entries).into_values() {
            entry.fail(reason.to_owned());
        }
    }

    /// Ends all requests as if they had been cancelled.
    pub fn finish_all(&mut self) {
        self.by_id.clear();
        self.n_unsent = 0;
        std::mem::take(&mut self.entries).into_values().for_each(LedgerEntry::finish_cancelled);
    }

    /// Passes an event on to its receiver. Those of requests that have ended are dropped.
    pub fn pass_on(&mut self, event: Event) -> Result<Vec<Command>, ProtocolFault> {
        let Some(id) = event.id() else { return Ok(Vec::new()) };
        let seq = SeqId(id.0);
        let Some(entry) = self.entries.get_mut(&seq) else { return Ok(Vec::new()) };
        if let Event::Failed { kind: FailureKind::Forward, error, .. } = event {
            return Err(ProtocolFault::Forward(error));
        }
        let is_last = event.is_last();
        let event = entry.take(event)?;
        (entry.has_result, entry.is_suspect, entry.is_next) = (true, false, false);
        let is_heard = entry.sink.send(event).is_ok();
        let mut commands = Vec::new();
        if is_last || !is_heard {
            self.remove(seq);
            commands.extend((!is_last).then_some(Command::Cancel(id)));
        }
        if self.on_trial == Some(seq) {
            self.on_trial = None;
        }
        commands.extend(self.give_next());
        Ok(commands)
    }

    fn remove(&mut self, seq: SeqId) -> Option<LedgerEntry> {
        let entry = self.entries.remove(&seq)?;
        self.by_id.remove(&entry.id);
        self.n_unsent -= usize::from(!entry.is_sent);
        if self.on_trial == Some(seq) {
            self.on_trial = None;
        }
        Some(entry)
    }

    /// The next suspect, or everyone else when there is none.
    fn give_next(&mut self) -> Vec<Command> {
        // Asked after every event, so the usual case must cost nothing.
        if self.n_unsent == 0 || !self.is_up || self.on_trial.is_some() {
            return Vec::new();
        }
        let mut unsent = self.entries.iter().filter(|(_, entry)| !entry.is_sent);
        let suspects = unsent.clone().filter(|(_, entry)| entry.is_suspect);
        // `false` is less than `true`: who must be tried alone comes first, then the oldest.
        self.on_trial = suspects.min_by_key(|(seq, entry)| (!entry.is_next, **seq)).map(|(&seq, _)| seq);
        let next: Vec<SeqId> = match self.on_trial {
            Some(suspect) => vec![suspect],
            None => unsent.by_ref().map(|(&seq, _)| seq).collect(),
        };
        next.into_iter().filter_map(|seq| self.give(seq)).collect()
    }

    fn give(&mut self, seq: SeqId) -> Option<Command> {
        let entry = self.entries.get_mut(&seq)?;
        self.n_unsent -= usize::from(!std::mem::replace(&mut entry.is_sent, true));
        Some(entry.command(seq))
    }
}

/// What an engine calls a request: sequence numbers are never used twice, callers' ids may be.
fn wire_id(seq: SeqId) -> RequestId {
    RequestId(seq.0)
}

impl LedgerEntry {
    fn command(&self, seq: SeqId) -> Command {
        match &self.job {
            LedgerJob::Generate(submit) => Command::Submit(Submit { id: wire_id(seq), ..submit.clone() }),
            LedgerJob::Embed(embed) => Command::Embed(VectorRequest { id: wire_id(seq), ..embed.clone() }),
        }
    }

    /// Notes an event, and gives it the caller's id.
    fn take(&mut self, mut event: Event) -> Result<Event, ProtocolFault> {
        match (&mut event, &mut self.job) {
            (Event::Token { id, index, token, .. }, LedgerJob::Generate(submit)) => {
                let expected = submit.generated.len();
                if *index != expected {
                    return Err(ProtocolFault::OutOfOrder { index: *index, expected });
                }
                submit.generated.push(*token);
                *id = self.id;
                let now = Instant::now();
                self.first_output.get_or_insert(now);
                self.last_output = Some(now);
            }
            (Event::Prompt { id, .. }, LedgerJob::Generate(submit)) => {
                // Scores are sent once.
                submit.prompt_logprobs = false;
                *id = self.id;
            }
            (Event::Finished { id, usage, .. } | Event::Vector { id, usage, .. }, _) => {
                *id = self.id;
                if self.n_engines_lost > 0 {
                    usage.timings = self.timings();
                }
            }
            (event, _) => event.set_id(self.id),
        }
        Ok(event)
    }

    /// As seen from here: no engine saw all of it.
    fn timings(&self) -> Timings {
        let (Some(first), Some(last)) = (self.first_output, self.last_output) else {
            let whole = self.submitted.elapsed();
            return Timings { prefill: whole, ttft: whole, ..Timings::default() };
        };
        let ttft = first.saturating_duration_since(self.submitted);
        Timings { prefill: ttft, ttft, decode: last.saturating_duration_since(first), ..Timings::default() }
    }

    fn fail(self, error: String) {
        let _ = self.sink.send(Event::Failed { id: self.id, kind: FailureKind::Forward, error });
    }

    fn finish_cancelled(self) {
        let (n_prompt, n_generated) = match &self.job {
            LedgerJob::Generate(submit) => (submit.prompt.len(), submit.generated.len()),
            LedgerJob::Embed(embed) => (embed.tokens.len(), 0),
        };
        let usage = Usage { n_prompt, n_generated, timings: self.timings(), ..Usage::default() };
        let _ = self.sink.send(Event::Finished { id: self.id, reason: FinishReason::Cancelled, usage });
    }
}
