//! Drafts by a model's own multi-token prediction layer. It reads each token together with the model's hidden state of
//! the token before, and has its own keys and values. Its own hidden state of a token can stand in for the model's, so
//! it can continue from its own guesses.
//!
//! It starts where hidden states are first known: those of a prompt's last tokens, and of all later ones. Tokens whose
//! keys and values the model found in its cache were not computed, and are not seen here.

use std::collections::HashMap;

use batch::{BLOCK_TOKENS, Batch, BlockId, Capacity, Forward, SeqRows, StepError, TokenId};

use crate::{
    drafter::{Draft, DraftRequest, DraftSource, Drafter},
    sampler::{self, Sampler},
    sequence::{SeqId, Sequence},
};

/// Rows that it reads between two steps of the model, at most.
const CATCH_UP_ROWS: usize = 64;
/// Hidden states that wait while nobody asks for drafts, at most: it begins anew then.
const MAX_WAITING: usize = 1024;

/// The layer of a model that guesses ahead, behind the model's own steps.
pub struct NextToken {
    model: Box<dyn Forward>,
    capacity: Capacity,
    n_embd: usize,
    free: Vec<BlockId>,
    seqs: HashMap<SeqId, ObservedPairs>,
    sampler: Sampler,
    batch: Batch,
    /// A step failed: nothing is drafted any more, and the answers go on without.
    is_broken: bool,
}

/// What is known of one sequence. Pair `i` is the hidden state of token `i` and the token after it.
#[derive(Default)]
struct ObservedPairs {
    /// The first pair: here it has position 0.
    start: usize,
    /// Pairs from there on whose keys and values are computed.
    n_done: usize,
    /// The hidden states of the pairs after those.
    waiting: Vec<f32>,
    blocks: Vec<BlockId>,
}

/// Pairs of one sequence in a step.
struct PairRows {
    request_idx: usize,
    first: usize,
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    /// Tokens of the sequence and its draft, if the next is to be chosen.
    n_tokens: Option<usize>,
}

/// What followed a pair: the token that is drafted, and the hidden state that it is read with.
struct PairDraft {
    request_idx: usize,
    token: TokenId,
    hidden: Vec<f32>,
}

impl NextToken {
    /// `n_embd`: columns of hidden states.
    pub fn new(model: impl Forward + 'static, n_embd: usize) -> Self {
        let capacity = model.capacity();
        Self {
            model: Box::new(model),
            capacity,
            n_embd,
            free: (0..capacity.n_blocks as u32).rev().map(BlockId).collect(),
            seqs: HashMap::new(),
            sampler: Sampler::new(capacity.n_vocab),
            batch: Batch::default(),
            is_broken: false,
        }
    }

    /// Whether every pair up to the last token is there, with blocks for them and for what is drafted.
    fn prepare(&mut self, request: &DraftRequest) -> bool {
        let Some(heard) = self.seqs.get_mut(&request.seq) else { return false };
        let n_pairs = (request.tokens.len() - 1).saturating_sub(heard.start);
        let n_waiting = n_pairs.saturating_sub(heard.n_done);
        let n_all = n_pairs + request.max_len;
        let is_known = request.tokens.iter().all(|token| (token.0 as usize) < self.capacity.n_vocab);
        if n_waiting == 0 || heard.waiting.len() < n_waiting * self.n_embd || n_all > self.capacity.n_ctx || !is_known {
            return false;
        }
        while heard.blocks.len() < Sequence::blocks_for(n_all) {
            let Some(block) = self.free.pop() else { return false };
            heard.blocks.push(block);
        }
        true
    }

    /// The pairs that sequences lack, within the rows that one step may have.
    fn catch_up(&self, requests: &[DraftRequest], ready: &[usize]) -> Vec<PairRows> {
        let mut n_left = CATCH_UP_ROWS.min(self.capacity.max_batch_tokens);
        let mut parts = Vec::new();
        for &request_idx in ready {
            let request = &requests[request_idx];
            let ObservedPairs { start, n_done, waiting, .. } = &self.seqs[&request.seq];
            let first = start + n_done;
            let n_missing = request.tokens.len() - 1 - first;
            let n = n_missing.min(n_left);
            if n == 0 || parts.len() == self.capacity.max_output_rows {
                continue;
            }
            n_left -= n;
            let tokens = request.tokens[first + 1..][..n].to_vec();
            let hidden = waiting[..n * self.n_embd].to_vec();
            let n_tokens = (n == n_missing).then_some(request.tokens.len());
            parts.push(PairRows { request_idx, first: *n_done, tokens, hidden, n_tokens });
        }
        parts
    }

    /// Runs pairs of several sequences, and guesses the token after those that are complete.
    fn step(&mut self, requests: &[DraftRequest], parts: &[PairRows]) -> Result<Vec<PairDraft>, StepError> {
        let mut batch = std::mem::take(&mut self.batch);
        let Batch { tokens, positions, seqs, logits_rows, pool_rows, choices, hidden, .. } = &mut batch;
        tokens.clear();
        seqs.clear();
        choices.clear();
        hidden.clear();
        [positions, logits_rows, pool_rows].into_iter().for_each(Vec::clear);
        let mut wanted = Vec::new();
        for part in parts {
            let request = &requests[part.request_idx];
            let (first_row, end) = (batch.tokens.len() as u32, part.first + part.tokens.len());
            batch.tokens.extend_from_slice(&part.tokens);
            batch.hidden.extend_from_slice(&part.hidden);
            batch.positions.extend(part.first as u32..end as u32);
            let block_table = self.seqs[&request.seq].blocks[..end.div_ceil(BLOCK_TOKENS)].to_vec();
            batch.seqs.push(SeqRows { first_row, n_rows: part.tokens.len() as u32, block_table });
            if let Some(n_tokens) = part.n_tokens {
                let last = batch.tokens.len() as u32 - 1;
                batch.logits_rows.push(last);
                batch.pool_rows.push(last);
                wanted.push((part.request_idx, sampler::choice_at(request.sampling, n_tokens)));
            }
        }
        if self.model.chooses() {
            batch.choices.extend(wanted.iter().map(|(_, choice)| *choice));
        }
        self.batch = batch;
        let ticket = self.model.submit(&self.batch)?;
        let rows = self.model.wait(ticket)?;
        let chosen: Vec<Option<TokenId>> = if rows.chosen.is_empty() {
            let logits = rows.logits.chunks_exact(self.capacity.n_vocab.max(1));
            logits.zip(&wanted).map(|(row, (_, choice))| self.sampler.choose(row, choice)).collect()
        } else {
            rows.chosen
        };
        let all = wanted.iter().zip(chosen).zip(rows.hidden.chunks_exact(self.n_embd.max(1)));
        Ok(all
            .filter_map(|(((request_idx, _), token), hidden)| {
                Some(PairDraft { request_idx: *request_idx, token: token?, hidden: hidden.to_vec() })
            })
            .collect())
    }

    fn draft_all(&mut self, requests: &[DraftRequest], drafts: &mut [Draft]) -> Result<(), StepError> {
        let ready: Vec<usize> = (0..requests.len()).filter(|&idx| self.prepare(&requests[idx])).collect();
        let mut parts = self.catch_up(requests, &ready);
        let mut is_first = true;
        while !parts.is_empty() {
            let guesses = self.step(requests, &parts)?;
            for part in parts.drain(..).filter(|_| is_first) {
                if let Some(heard) = self.seqs.get_mut(&requests[part.request_idx].seq) {
                    heard.n_done += part.tokens.len();
                    heard.waiting.drain(..part.hidden.len());
                }
            }
            is_first = false;
            for PairDraft { request_idx, token, hidden } in guesses {
                let (request, draft) = (&requests[request_idx], &mut drafts[request_idx].tokens);
                draft.push(token);
                if draft.len() < request.max_len {
                    let first = self.seqs[&request.seq].n_done + draft.len() - 1;
                    let n_tokens = Some(request.tokens.len() + draft.len());
                    parts.push(PairRows { request_idx, first, tokens: vec![token], hidden, n_tokens });
                }
            }
        }
        Ok(())
    }
}

impl Drafter for NextToken {
    fn draft(&mut self, requests: &[DraftRequest], _model: &mut dyn Forward) -> Vec<Draft> {
        let mut drafts = vec![Draft { tokens: Vec::new(), source: DraftSource::Model }; requests.len()];
        if !self.is_broken && self.draft_all(requests, &mut drafts).is_err() {
            self.is_broken = true;
            drafts.iter_mut().for_each(|draft| draft.tokens.clear());
        }
        drafts
    }

    fn end(&mut self, seq: SeqId) {
        if let Some(heard) = self.seqs.remove(&seq) {
            self.free.extend(heard.blocks);
        }
    }

    fn is_free(&self) -> bool {
        false
    }

    fn reads_hidden(&self) -> bool {
        true
    }

    /// States that are known already come again where a recurrent model computes tokens again.
    fn observe(&mut self, seq: SeqId, first: usize, hidden: &[f32]) {
        let heard = self.seqs.entry(seq).or_default();
        let next = heard.start + heard.n_done;
        let n_waiting = heard.waiting.len() / self.n_embd.max(1);
        let is_new = heard.n_done == 0 && n_waiting == 0;
        // Where tokens between were not computed, it begins anew.
        if is_new || first > next + n_waiting || n_waiting > MAX_WAITING {
            (heard.start, heard.n_done) = (first, 0);
            heard.waiting.clear();
            heard.waiting.extend_from_slice(hidden);
            return;
        }
        let n_known = next.saturating_sub(first).min(hidden.len() / self.n_embd.max(1));
        heard.waiting.truncate(first.saturating_sub(next) * self.n_embd);
        heard.waiting.extend_from_slice(&hidden[n_known * self.n_embd..]);
    }
}
