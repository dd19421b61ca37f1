//! Drafts by a second, smaller model with its own keys and values. It samples as the request does, with the same draw
//! of (seed, position), so wherever the two models agree on the distribution they draw the same token.
//!
//! Keys and values of guesses that were wrong are overwritten. A recurrent state cannot be: a draft model with such layers
//! has two slots for each sequence, one with the state after the sequence's own tokens and one for what it guesses.

use std::collections::HashMap;

use batch::{BLOCK_TOKENS, Batch, BlockId, Capacity, Forward, SeqRows, SeqState, StateId, StepError, TokenId};

use crate::{
    drafter::{Draft, DraftRequest, DraftSource, Drafter},
    sampler::{self, Sampler},
    sequence::{SeqId, Sequence},
};

/// Tokens of prompts that it reads between two steps of the other model, at most: nobody else gets a token meanwhile.
const PREFILL_ROWS: usize = 256;

/// A model that drafts for another of the same vocabulary.
pub struct DraftModel {
    model: Box<dyn Forward>,
    capacity: Capacity,
    free: Vec<BlockId>,
    /// Slots for recurrent states that no sequence has, in a model that keeps them.
    free_states: Option<Vec<StateId>>,
    seqs: HashMap<SeqId, DraftedContext>,
    sampler: Sampler,
    batch: Batch,
    /// A step failed: nothing is drafted any more, and the answers go on without.
    is_broken: bool,
}

/// The tokens whose keys and values it has. With recurrent layers these are the sequence's own; otherwise guesses that
/// turned out right are among them.
#[derive(Default)]
struct DraftedContext {
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    states: Option<States>,
}

/// Slots of a sequence's recurrent states.
#[derive(Copy, Clone)]
struct States {
    /// After `DraftedContext::tokens`.
    own: StateId,
    /// After the guesses that follow.
    ahead: StateId,
}

impl States {
    /// Where rows begin and end, with so many tokens of the sequence and so many guesses before them.
    fn of_rows(self, n_own: usize, n_ahead: Option<usize>) -> SeqState {
        let (from, to) = match n_ahead {
            None => ((n_own > 0).then_some(self.own), self.own),
            Some(0) => (Some(self.own), self.ahead),
            Some(_) => (Some(self.ahead), self.ahead),
        };
        SeqState { from, to, copy: None }
    }
}

/// Rows of one sequence in a step.
struct DraftRows {
    request_idx: usize,
    tokens: Vec<TokenId>,
    /// Of a guess: those before it.
    n_ahead: Option<usize>,
    /// Whether they end with the sequence, so that the next token is chosen.
    is_last: bool,
}

impl DraftModel {
    pub fn new(model: impl Forward + 'static) -> Self {
        let capacity = model.capacity();
        let n_states = model.n_states() as u32;
        Self {
            model: Box::new(model),
            capacity,
            free: (0..capacity.n_blocks as u32).rev().map(BlockId).collect(),
            free_states: (n_states > 0).then(|| (0..n_states).rev().map(StateId).collect()),
            seqs: HashMap::new(),
            sampler: Sampler::new(capacity.n_vocab),
            batch: Batch::default(),
            is_broken: false,
        }
    }

    /// Blocks for the sequence and its draft; keys and values of tokens that are no longer part of it are dropped.
    fn prepare(&mut self, request: &DraftRequest) -> bool {
        let n_all = request.tokens.len() + request.max_len;
        let is_known = request.tokens.iter().all(|token| (token.0 as usize) < self.capacity.n_vocab);
        if n_all > self.capacity.n_ctx || !is_known {
            return false;
        }
        let computed = self.seqs.entry(request.seq).or_default();
        let n_same = computed.tokens.iter().zip(request.tokens).take_while(|(a, b)| a == b).count();
        match &mut self.free_states {
            None => computed.tokens.truncate(n_same.min(request.tokens.len() - 1)),
            Some(free) => {
                if computed.states.is_none() {
                    let n_left = free.len().saturating_sub(2);
                    let &[ahead, own] = &free[n_left..] else { return false };
                    free.truncate(n_left);
                    computed.states = Some(States { own, ahead });
                }
                // There is no way back but to the start.
                if n_same < computed.tokens.len() {
                    computed.tokens.clear();
                }
                // What follows the last token was known when it was read.
                if computed.tokens.len() == request.tokens.len() {
                    return false;
                }
            }
        }
        while computed.blocks.len() < Sequence::blocks_for(n_all) {
            let Some(block) = self.free.pop() else { return false };
            computed.blocks.push(block);
        }
        true
    }

    /// Runs rows of several sequences. The tokens that follow those which are complete, by the index of their ask.
    fn step(&mut self, requests: &[DraftRequest], parts: &[DraftRows]) -> Result<Vec<(usize, TokenId)>, StepError> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.tokens.clear();
        batch.positions.clear();
        batch.seqs.clear();
        batch.logits_rows.clear();
        batch.choices.clear();
        batch.states.clear();
        let mut choices = Vec::new();
        for part in parts {
            let request = &requests[part.request_idx];
            let computed = &self.seqs[&request.seq];
            let n_before =
                computed.tokens.len() + if computed.states.is_some() { part.n_ahead.unwrap_or(0) } else { 0 };
            let (first_row, first) = (batch.tokens.len() as u32, n_before);
            let end = first + part.tokens.len();
            batch.tokens.extend_from_slice(&part.tokens);
            batch.positions.extend(first as u32..end as u32);
            let block_table = computed.blocks[..end.div_ceil(BLOCK_TOKENS)].to_vec();
            batch.seqs.push(SeqRows { first_row, n_rows: part.tokens.len() as u32, block_table });
            batch.states.extend(computed.states.map(|states| states.of_rows(computed.tokens.len(), part.n_ahead)));
            if part.is_last {
                batch.logits_rows.push(batch.tokens.len() as u32 - 1);
                choices.push((part.request_idx, sampler::choice_at(request.sampling, end)));
            }
        }
        if self.model.chooses() {
            batch.choices.extend(choices.iter().map(|(_, choice)| *choice));
        }
        self.batch = batch;
        let ticket = self.model.submit(&self.batch)?;
        let rows = self.model.wait(ticket)?;
        let chosen: Vec<Option<TokenId>> = if rows.chosen.is_empty() {
            let logits = rows.logits.chunks_exact(self.capacity.n_vocab.max(1));
            logits.zip(&choices).map(|(row, (_, choice))| self.sampler.choose(row, choice)).collect()
        } else {
            rows.chosen
        };
        for part in parts {
            let computed = self.seqs.get_mut(&requests[part.request_idx].seq);
            if let Some(computed) = computed.filter(|it| it.states.is_none() || part.n_ahead.is_none()) {
                computed.tokens.extend_from_slice(&part.tokens);
            }
        }
        Ok(choices.iter().zip(chosen).filter_map(|((idx, _), token)| Some((*idx, token?))).collect())
    }

    /// What the sequences lack, within the rows that one step may have.
    fn catch_up(&self, requests: &[DraftRequest], ready: &[usize]) -> Vec<DraftRows> {
        let mut n_left = PREFILL_ROWS.min(self.capacity.max_batch_tokens);
        let mut parts = Vec::new();
        for &request_idx in ready {
            let request = &requests[request_idx];
            let missing = &request.tokens[self.seqs[&request.seq].tokens.len()..];
            let n = missing.len().min(n_left);
            n_left -= n;
            if n > 0 && parts.len() < self.capacity.max_output_rows {
                parts.push(DraftRows {
                    request_idx,
                    tokens: missing[..n].to_vec(),
                    n_ahead: None,
                    is_last: n == missing.len(),
                });
            }
        }
        parts
    }

    fn draft_all(&mut self, requests: &[DraftRequest], drafts: &mut [Draft]) -> Result<(), StepError> {
        let ready: Vec<usize> = (0..requests.len()).filter(|&idx| self.prepare(&requests[idx])).collect();
        let mut parts = self.catch_up(requests, &ready);
        while !parts.is_empty() {
            let chosen = self.step(requests, &parts)?;
            parts.clear();
            for (request_idx, token) in chosen {
                let draft = &mut drafts[request_idx].tokens;
                draft.push(token);
                if draft.len() < requests[request_idx].max_len {
                    let n_ahead = Some(draft.len() - 1);
                    parts.push(DraftRows { request_idx, tokens: vec![token], n_ahead, is_last: true });
                }
            }
        }
        Ok(())
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, requests: &[DraftRequest], _model: &mut dyn Forward) -> Vec<Draft> {
        let mut drafts = vec![Draft { tokens: Vec::new(), source: DraftSource::Model }; requests.len()];
        if !self.is_broken && self.draft_all(requests, &mut drafts).is_err() {
            self.is_broken = true;
            drafts.iter_mut().for_each(|draft| draft.tokens.clear());
        }
        drafts
    }

    fn end(&mut self, seq: SeqId) {
        if let Some(computed) = self.seqs.remove(&seq) {
            self.free.extend(computed.blocks);
            let states = computed.states.into_iter().flat_map(|States { own, ahead }| [own, ahead]);
            self.free_states.iter_mut().for_each(|free| free.extend(states.clone()));
        }
    }

    fn is_free(&self) -> bool {
        false
    }
}
