//! What an indexer chooses, against scores in f64.

use ops::quant::{dequantize, quantize};
use ops::{
    Arena, Exec, IndexQueries, Isa, KV_BLOCK, KvSlot, Pool, QuerySpan, View, ViewMut, choose_tokens, chosen_words,
    store_index_keys,
};
use weights::Dtype;

use crate::card::cards;
use crate::support::{Random, pools};

const N_BLOCKS: usize = 120;

/// Sequences of (past, new) tokens.
struct Case<'a> {
    sequences: &'a [(usize, usize)],
    n_heads: usize,
    dim: usize,
    n_chosen: usize,
    /// Whether many tokens have the same key.
    has_ties: bool,
}

fn check(pool: &Pool, dtype: Dtype, case: &Case) {
    let &Case { sequences, n_heads, dim, n_chosen, has_ties } = case;
    let mut random = Random::new((n_heads * 17 + dim) as u64);
    let mut free: Vec<u32> = (0..N_BLOCKS as u32).collect();
    let tables: Vec<Vec<u32>> = sequences
        .iter()
        .map(|(n_past, n_new)| {
            let n = (n_past + n_new).div_ceil(KV_BLOCK);
            (0..n).map(|_| free.swap_remove(random.bits() as usize % free.len())).collect()
        })
        .collect();
    let (mut keys, mut slots, mut spans, mut n_rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for ((n_past, n_new), blocks) in sequences.iter().zip(&tables) {
        for t in 0..n_past + n_new {
            let key = if has_ties && t % 3 > 0 { vec![0.5; dim] } else { random.numbers(dim) };
            keys.extend(key);
            slots.push(KvSlot { block: blocks[t / KV_BLOCK], token: (t % KV_BLOCK) as u32 }.index());
        }
        spans.push(QuerySpan { first_row: n_rows, n_rows: *n_new, first_position: *n_past, blocks, is_causal: true });
        n_rows += n_new;
    }
    let (q, weights) = (random.numbers(n_rows * n_heads * dim), random.numbers(n_rows * n_heads));
    let n_context = sequences.iter().map(|(n_past, n_new)| n_past + n_new).max().unwrap();
    let n_words = chosen_words(n_context);

    let shape = [N_BLOCKS, KV_BLOCK * dim];
    let mut held = Arena::new(Arena::bytes_for(dtype, shape)).unwrap().carve(dtype, shape);
    store_index_keys(Exec::Cpu(pool), View::of_f32(&keys, dim), &slots, &mut held.view_mut()).unwrap();
    let queries = IndexQueries {
        q: View::of_f32(&q, n_heads * dim),
        weights: View::of_f32(&weights, n_heads),
        keys: held.view(),
        n_heads,
        n_chosen,
    };
    let (mut scores, mut chosen) = (vec![f32::NAN; 3 * n_context], vec![0.0; n_rows * n_words]);
    let (to_scores, to_chosen) =
        (&mut ViewMut::of_f32(&mut scores, n_context), &mut ViewMut::of_f32(&mut chosen, n_words));
    choose_tokens(Exec::Cpu(pool), queries, &spans, to_scores, to_chosen).unwrap();
    let mut found = vec![("CPU".to_owned(), chosen.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())];
    if pool.isa() == Isa::detect() {
        for card in cards().iter() {
            let words = card.choose([&q, &weights, &keys], &slots, (dtype, N_BLOCKS), (n_heads, n_chosen), &spans);
            found.push((card.name().to_owned(), words));
        }
    }

    let mut bytes = vec![0; dtype.row_bytes(keys.len()).unwrap()];
    quantize(dtype, &keys, &mut bytes);
    dequantize(dtype, &bytes, &mut keys);
    let mut first_key = 0;
    for (span, (n_past, n_new)) in spans.iter().zip(sequences) {
        for i in 0..*n_new {
            let row = span.first_row + i;
            let score = |t: usize| -> f64 {
                let key = &keys[(first_key + t) * dim..][..dim];
                let of_head = |head: usize| -> f64 {
                    let q = &q[(row * n_heads + head) * dim..][..dim];
                    let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    f64::from(weights[row * n_heads + head]) * dot.max(0.0)
                };
                (0..n_heads).map(of_head).sum()
            };
            let n = n_past + i + 1;
            let truth: Vec<f64> = (0..n).map(score).collect();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| truth[*b].total_cmp(&truth[*a]).then(a.cmp(b)));
            let is_best = |t: usize| order[..n_chosen.min(n)].contains(&t);
            for (who, words) in &found {
                let is_chosen = |t: &usize| words[row * n_words + t / 32] >> (t % 32) & 1 == 1;
                let n_found = (0..n).filter(is_chosen).count();
                assert_eq!(n_found, n_chosen.min(n), "{who}, {dtype}, row {row} of {n} tokens");
                for t in 0..n {
                    // Scores that differ by less than f32's rounding may change places, equal keys may not.
                    let border = truth[order[n_chosen.min(n) - 1]];
                    let is_near = (truth[t] - border).abs() < 1e-5 * dim as f64 && (!has_ties || t % 3 == 0);
                    assert!(is_chosen(&t) == is_best(t) || is_near, "{who}, {dtype}: token {t} of {n} in row {row}");
                }
            }
        }
        first_key += n_past + n_new;
    }
}

#[test]
fn indexers_choose_the_best_tokens() {
    for pool in pools() {
        for dtype in [Dtype::F16, Dtype::F32] {
            let sequences = &[(0, 12), (37, 1), (300, 18), (900, 1)];
            let case = Case { sequences, n_heads: 64, dim: 128, n_chosen: 40, has_ties: false };
            check(&pool, dtype, &case);
            check(&pool, dtype, &Case { n_heads: 5, dim: 24, n_chosen: 33, ..case });
            check(&pool, dtype, &Case { n_heads: 33, dim: 32, n_chosen: 150, has_ties: true, ..case });
        }
    }
}

#[test]
fn indexers_take_no_contexts_without_room() {
    let pool = &pools()[0];
    let (q, weights, keys) = (vec![0.0; 8 * 2], vec![0.0; 2], vec![0.0; 2 * KV_BLOCK * 8]);
    let queries = IndexQueries {
        q: View::of_f32(&q, 16),
        weights: View::of_f32(&weights, 2),
        keys: View::of_f32(&keys, KV_BLOCK * 8),
        n_heads: 2,
        n_chosen: 4,
    };
    let ask = |first_position: usize, blocks: &[u32], is_causal: bool| {
        let spans = [QuerySpan { first_row: 0, n_rows: 1, first_position, blocks, is_causal }];
        let (mut scores, mut chosen) = (vec![0.0; 32], vec![0.0; 1]);
        let (scores, chosen) = (&mut ViewMut::of_f32(&mut scores, 32), &mut ViewMut::of_f32(&mut chosen, 1));
        choose_tokens(Exec::Cpu(pool), queries, &spans, scores, chosen).map_err(|error| error.to_string())
    };
    ask(20, &[0, 1], true).unwrap();
    assert!(ask(32, &[0, 1, 0], true).unwrap_err().contains("room for 32"));
    assert!(ask(20, &[0, 2], true).unwrap_err().contains("blocks of a pool of 2"));
    assert!(ask(20, &[0], true).unwrap_err().contains("1 blocks"));
    assert!(ask(20, &[0, 1], false).unwrap_err().contains("causal"));
}
