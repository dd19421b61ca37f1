//! Tokens chosen on a GPU against the plain definition on the host: every kind of choice, odd sizes, ties.

use ops::{Choice, Exec, GIVEN, Indices, NOT_NUMBERS, Pool, View, ViewMut, feed, sample};

use crate::card::cards;
use crate::support::Random;

fn choices(random: &mut Random, n: usize) -> Vec<Choice> {
    let kinds = [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1), (40, 0.95, 0.05), (1, 0.5, 0.0)];
    let kinds = kinds.into_iter().chain([(3, 0.0, 0.0), (600, 0.5, 0.0), (0, 0.999, 0.0), (0, 0.2, 0.9)]);
    let kinds: Vec<(u32, f32, f32)> = kinds.collect();
    (0..n)
        .map(|i| {
            let (top_k, top_p, min_p) = kinds[i % kinds.len()];
            let temperature = [1.0, 0.7, 0.0, 2.5, 1e-3][i % 5];
            let draw = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
            Choice { temperature, top_k, top_p, min_p, draw }
        })
        .collect()
}

fn on_cpu(logits: &[f32], n_vocab: usize, words: &[u32]) -> Vec<u32> {
    let mut out = vec![0.0; logits.len() / n_vocab];
    let pool = Pool::new(1);
    let view = View::of_f32(logits, n_vocab);
    sample(Exec::Cpu(&pool), view, Indices::from(words), &mut ViewMut::of_f32(&mut out, 1)).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

fn check(what: &str, logits: &[f32], n_vocab: usize, choices: &[Choice]) {
    let words: Vec<u32> = choices.iter().flat_map(|choice| choice.words(n_vocab)).collect();
    let truth = on_cpu(logits, n_vocab, &words);
    for card in cards().iter() {
        let found = card.sample(logits, n_vocab, &words);
        for (row, (truth, found)) in truth.iter().zip(&found).enumerate() {
            assert_eq!(truth, found, "{what}, row {row} of {n_vocab}: {:?} on {}", choices[row], card.name());
        }
    }
}

#[test]
fn sampling() {
    let mut random = Random::new(11);
    for (n_vocab, n_rows) in [(1, 10), (7, 30), (513, 30), (3001, 20)] {
        let choices = choices(&mut random, n_rows);
        let logits: Vec<f32> = random.numbers(n_vocab * n_rows).into_iter().map(|x| x * 9.0).collect();
        check("spread", &logits, n_vocab, &choices);
        // Few distinct values: the borders of top-k and top-p fall among equals.
        let tied: Vec<f32> = logits.iter().map(|x| (x / 3.0).round()).collect();
        check("ties", &tied, n_vocab, &choices);
        check("all alike", &vec![-2.5; n_vocab * n_rows], n_vocab, &choices);
    }
}

#[test]
fn sampling_without_numbers() {
    let n_vocab = 600;
    let greedy = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.5 };
    let drawn = Choice { temperature: 1.0, top_k: 5, top_p: 0.9, ..greedy };
    let mut rows = vec![vec![0.5_f32; n_vocab]; 4];
    rows[0][599] = f32::NAN;
    rows[1][0] = f32::INFINITY;
    rows[2].fill(f32::NEG_INFINITY);
    rows[3].fill(f32::NEG_INFINITY);
    rows[3][300] = -7.0;
    let logits = rows.concat();
    for choice in [greedy, drawn] {
        check("no numbers", &logits, n_vocab, &[choice; 4]);
        let words: Vec<u32> = [choice; 4].iter().flat_map(|choice| choice.words(n_vocab)).collect();
        assert_eq!(on_cpu(&logits, n_vocab, &words), [NOT_NUMBERS, NOT_NUMBERS, NOT_NUMBERS, 300]);
    }
}

/// Tokens of the next step: given ones, chosen ones, and one whose choice failed.
#[test]
fn feeding() {
    let chosen = [7, NOT_NUMBERS, 300, 0];
    let mut random = Random::new(3);
    for n_rows in [1, 5, 256, 700] {
        let given: Vec<u32> = (0..n_rows).map(|i| i * 3 + 1).collect();
        let source = |bits: u64| if bits.is_multiple_of(3) { GIVEN } else { (bits % 4) as u32 };
        let sources: Vec<u32> = (0..n_rows).map(|_| source(random.bits() >> 8)).collect();
        let expected = given.iter().zip(&sources).map(|(&given, &source)| match source {
            GIVEN => given,
            1 => 0,
            source => chosen[source as usize],
        });
        let expected: Vec<u32> = expected.collect();
        let (pool, bits) = (Pool::new(1), chosen.map(f32::from_bits));
        let mut out = vec![0.0; given.len()];
        let (tokens, from) = (Indices::from(&given), Indices::from(&sources));
        feed(Exec::Cpu(&pool), tokens, from, View::of_f32(&bits, 1), &mut ViewMut::of_f32(&mut out, 1)).unwrap();
        assert_eq!(out.into_iter().map(f32::to_bits).collect::<Vec<_>>(), expected);
        for card in cards().iter() {
            assert_eq!(card.feed(&given, &sources, &chosen), expected, "{n_rows} rows on {}", card.name());
        }
        let (given, bad, mut out) = ([0; 1], [4; 1], [0.0]);
        let (tokens, from) = (Indices::from(&given), Indices::from(&bad));
        let out = &mut ViewMut::of_f32(&mut out, 1);
        assert!(feed(Exec::Cpu(&pool), tokens, from, View::of_f32(&bits, 1), out).is_err());
    }
}
