//! The sampler against the definitions: exact distributions by full sorts in f64, and a chi-square test of many draws.

use super::*;
use crate::sampling::{Dry, Mirostat, Stage, Xtc};

/// The distribution `Sampling` defines, straight from the definitions: full lists, in f64, stage by stage.
// Longer than other functions: an arm for each stage.
fn exact(logits: &[f32], tokens: &[TokenId], sampling: &Sampling, allowed: Option<&TokenSet>) -> Vec<f64> {
    let mut x: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for (id, x) in x.iter_mut().enumerate() {
        let token = TokenId(id as u32);
        *x += sampling.logit_bias.iter().filter(|(t, _)| *t == token).map(|&(_, bias)| f64::from(bias)).sum::<f64>();
        let is_allowed = sampling.allowed.as_ref().is_none_or(|only| only.contains(&token));
        if sampling.banned.contains(&token) || !is_allowed || allowed.is_some_and(|set| !set.contains(token)) {
            *x = f64::NEG_INFINITY;
        }
    }
    // What is left, best first.
    let mut left: Vec<usize> = (0..x.len()).filter(|&i| x[i].is_finite()).collect();
    for stage in &sampling.order {
        left.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
        let p = softmax_of(&x, &left);
        let reaching = |p: &[f64], limit: f32| {
            let mut sum = 0.0;
            let reached = p.iter().position(|p| {
                sum += p;
                sum >= f64::from(limit)
            });
            reached.map_or(p.len(), |at| at + 1)
        };
        match stage {
            Stage::Penalties => {
                let window = &tokens[tokens.len().saturating_sub(sampling.penalty_window)..];
                for &i in &left {
                    let count = window.iter().filter(|t| t.0 as usize == i).count();
                    if count > 0 {
                        let r = f64::from(sampling.repetition_penalty);
                        x[i] = if x[i] > 0.0 { x[i] / r } else { x[i] * r };
                        x[i] -=
                            count as f64 * f64::from(sampling.frequency_penalty) + f64::from(sampling.presence_penalty);
                    }
                }
            }
            // Tested against its definition where it is.
            Stage::Dry => {}
            Stage::TopNSigma if sampling.top_n_sigma > 0.0 => {
                let mean = left.iter().map(|&i| x[i]).sum::<f64>() / left.len() as f64;
                let variance = left.iter().map(|&i| (x[i] - mean).powi(2)).sum::<f64>() / left.len() as f64;
                let lowest = x[left[0]] - f64::from(sampling.top_n_sigma) * variance.sqrt();
                left.retain(|&i| x[i] >= lowest);
            }
            Stage::TopK if sampling.top_k > 0 => left.truncate(sampling.top_k),
            Stage::TypicalP if sampling.typical_p < 1.0 => {
                let expected: f64 = p.iter().map(|p| -p * p.ln()).sum();
                let mut ranked: Vec<(usize, f64)> = left.iter().copied().zip(p).collect();
                ranked.sort_by(|a, b| (-a.1.ln() - expected).abs().total_cmp(&(-b.1.ln() - expected).abs()));
                let n = reaching(&ranked.iter().map(|&(_, p)| p).collect::<Vec<_>>(), sampling.typical_p);
                left = ranked[..n].iter().map(|&(i, _)| i).collect();
            }
            Stage::TopP if sampling.top_p < 1.0 => left.truncate(reaching(&p, sampling.top_p)),
            Stage::MinP => {
                let n = p.iter().take_while(|&&q| q >= f64::from(sampling.min_p) * p[0] * (1.0 - 1e-9)).count();
                left.truncate(n.max(1));
            }
            Stage::Temperature => {
                let mut t = f64::from(sampling.temperature);
                if sampling.dynatemp_range > 0.0 {
                    let range = f64::from(sampling.dynatemp_range);
                    let spread = p.iter().map(|p| -p * p.ln()).sum::<f64>() / (p.len() as f64).ln();
                    let low = (t - range).max(0.0);
                    t = low + (t + range - low) * spread.powf(f64::from(sampling.dynatemp_exponent));
                }
                left.iter().for_each(|&i| x[i] /= t);
            }
            _ => {}
        }
    }
    let mut out = vec![0.0; x.len()];
    for (&i, p) in left.iter().zip(softmax_of(&x, &left)) {
        out[i] = p;
    }
    out
}

fn softmax_of(x: &[f64], left: &[usize]) -> Vec<f64> {
    let max = left.iter().map(|&i| x[i]).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = left.iter().map(|&i| (x[i] - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

fn logits(seed: u64, n: u64) -> Vec<f32> {
    (0..n).map(|i| (draw::uniform(seed, i) * 8.0 - 4.0) as f32).collect()
}

/// Draws many tokens with different seeds and compares their counts with the exact distribution.
fn check(name: &str, logits: &[f32], tokens: &[TokenId], sampling: Sampling, allowed: Option<&TokenSet>) {
    let p = exact(logits, tokens, &sampling, allowed);
    check_against(name, logits, tokens, sampling, allowed, p);
}

fn check_against(
    name: &str,
    logits: &[f32],
    tokens: &[TokenId],
    sampling: Sampling,
    allowed: Option<&TokenSet>,
    p: Vec<f64>,
) {
    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let n_draws = 8_000;
    let mut sampler = Sampler::new(logits.len());
    let mut counts = vec![0u32; logits.len()];
    for seed in 0..n_draws {
        let sampling = Sampling { seed, ..sampling.clone() };
        let sampled = sampler.sample(logits, tokens, &sampling, allowed, None).unwrap();
        counts[sampled.token.0 as usize] += 1;
    }
    // Bins of at least 10 expected draws; the rare tokens share one.
    let (mut chi, mut n_bins, mut rare_count, mut rare_expected) = (0.0, 0, 0.0, 0.0);
    for (i, (&count, p)) in counts.iter().zip(&p).enumerate() {
        let expected = p * n_draws as f64;
        assert!(*p > 0.0 || count == 0, "{name}: token {i} has no probability and was drawn {count} times");
        if expected < 10.0 {
            rare_count += f64::from(count);
            rare_expected += expected;
        } else {
            chi += (f64::from(count) - expected).powi(2) / expected;
            n_bins += 1;
        }
    }
    if rare_expected >= 1.0 {
        chi += (rare_count - rare_expected).powi(2) / rare_expected;
        n_bins += 1;
    }
    // Wilson and Hilferty: the chi-square value exceeded once in 30,000.
    let df = f64::from(n_bins - 1).max(1.0);
    let limit = df * (1.0 - 2.0 / (9.0 * df) + 4.0 * (2.0 / (9.0 * df)).sqrt()).powi(3);
    assert!(chi < limit, "{name}: chi-square {chi:.1} over {limit:.1} with {df} degrees of freedom");
}

#[test]
fn draws_follow_the_exact_distribution() {
    let x = logits(1, 300);
    let tokens: Vec<TokenId> = (0..100).map(|i| TokenId(i * 7 % 30)).collect();
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    check("temperature 1", &x, &tokens, base.clone(), None);
    check("temperature 0.5", &x, &tokens, Sampling { temperature: 0.5, ..base.clone() }, None);
    check("temperature 3", &x, &tokens, Sampling { temperature: 3.0, ..base.clone() }, None);
    check("top-k", &x, &tokens, Sampling { top_k: 20, temperature: 0.7, ..base.clone() }, None);
    check("top-k 1", &x, &tokens, Sampling { top_k: 1, ..base.clone() }, None);
    check("top-p small", &x, &tokens, Sampling { top_p: 0.3, ..base.clone() }, None);
    check("top-p wide", &x, &tokens, Sampling { top_p: 0.95, temperature: 1.5, ..base.clone() }, None);
    check("min-p", &x, &tokens, Sampling { min_p: 0.2, temperature: 2.0, ..base.clone() }, None);
    let all = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.05, ..base.clone() };
    check("top-k, top-p, min-p", &x, &tokens, all.clone(), None);
    let penalised = Sampling {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        penalty_window: 20,
        logit_bias: vec![(TokenId(3), 2.0), (TokenId(200), f32::NEG_INFINITY)],
        ..all
    };
    check("everything", &x, &tokens, penalised.clone(), None);
    let mut allowed = TokenSet::new(300);
    (0..300).step_by(3).for_each(|i| allowed.insert(TokenId(i)));
    check("masked", &x, &tokens, penalised, Some(&allowed));
    check("masked, temperature only", &x, &tokens, base, Some(&allowed));
}

#[test]
fn truncation_at_the_size_of_a_vocabulary() {
    let mut x = logits(2, 49_152);
    x.iter_mut().step_by(5000).for_each(|l| *l += 9.0);
    for sampling in [
        Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::default() },
        // Needs far more than a short list.
        Sampling { temperature: 0.1, top_p: 0.95, ..Sampling::default() },
        Sampling { temperature: 0.9, top_k: 64, min_p: 0.01, ..Sampling::default() },
    ] {
        let p = exact(&x, &[], &sampling, None);
        let mut sampler = Sampler::new(x.len());
        for seed in 0..30 {
            let sampled = sampler.sample(&x, &[], &Sampling { seed, ..sampling.clone() }, None, None).unwrap();
            assert!(p[sampled.token.0 as usize] > 0.0, "{sampling:?} drew a truncated token");
        }
        // The list that was kept is exactly the support.
        assert_eq!(sampler.candidates.len(), p.iter().filter(|&&p| p > 0.0).count(), "{sampling:?}");
    }
}

#[test]
fn greedy_takes_the_first_best_and_is_not_moved_by_truncation() {
    let mut sampler = Sampler::new(5);
    let x = [0.0, 3.0, 1.0, 3.0, -1.0];
    let sampling = Sampling { top_k: 1, top_p: 0.1, min_p: 0.9, ..Sampling::default() };
    let sampled = sampler.sample(&x, &[], &sampling, None, None).unwrap();
    assert_eq!(sampled.token, TokenId(1));
    assert!(sampled.logprob.is_nan() && sampled.top.is_empty());
    let sampling = Sampling { presence_penalty: 2.0, logit_bias: vec![(TokenId(4), 3.5)], ..Sampling::default() };
    let sampled = sampler.sample(&x, &[TokenId(1), TokenId(3)], &sampling, None, None).unwrap();
    assert_eq!(sampled.token, TokenId(4));
}

#[test]
fn logprobs_are_the_models_own() {
    let x = logits(3, 1000);
    let total: f64 = x.iter().map(|&l| f64::from(l).exp()).sum();
    let truth = |token: TokenId| (f64::from(x[token.0 as usize]).exp() / total).ln();
    let sampling = Sampling { temperature: 5.0, top_k: 3, presence_penalty: 9.0, ..Sampling::default() };
    let tokens: Vec<TokenId> = (0..1000).map(TokenId).collect();
    let mut sampler = Sampler::new(x.len());
    let sampled = sampler.sample(&x, &tokens, &sampling, None, Some(5)).unwrap();
    assert!((f64::from(sampled.logprob) - truth(sampled.token)).abs() < 1e-5);
    assert_eq!(sampled.top.len(), 5);
    assert!(sampled.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    let best = x.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(x[sampled.top[0].0.0 as usize], best);
    for (token, logprob) in sampled.top {
        assert!((f64::from(logprob) - truth(token)).abs() < 1e-5);
    }
    let sampled = sampler.sample(&x, &tokens, &sampling, None, Some(0)).unwrap();
    assert!(sampled.logprob < 0.0 && sampled.top.is_empty());
}

#[test]
fn what_cannot_be_sampled_is_an_error() {
    let mut sampler = Sampler::new(3);
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    for bad in [[0.0, f32::NAN, 1.0], [f32::INFINITY, 0.0, 0.0], [f32::NEG_INFINITY; 3]] {
        for sampling in [&sampling, &Sampling::default()] {
            let error = sampler.sample(&bad, &[TokenId(0)], sampling, None, Some(2)).unwrap_err();
            assert_eq!(error, SampleError::NotNumbers { position: 1 });
        }
    }
    let nothing = TokenSet::new(3);
    let error = sampler.sample(&[0.0; 3], &[], &sampling, Some(&nothing), None).unwrap_err();
    assert_eq!(error, SampleError::NothingAllowed { position: 0 });
}

#[test]
fn the_choice_depends_on_seed_and_position_alone() {
    let x = logits(4, 500);
    let sampling = Sampling { temperature: 2.0, seed: 11, ..Sampling::default() };
    let tokens = vec![TokenId(0); 64];
    let draw = |sampler: &mut Sampler, n: usize| sampler.sample(&x, &tokens[..n], &sampling, None, None).unwrap().token;
    let (mut a, mut b) = (Sampler::new(500), Sampler::new(500));
    let forward: Vec<_> = (0..64).map(|n| draw(&mut a, n)).collect();
    let mut backward: Vec<_> = (0..64).rev().map(|n| draw(&mut b, n)).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    assert!(forward.iter().collect::<std::collections::HashSet<_>>().len() > 32);
}

#[test]
fn the_other_stages_follow_their_definitions() {
    let x = logits(5, 300);
    let tokens: Vec<TokenId> = (0..100).map(|i| TokenId(i * 7 % 30)).collect();
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    check("typical-p", &x, &tokens, Sampling { typical_p: 0.4, ..base.clone() }, None);
    check("typical-p, narrow", &x, &tokens, Sampling { typical_p: 0.05, ..base.clone() }, None);
    check("top-n-sigma", &x, &tokens, Sampling { top_n_sigma: 1.0, ..base.clone() }, None);
    check("top-n-sigma, wide", &x, &tokens, Sampling { top_n_sigma: 2.5, temperature: 1.5, ..base.clone() }, None);
    let dynamic = Sampling { temperature: 0.8, dynatemp_range: 0.6, dynatemp_exponent: 1.5, ..base.clone() };
    check("dynamic temperature", &x, &tokens, dynamic.clone(), None);
    check("dynamic temperature after top-k", &x, &tokens, Sampling { top_k: 12, ..dynamic }, None);
    check("banned", &x, &tokens, Sampling { banned: (0..150).map(TokenId).collect(), ..base.clone() }, None);
    let only = Some(vec![TokenId(3), TokenId(5), TokenId(250)]);
    check("allowed", &x, &tokens, Sampling { allowed: only, top_k: 2, ..base.clone() }, None);
    let all = Sampling {
        top_n_sigma: 2.2,
        top_k: 80,
        typical_p: 0.9,
        top_p: 0.95,
        min_p: 0.05,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        penalty_window: 30,
        ..base.clone()
    };
    check("everything together", &x, &tokens, all.clone(), None);
    use Stage::{MinP, Penalties, Temperature, TopK, TopP, TypicalP};
    for order in [
        vec![Temperature, TopP, TopK],
        vec![MinP, Temperature, TopP, Penalties],
        vec![TopK, Penalties, TypicalP],
        vec![],
    ] {
        let sampling = Sampling { temperature: 0.6, order: order.clone(), ..all.clone() };
        check(&format!("{order:?}"), &x, &tokens, sampling, None);
    }
}

#[test]
fn the_order_of_stages_matters() {
    // At temperature 3 the distribution is flat, and top-p keeps more of it.
    let x = logits(6, 300);
    let n_kept = |order: &[Stage]| {
        let sampling = Sampling { temperature: 3.0, top_p: 0.5, order: order.to_vec(), ..Sampling::default() };
        exact(&x, &[], &sampling, None).iter().filter(|&&p| p > 0.0).count()
    };
    assert!(n_kept(&[Stage::Temperature, Stage::TopP]) > 2 * n_kept(&[Stage::TopP, Stage::Temperature]));
}

#[test]
fn xtc_excludes_the_top_choices_as_often_as_asked() {
    // Probabilities 0.4, 0.3, 0.2, 0.1: two lie above 0.25, so the first goes.
    let x: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln).to_vec();
    let sampling = Sampling { temperature: 1.0, xtc: Xtc { probability: 0.5, threshold: 0.25 }, ..Sampling::default() };
    let cut = [0.0, 0.3 / 0.6, 0.2 / 0.6, 0.1 / 0.6];
    let p = [0.4, 0.3, 0.2, 0.1].iter().zip(cut).map(|(whole, cut)| 0.5 * whole + 0.5 * cut).collect();
    check_against("xtc", &x, &[], sampling.clone(), None, p);
    let always = Sampling { xtc: Xtc { probability: 1.0, threshold: 0.15 }, ..sampling.clone() };
    check_against("xtc always", &x, &[], always, None, vec![0.0, 0.0, 2.0 / 3.0, 1.0 / 3.0]);
    // Only one is probable enough: nothing to exclude.
    let one = Sampling { xtc: Xtc { probability: 1.0, threshold: 0.35 }, ..sampling };
    check_against("xtc with one", &x, &[], one, None, vec![0.4, 0.3, 0.2, 0.1]);
}

#[test]
fn dry_makes_a_repetition_end() {
    // The model only ever wants to repeat 1 2 3; each round costs more, until another token wins.
    let mut sampler = Sampler::new(6);
    let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 2, ..Dry::default() };
    let sampling = Sampling { dry, ..Sampling::default() };
    let mut tokens = [1, 2, 3].map(TokenId).to_vec();
    for _ in 0..40 {
        let mut x = [0.0; 6];
        let next = match tokens.last().unwrap().0 {
            1 => 2,
            2 => 3,
            _ => 1,
        };
        x[next] = 10.0;
        tokens.push(sampler.sample(&x, &tokens, &sampling, None, None).unwrap().token);
    }
    let n_rounds = tokens.chunks(3).take_while(|chunk| *chunk == [1, 2, 3].map(TokenId)).count();
    // Going on with a repetition of L costs 2^(L - 2): 8 at five tokens, 16 at six, where the other logits win.
    assert_eq!((n_rounds, tokens[9] == TokenId(1)), (3, false), "{tokens:?}");
}

#[test]
fn mirostat_keeps_the_surprise_near_its_target() {
    let n = 2000u64;
    let x: Vec<f32> = (1..=n).map(|rank| -1.1 * (rank as f32).ln()).collect();
    let p = softmax_of(&x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), &(0..n as usize).collect::<Vec<_>>());
    for tau in [2.0, 4.0] {
        let mut sampler = Sampler::new(x.len());
        let mirostat = Some(Mirostat { tau, eta: 0.1 });
        let sampling = Sampling { temperature: 1.0, mirostat, seed: 7, ..Sampling::default() };
        let mut state = SamplerState::new(&sampling);
        let mut tokens = Vec::new();
        let mut surprise = 0.0;
        for step in 0..3000 {
            let sampled = sampler.sample_with(&mut state, &x, &tokens, &sampling, None, None).unwrap();
            tokens.push(sampled.token);
            // Among the tokens that were kept, as the algorithm measures it.
            if step >= 1000 {
                let kept: f64 = sampler.candidates.iter().map(|c| p[c.token.0 as usize]).sum();
                surprise -= (p[sampled.token.0 as usize] / kept).log2();
            }
        }
        let mean = surprise / 2000.0;
        assert!((mean - f64::from(tau)).abs() < 0.15, "target {tau}, mean {mean:.3}");
    }
}

#[test]
fn mirostat_is_rebuilt_from_the_tokens() {
    let sampling = Sampling {
        temperature: 0.9,
        mirostat: Some(Mirostat { tau: 3.0, eta: 0.2 }),
        presence_penalty: 0.5,
        seed: 3,
        ..Sampling::default()
    };
    let row = |tokens: &[TokenId]| logits(100 + tokens.len() as u64, 200);
    let mut sampler = Sampler::new(200);
    let mut state = SamplerState::new(&sampling);
    let mut tokens = vec![TokenId(1)];
    for _ in 0..30 {
        let sampled = sampler.sample_with(&mut state, &row(&tokens), &tokens, &sampling, None, None).unwrap();
        tokens.push(sampled.token);
        let mut again = SamplerState::new(&sampling);
        for at in 1..tokens.len() {
            let seen = &tokens[..at];
            sampler.replay(&mut again, &row(seen), seen, &sampling, None, tokens[at]);
        }
        assert_eq!(again, state);
    }
}
