//! From a row of logits to a token. The order is llama.cpp's default: penalties, bias, mask, top-k, top-p, min-p,
//! temperature; so top-p and min-p look at the distribution before temperature. Log-probabilities are those of the
//! model, before all of it. The choice is a function of the logits, the tokens so far and (seed, position): no state
//! survives from one token to the next, only buffers do.

mod penalties;
mod select;
mod softmax;

use model::{Choice, TokenId};
use select::Candidate;

use crate::{draw, mask::TokenSet, protocol::Sampling};

#[derive(Debug)]
pub struct Sampler {
    /// The row after penalties, bias and mask.
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    counts: Vec<u32>,
    sums: Vec<f64>,
}

/// A chosen token.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    pub token: TokenId,
    /// NaN unless asked for.
    pub logprob: f32,
    pub top: Vec<(TokenId, f32)>,
}

/// The same choice as plain numbers, for a model that chooses by itself; `None` where penalties or biases come first.
pub fn choice(sampling: &Sampling, position: usize) -> Option<Choice> {
    if penalties::is_active(sampling) || !sampling.logit_bias.is_empty() {
        return None;
    }
    Some(Choice {
        temperature: sampling.temperature,
        top_k: u32::try_from(sampling.top_k).unwrap_or(u32::MAX),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        draw: draw::uniform(sampling.seed, position as u64),
    })
}

#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum SampleError {
    #[error("the model gave logits that are not numbers at position {position}")]
    NotNumbers { position: usize },
    #[error("the constraint and the logit bias allow no token at position {position}")]
    NothingAllowed { position: usize },
}

impl Sampler {
    pub fn new(n_vocab: usize) -> Self {
        Self { adjusted: Vec::new(), candidates: Vec::new(), counts: vec![0; n_vocab], sums: Vec::new() }
    }

    /// The token after `tokens`, from `logits` of one entry per token of the vocabulary.
    pub fn sample(
        &mut self,
        logits: &[f32],
        tokens: &[TokenId],
        sampling: &Sampling,
        allowed: Option<&TokenSet>,
        n_logprobs: Option<usize>,
    ) -> Result<Sampled, SampleError> {
        let position = tokens.len();
        let max = softmax::finite_max(logits).ok_or(SampleError::NotNumbers { position })?;
        let token = if penalties::is_active(sampling) || !sampling.logit_bias.is_empty() || allowed.is_some() {
            self.adjust(logits, tokens, sampling, allowed);
            // Taken out and put back, so that the buffers can be borrowed apart.
            let adjusted = std::mem::take(&mut self.adjusted);
            let max = softmax::finite_max(&adjusted);
            let token = max.map(|max| self.choose(&adjusted, max, sampling, position));
            self.adjusted = adjusted;
            token.ok_or(SampleError::NothingAllowed { position })?
        } else {
            self.choose(logits, max, sampling, position)
        };
        let Some(n_top) = n_logprobs else { return Ok(Sampled { token, logprob: f32::NAN, top: Vec::new() }) };
        let log_sum = f64::from(max) + softmax::sum_exp(logits, max, 1.0).ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        select::best(logits, n_top, &mut self.candidates);
        let top = self.candidates.iter().map(|c| (c.token, logprob(c.logit))).collect();
        Ok(Sampled { token, logprob: logprob(logits[token.0 as usize]), top })
    }

    fn adjust(&mut self, logits: &[f32], tokens: &[TokenId], sampling: &Sampling, allowed: Option<&TokenSet>) {
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        if penalties::is_active(sampling) {
            penalties::apply(sampling, tokens, &mut self.adjusted, &mut self.counts);
        }
        for &(token, bias) in &sampling.logit_bias {
            self.adjusted[token.0 as usize] += bias;
        }
        if let Some(allowed) = allowed {
            allowed.forbid_others(&mut self.adjusted);
        }
    }

    fn choose(&mut self, logits: &[f32], max: f32, sampling: &Sampling, position: usize) -> TokenId {
        if sampling.temperature == 0.0 {
            return select::argmax(logits, max);
        }
        // A temperature below 1e-38 is as good as greedy.
        let scale = (1.0 / sampling.temperature).min(f32::MAX);
        let u = draw::uniform(sampling.seed, position as u64);
        let has_top_k = sampling.top_k > 0 && sampling.top_k < logits.len();
        let min_logit = max + sampling.min_p.ln();
        if has_top_k || sampling.top_p < 1.0 {
            if has_top_k {
                select::best(logits, sampling.top_k, &mut self.candidates);
                self.truncate_top_p(max, sampling.top_p);
            } else {
                self.select_top_p(logits, max, sampling.top_p);
            }
            self.candidates.retain(|c| c.logit >= min_logit);
        } else if sampling.min_p > 0.0 {
            let tokens = (0..).map(TokenId).zip(logits);
            self.candidates.clear();
            self.candidates.extend(
                tokens.filter(|&(_, &logit)| logit >= min_logit).map(|(token, &logit)| Candidate { logit, token }),
            );
        } else {
            return TokenId(softmax::pick(logits, max, scale, u, &mut self.sums) as u32);
        }
        // Drawn in the order of token ids, however they were found, so that every sampler draws the same.
        self.candidates.sort_unstable_by_key(|c| c.token);
        self.sums.clear();
        self.sums.extend(self.candidates.iter().map(|c| f64::from(softmax::exp((c.logit - max) * scale))));
        let target = u * self.sums.iter().sum::<f64>();
        self.candidates[softmax::pick_weight(self.sums.iter().copied(), target)].token
    }

    /// The fewest best tokens that reach `top_p` of the whole. Mostly a short list is enough; a flat distribution may
    /// need half the vocabulary, which is then counted instead of sorted.
    fn select_top_p(&mut self, logits: &[f32], max: f32, top_p: f32) {
        let total = softmax::sum_exp(logits, max, 1.0);
        select::best(logits, 64, &mut self.candidates);
        match self.n_reaching(max, f64::from(top_p) * total) {
            Some(n_kept) => self.candidates.truncate(n_kept),
            None => select::best_until(logits, max, total, top_p, &mut self.candidates, &mut self.sums),
        }
    }

    fn truncate_top_p(&mut self, max: f32, top_p: f32) {
        if top_p < 1.0 {
            let total: f64 = self.candidates.iter().map(|c| f64::from(c.logit - max).exp()).sum();
            if let Some(n_kept) = self.n_reaching(max, f64::from(top_p) * total) {
                self.candidates.truncate(n_kept);
            }
        }
    }

    /// How many candidates, best first, it takes to reach `target`.
    fn n_reaching(&self, max: f32, target: f64) -> Option<usize> {
        let mut sum = 0.0;
        let reached = self.candidates.iter().position(|c| {
            sum += f64::from(c.logit - max).exp();
            sum >= target
        });
        reached.map(|idx| idx + 1)
    }
}

#[cfg(test)]
#[path = "sampler/tests.rs"]
mod tests;
