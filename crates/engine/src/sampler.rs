//! From a row of logits to a token: bias, bans and mask first, then the stages of [`Sampling::order`], then a draw. The
//! usual order is llama.cpp's, so top-p and min-p look at the distribution before temperature. Log-probabilities are
//! those of the model, before all of it. The choice is a function of the logits, the tokens so far and (seed,
//! position); only mirostat carries a number from one token to the next, in [`SamplerState`].

mod dry;
mod mirostat;
mod penalties;
mod select;
mod softmax;
mod stages;

use batch::{Choice, TokenId};
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

/// What one answer carries from token to token.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplerState {
    /// Mirostat's bound on surprise, in bits.
    mu: f64,
}

impl SamplerState {
    /// Before the first token.
    pub fn new(sampling: &Sampling) -> Self {
        Self { mu: sampling.mirostat.map_or(0.0, mirostat::start) }
    }
}

/// A chosen token.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    pub token: TokenId,
    /// NaN unless asked for.
    pub logprob: f32,
    pub top: Vec<(TokenId, f32)>,
}

/// What is left to do after bias, bans, mask and penalties, as plain numbers, for a model that chooses by itself; `None`
/// where it takes more than temperature, top-k, top-p and min-p.
pub fn choice(sampling: &Sampling, position: usize) -> Option<Choice> {
    sampling.is_usual().then(|| choice_at(sampling, position))
}

/// Temperature, top-k, top-p and min-p of a request, and its draw at this position.
pub(crate) fn choice_at(sampling: &Sampling, position: usize) -> Choice {
    Choice {
        temperature: sampling.temperature,
        top_k: u32::try_from(sampling.top_k).unwrap_or(u32::MAX),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        draw: draw::uniform(sampling.seed, position as u64),
    }
}

#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum SampleError {
    #[error("the model gave logits that are NaN or infinite at position {position}")]
    NotNumbers { position: usize },
    #[error("the constraint, the bans and the logit bias allow no token at position {position}")]
    NothingAllowed { position: usize },
}

impl Sampler {
    pub fn new(n_vocab: usize) -> Self {
        Self { adjusted: Vec::new(), candidates: Vec::new(), counts: vec![0; n_vocab], sums: Vec::new() }
    }

    /// The token after `tokens`, from `logits` of one entry per token of the vocabulary, as the first of an answer.
    pub fn sample(
        &mut self,
        logits: &[f32],
        tokens: &[TokenId],
        sampling: &Sampling,
        allowed: Option<&TokenSet>,
        n_logprobs: Option<usize>,
    ) -> Result<Sampled, SampleError> {
        self.sample_with(&mut SamplerState::new(sampling), logits, tokens, sampling, allowed, n_logprobs)
    }

    /// As [`sample`](Self::sample), in the middle of an answer.
    pub fn sample_with(
        &mut self,
        state: &mut SamplerState,
        logits: &[f32],
        tokens: &[TokenId],
        sampling: &Sampling,
        allowed: Option<&TokenSet>,
        n_logprobs: Option<usize>,
    ) -> Result<Sampled, SampleError> {
        let position = tokens.len();
        let max = softmax::finite_max(logits).ok_or(SampleError::NotNumbers { position })?;
        let token = if !sampling.is_usual() {
            self.adjust(logits, sampling, allowed);
            self.list_candidates();
            if self.candidates.is_empty() {
                return Err(SampleError::NothingAllowed { position });
            }
            stages::run(&mut self.candidates, sampling, tokens, &mut self.counts);
            let u = draw::uniform(sampling.seed, position as u64);
            let picked = match sampling.mirostat {
                Some(settings) => stages::pick_mirostat(&mut self.candidates, settings, &mut state.mu, u),
                None => stages::pick(&self.candidates, u),
            };
            self.candidates[picked].token
        } else if sampling.has_penalties() || has_bans(sampling) || allowed.is_some() {
            self.adjust(logits, sampling, allowed);
            if sampling.has_penalties() {
                penalties::apply(sampling, tokens, &mut self.adjusted, &mut self.counts);
            }
            // Taken out and put back, so that the buffers can be borrowed apart.
            let adjusted = std::mem::take(&mut self.adjusted);
            let token = self.choose(&adjusted, &choice_at(sampling, position));
            self.adjusted = adjusted;
            token.ok_or(SampleError::NothingAllowed { position })?
        } else {
            self.choose(logits, &choice_at(sampling, position)).ok_or(SampleError::NotNumbers { position })?
        };
        match n_logprobs {
            Some(n_top) => Ok(self.describe(logits, max, token, n_top)),
            None => Ok(Sampled { token, logprob: f32::NAN, top: Vec::new() }),
        }
    }

    /// What the model thought of a token that was given, and which `n_top` it thought best.
    pub fn score(
        &mut self,
        logits: &[f32],
        token: TokenId,
        n_top: usize,
        position: usize,
    ) -> Result<Sampled, SampleError> {
        let max = softmax::finite_max(logits).ok_or(SampleError::NotNumbers { position })?;
        Ok(self.describe(logits, max, token, n_top))
    }

    fn describe(&mut self, logits: &[f32], max: f32, token: TokenId, n_top: usize) -> Sampled {
        let log_sum = f64::from(max) + softmax::sum_exp(logits, max, 1.0).ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        select::best(logits, n_top, &mut self.candidates);
        let top = self.candidates.iter().map(|c| (c.token, logprob(c.logit))).collect();
        Sampled { token, logprob: logprob(logits[token.0 as usize]), top }
    }

    /// Brings `state` to where it was after an earlier engine chose `token` after `tokens` from these logits.
    pub fn replay(
        &mut self,
        state: &mut SamplerState,
        logits: &[f32],
        tokens: &[TokenId],
        sampling: &Sampling,
        allowed: Option<&TokenSet>,
        token: TokenId,
    ) {
        let Some(settings) = sampling.mirostat else { return };
        if softmax::finite_max(logits).is_none() {
            return;
        }
        self.adjust(logits, sampling, allowed);
        self.list_candidates();
        if self.candidates.is_empty() {
            return;
        }
        stages::run(&mut self.candidates, sampling, tokens, &mut self.counts);
        mirostat::replay(&mut self.candidates, settings, &mut state.mu, token);
    }

    /// Bias, bans and mask.
    fn adjust(&mut self, logits: &[f32], sampling: &Sampling, allowed: Option<&TokenSet>) {
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(token, bias) in &sampling.logit_bias {
            self.adjusted[token.0 as usize] += bias;
        }
        for token in &sampling.banned {
            self.adjusted[token.0 as usize] = f32::NEG_INFINITY;
        }
        if let Some(only) = &sampling.allowed {
            let mut kept: Vec<(usize, f32)> =
                only.iter().map(|token| (token.0 as usize, self.adjusted[token.0 as usize])).collect();
            self.adjusted.fill(f32::NEG_INFINITY);
            kept.drain(..).for_each(|(id, logit)| self.adjusted[id] = logit);
        }
        if let Some(allowed) = allowed {
            allowed.forbid_others(&mut self.adjusted);
        }
    }

    /// Every token that is not forbidden.
    fn list_candidates(&mut self) {
        let all = (0..).map(TokenId).zip(&self.adjusted);
        self.candidates.clear();
        self.candidates.extend(
            all.filter(|&(_, &logit)| logit > f32::NEG_INFINITY).map(|(token, &logit)| Candidate { logit, token }),
        );
    }

    /// A token by numbers alone, as a model that chooses by itself does it; `None` where the logits are not numbers.
    pub fn choose(&mut self, logits: &[f32], choice: &Choice) -> Option<TokenId> {
        let max = softmax::finite_max(logits)?;
        Some(self.choose_below(logits, max, choice))
    }

    /// As [`choose`](Self::choose); `max` is the largest of the logits.
    fn choose_below(&mut self, logits: &[f32], max: f32, choice: &Choice) -> TokenId {
        if choice.temperature == 0.0 {
            return select::argmax(logits, max);
        }
        // A temperature below 1e-38 is as good as greedy.
        let scale = (1.0 / choice.temperature).min(f32::MAX);
        let (u, top_k) = (choice.draw, choice.top_k as usize);
        let has_top_k = top_k > 0 && top_k < logits.len();
        let min_logit = max + choice.min_p.ln();
        if has_top_k || choice.top_p < 1.0 {
            if has_top_k {
                select::best(logits, top_k, &mut self.candidates);
                self.truncate_top_p(max, choice.top_p);
            } else {
                self.select_top_p(logits, max, choice.top_p);
            }
            self.candidates.retain(|c| c.logit >= min_logit);
        } else if choice.min_p > 0.0 {
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

fn has_bans(sampling: &Sampling) -> bool {
    !sampling.logit_bias.is_empty() || !sampling.banned.is_empty() || sampling.allowed.is_some()
}

#[cfg(test)]
#[path = "sampler/tests.rs"]
mod tests;
