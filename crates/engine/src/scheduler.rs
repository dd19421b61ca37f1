//! What the next step computes, and who waits. Pure: no clock, no thread, no randomness, no model; the same calls give
//! the same plans, so a seeded simulation can drive it. A little longer than other files, because who goes first, who
//! grows and who is preempted are one policy and are read together.
//!
//! Order is by [`Rank`]: priority, then turns, then arrival. Time is counted in turns (start-time fair queueing): it
//! stands at the turn of whoever was admitted last, a newcomer takes that turn, and each further request of its group
//! the next one. So whoever sends a thousand at once waits behind their own and not in front of everybody's, however
//! long each takes. A point of priority is worth a fixed number of turns.
//! Ranks are fixed at arrival and only worse-ranked sequences are preempted, so the best-ranked one always progresses,
//! and since everyone becomes the best in time, nobody starves.

mod drafts;
mod keeping;
mod publishing;
mod windowing;

use std::collections::{BTreeMap, HashMap, HashSet};

use batch::{AdapterId, Attention, BLOCK_TOKENS, BlockId, StateId, TokenId};

use crate::{
    block_pool::{BlockPool, Provenance},
    kv_log::CacheChanges,
    prefix::{Chain, PrefixIndex},
    sequence::{Rank, SeqId, Sequence, Wanted},
    state_slots::StateSlots,
    windows::WindowPool,
};

pub use keeping::{KeptNames, RestorePlan, Spill};

/// Turns that outweigh one point of priority: so many requests of one busy group go before, and no more.
pub const AGING_TURNS: i64 = 16;

#[derive(Debug)]
pub struct Scheduler {
    limits: ScheduleLimits,
    /// Virtual time: the latest turn that was admitted.
    now: i64,
    /// The last turn given to each group that is not behind virtual time.
    turns: HashMap<u64, i64>,
    /// Where each sequence stands, waiting or running.
    ranks: HashMap<SeqId, Rank>,
    waiting: BTreeMap<Rank, Sequence>,
    /// Sequences in `waiting` that never ran; the preempted ones there do not count against the queue.
    n_new: usize,
    /// Best rank first.
    running: Vec<Sequence>,
    pool: BlockPool,
    index: PrefixIndex,
    /// Of a model with recurrent layers.
    states: StateSlots,
    /// Of a model that keeps the context of layers with a window apart.
    windows: Option<WindowPool>,
    last_attention: Attention,
    n_preemptions: u64,
    n_tokens_cached: u64,
    changes: CacheChanges,
    kept: Option<KeptNames>,
}

#[derive(Copy, Clone, Debug)]
pub struct ScheduleLimits {
    pub n_blocks: usize,
    pub max_batch_tokens: usize,
    pub max_output_rows: usize,
    pub max_running: usize,
    pub max_queue: usize,
    /// Prompt tokens in a step that also generates: bounds how long the others wait for their next token.
    pub prefill_chunk: usize,
    pub reuse: Reuse,
    /// Adapters of the sequences that run at once.
    pub max_adapters: usize,
}

/// Whether computed blocks are kept for later sequences with the same beginning.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum Reuse {
    #[default]
    On,
    Off,
}

/// A sequence to be scheduled.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: SeqId,
    pub tokens: Vec<TokenId>,
    pub n_prompt: usize,
    /// With so many tokens it is complete, whatever they are: nothing is computed after the last.
    pub max_len: usize,
    pub priority: i32,
    pub group: u64,
    pub wanted: Wanted,
    pub attention: Attention,
    pub adapter: Option<AdapterId>,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Refused {
    QueueFull,
    /// More blocks or rows than there are in all.
    TooLarge,
}

/// One step. The chunks of it are disjoint sequences.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    pub chunks: Vec<Chunk>,
    pub attention: Attention,
    /// Sequences that left the queue in this step.
    pub admitted: Vec<SeqId>,
    pub preempted: Vec<SeqId>,
}

/// Tokens `first .. first + n_tokens` of a sequence.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Chunk {
    pub seq: SeqId,
    pub first: usize,
    pub n_tokens: usize,
    /// The first so many were computed before, in a step whose drafts were wrong.
    pub n_again: usize,
    /// The last so many of them are drafted: whether they belong to the sequence is known after the step.
    pub n_drafted: usize,
    /// After it, computed tokens have caught up with tokens.
    pub is_last: bool,
    /// The sequence had been preempted so often: later, what the chunk stored is no longer its own.
    pub n_preemptions: usize,
    /// Gets a copy of the sequence's recurrent state after the chunk.
    pub checkpoint: Option<StateId>,
}

impl Chunk {
    pub fn end(&self) -> usize {
        self.first + self.n_tokens
    }

    /// Tokens of the sequence that are certainly computed after it.
    pub fn n_certain(&self) -> usize {
        self.end() - self.n_drafted
    }
}

struct StepBudget {
    n_tokens: usize,
    n_rows: usize,
}

impl Scheduler {
    /// Limits are made consistent: every running sequence must be able to have a row in the same step.
    pub fn new(mut limits: ScheduleLimits) -> Self {
        limits.max_batch_tokens = limits.max_batch_tokens.max(1);
        limits.max_output_rows = limits.max_output_rows.max(1);
        limits.max_running = limits.max_running.clamp(1, limits.max_batch_tokens.min(limits.max_output_rows));
        limits.prefill_chunk = limits.prefill_chunk.max(1);
        Self {
            limits,
            now: 0,
            turns: HashMap::new(),
            ranks: HashMap::new(),
            waiting: BTreeMap::new(),
            n_new: 0,
            running: Vec::new(),
            pool: BlockPool::new(limits.n_blocks),
            index: PrefixIndex::new(limits.n_blocks),
            states: StateSlots::default(),
            windows: None,
            last_attention: Attention::Causal,
            n_preemptions: 0,
            n_tokens_cached: 0,
            changes: CacheChanges::default(),
            kept: None,
        }
    }

    /// For a model with recurrent layers: so many slots for states, of which every running sequence needs one. At least a
    /// third stays for checkpoints.
    pub fn with_states(mut self, n_slots: usize) -> Self {
        if n_slots > 0 {
            self.limits.max_running = self.limits.max_running.min((2 * n_slots / 3).max(1));
            self.states = StateSlots::new(n_slots);
        }
        self
    }

    pub fn states(&self) -> &StateSlots {
        &self.states
    }

    fn is_recurrent(&self) -> bool {
        self.states.n_slots() > 0
    }

    pub fn changes(&mut self) -> &mut CacheChanges {
        &mut self.changes
    }

    pub fn limits(&self) -> &ScheduleLimits {
        &self.limits
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.values()
    }

    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn n_preemptions(&self) -> u64 {
        self.n_preemptions
    }

    pub fn n_tokens_cached(&self) -> u64 {
        self.n_tokens_cached
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    pub fn get(&self, id: SeqId) -> Option<&Sequence> {
        let rank = self.ranks.get(&id)?;
        match self.running_idx(*rank) {
            Some(idx) => Some(&self.running[idx]),
            None => self.waiting.get(rank),
        }
    }

    fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let rank = self.ranks.get(&id)?;
        match self.running_idx(*rank) {
            Some(idx) => Some(&mut self.running[idx]),
            None => self.waiting.get_mut(rank),
        }
    }

    fn running_idx(&self, rank: Rank) -> Option<usize> {
        self.running.binary_search_by_key(&rank, |seq| seq.rank).ok()
    }

    pub fn add(&mut self, arrival: Arrival) -> Result<(), Refused> {
        if self.n_new >= self.limits.max_queue {
            return Err(Refused::QueueFull);
        }
        let (group, priority) = (arrival.group, arrival.priority);
        let turn = self.turns.get(&group).map_or(self.now, |last| self.now.max(last + 1));
        let mut seq = Sequence::unscheduled(arrival);
        seq.turn = turn;
        seq.rank.virtual_turn = turn - i64::from(priority) * AGING_TURNS;
        let n_tokens = seq.tokens.len();
        let is_too_wide = seq.attention == Attention::Full
            && (n_tokens > self.limits.max_batch_tokens || seq.n_output_rows(n_tokens) > self.limits.max_output_rows);
        let is_too_long = Sequence::blocks_for(n_tokens) > self.pool.n_blocks() || !self.fits_windows(&seq);
        if n_tokens == 0 || is_too_wide || is_too_long {
            return Err(Refused::TooLarge);
        }
        self.n_new += 1;
        self.turns.insert(group, turn);
        self.ranks.insert(seq.id, seq.rank);
        self.waiting.insert(seq.rank, seq);
        Ok(())
    }

    /// Takes a sequence out, finished or not, and releases its blocks. A step under way may still write into them: a
    /// step that gives them to another sequence comes after it.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let rank = self.ranks.remove(&id)?;
        if let Some(idx) = self.running_idx(rank) {
            let mut seq = self.running.remove(idx);
            release_blocks(&mut self.pool, &mut seq);
            self.leave_windows(&mut seq);
            publishing::release_state(&mut self.states, &mut seq);
            return Some(seq);
        }
        let seq = self.waiting.remove(&rank)?;
        self.n_new -= usize::from(seq.n_cached_prompt.is_none());
        Some(seq)
    }

    /// The next step. Empty only when there is nothing to do, or nothing before a step under way is done.
    pub fn plan(&mut self) -> StepPlan {
        if self.waiting.is_empty() {
            // A group whose last turn is past is as good as new.
            let now = self.now;
            self.turns.retain(|_, turn| *turn >= now);
        }
        self.settle_windows();
        let mut plan = StepPlan::default();
        let mut budget = StepBudget { n_tokens: self.limits.max_batch_tokens, n_rows: self.limits.max_output_rows };
        // One batch has one kind of attention; encoders and decoders take turns.
        let is_full_first = self.last_attention == Attention::Causal || self.running.is_empty();
        if is_full_first {
            self.plan_full(&mut plan, &mut budget);
        }
        if plan.chunks.is_empty() {
            self.plan_decodes(&mut plan, &mut budget);
            self.plan_prefills(&mut plan, &mut budget);
        }
        if plan.chunks.is_empty() && !is_full_first {
            self.plan_full(&mut plan, &mut budget);
        }
        self.last_attention = plan.attention;
        if self.is_recurrent() && self.limits.reuse == Reuse::On {
            plan.chunks.iter_mut().for_each(|chunk| chunk.checkpoint = self.slot_for_checkpoint(chunk));
            self.keep_draft_checkpoints(&plan);
        }
        plan
    }

    /// The plan is submitted: its tokens count as computed, since every later step comes after it.
    pub fn commit(&mut self, plan: &StepPlan) {
        for chunk in &plan.chunks {
            let Some(seq) = self.get_mut(chunk.seq) else { continue };
            debug_assert_eq!(seq.n_computed, chunk.first);
            seq.n_computed = chunk.n_certain();
            seq.n_again = seq.n_again.saturating_sub(chunk.n_certain() - chunk.first);
            if let Some((block, _)) = seq.starts_from.take() {
                // A later step that writes its slot comes after this one.
                self.states.unpin(block);
            }
        }
    }

    /// A step under way will give this sequence a token.
    pub fn expect_token(&mut self, id: SeqId) {
        if let Some(seq) = self.get_mut(id) {
            seq.n_pending += 1;
            seq.fed_by = None;
        }
    }

    /// The next step can take the token that this sequence expects from there: which of the choices of the step that was
    /// submitted last it is.
    pub fn feed_from(&mut self, id: SeqId, choice_idx: u32) {
        if let Some(seq) = self.get_mut(id) {
            seq.fed_by = Some(choice_idx);
        }
    }

    /// A sampled token: one more to compute.
    pub fn push_token(&mut self, id: SeqId, token: TokenId) -> &Sequence {
        let seq = self.get_mut(id).expect("only a sequence in flight is sampled");
        seq.tokens.push(token);
        seq.n_pending = seq.n_pending.saturating_sub(1);
        seq
    }

    fn plan_full(&mut self, plan: &mut StepPlan, budget: &mut StepBudget) {
        while let Some((_, head)) = self.waiting.first_key_value() {
            let (n_tokens, n_rows) = (head.tokens.len(), head.n_output_rows(head.tokens.len()));
            if head.attention != Attention::Full || n_tokens > budget.n_tokens || n_rows > budget.n_rows {
                break;
            }
            let Some(idx) = self.admit_head(plan, budget) else { break };
            plan.attention = Attention::Full;
            self.hold_windows(idx, n_tokens);
            plan_chunk(&self.running[idx], n_tokens, 0, plan, budget);
        }
    }

    /// Sequences that lack one token: generation comes before any prompt.
    fn plan_decodes(&mut self, plan: &mut StepPlan, budget: &mut StepBudget) {
        let lacks_one = |seq: &Sequence| seq.lacks_one() && seq.is_ready();
        let mut n_after = self.running.iter().filter(|seq| lacks_one(seq)).count();
        // Drafts leave prompts a row each.
        let is_prompt = |seq: &&Sequence| seq.n_remaining() > 0 && !seq.lacks_one() && seq.is_ready();
        let n_prompts = self.running.iter().filter(is_prompt).count() + usize::from(!self.waiting.is_empty());
        let mut idx = 0;
        while idx < self.running.len() {
            if lacks_one(&self.running[idx]) {
                n_after = n_after.saturating_sub(1);
                if self.grow(idx, plan) {
                    let seq = &self.running[idx];
                    // Those after it get a row each, whatever it has to compute again.
                    let n_known = seq.n_remaining().min(budget.n_tokens.saturating_sub(n_after).max(1));
                    let is_complete = n_known == seq.n_remaining();
                    let n_drafted = if is_complete { self.draft_len(idx, n_after + n_prompts, budget) } else { 0 };
                    self.hold_windows(idx, self.running[idx].n_computed + n_known + n_drafted);
                    plan_chunk(&self.running[idx], n_known + n_drafted, n_drafted, plan, budget);
                }
            }
            idx += 1;
        }
    }

    fn plan_prefills(&mut self, plan: &mut StepPlan, budget: &mut StepBudget) {
        let chunk_limit = if plan.chunks.is_empty() { usize::MAX } else { self.limits.prefill_chunk };
        let mut n_prefill = budget.n_tokens.min(chunk_limit);
        while let Some((rank, head)) = self.waiting.first_key_value() {
            // Admitted only if those before it leave it something to compute in this step.
            let before = self.running.iter().take_while(|seq| seq.rank < *rank);
            let computing = before.filter(|seq| seq.restore.is_none());
            let n_before: usize = computing.map(Sequence::n_remaining).filter(|&n| n > 1).sum();
            // One that was preempted while its token was under way comes back when that is known.
            let is_blocked = head.attention == Attention::Full || head.n_pending > 0;
            if is_blocked || n_before >= n_prefill || self.waits_for_twin(*rank, head) {
                break;
            }
            if self.admit_head(plan, budget).is_none() {
                break;
            }
        }
        let planned: HashSet<SeqId> = plan.chunks.iter().map(|chunk| chunk.seq).collect();
        for idx in 0..self.running.len() {
            if n_prefill == 0 || budget.n_rows == 0 || budget.n_tokens == 0 {
                break;
            }
            let seq = &self.running[idx];
            if seq.n_remaining() == 0 || !seq.is_ready() || planned.contains(&seq.id) {
                continue;
            }
            // A sequence that lacks blocks waits; those it was planned with hold them.
            let n_room = (seq.blocks.len() * BLOCK_TOKENS).min(self.window_end(idx, 0)) - seq.n_computed;
            let mut n_tokens = seq.n_remaining().min(n_prefill).min(budget.n_tokens).min(n_room);
            if self.is_recurrent() && self.limits.reuse == Reuse::On {
                n_tokens = n_tokens.min(seq.n_to_checkpoint());
            }
            if seq.wanted.is_every_row() {
                n_tokens = n_tokens.min(budget.n_rows);
            }
            if n_tokens > 0 {
                n_prefill -= n_tokens;
                self.hold_windows(idx, self.running[idx].n_computed + n_tokens);
                plan_chunk(&self.running[idx], n_tokens, 0, plan, budget);
            }
        }
    }

    /// Whether one that goes before is still computing blocks that this one can share: several answers to one prompt
    /// are several sequences, and waiting a step is cheaper than computing the prompt again.
    fn waits_for_twin(&self, rank: Rank, head: &Sequence) -> bool {
        let max_shared = if self.limits.reuse == Reuse::On { head.max_reused_blocks() } else { 0 };
        let before = self.running.iter().take_while(|seq| seq.rank < rank && max_shared > 0);
        let is_alike = |seq: &&Sequence| seq.attention == Attention::Causal && seq.adapter == head.adapter;
        before.filter(is_alike).filter(|seq| seq.is_filling_blocks()).any(|seq| {
            let n_same = seq.tokens.iter().zip(&head.tokens).take_while(|(a, b)| a == b).count();
            (n_same / BLOCK_TOKENS).min(max_shared) > seq.chain.n_blocks()
        })
    }

    /// Moves the head of the queue to the running ones, with blocks for all its tokens. Says where it stands there.
    fn admit_head(&mut self, plan: &mut StepPlan, budget: &mut StepBudget) -> Option<usize> {
        let (rank, head) = self.waiting.first_key_value()?;
        let rank = *rank;
        if !self.has_room_for(head.adapter) {
            return None;
        }
        let idx = self.running.partition_point(|seq| seq.rank < rank);
        let max_reused = if self.limits.reuse == Reuse::On { head.max_reused_blocks() } else { 0 };
        let (mut blocks, chain, restore) = self.find_prefix(head, max_reused);
        let n_new = Sequence::blocks_for(head.tokens.len()) - blocks.len();
        let n_promised = self.windows.as_ref().map_or(0, |windows| windows.quota(head));
        // Held before room is made, so that making room cannot evict them.
        blocks.iter().for_each(|&block| self.pool.share(block));
        if !self.make_room(idx, (n_new, n_promised), plan, budget) {
            blocks.iter().rev().for_each(|&block| self.pool.release(block));
            return None;
        }
        let from_pool = self.is_recurrent() && restore.is_none_or(|restore| !restore.has_state);
        let starts_from = blocks.last().filter(|_| from_pool).copied();
        let starts_from = starts_from.and_then(|block| Some((block, self.states.pin(block)?)));
        let state = if self.is_recurrent() { self.take_state(0) } else { None };
        if self.is_recurrent() && state.is_none() {
            // Checkpoints of a step under way have the last slots: it waits for them.
            starts_from.into_iter().for_each(|(block, _)| self.states.unpin(block));
            blocks.iter().rev().for_each(|&block| self.pool.release(block));
            return None;
        }
        let n_in_pool = blocks.len();
        blocks.extend((0..n_new).map(|_| self.take_block()));
        let mut seq = self.waiting.remove(&rank)?;
        seq.n_computed = chain.n_blocks() * BLOCK_TOKENS;
        self.n_tokens_cached += seq.n_computed as u64;
        if seq.n_cached_prompt.is_none() {
            self.n_new -= 1;
            self.now = self.now.max(seq.turn);
            seq.n_cached_prompt = Some(seq.n_computed.min(seq.n_prompt));
        }
        (seq.blocks, seq.chain) = (blocks, chain);
        seq.n_found = restore.map_or(n_in_pool, |restore| restore.n_blocks);
        (seq.state, seq.starts_from, seq.restore) = (state, starts_from, restore);
        self.begin_windows(&mut seq, n_in_pool);
        plan.admitted.push(seq.id);
        self.running.insert(idx, seq);
        Some(idx)
    }

    /// Whether the running sequences leave room for one more adapter, or have it already. Who is next waits for it, so that
    /// later requests cannot hold on to the slots.
    fn has_room_for(&self, adapter: Option<AdapterId>) -> bool {
        let Some(adapter) = adapter else { return true };
        let in_use: HashSet<AdapterId> = self.running.iter().filter_map(|seq| seq.adapter).collect();
        in_use.contains(&adapter) || in_use.len() < self.limits.max_adapters
    }

    /// Makes a running slot, `n_blocks` blocks and `n_promised` of the windows' available for a sequence of rank `idx`, by
    /// preempting worse-ranked ones if that is enough; otherwise nobody is preempted.
    fn make_room(
        &mut self,
        idx: usize,
        (n_blocks, n_promised): (usize, usize),
        plan: &mut StepPlan,
        budget: &mut StepBudget,
    ) -> bool {
        // Those before it keep a block each to grow into, or the newcomer would soon be preempted for them.
        let n_needed = n_blocks + idx;
        if idx >= self.limits.max_running {
            return false;
        }
        if self.pool.n_available() < n_needed && self.pool.n_available() + self.n_reclaimable(idx) < n_needed {
            return false;
        }
        let n_lacking = self.lacks_windows(idx, n_promised);
        if n_lacking > 0 && n_lacking > self.n_reclaimable_windows(idx) {
            return false;
        }
        while self.pool.n_available() < n_needed
            || self.running.len() >= self.limits.max_running
            || self.lacks_windows(idx, n_promised) > 0
        {
            let victim = self.preempt_last(plan);
            if let Some(at) = plan.chunks.iter().position(|chunk| chunk.seq == victim) {
                let chunk = plan.chunks.remove(at);
                budget.n_tokens += chunk.n_tokens;
                budget.n_rows += 1 + chunk.n_drafted;
            }
        }
        true
    }

    /// Blocks for the next token of a running sequence, taken from worse-ranked ones if need be.
    fn grow(&mut self, idx: usize, plan: &mut StepPlan) -> bool {
        let n_blocks = Sequence::blocks_for(self.running[idx].n_tokens());
        while self.running[idx].blocks.len() < n_blocks {
            if self.pool.n_available() == 0 {
                if idx + 1 == self.running.len() {
                    return false;
                }
                // Decodes are planned in rank order: the last one is not in the plan yet.
                self.preempt_last(plan);
                continue;
            }
            let block = self.take_block();
            self.running[idx].blocks.push(block);
        }
        while !self.promise_windows(idx, self.running[idx].n_tokens()) {
            if idx + 1 == self.running.len() {
                return false;
            }
            self.preempt_last(plan);
        }
        true
    }

    /// Sends the worst-ranked running sequence back to the queue; it keeps its rank and its tokens and will be
    /// computed again, apart from what the prefix index still knows.
    fn preempt_last(&mut self, plan: &mut StepPlan) -> SeqId {
        let mut seq = self.running.pop().expect("only called with a sequence to preempt");
        self.take_off(&mut seq);
        seq.n_preemptions += 1;
        self.n_preemptions += 1;
        let id = seq.id;
        plan.preempted.push(id);
        self.waiting.insert(seq.rank, seq);
        id
    }

    /// A sequence that goes back to the queue leaves nothing behind.
    fn take_off(&mut self, seq: &mut Sequence) {
        release_blocks(&mut self.pool, seq);
        self.leave_windows(seq);
        publishing::release_state(&mut self.states, seq);
        (seq.n_computed, seq.n_again) = (0, 0);
        seq.restore = None;
        seq.chain = Chain::root(seq.adapter);
    }

    /// Blocks that would become available if every running sequence from `idx` on were preempted.
    fn n_reclaimable(&self, idx: usize) -> usize {
        let mut n_refs: HashMap<BlockId, u32> = HashMap::new();
        for &block in self.running[idx..].iter().flat_map(|seq| &seq.blocks) {
            *n_refs.entry(block).or_default() += 1;
        }
        n_refs.iter().filter(|&(&block, &n)| self.pool.n_refs(block) == n).count()
    }

    fn take_block(&mut self) -> BlockId {
        let taken = self.pool.take().expect("room was made before");
        if taken.provenance == Provenance::Evicted {
            let known = self.index.forget(taken.block);
            if let Some((hash, entry)) = known {
                self.spill_block(taken.block, entry);
                self.changes.removed(hash);
            }
            self.forget_window(taken.block, known.map(|(_, entry)| entry));
            self.states.forget(taken.block);
        }
        taken.block
    }
}

/// `n_tokens` more of a sequence, the last `n_drafted` of which are drafted.
fn plan_chunk(seq: &Sequence, n_tokens: usize, n_drafted: usize, plan: &mut StepPlan, budget: &mut StepBudget) {
    budget.n_tokens -= n_tokens;
    budget.n_rows -= seq.n_output_rows(n_tokens - n_drafted) + n_drafted;
    let is_last = n_tokens - n_drafted == seq.n_remaining();
    let Sequence { n_computed: first, n_preemptions, n_again, .. } = *seq;
    let n_again = if is_last { n_again } else { 0 };
    plan.chunks.push(Chunk {
        seq: seq.id,
        first,
        n_tokens,
        n_again,
        n_drafted,
        is_last,
        n_preemptions,
        checkpoint: None,
    });
}

/// Last block first: of a chain that nobody holds, the end is evicted before the beginning.
fn release_blocks(pool: &mut BlockPool, seq: &mut Sequence) {
    seq.blocks.drain(..).rev().for_each(|block| pool.release(block));
}
