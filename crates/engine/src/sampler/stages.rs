//! The stages one after the other, on a list of candidates that each may change or shorten. This is the general case,
//! for any order and any stage; the usual four stages have a shorter one in the parent module.

use batch::TokenId;

use super::select::{Candidate, order};
use super::{dry, mirostat};
use crate::draw;
use crate::sampling::{Sampling, Stage, Xtc};

/// Separates the random numbers of XTC from those of the draw.
const XTC_STREAM: u64 = 0x5f3c_9e1b_7a2d_4c68;

/// Runs the stages. `counts` is all zero before and after, one entry per token.
pub fn run(candidates: &mut Vec<Candidate>, sampling: &Sampling, tokens: &[TokenId], counts: &mut [u32]) {
    for &stage in &sampling.order {
        if candidates.len() <= 1 {
            return;
        }
        // Mirostat truncates by itself.
        if sampling.mirostat.is_some() && !matches!(stage, Stage::Penalties | Stage::Dry | Stage::Temperature) {
            continue;
        }
        match stage {
            Stage::Penalties if sampling.has_penalties() => penalize(candidates, sampling, tokens, counts),
            Stage::Dry if sampling.dry.multiplier != 0.0 => dry::apply(candidates, &sampling.dry, tokens),
            Stage::TopNSigma if sampling.top_n_sigma > 0.0 => top_n_sigma(candidates, sampling.top_n_sigma),
            Stage::TopK if sampling.top_k > 0 => top_k(candidates, sampling.top_k),
            Stage::TypicalP if sampling.typical_p < 1.0 => typical_p(candidates, sampling.typical_p),
            Stage::TopP if sampling.top_p < 1.0 => top_p(candidates, sampling.top_p),
            Stage::MinP if sampling.min_p > 0.0 => min_p(candidates, sampling.min_p),
            Stage::Xtc if sampling.xtc.probability > 0.0 => {
                let u = draw::uniform(sampling.seed ^ XTC_STREAM, tokens.len() as u64);
                xtc(candidates, sampling.xtc, u);
            }
            Stage::Temperature => temperature(candidates, sampling),
            _ => {}
        }
    }
}

/// Draws one of what the stages left. `u` is uniform in [0, 1).
pub fn pick(candidates: &[Candidate], u: f64) -> usize {
    let p = probabilities(candidates);
    super::softmax::pick_weight(p.into_iter(), u)
}

/// The probability of each candidate, in their order.
pub fn probabilities(candidates: &[Candidate]) -> Vec<f64> {
    let max = best(candidates);
    let weights: Vec<f64> = candidates.iter().map(|c| (f64::from(c.logit) - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

fn best(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.logit)).fold(f64::NEG_INFINITY, f64::max)
}

fn entropy(p: &[f64]) -> f64 {
    -p.iter().filter(|&&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

fn penalize(candidates: &mut [Candidate], sampling: &Sampling, tokens: &[TokenId], counts: &mut [u32]) {
    let window = &tokens[tokens.len().saturating_sub(sampling.penalty_window)..];
    window.iter().for_each(|token| counts[token.0 as usize] += 1);
    for candidate in candidates.iter_mut() {
        let count = counts[candidate.token.0 as usize];
        if count > 0 {
            super::penalties::apply_one(sampling, count, &mut candidate.logit);
        }
    }
    window.iter().for_each(|token| counts[token.0 as usize] = 0);
}

fn top_n_sigma(candidates: &mut Vec<Candidate>, n: f32) {
    let n_all = candidates.len() as f64;
    let mean = candidates.iter().map(|c| f64::from(c.logit)).sum::<f64>() / n_all;
    let variance = candidates.iter().map(|c| (f64::from(c.logit) - mean).powi(2)).sum::<f64>() / n_all;
    let lowest = best(candidates) - f64::from(n) * variance.sqrt();
    candidates.retain(|c| f64::from(c.logit) >= lowest);
}

fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, order);
        candidates.truncate(k);
    }
}

/// Keeps the first of `ranked` whose probabilities reach `limit` together, at least one.
fn keep_reaching(candidates: &mut Vec<Candidate>, mut ranked: Vec<(Candidate, f64)>, limit: f32) {
    let mut sum = 0.0;
    let reached = ranked.iter().position(|&(_, p)| {
        sum += p;
        sum >= f64::from(limit)
    });
    ranked.truncate(reached.map_or(ranked.len(), |idx| idx + 1));
    candidates.clear();
    candidates.extend(ranked.into_iter().map(|(candidate, _)| candidate));
}

fn typical_p(candidates: &mut Vec<Candidate>, limit: f32) {
    let p = probabilities(candidates);
    let expected = entropy(&p);
    let distance = |p: f64| (-p.ln() - expected).abs();
    let mut ranked: Vec<(Candidate, f64)> = candidates.iter().copied().zip(p).collect();
    ranked.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then(order(&a.0, &b.0)));
    keep_reaching(candidates, ranked, limit);
}

fn top_p(candidates: &mut Vec<Candidate>, limit: f32) {
    candidates.sort_unstable_by(order);
    let ranked = candidates.iter().copied().zip(probabilities(candidates)).collect();
    keep_reaching(candidates, ranked, limit);
}

fn min_p(candidates: &mut Vec<Candidate>, fraction: f32) {
    let lowest = best(candidates) + f64::from(fraction).ln();
    candidates.retain(|c| f64::from(c.logit) >= lowest);
}

fn xtc(candidates: &mut Vec<Candidate>, xtc: Xtc, u: f64) {
    if u >= f64::from(xtc.probability) {
        return;
    }
    candidates.sort_unstable_by(order);
    let p = probabilities(candidates);
    let n_probable = p.iter().take_while(|&&p| p >= f64::from(xtc.threshold)).count();
    // The least probable of them stays: an answer always has a good way on.
    if n_probable >= 2 {
        candidates.drain(..n_probable - 1);
    }
}

fn temperature(candidates: &mut Vec<Candidate>, sampling: &Sampling) {
    let mut temperature = f64::from(sampling.temperature);
    if sampling.dynatemp_range > 0.0 {
        let range = f64::from(sampling.dynatemp_range);
        let (low, high) = ((temperature - range).max(0.0), temperature + range);
        // From 0, where one token is certain, to 1, where all are alike.
        let spread = entropy(&probabilities(candidates)) / (candidates.len() as f64).ln();
        temperature = low + (high - low) * spread.clamp(0.0, 1.0).powf(f64::from(sampling.dynatemp_exponent));
    }
    if temperature <= 1e-9 {
        candidates.sort_unstable_by(order);
        candidates.truncate(1);
        return;
    }
    for candidate in candidates.iter_mut() {
        candidate.logit = (f64::from(candidate.logit) / temperature) as f32;
    }
}

/// Mirostat's choice, and the surprise it aims at next.
pub fn pick_mirostat(
    candidates: &mut Vec<Candidate>,
    settings: crate::sampling::Mirostat,
    mu: &mut f64,
    u: f64,
) -> usize {
    mirostat::truncate(candidates, *mu);
    let picked = pick(candidates, u);
    mirostat::update(mu, settings, probabilities(candidates)[picked]);
    picked
}
