//! The n best of a vocabulary without sorting it: one pass that keeps a short list and skips whole runs of logits
//! below its worst entry. Order: logit, then token id, so that equal logits never depend on the method.

use std::cmp::Ordering;

use batch::TokenId;

use super::softmax::exp;

/// A token that may still be chosen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Candidate {
    pub logit: f32,
    pub token: TokenId,
}

/// Better first. The logits are numbers: `finite_max` was asked before.
pub fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The `n` best, best first. Forbidden ones (negative infinity) are left out.
pub fn best(logits: &[f32], n: usize, out: &mut Vec<Candidate>) {
    const RUN: usize = 32;
    out.clear();
    if n == 0 {
        return;
    }
    // With room for more than n, cutting back costs little per entry.
    let capacity = (n.saturating_mul(2)).max(64);
    let mut worst = f32::NEG_INFINITY;
    for (run_idx, run) in logits.chunks(RUN).enumerate() {
        let max = run.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        if max <= worst {
            continue;
        }
        for (i, &logit) in run.iter().enumerate() {
            // Equal to the worst kept one is not enough: ids ascend, so that one comes first.
            if logit > worst {
                out.push(Candidate { logit, token: TokenId((run_idx * RUN + i) as u32) });
                if out.len() == capacity {
                    cut(out, n);
                    worst = out[n - 1].logit;
                }
            }
        }
    }
    if out.len() > n {
        cut(out, n);
    }
    out.sort_unstable_by(order);
}

/// Keeps the n best, the worst of them in the last place.
fn cut(out: &mut Vec<Candidate>, n: usize) {
    out.select_nth_unstable_by(n - 1, order);
    out.truncate(n);
}

/// The fewest best whose e^(logit - max) reach the fraction `top_p` of `total`, the sum over all; in no order of rank.
/// Logits are counted in narrow bins: every bin before the one in which the sum gets there is taken whole, and only
/// that one is sorted.
pub fn best_until(logits: &[f32], max: f32, total: f64, top_p: f32, out: &mut Vec<Candidate>, bins: &mut Vec<f64>) {
    const BINS_PER_UNIT: f32 = 16.0;
    // Below this distance `exp` is 0.
    const N_BINS: usize = 87 * BINS_PER_UNIT as usize;
    // All tokens below this together weigh less than 1 - top_p: the sum gets there without them.
    let cutoff = f64::from(max) + ((1.0 - f64::from(top_p)) * total / logits.len() as f64).ln() - 1e-3;
    let all = (0..).map(TokenId).zip(logits).map(|(token, &logit)| Candidate { logit, token });
    out.clear();
    out.extend(all.filter(|c| c.logit > cutoff as f32));
    let bin = |c: &Candidate| (((max - c.logit) * BINS_PER_UNIT) as usize).min(N_BINS - 1);
    bins.clear();
    bins.resize(N_BINS, 0.0);
    for candidate in out.iter() {
        bins[bin(candidate)] += f64::from(exp(candidate.logit - max));
    }
    let target = f64::from(top_p) * total;
    let (mut sum, mut border) = (0.0, 0);
    while border < N_BINS - 1 && sum + bins[border] < target {
        sum += bins[border];
        border += 1;
    }
    let mut last: Vec<Candidate> = out.iter().copied().filter(|c| bin(c) == border).collect();
    last.sort_unstable_by(order);
    out.retain(|c| bin(c) < border);
    for candidate in last {
        if sum >= target {
            break;
        }
        sum += f64::from(exp(candidate.logit - max));
        out.push(candidate);
    }
}

/// The first of the best tokens.
pub fn argmax(logits: &[f32], max: f32) -> TokenId {
    const RUN: usize = 64;
    // Find the run by a branch-free comparison, then the place in it.
    let run_idx = logits.chunks(RUN).position(|run| run.iter().fold(false, |any, &x| any | (x == max))).unwrap_or(0);
    let run = &logits[run_idx * RUN..];
    TokenId((run_idx * RUN + run.iter().position(|&x| x == max).unwrap_or(0)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;

    #[test]
    fn agrees_with_a_full_sort() {
        for (seed, n_vocab) in [(1, 1), (2, 31), (3, 1000), (4, 5000)] {
            // Few distinct values: many ties.
            let logits: Vec<f32> = (0..n_vocab).map(|i| (draw::uniform(seed, i) * 50.0).floor() as f32).collect();
            let mut sorted: Vec<_> =
                logits.iter().enumerate().map(|(i, &logit)| Candidate { logit, token: TokenId(i as u32) }).collect();
            sorted.sort_by(order);
            let mut out = Vec::new();
            for n in [0, 1, 2, 7, 40, 64, 999, 5000, usize::MAX] {
                best(&logits, n, &mut out);
                assert_eq!(out, sorted[..n.min(sorted.len())], "{n} of {n_vocab}");
            }
            assert_eq!(argmax(&logits, sorted[0].logit), sorted[0].token);
        }
    }

    #[test]
    fn ascending_logits_are_the_worst_case_and_still_right() {
        let logits: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        let mut out = Vec::new();
        best(&logits, 3, &mut out);
        assert_eq!(out.iter().map(|c| c.token.0).collect::<Vec<_>>(), [9999, 9998, 9997]);
    }

    #[test]
    fn as_many_as_reach_the_target_and_no_more() {
        let logits: Vec<f32> = (0..3000).map(|i| (draw::uniform(5, i) * 12.0) as f32).collect();
        let mut sorted = Vec::new();
        best(&logits, usize::MAX, &mut sorted);
        let max = sorted[0].logit;
        let total: f64 = sorted.iter().map(|c| f64::from(exp(c.logit - max))).sum();
        let mut out = Vec::new();
        for p in [0.001, 0.1, 0.5, 0.9, 0.999] {
            let mut sum = 0.0;
            let n = 1 + sorted
                .iter()
                .take_while(|c| {
                    sum += f64::from(exp(c.logit - max));
                    sum < f64::from(p) * total
                })
                .count();
            best_until(&logits, max, total, p, &mut out, &mut Vec::new());
            out.sort_unstable_by(order);
            assert_eq!(out, sorted[..n], "{p} of the whole");
        }
        // More than there is, as rounding may ask for: all of it.
        best_until(&[0.0, f32::NEG_INFINITY, -4.0], 0.0, 1.1, 0.99, &mut out, &mut Vec::new());
        assert_eq!(out.iter().map(|c| c.token.0).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn forbidden_tokens_are_left_out() {
        let mut out = Vec::new();
        best(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 3, &mut out);
        assert_eq!(out, [Candidate { logit: 1.0, token: TokenId(1) }]);
    }
}
