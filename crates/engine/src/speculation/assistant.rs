//! Drafts by a drafter that sits inside of the model and reads the model's own keys and values. It needs nothing of its own
//! but the model's hidden state of the last token that was computed, so it can draft right behind a prompt, however much of
//! the prompt was found in the cache; and it never has to catch up.

use std::collections::HashMap;

use batch::{Batch, Forward, SeqRows, StepError, TokenId};

use crate::{
    drafter::{Draft, DraftRequest, DraftSource, Drafter},
    sampler::{self, Sampler},
    sequence::{SeqId, Sequence},
};

/// Asks the drafter that is attached to the model ([`Forward::draft`]).
pub struct AssistantDrafter {
    n_vocab: usize,
    /// Numbers of a hidden state.
    n_embd: usize,
    seqs: HashMap<SeqId, HeardStates>,
    sampler: Sampler,
    batch: Batch,
    /// A step failed: nothing is drafted any more, and the answers go on without.
    is_broken: bool,
}

/// The hidden states that were heard last, those of tokens from index `first` on.
#[derive(Default)]
struct HeardStates {
    first: usize,
    states: Vec<f32>,
}

/// A sequence on the way to its draft.
struct DraftInProgress {
    request_idx: usize,
    /// The token that is read next, and the hidden state that it is read with.
    token: TokenId,
    hidden: Vec<f32>,
}

impl AssistantDrafter {
    /// For a model with so many tokens, whose hidden states have `n_embd` numbers.
    pub fn new(n_vocab: usize, n_embd: usize) -> Self {
        Self {
            n_vocab,
            n_embd,
            seqs: HashMap::new(),
            sampler: Sampler::new(n_vocab),
            batch: Batch::default(),
            is_broken: false,
        }
    }

    /// Where the drafting of a sequence starts: the state of the token before its last one must be known.
    fn start(&self, request_idx: usize, request: &DraftRequest) -> Option<DraftInProgress> {
        let before = request.tokens.len().checked_sub(2)?;
        let heard = self.seqs.get(&request.seq)?;
        let at = before.checked_sub(heard.first)? * self.n_embd;
        let hidden = heard.states.get(at..at + self.n_embd)?.to_vec();
        let token = *request.tokens.last()?;
        let is_known = (token.0 as usize) < self.n_vocab && request.max_len > 0;
        is_known.then_some(DraftInProgress { request_idx, token, hidden })
    }

    /// One more token for each of these.
    fn step(
        &mut self,
        requests: &[DraftRequest],
        drafts: &mut [Draft],
        parts: &mut [DraftInProgress],
        model: &mut dyn Forward,
    ) -> Result<(), StepError> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.tokens.clear();
        batch.positions.clear();
        batch.hidden.clear();
        batch.seqs.clear();
        batch.window_tables.clear();
        for (row, part) in parts.iter().enumerate() {
            let request = &requests[part.request_idx];
            let n_computed = request.tokens.len() - 1;
            batch.tokens.push(part.token);
            batch.positions.push(n_computed as u32 - 1);
            batch.hidden.extend_from_slice(&part.hidden);
            let block_table = request.blocks[..Sequence::blocks_for(n_computed)].to_vec();
            batch.seqs.push(SeqRows { first_row: row as u32, n_rows: 1, block_table });
            if !request.window_blocks.is_empty() {
                batch.window_tables.push(request.window_blocks.to_vec());
            }
        }
        let rows = 0..parts.len() as u32;
        batch.logits_rows = rows.clone().collect();
        batch.pool_rows = rows.collect();
        let choice = |part: &DraftInProgress| {
            let request = &requests[part.request_idx];
            sampler::choice_at(request.sampling, request.tokens.len() + drafts[part.request_idx].tokens.len())
        };
        let choices: Vec<_> = parts.iter().map(choice).collect();
        batch.choices = if model.chooses() { choices.clone() } else { Vec::new() };
        self.batch = batch;
        let rows = model.draft(&self.batch)?;
        let chosen: Vec<Option<TokenId>> = if rows.chosen.is_empty() {
            let logits = rows.logits.chunks_exact(self.n_vocab.max(1));
            logits.zip(&choices).map(|(row, choice)| self.sampler.choose(row, choice)).collect()
        } else {
            rows.chosen
        };
        let states = rows.hidden.chunks_exact(self.n_embd.max(1));
        for ((part, token), hidden) in parts.iter_mut().zip(chosen).zip(states) {
            let Some(token) = token else { return Err("the drafter's logits are no numbers".into()) };
            drafts[part.request_idx].tokens.push(token);
            part.token = token;
            part.hidden.clear();
            part.hidden.extend_from_slice(hidden);
        }
        Ok(())
    }

    fn draft_all(
        &mut self,
        requests: &[DraftRequest],
        drafts: &mut [Draft],
        model: &mut dyn Forward,
    ) -> Result<(), StepError> {
        let max_rows = model.max_draft_rows().max(1);
        let mut parts: Vec<DraftInProgress> =
            requests.iter().enumerate().filter_map(|(request_idx, request)| self.start(request_idx, request)).collect();
        while !parts.is_empty() {
            for some in parts.chunks_mut(max_rows) {
                self.step(requests, drafts, some, model)?;
            }
            parts.retain(|part| drafts[part.request_idx].tokens.len() < requests[part.request_idx].max_len);
        }
        Ok(())
    }
}

impl Drafter for AssistantDrafter {
    fn draft(&mut self, requests: &[DraftRequest], model: &mut dyn Forward) -> Vec<Draft> {
        let mut drafts = vec![Draft { tokens: Vec::new(), source: DraftSource::Model }; requests.len()];
        if !self.is_broken && self.draft_all(requests, &mut drafts, model).is_err() {
            self.is_broken = true;
            drafts.iter_mut().for_each(|draft| draft.tokens.clear());
        }
        drafts
    }

    fn end(&mut self, seq: SeqId) {
        self.seqs.remove(&seq);
    }

    fn is_free(&self) -> bool {
        false
    }

    fn reads_hidden(&self) -> bool {
        true
    }

    fn observe(&mut self, seq: SeqId, first: usize, hidden: &[f32]) {
        let heard = self.seqs.entry(seq).or_default();
        heard.first = first;
        heard.states.clear();
        heard.states.extend_from_slice(hidden);
    }
}
