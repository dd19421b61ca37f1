//! The n best of a vocabulary without sorting it: one pass that keeps a short list and skips whole runs of logits
//! below its worst entry. Order: logit, then token id, so that equal logits never depend on the method.

use std::cmp::Ordering;

use model::TokenId;

/// A token that may still be chosen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Candidate {
    pub logit: f32,
    pub token: TokenId,
}

/// Better first. The logits are numbers: `finite_max` was asked before.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
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
    fn forbidden_tokens_are_left_out() {
        let mut out = Vec::new();
        best(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 3, &mut out);
        assert_eq!(out, [Candidate { logit: 1.0, token: TokenId(1) }]);
    }
}
