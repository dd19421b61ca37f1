//! Speculation: before a step, the sequences that lack one token get drafts of the tokens after it, and the step
//! computes all of them at once. The length of the drafts depends on how often they were right and on what rows cost
//! here; if they keep being wrong, there are none.
//!
//! A draft must follow tokens that the host knows. Where steps overlap, a sequence whose drafts look promising is
//! therefore not fed on the device: it waits for its tokens, and the others continue.

mod acceptance;
mod assistant;
mod costs;
mod draft_model;
mod lookup;
mod next_token;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use batch::{BlockId, Forward, TokenId};

use self::{
    acceptance::{AcceptanceStats, ExpectedGain, RejectionCost},
    costs::StepCosts,
};
pub use self::{assistant::AssistantDrafter, draft_model::DraftModel, lookup::Lookup, next_token::NextToken};
use crate::{
    drafter::{Draft, DraftRequest, DraftSource, Drafter, MAX_DRAFT},
    engine::Engine,
    request::{ActiveRequest, Generate, Job},
    rows::ChunkRows,
    scheduler::{Chunk, StepPlan},
    sequence::{SeqId, Sequence, Wanted},
};

/// Tokens between two attempts of a drafter that costs something and had no luck, at first and at most.
const PAUSE: usize = 32;
const MAX_PAUSE: usize = 512;
/// Where others go on meanwhile, a sequence that waits for its tokens misses every second step.
const WORTH_WAITING: f32 = 2.5;

/// When drafts are made, and how long they are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Drafting {
    /// None are made while more sequences than this are running.
    pub max_running: usize,
    pub length: DraftLength,
}

impl Default for Drafting {
    fn default() -> Self {
        Self { max_running: usize::MAX, length: DraftLength::Adaptive }
    }
}

/// How long drafts are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DraftLength {
    /// As long as it pays, by luck so far and the time that steps take.
    Adaptive,
    /// Whatever comes of it.
    Fixed(usize),
}

pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    drafting: Drafting,
    wrong: RejectionCost,
    seqs: HashMap<SeqId, DraftHistory>,
    costs: StepCosts,
    /// When the last step was done, if the engine has not slept since.
    last_done: Option<Instant>,
}

/// What is known of one sequence's drafts.
#[derive(Debug)]
struct DraftHistory {
    stats: AcceptanceStats,
    /// The latest draft, used or not, and the index of the token that it begins with.
    latest: Option<(usize, Draft)>,
    /// A drafter that costs something is asked again when so many tokens are there.
    again_at: usize,
    pause: usize,
}

impl Default for DraftHistory {
    fn default() -> Self {
        Self { stats: AcceptanceStats::default(), latest: None, again_at: 0, pause: PAUSE }
    }
}

impl DraftHistory {
    /// Compares the latest draft with what came.
    fn learn(&mut self, tokens: &[TokenId]) {
        let Some((at, draft)) = self.latest.take_if(|(at, _)| *at < tokens.len()) else { return };
        for (place, (&drafted, &token)) in draft.tokens.iter().zip(&tokens[at..]).enumerate() {
            self.stats.note(draft.source, place, drafted == token);
            if drafted != token {
                return;
            }
            self.pause = PAUSE;
        }
    }
}

/// A sequence that drafts may be made for.
struct DraftCandidate<'a> {
    seq: &'a Sequence,
    generate: &'a Generate,
    /// Tokens that may be drafted for it.
    max_len: usize,
    /// Of the pool for layers with a window.
    window_blocks: Vec<BlockId>,
}

impl<'a> DraftCandidate<'a> {
    fn of(seq: &'a Sequence, requests: &'a HashMap<SeqId, ActiveRequest>) -> Option<Self> {
        let Job::Generate(generate) = &requests.get(&seq.id)?.job else { return None };
        // The token after the last drafted one still belongs to the answer.
        let n_left = seq.max_len.saturating_sub(seq.n_tokens() + 1);
        let max_len = n_left.min(generate.max_draft.unwrap_or(MAX_DRAFT)).min(MAX_DRAFT);
        let mut window_blocks = Vec::new();
        if seq.windows.n_held() > 0 {
            seq.windows.write(Sequence::blocks_for(seq.n_computed), &mut window_blocks);
        }
        (max_len > 0).then_some(Self { seq, generate, max_len, window_blocks })
    }

    fn request(&self, max_len: usize) -> DraftRequest<'_> {
        DraftRequest {
            seq: self.seq.id,
            tokens: &self.seq.tokens,
            n_prompt: self.seq.n_prompt,
            prediction: &self.generate.prediction,
            sampling: &self.generate.sampling,
            max_len,
            blocks: &self.seq.blocks,
            window_blocks: &self.window_blocks,
        }
    }
}

impl Engine {
    /// Gives every sequence that lacks one token a draft of those after it, or none.
    pub(crate) fn propose(&mut self) {
        let Some(speculator) = &mut self.speculator else { return };
        let running = self.scheduler.running();
        let in_step = || running.iter().filter(|seq| seq.lacks_one() && seq.is_ready());
        let (n_seqs, ready) = (in_step().count(), in_step().filter(|seq| seq.n_pending == 0));
        let ready: Vec<&Sequence> = ready.collect();
        let candidates: Vec<_> = ready.iter().filter_map(|seq| DraftCandidate::of(seq, &self.requests)).collect();
        let mut drafts: HashMap<SeqId, Vec<TokenId>> = ready.iter().map(|seq| (seq.id, Vec::new())).collect();
        if running.len() <= speculator.drafting.max_running {
            drafts.extend(speculator.propose(&candidates, n_seqs, &mut *self.model));
        }
        for (seq, mut draft) in drafts {
            // A draft model may have more entries than this one; they stand for nothing.
            let n_valid = draft.iter().take_while(|token| (token.0 as usize) < self.n_vocab).count();
            draft.truncate(n_valid);
            self.scheduler.set_draft(seq, draft);
        }
    }

    /// Whether a sequence should wait for the token under way, because what follows it can probably be drafted.
    pub(crate) fn waits_to_draft(&mut self, id: SeqId) -> bool {
        let n_running = self.scheduler.running().len();
        let Some(speculator) = self.speculator.as_mut().filter(|it| n_running <= it.drafting.max_running) else {
            return false;
        };
        let candidate = self.scheduler.get(id).and_then(|seq| DraftCandidate::of(seq, &self.requests));
        let model = &mut *self.model;
        candidate.is_some_and(|candidate| speculator.waits(&candidate, n_running, model))
    }
}

impl Speculator {
    /// `n_states`: slots for recurrent states, if the model has any.
    pub fn new(drafter: Box<dyn Drafter>, drafting: Drafting, n_states: usize) -> Self {
        let wrong = if n_states > 0 { RejectionCost::Again } else { RejectionCost::Nothing };
        Self { drafter, drafting, wrong, seqs: HashMap::new(), costs: StepCosts::default(), last_done: None }
    }

    pub fn reads_hidden(&self) -> bool {
        self.drafter.reads_hidden()
    }

    /// The hidden states of a chunk's last tokens, as far as they belong to the sequence.
    pub fn observe(&mut self, seq: &Sequence, chunk: &Chunk, rows: ChunkRows) {
        if rows.n_hidden == 0 || seq.wanted != Wanted::Logits || !self.drafter.reads_hidden() {
            return;
        }
        let first = chunk.end() - rows.n_hidden;
        // Of drafts that were right. The last token that is known is not computed yet.
        let end = (seq.tokens.len() - 1).clamp(chunk.n_certain(), chunk.end());
        let n_right = end.saturating_sub(first);
        if n_right > 0 {
            self.seqs.entry(seq.id).or_default();
            self.drafter.observe(seq.id, first, &rows.hidden[..n_right * rows.hidden.len() / rows.n_hidden]);
        }
    }

    pub fn end(&mut self, seq: SeqId) {
        if self.seqs.remove(&seq).is_some() {
            self.drafter.end(seq);
        }
    }

    /// A step that was begun at `start` is done: what its rows cost.
    pub fn note_step(&mut self, plan: &StepPlan, start: Instant) {
        let now = Instant::now();
        let time = now - self.last_done.replace(now).unwrap_or(start);
        let n_extra = |chunk: &Chunk| chunk.n_again + chunk.n_drafted;
        let is_decode = plan.chunks.iter().all(|chunk| chunk.is_last && chunk.n_tokens == 1 + n_extra(chunk));
        if is_decode && time < Duration::from_secs(60) {
            self.costs.note(plan.chunks.len(), plan.chunks.iter().map(n_extra).sum(), time);
        }
    }

    /// The engine has nothing to do: the time until the next step is not the step's.
    pub fn rest(&mut self) {
        self.last_done = None;
    }

    fn propose(
        &mut self,
        candidates: &[DraftCandidate],
        n_seqs: usize,
        model: &mut dyn Forward,
    ) -> Vec<(SeqId, Vec<TokenId>)> {
        let mut gain = ExpectedGain { n_tokens: n_seqs as f32, n_extra_rows: 0, wrong: self.wrong };
        let is_free = self.drafter.is_free();
        let mut requests = Vec::new();
        for candidate in candidates {
            let attempts = self.seqs.entry(candidate.seq.id).or_default();
            attempts.learn(&candidate.seq.tokens);
            let max_len = match is_free {
                true => candidate.max_len,
                false => self.paid_len(candidate, n_seqs, &mut gain),
            };
            if max_len > 0 {
                requests.push(candidate.request(max_len));
            }
        }
        let drafts = self.drafter.draft(&requests, model);
        let mut proposed = Vec::new();
        for (request, draft) in requests.iter().zip(drafts) {
            let mut tokens = draft.tokens.clone();
            tokens.truncate(request.max_len);
            if is_free {
                tokens.truncate(self.free_len(request.seq, draft.source, tokens.len(), n_seqs, &mut gain));
            }
            if let Some(attempts) = self.seqs.get_mut(&request.seq) {
                attempts.latest = Some((request.tokens.len(), draft));
            }
            proposed.push((request.seq, tokens));
        }
        proposed
    }

    /// How much of a draft that is there is used.
    fn free_len(
        &self,
        seq: SeqId,
        source: DraftSource,
        n_drafted: usize,
        n_seqs: usize,
        gain: &mut ExpectedGain,
    ) -> usize {
        match (self.drafting.length, self.seqs.get(&seq)) {
            (DraftLength::Fixed(len), _) => len,
            (DraftLength::Adaptive, Some(attempts)) if self.costs.knows(n_seqs) => {
                attempts.stats.best_len(source, n_drafted, &self.costs, gain)
            }
            _ => 0,
        }
    }

    /// How long a draft is asked for. After bad luck there is a pause, and then one more attempt with a single token.
    fn paid_len(&mut self, candidate: &DraftCandidate, n_seqs: usize, gain: &mut ExpectedGain) -> usize {
        if let DraftLength::Fixed(len) = self.drafting.length {
            return len.min(candidate.max_len);
        }
        let Some(attempts) = self.seqs.get_mut(&candidate.seq.id).filter(|_| self.costs.knows(n_seqs)) else {
            return 0;
        };
        let n_tokens = candidate.seq.tokens.len();
        if n_tokens < attempts.again_at {
            return 0;
        }
        let len = attempts.stats.best_len(DraftSource::Model, candidate.max_len, &self.costs, gain);
        if len > 0 {
            return len;
        }
        attempts.again_at = n_tokens + attempts.pause;
        attempts.pause = (attempts.pause * 2).min(MAX_PAUSE);
        1
    }

    fn waits(&mut self, candidate: &DraftCandidate, n_running: usize, model: &mut dyn Forward) -> bool {
        let (seq, n_known) = (candidate.seq.id, candidate.seq.tokens.len());
        let attempts = self.seqs.entry(seq).or_default();
        attempts.learn(&candidate.seq.tokens);
        if !self.drafter.is_free() {
            let n_soon = candidate.seq.n_tokens() + 1;
            return self.drafting.length != DraftLength::Adaptive || attempts.again_at <= n_soon;
        }
        let draft = self.drafter.draft(&[candidate.request(candidate.max_len)], model).pop().unwrap_or_default();
        let mut gain = ExpectedGain { n_tokens: 1.0, n_extra_rows: 0, wrong: self.wrong };
        let len = self.free_len(seq, draft.source, draft.tokens.len(), n_running, &mut gain);
        let attempts = self.seqs.entry(seq).or_default();
        attempts.latest.get_or_insert((n_known, draft));
        let is_worth_it = n_running == 1 || gain.n_tokens >= WORTH_WAITING;
        len > 0 && (is_worth_it || self.drafting.length != DraftLength::Adaptive)
    }
}
