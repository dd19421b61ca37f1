//! Microseconds to choose a token from a row of logits, by kind of sampling and size of the vocabulary.
//! `cargo bench -p engine`

use std::{hint::black_box, time::Instant};

use batch::TokenId;
use engine::{Sampling, draw, sampler::Sampler};

fn main() {
    let base = Sampling { temperature: 0.8, ..Sampling::default() };
    let kinds = [
        ("greedy", Sampling::default(), None),
        ("greedy, 5 logprobs", Sampling::default(), Some(5)),
        ("temperature", base.clone(), None),
        ("top-k 40", Sampling { top_k: 40, ..base.clone() }, None),
        ("top-k 40, top-p, min-p", Sampling { top_k: 40, top_p: 0.95, min_p: 0.05, ..base.clone() }, None),
        ("top-p 0.95", Sampling { top_p: 0.95, ..base.clone() }, None),
        ("min-p 0.05", Sampling { min_p: 0.05, ..base.clone() }, None),
        ("repetition penalty, top-k 40", Sampling { repetition_penalty: 1.1, top_k: 40, ..base }, None),
    ];
    let tokens: Vec<TokenId> = (0..64).map(TokenId).collect();
    for n_vocab in [49_152, 128_256, 262_144] {
        // Roughly normal with standard deviation 3: flat for a language model, so the hard case for top-p alone.
        let logits: Vec<f32> =
            (0..n_vocab).map(|i| (0..12).map(|j| draw::uniform(j, i) as f32).sum::<f32>() * 3.0 - 18.0).collect();
        let mut sampler = Sampler::new(logits.len());
        for (name, sampling, n_logprobs) in &kinds {
            let mut times_us: Vec<f64> = (0..200)
                .map(|seed| {
                    let sampling = Sampling { seed, ..sampling.clone() };
                    let start = Instant::now();
                    black_box(sampler.sample(black_box(&logits), &tokens, &sampling, None, *n_logprobs)).ok();
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            times_us.sort_by(f64::total_cmp);
            println!("{n_vocab:>7} {name:<30} {:>8.1} us", times_us[times_us.len() / 2]);
        }
    }
}
