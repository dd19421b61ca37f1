//! The sampler against the definitions: exact distributions by full sorts in f64, and a chi-square test of many draws.

use super::*;

/// The distribution `Sampling` defines, straight from the definitions.
fn exact(logits: &[f32], tokens: &[TokenId], sampling: &Sampling, allowed: Option<&TokenSet>) -> Vec<f64> {
    let mut x: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    let window = &tokens[tokens.len().saturating_sub(sampling.penalty_window)..];
    for (id, x) in x.iter_mut().enumerate() {
        let count = window.iter().filter(|t| t.0 as usize == id).count();
        if count > 0 {
            let r = f64::from(sampling.repetition_penalty);
            *x = if *x > 0.0 { *x / r } else { *x * r };
            *x -= count as f64 * f64::from(sampling.frequency_penalty) + f64::from(sampling.presence_penalty);
        }
        for (token, bias) in &sampling.logit_bias {
            if token.0 as usize == id {
                *x += f64::from(*bias);
            }
        }
        if allowed.is_some_and(|set| !set.contains(TokenId(id as u32))) {
            *x = f64::NEG_INFINITY;
        }
    }
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let softmax = |order: &[usize], scale: f64| -> Vec<f64> {
        let weights: Vec<f64> = order.iter().map(|&i| ((x[i] - x[order[0]]) * scale).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| w / total).collect()
    };
    if sampling.top_p < 1.0 {
        let mut sum = 0.0;
        let reached = softmax(&order, 1.0).iter().position(|p| {
            sum += p;
            sum >= f64::from(sampling.top_p)
        });
        order.truncate(reached.map_or(order.len(), |idx| idx + 1));
    }
    let p = softmax(&order, 1.0);
    let n_kept = p.iter().take_while(|&&q| q >= f64::from(sampling.min_p) * p[0]).count();
    order.truncate(n_kept.max(1));
    let mut out = vec![0.0; x.len()];
    for (&i, p) in order.iter().zip(softmax(&order, 1.0 / f64::from(sampling.temperature))) {
        out[i] = p;
    }
    out
}

fn logits(seed: u64, n: u64) -> Vec<f32> {
    (0..n).map(|i| (draw::uniform(seed, i) * 8.0 - 4.0) as f32).collect()
}

/// Draws many tokens with different seeds and compares their counts with the exact distribution.
fn check(name: &str, logits: &[f32], tokens: &[TokenId], sampling: Sampling, allowed: Option<&TokenSet>) {
    let p = exact(logits, tokens, &sampling, allowed);
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
