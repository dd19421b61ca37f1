//! Tokens chosen on a GPU against the plain definition on the host: every kind of choice, odd sizes, ties.

use ops::{
    Adjustments, DESCRIBED_WORDS, Exec, GIVEN, Indices, MAX_TOP, NOT_ASKED, NOT_NUMBERS, Pool, RowAdjustment,
    RowPenalties, SampleParams, View, ViewMut, adjust, describe, feed, sample,
};

use crate::card::cards;
use crate::support::Random;

fn choices(random: &mut Random, n: usize) -> Vec<SampleParams> {
    let kinds = [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1), (40, 0.95, 0.05), (1, 0.5, 0.0)];
    let kinds = kinds.into_iter().chain([(3, 0.0, 0.0), (600, 0.5, 0.0), (0, 0.999, 0.0), (0, 0.2, 0.9)]);
    let kinds: Vec<(u32, f32, f32)> = kinds.collect();
    (0..n)
        .map(|i| {
            let (top_k, top_p, min_p) = kinds[i % kinds.len()];
            let temperature = [1.0, 0.7, 0.0, 2.5, 1e-3][i % 5];
            let draw = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
            SampleParams { temperature, top_k, top_p, min_p, draw }
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

fn check(what: &str, logits: &[f32], n_vocab: usize, choices: &[SampleParams]) {
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
        // Few distinct values: the cutoffs of top-k and top-p fall among equals.
        let tied: Vec<f32> = logits.iter().map(|x| (x / 3.0).round()).collect();
        check("ties", &tied, n_vocab, &choices);
        check("all alike", &vec![-2.5; n_vocab * n_rows], n_vocab, &choices);
    }
}

#[test]
fn sampling_without_numbers() {
    let n_vocab = 600;
    let greedy = SampleParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.5 };
    let drawn = SampleParams { temperature: 1.0, top_k: 5, top_p: 0.9, ..greedy };
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

/// Bias, bans, masks and penalties of some rows, written out one by one; the others stay as they are.
#[test]
fn adjusting() {
    let mut random = Random::new(5);
    for n_vocab in [40, 1000, 3001] {
        let n_rows = 6;
        let logits: Vec<f32> = random.numbers(n_vocab * n_rows).into_iter().map(|x| x * 9.0).collect();
        let tokens = [3, 8, 17];
        let bias = [(1, 2.5), (7, -3.0), (9, f32::NEG_INFINITY)];
        let mask: Vec<u32> = (0..n_vocab.div_ceil(32)).map(|_| (random.bits() >> 20) as u32 | 1 << 7).collect();
        let counts = [(2, 1), (8, 3), (7, 2)];
        let penalties =
            RowPenalties { repetition: 1.3, presence: 0.25, frequency: 0.5, counts: &counts, token_row: None };
        let rows = [
            None,
            Some(RowAdjustment { bias: &bias, ..RowAdjustment::default() }),
            Some(RowAdjustment { mask: Some(&mask), ..RowAdjustment::default() }),
            Some(RowAdjustment { penalties: Some(penalties), ..RowAdjustment::default() }),
            // Token 8 is counted once more, token 17 for the first time.
            Some(RowAdjustment {
                bias: &bias,
                mask: Some(&mask),
                penalties: Some(RowPenalties { token_row: Some(1), ..penalties }),
            }),
            Some(RowAdjustment {
                penalties: Some(RowPenalties { token_row: Some(2), ..penalties }),
                ..RowAdjustment::default()
            }),
        ];
        let mut lists = Adjustments::new(n_rows);
        let mut expected = logits.clone();
        for (row_idx, (wish, row)) in rows.iter().zip(expected.chunks_mut(n_vocab)).enumerate() {
            let Some(wish) = wish else { continue };
            lists.set(row_idx, *wish);
            wish.bias.iter().for_each(|&(token, bias)| row[token as usize] += bias);
            for (i, logit) in row.iter_mut().enumerate() {
                if wish.mask.is_some_and(|mask| mask[i / 32] & 1 << (i % 32) == 0) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            let Some(penalties) = wish.penalties else { continue };
            let own = penalties.token_row.map(|row| tokens[row as usize]);
            for token in 0..n_vocab as u32 {
                let listed = counts.iter().find(|(counted, _)| *counted == token).map_or(0, |(_, count)| *count);
                let count = listed + u32::from(own == Some(token));
                if count > 0 {
                    let logit = &mut row[token as usize];
                    *logit = if *logit > 0.0 { *logit / 1.3 } else { *logit * 1.3 };
                    *logit -= count as f32 * 0.5 + 0.25;
                }
            }
        }
        let (pool, bits, mut found) = (Pool::new(1), tokens.map(f32::from_bits), logits.clone());
        let out = &mut ViewMut::of_f32(&mut found, n_vocab);
        adjust(Exec::Cpu(&pool), Indices::from(lists.words()), View::of_f32(&bits, 1), out).unwrap();
        assert_eq!(found, expected);
        for card in cards().iter() {
            let found = card.adjust(&logits, n_vocab, lists.words(), &tokens);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let is_near = found == expected || (found - expected).abs() <= 1e-6 * expected.abs();
                assert!(is_near, "{found} {expected}: row {}, token {} on {}", i / n_vocab, i % n_vocab, card.name());
            }
        }
        let mut bad = lists.words().to_vec();
        bad[1] = u32::MAX - 1;
        let out = &mut ViewMut::of_f32(&mut expected, n_vocab);
        assert!(adjust(Exec::Cpu(&pool), Indices::from(&bad), View::of_f32(&bits, 1), out).is_err());
    }
}

/// The log-probability of the chosen token and the best ones in order, ties by token id.
#[test]
fn describing() {
    let mut random = Random::new(9);
    for n_vocab in [3, 700, 3001] {
        let wanted = [0, 1, 5, MAX_TOP as u32, NOT_ASKED, 4, 2];
        let mut logits: Vec<f32> = random.numbers(n_vocab * wanted.len()).into_iter().map(|x| x * 9.0).collect();
        // Ties in one row; another has a token that is forbidden.
        logits[2 * n_vocab..3 * n_vocab].iter_mut().for_each(|x| *x = x.round());
        logits[3 * n_vocab] = f32::NEG_INFINITY;
        let mut chosen: Vec<u32> = (0..wanted.len() as u32).map(|i| (i * 37 + 1) % n_vocab as u32).collect();
        chosen[5] = NOT_NUMBERS;
        let (pool, bits) = (Pool::new(1), chosen.iter().map(|&token| f32::from_bits(token)).collect::<Vec<_>>());
        let mut truth = vec![0.0; wanted.len() * DESCRIBED_WORDS];
        let out = &mut ViewMut::of_f32(&mut truth, DESCRIBED_WORDS);
        let (view, tokens) = (View::of_f32(&logits, n_vocab), View::of_f32(&bits, 1));
        describe(Exec::Cpu(&pool), view, tokens, Indices::from(&wanted), out).unwrap();
        for (row, n) in [(0, 0), (1, 1), (2, 5), (3, MAX_TOP.min(n_vocab - 1)), (4, 0), (5, 0), (6, 2)] {
            assert_eq!(truth[row * DESCRIBED_WORDS + 1].to_bits() as usize, n.min(n_vocab), "row {row} of {n_vocab}");
        }
        for card in cards().iter() {
            let found = card.describe(&logits, n_vocab, &chosen, &wanted);
            for (row, (found, truth)) in found.chunks(DESCRIBED_WORDS).zip(truth.chunks(DESCRIBED_WORDS)).enumerate() {
                let what = format!("row {row} of {n_vocab} on {}", card.name());
                let n = truth[1].to_bits() as usize;
                assert_eq!(found[1].to_bits() as usize, n, "{what}");
                assert!((found[0] - truth[0]).abs() < 1e-5, "{what}: {} {}", found[0], truth[0]);
                for (a, b) in found[2..].chunks(2).zip(truth[2..].chunks(2)).take(n) {
                    assert_eq!(a[0].to_bits(), b[0].to_bits(), "{what}");
                    assert!((a[1] - b[1]).abs() < 1e-5, "{what}: {} {}", a[1], b[1]);
                }
            }
        }
    }
}
