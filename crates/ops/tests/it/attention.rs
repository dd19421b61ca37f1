//! Attention and what surrounds it: norm, rope, KV store, SwiGLU, embedding, against f64. Longer than other files, because
//! all cases of attention share one reference.

use ops::quant::{dequantize, quantize};
use ops::{
    Arena, Error, Exec, Heads, Isa, KV_BLOCK, Kv, KvSlot, Layout, Pairing, Pool, QuerySpan, Shaping, Tensor, View,
    ViewMut, attention, attention_with, chosen_words, embed, gather_rows, hadamard, hadamard_width, kv_store, pack,
    packed, rmsnorm, rope, scatter_rows, swiglu, take_rows,
};
use test_support::share;
use weights::Dtype;

use crate::card::cards;
use crate::support::{Random, assert_close, pools};

/// A KV pool of one layer.
struct Cache {
    k: Tensor,
    v: Tensor,
}

impl Cache {
    fn new(dtype: Dtype, n_blocks: usize, heads: &Heads) -> Self {
        let shape = [n_blocks * heads.n_kv_heads, KV_BLOCK * heads.head_dim];
        let mut arena = Arena::new(2 * Arena::bytes_for(dtype, shape)).unwrap();
        Self { k: arena.carve(dtype, shape), v: arena.carve(dtype, shape) }
    }
}

struct Sequence {
    n_past: usize,
    n_new: usize,
}

fn check_attention(pool: &Pool, dtype: Dtype, heads: Heads, sequences: &[Sequence], is_causal: bool) {
    check_shaped(pool, dtype, heads, sequences, is_causal, Scores::default());
}

/// What is done to scores.
#[derive(Copy, Clone, Default)]
struct Scores {
    window: Option<usize>,
    softcap: Option<f32>,
    has_sinks: bool,
    has_slopes: bool,
    /// Whether rows choose what they attend to: about one token in eight, and themselves.
    has_choices: bool,
}

/// Scattered blocks, several sequences at once, the new rows of each after its past.
fn check_shaped(
    pool: &Pool,
    dtype: Dtype,
    heads: Heads,
    sequences: &[Sequence],
    is_causal: bool,
    Scores { window, softcap, has_sinks, has_slopes, has_choices }: Scores,
) {
    let Heads { n_heads, n_kv_heads, head_dim, scale } = heads;
    let mut random = Random::new((n_heads * 131 + head_dim) as u64);
    let n_blocks_each = |s: &Sequence| (s.n_past + s.n_new).div_ceil(KV_BLOCK);
    let n_blocks: usize = sequences.iter().map(n_blocks_each).sum::<usize>() + 3;
    let mut free: Vec<u32> = (0..n_blocks as u32).collect();
    let mut cache = Cache::new(dtype, n_blocks, &heads);
    let cards = cards();
    let pool_shape = [n_blocks * n_kv_heads, KV_BLOCK * head_dim];
    // Not a number where nothing was written: reading it would show.
    let poison = vec![0xff; dtype.row_bytes(pool_shape[1]).unwrap() * pool_shape[0]];
    let pools =
        |card: &crate::card::Card| (card.tensor(dtype, pool_shape, &poison), card.tensor(dtype, pool_shape, &poison));
    let mut on_cards: Vec<(Tensor, Tensor)> = cards.iter().map(pools).collect();
    let (mut tables, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for s in sequences {
        let table: Vec<u32> =
            (0..n_blocks_each(s)).map(|_| free.swap_remove(random.bits() as usize % free.len())).collect();
        let n = s.n_past + s.n_new;
        let (k, v) = (random.numbers(n * n_kv_heads * head_dim), random.numbers(n * n_kv_heads * head_dim));
        let slot = |i: usize| KvSlot { block: table[i / KV_BLOCK], token: (i % KV_BLOCK) as u32 }.index();
        let slots: Vec<u32> = (0..n).map(slot).collect();
        let n_cols = n_kv_heads * head_dim;
        kv_store(
            Exec::Cpu(pool),
            View::of_f32(&k, n_cols),
            View::of_f32(&v, n_cols),
            &slots,
            head_dim,
            &mut cache.k.view_mut(),
            &mut cache.v.view_mut(),
        )
        .unwrap();
        for (card, (k_pool, v_pool)) in cards.iter().zip(&mut on_cards) {
            card.store(&k, &v, &slots, &heads, (k_pool, v_pool));
        }
        // What the pool's type keeps of the numbers is what the truth is computed from.
        let kept = |x: Vec<f32>| -> Vec<f32> {
            let mut bytes = vec![0; dtype.row_bytes(x.len()).unwrap()];
            quantize(dtype, &x, &mut bytes);
            let mut out = vec![0.0; x.len()];
            dequantize(dtype, &bytes, &mut out);
            out
        };
        tables.push(table);
        keys.push(kept(k));
        values.push(kept(v));
    }
    let n_rows: usize = sequences.iter().map(|s| s.n_new).sum();
    let q: Vec<f32> = random.numbers(n_rows * n_heads * head_dim).iter().map(|x| x * 3.0).collect();
    let mut out = vec![f32::NAN; q.len()];
    let mut spans = Vec::new();
    let mut first_row = 0;
    for (s, blocks) in sequences.iter().zip(&tables) {
        spans.push(QuerySpan { first_row, n_rows: s.n_new, first_position: s.n_past, blocks, is_causal });
        first_row += s.n_new;
    }
    let kv = Kv { k: cache.k.view(), v: cache.v.view() };
    let n_cols = n_heads * head_dim;
    let sinks: Vec<f32> = random.numbers(n_heads).iter().map(|x| x * 4.0).collect();
    let slopes: Vec<f32> = (1..=n_heads).map(|head| 0.5_f32.powf(head as f32 * 8.0 / n_heads as f32)).collect();
    let n_words = chosen_words(sequences.iter().map(|s| s.n_past + s.n_new).max().unwrap());
    let mut words: Vec<u32> =
        (0..n_rows * n_words).map(|_| (random.bits() & random.bits() & random.bits()) as u32).collect();
    for (s, span) in sequences.iter().zip(&spans) {
        let own = |i: usize| ((span.first_row + i) * n_words + (s.n_past + i) / 32, (s.n_past + i) % 32);
        (0..s.n_new).map(own).for_each(|(word, bit)| words[word] |= 1 << bit);
    }
    let words_as_numbers: Vec<f32> = words.iter().map(|word| f32::from_bits(*word)).collect();
    let shaping = Shaping {
        chosen: has_choices.then(|| View::of_f32(&words_as_numbers, n_words)),
        window,
        softcap,
        sinks: has_sinks.then(|| View::of_f32(&sinks, n_heads)),
        slopes: has_slopes.then(|| View::of_f32(&slopes, n_heads)),
        ..Shaping::default()
    };
    let mut to = ViewMut::of_f32(&mut out, n_cols);
    attention_with(Exec::Cpu(pool), View::of_f32(&q, n_cols), kv, heads, &spans, shaping, &mut to).unwrap();
    let mut truth = Vec::new();
    for (i, s) in sequences.iter().enumerate() {
        for row in 0..s.n_new {
            let position = s.n_past + row;
            let n_visible = if is_causal { position + 1 } else { s.n_past + s.n_new };
            for head in 0..n_heads {
                let q = &q[(spans[i].first_row + row) * n_cols + head * head_dim..][..head_dim];
                let at = |t: usize| (t * n_kv_heads + head / (n_heads / n_kv_heads)) * head_dim;
                let dot = |t: usize| -> f64 {
                    q.iter().zip(&keys[i][at(t)..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>()
                        * f64::from(scale)
                };
                let cap = |s: f64| softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
                let is_chosen = |t: usize| words[(spans[i].first_row + row) * n_words + t / 32] >> (t % 32) & 1 == 1;
                let is_seen = |t: usize| {
                    window.is_none_or(|window| position.abs_diff(t) < window) && (!has_choices || is_chosen(t))
                };
                let slope = if has_slopes { f64::from(slopes[head]) } else { 0.0 };
                let lost = |t: usize| slope * (s.n_past + row).abs_diff(t) as f64;
                let score = |t: usize| if is_seen(t) { cap(dot(t)) - lost(t) } else { f64::NEG_INFINITY };
                let scores: Vec<f64> = (0..n_visible).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sink = if has_sinks { (f64::from(sinks[head]) - max).exp() } else { 0.0 };
                let sum: f64 = weights.iter().sum::<f64>() + sink;
                for d in 0..head_dim {
                    let mixed: f64 = (0..n_visible).map(|t| weights[t] * f64::from(values[i][at(t) + d])).sum();
                    truth.push(mixed / sum);
                }
            }
        }
    }
    let what = format!("attention {dtype} {n_heads}/{n_kv_heads}x{head_dim} {}", pool.isa());
    assert_close(&what, &out, &truth, 1e-5);
    // Once is enough: the numbers do not depend on the CPU's instruction set.
    if pool.isa() == Isa::detect() {
        for (card, (k_pool, v_pool)) in cards.iter().zip(&on_cards) {
            let sinks = has_sinks.then_some(&sinks[..]);
            let slopes = has_slopes.then_some(&slopes[..]);
            let on_host = Shaping { sinks: None, slopes: None, ..shaping };
            let out = card.attention(&q, (k_pool, v_pool), heads, &spans, (on_host, sinks, slopes));
            // Matrix units take halves: queries and weights are rounded to eleven bits.
            let is_rounded = dtype == Dtype::F16 || dtype != Dtype::F32 && card.has_matrix_units();
            let bound = if is_rounded { 2e-3 } else { 1e-5 };
            assert_close(&format!("{what} {}", card.name()), &out, &truth, bound);
        }
    }
}

fn heads(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Heads {
    Heads { n_heads, n_kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
}

#[test]
fn attention_head_shapes() {
    for pool in pools() {
        for dtype in [Dtype::F16, Dtype::F32] {
            for shape in [
                (9, 3, 64),
                (4, 4, 96),
                (8, 1, 128),
                (2, 1, 256),
                (6, 2, 40),
                (1, 1, 8),
                (5, 5, 20),
                (4, 1, 576),
                (3, 1, 320),
            ] {
                let mixed =
                    [(0, 5), (37, 1), (0, 50), (15, 1), (16, 3)].map(|(n_past, n_new)| Sequence { n_past, n_new });
                check_attention(&pool, dtype, heads(shape.0, shape.1, shape.2), &mixed, true);
            }
        }
    }
}

#[test]
fn attention_sees_what_was_chosen() {
    for pool in pools() {
        for dtype in [Dtype::F16, Dtype::F32] {
            for shape in [(4, 1, 576), (8, 2, 64), (4, 1, 24), (4, 2, 8)] {
                for n_past in [50, 400] {
                    let mixed = [(0, 3), (n_past, 1), (20, 18)].map(|(n_past, n_new)| Sequence { n_past, n_new });
                    let scores = Scores { has_choices: true, ..Scores::default() };
                    check_shaped(&pool, dtype, heads(shape.0, shape.1, shape.2), &mixed, true, scores);
                }
            }
        }
    }
}

#[test]
fn attention_long_context_is_split_and_merged() {
    for pool in pools() {
        for n_past in [300, 511, 512, 1300] {
            check_attention(&pool, Dtype::F16, heads(9, 3, 64), &[Sequence { n_past, n_new: 1 }], true);
            check_attention(&pool, Dtype::F16, heads(4, 2, 64), &[Sequence { n_past, n_new: 7 }], true);
        }
    }
}

#[test]
fn attention_with_windows_caps_and_sinks() {
    let shapes = [(4, 2, 64), (3, 1, 40), (2, 2, 256), (4, 1, 576)];
    let scores = [
        Scores { window: Some(1), ..Scores::default() },
        Scores { window: Some(20), ..Scores::default() },
        Scores { softcap: Some(1.5), ..Scores::default() },
        Scores { has_sinks: true, ..Scores::default() },
        Scores { window: Some(130), softcap: Some(3.0), has_sinks: true, ..Scores::default() },
        Scores { has_slopes: true, ..Scores::default() },
    ];
    for pool in pools() {
        for (i, scores) in scores.into_iter().enumerate() {
            let (a, b, c) = shapes[i % shapes.len()];
            let mixed = [(0, 5), (37, 1), (0, 50), (15, 1), (16, 3)].map(|(n_past, n_new)| Sequence { n_past, n_new });
            check_shaped(&pool, Dtype::F16, heads(a, b, c), &mixed, true, scores);
            check_shaped(&pool, Dtype::F16, heads(9, 3, 64), &[Sequence { n_past: 700, n_new: 1 }], true, scores);
            check_shaped(&pool, Dtype::F32, heads(9, 3, 64), &[Sequence { n_past: 700, n_new: 9 }], true, scores);
            // Tiles of several rows, whose windows begin apart.
            let few = [(300, 7), (0, 2), (45, 1)].map(|(n_past, n_new)| Sequence { n_past, n_new });
            check_shaped(&pool, Dtype::F16, heads(6, 2, 128), &few, true, scores);
        }
    }
}

/// What one token or a few of every sequence need, as families shape it: Gemma 3, Gemma 2 and gpt-oss, and as they come.
#[test]
fn attention_of_few_rows_with_windows_caps_and_sinks() {
    let families = [
        ((4, 2, 256), Scores { window: Some(50), ..Scores::default() }),
        ((2, 1, 256), Scores { window: Some(100), softcap: Some(2.0), ..Scores::default() }),
        ((8, 1, 64), Scores { window: Some(60), has_sinks: true, ..Scores::default() }),
        ((4, 2, 128), Scores { softcap: Some(2.0), has_sinks: true, ..Scores::default() }),
        ((9, 1, 64), Scores { window: Some(17), ..Scores::default() }),
        ((4, 2, 256), Scores::default()),
        ((4, 2, 128), Scores::default()),
    ];
    let pool = Pool::new(2);
    for dtype in share([Dtype::F16, Dtype::Q8_0, Dtype::Q4_0]) {
        for ((n_heads, n_kv_heads, head_dim), scores) in families {
            let heads = heads(n_heads, n_kv_heads, head_dim);
            // A split context, and whole ones whose windows begin apart.
            check_shaped(&pool, dtype, heads, &[Sequence { n_past: 200, n_new: 1 }], true, scores);
            let few = [(70, 4), (0, 3), (45, 1)].map(|(n_past, n_new)| Sequence { n_past, n_new });
            check_shaped(&pool, dtype, heads, &few, true, scores);
        }
    }
}

/// What is kept of the numbers is what ggml's encodings keep; reading it back loses nothing more.
#[test]
fn attention_over_quantized_keys_and_values() {
    let scores = [
        Scores::default(),
        Scores { window: Some(20), ..Scores::default() },
        Scores { window: Some(130), softcap: Some(3.0), has_sinks: true, ..Scores::default() },
        Scores { has_slopes: true, ..Scores::default() },
    ];
    for pool in pools() {
        for dtype in [Dtype::Q8_0, Dtype::Q4_0] {
            let shapes = [(9, 3, 64), (4, 4, 96), (8, 1, 128), (2, 1, 256), (6, 6, 32), (4, 1, 576), (3, 1, 320)];
            for (i, shape) in shapes.into_iter().enumerate() {
                let mixed =
                    [(0, 5), (37, 1), (0, 50), (15, 1), (16, 3)].map(|(n_past, n_new)| Sequence { n_past, n_new });
                let shape = heads(shape.0, shape.1, shape.2);
                check_shaped(&pool, dtype, shape, &mixed, true, scores[i % scores.len()]);
            }
            // A split context, by the walks for few rows and for many.
            check_attention(&pool, dtype, heads(9, 3, 64), &[Sequence { n_past: 1300, n_new: 1 }], true);
            check_attention(&pool, dtype, heads(4, 1, 64), &[Sequence { n_past: 700, n_new: 7 }], true);
        }
    }
}

#[test]
fn quantized_keys_need_heads_of_whole_groups() {
    let (pool, shape) = (Pool::new(1), [2, KV_BLOCK * 40]);
    let mut arena = Arena::new(2 * Arena::bytes_for(Dtype::Q8_0, shape)).unwrap();
    let (mut k, mut v) = (arena.carve(Dtype::Q8_0, shape), arena.carve(Dtype::Q8_0, shape));
    let x = vec![1.0; 40];
    let x = View::of_f32(&x, 40);
    let outcome = kv_store(Exec::Cpu(&pool), x, x, &[0_u32], 40, &mut k.view_mut(), &mut v.view_mut());
    assert!(outcome.unwrap_err().to_string().contains("heads of a multiple of 32 numbers, not 40"));
}

#[test]
fn attention_without_a_causal_mask() {
    for pool in pools() {
        let spans = [Sequence { n_past: 0, n_new: 33 }, Sequence { n_past: 0, n_new: 1 }];
        check_attention(&pool, Dtype::F32, heads(4, 2, 32), &spans, false);
        let slopes = Scores { has_slopes: true, ..Scores::default() };
        check_shaped(&pool, Dtype::F32, heads(4, 2, 32), &spans, false, slopes);
    }
}

#[test]
fn attention_with_windows_to_both_sides() {
    for pool in pools() {
        for (window, shape) in
            [(1, (4, 2, 64)), (9, (3, 1, 40)), (65, (6, 6, 64)), (129, (2, 1, 128)), (500, (2, 2, 32))]
        {
            let scores = Scores { window: Some(window), ..Scores::default() };
            let texts = [333, 1, 40, 150].map(|n_new| Sequence { n_past: 0, n_new });
            let heads = heads(shape.0, shape.1, shape.2);
            check_shaped(&pool, Dtype::F16, heads, &texts, false, scores);
            check_shaped(&pool, Dtype::F32, heads, &texts[1..3], false, scores);
        }
    }
}

#[test]
fn attention_refuses_a_short_block_table() {
    let pool = Pool::new(1);
    let shape = heads(1, 1, 8);
    let cache = Cache::new(Dtype::F16, 2, &shape);
    let (q, mut out) = (vec![0.0; 8], vec![0.0; 8]);
    let span = QuerySpan { first_row: 0, n_rows: 1, first_position: 16, blocks: &[0], is_causal: true };
    let kv = Kv { k: cache.k.view(), v: cache.v.view() };
    let mut out = ViewMut::of_f32(&mut out, 8);
    let outcome = attention(Exec::Cpu(&pool), View::of_f32(&q, 8), kv, shape, &[span], &mut out);
    assert!(matches!(outcome, Err(Error::Argument { op: "attention", .. })));
    let span = QuerySpan { blocks: &[0, 2], ..span };
    let outcome = attention(Exec::Cpu(&pool), View::of_f32(&q, 8), kv, shape, &[span], &mut out);
    assert!(outcome.unwrap_err().to_string().contains("block 2 of a pool of 2"));
}

#[test]
fn rmsnorm_rows() {
    let mut random = Random::new(1);
    for pool in pools() {
        for (n_rows, n_cols) in [(1, 1), (3, 7), (2, 576), (40, 33)] {
            let (x, weight) = (random.activations(n_rows * n_cols), random.numbers(n_cols));
            let mut out = vec![f32::NAN; x.len()];
            let (x_view, w_view) = (View::of_f32(&x, n_cols), View::of_f32(&weight, n_cols));
            rmsnorm(Exec::Cpu(&pool), x_view, w_view, 1e-5, &mut ViewMut::of_f32(&mut out, n_cols)).unwrap();
            let mut truth = Vec::new();
            for row in x.chunks(n_cols) {
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n_cols as f64;
                let scale = 1.0 / (mean + f64::from(1e-5_f32)).sqrt();
                truth.extend(row.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)));
            }
            assert_close("rmsnorm", &out, &truth, 1e-6);
            for card in cards().iter() {
                assert_close(card.name(), &card.rmsnorm(&x, &weight, 1e-5), &truth, 1e-6);
            }
        }
    }
}

#[test]
fn rope_turns_pairs() {
    let mut random = Random::new(2);
    for pool in pools() {
        for (pairing, n_rot, head_dim) in
            [(Pairing::Adjacent, 8, 8), (Pairing::Halves, 8, 8), (Pairing::Adjacent, 4, 10), (Pairing::Halves, 6, 10)]
        {
            let (n_rows, n_heads) = (37, 3);
            let x = random.numbers(n_rows * n_heads * head_dim);
            let angle = |row: usize, pair: usize| row as f64 * 0.7 + pair as f64;
            let angles: Vec<f32> = (0..n_rows)
                .flat_map(|row| {
                    (0..n_rot / 2).flat_map(move |p| [angle(row, p).cos() as f32, angle(row, p).sin() as f32])
                })
                .collect();
            let mut out = x.clone();
            let mut view = ViewMut::of_f32(&mut out, n_heads * head_dim);
            rope(Exec::Cpu(&pool), &mut view, View::of_f32(&angles, n_rot), head_dim, pairing).unwrap();
            let mut truth: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for row in 0..n_rows {
                for head in 0..n_heads {
                    let base = (row * n_heads + head) * head_dim;
                    for pair in 0..n_rot / 2 {
                        let (a, b) = match pairing {
                            Pairing::Adjacent => (base + 2 * pair, base + 2 * pair + 1),
                            Pairing::Halves => (base + pair, base + pair + n_rot / 2),
                        };
                        let (sin, cos) = angle(row, pair).sin_cos();
                        let (x, y) = (f64::from(x[a]), f64::from(x[b]));
                        (truth[a], truth[b]) = (x * cos - y * sin, x * sin + y * cos);
                    }
                }
            }
            assert_close("rope", &out, &truth, 1e-6);
            for card in cards().iter() {
                let out = card.rope(&x, n_heads * head_dim, &angles, n_rot, head_dim, pairing);
                assert_close(card.name(), &out, &truth, 1e-6);
            }
        }
    }
}

#[test]
fn swiglu_gates() {
    let mut random = Random::new(4);
    for pool in pools() {
        let gate: Vec<f32> = random.activations(10_007).iter().map(|x| x * 20.0).collect();
        let up = random.numbers(gate.len());
        let mut out = gate.clone();
        let n = gate.len();
        swiglu(Exec::Cpu(&pool), &mut ViewMut::of_f32(&mut out, n), View::of_f32(&up, n)).unwrap();
        let truth: Vec<f64> =
            gate.iter().zip(&up).map(|(g, u)| f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(*u)).collect();
        assert_close("swiglu", &out, &truth, 1e-6);
        for card in cards().iter() {
            assert_close(card.name(), &card.swiglu(&gate, &up), &truth, 1e-6);
        }
    }
}

#[test]
fn embedding_rows_are_exact_in_rows_and_tiles() {
    let mut random = Random::new(5);
    for pool in pools() {
        for dtype in share(Dtype::ALL) {
            let (n_vocab, n_embd) = (37, 512);
            let bytes = random.weights(dtype, n_vocab * n_embd);
            let mut truth = vec![0.0; n_vocab * n_embd];
            dequantize(dtype, &bytes, &mut truth);
            let rows = View::host(dtype, [n_vocab, n_embd], &bytes);
            let (layout, n_bytes) = packed(Exec::Cpu(&pool), dtype, rows.shape).unwrap();
            let mut table = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, dtype, rows.shape);
            pack(Exec::Cpu(&pool), rows, &mut table.view_mut()).unwrap();
            assert!(layout == Layout::Rows || dtype.block_len() > 1);
            let tokens: Vec<u32> = (0..n_vocab as u32).rev().collect();
            for table in [rows, table.view()] {
                let mut out = vec![f32::NAN; truth.len()];
                embed(Exec::Cpu(&pool), table, &tokens, &mut ViewMut::of_f32(&mut out, n_embd)).unwrap();
                for (row, token) in out.chunks(n_embd).zip(&tokens) {
                    assert_eq!(row, &truth[*token as usize * n_embd..][..n_embd], "{dtype} {token}");
                }
            }
            // What a device holds as F16 or F32 is tested as that.
            for card in cards().iter().filter(|_| ops::device_dtype(dtype) == dtype) {
                let out = card.embed(dtype, rows.shape, &bytes, &tokens);
                for (row, token) in out.chunks(n_embd).zip(&tokens) {
                    assert_eq!(row, &truth[*token as usize * n_embd..][..n_embd], "{dtype} {token} {}", card.name());
                }
            }
            let mut out = vec![0.0; n_embd];
            let outcome = embed(Exec::Cpu(&pool), rows, &[37], &mut ViewMut::of_f32(&mut out, n_embd));
            assert!(matches!(outcome, Err(Error::Argument { op: "embed", .. })));
        }
    }
}

#[test]
fn rows_are_copied_bit_for_bit() {
    // Also what is no number: the pool of a cache holds other types than f32.
    let mut x = Random::new(8).numbers(9 * 37);
    x[5 * 37] = f32::from_bits(0x7fa0_0001);
    let onto = vec![1.0; x.len()];
    let rows = [5, 0, 8];
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let gathered: Vec<f32> = rows.iter().flat_map(|&row| x[row as usize * 37..][..37].to_vec()).collect();
    let mut scattered = onto.clone();
    rows.iter().for_each(|&row| {
        let at = row as usize * 37;
        scattered[at..at + 37].copy_from_slice(&x[at..at + 37]);
    });
    let pool = Pool::new(1);
    let (mut piece, mut to) = (vec![0.0; gathered.len()], onto.clone());
    gather_rows(Exec::Cpu(&pool), View::of_f32(&x, 37), &rows, &mut ViewMut::of_f32(&mut piece, 37)).unwrap();
    scatter_rows(Exec::Cpu(&pool), View::of_f32(&piece, 37), &rows, &mut ViewMut::of_f32(&mut to, 37)).unwrap();
    assert_eq!((bits(&piece), bits(&to)), (bits(&gathered), bits(&scattered)));
    for card in cards().iter() {
        let [piece, to] = card.copy_rows(&x, &onto, 37, &rows);
        assert_eq!((bits(&piece), bits(&to)), (bits(&gathered), bits(&scattered)), "{}", card.name());
    }
    let outcome = gather_rows(Exec::Cpu(&pool), View::of_f32(&x, 37), &[9], &mut ViewMut::of_f32(&mut piece[..37], 37));
    assert!(matches!(outcome, Err(Error::Argument { op: "gather_rows", .. })));
}

#[test]
fn taken_rows_are_the_rows() {
    let x = Random::new(6).numbers(7 * 33);
    let rows = [6, 0, 3, 3];
    let truth: Vec<f32> = rows.iter().flat_map(|&row| x[row as usize * 33..][..33].to_vec()).collect();
    let mut out = vec![f32::NAN; truth.len()];
    let pool = Pool::new(1);
    take_rows(Exec::Cpu(&pool), View::of_f32(&x, 33), &rows, &mut ViewMut::of_f32(&mut out, 33)).unwrap();
    assert_eq!(out, truth);
    for card in cards().iter() {
        assert_eq!(card.take_rows(&x, 33, &rows), truth, "{}", card.name());
    }
}

/// Against the matrix as it is defined; the device's bits are the host's.
#[test]
fn hadamard_turns_neighbours() {
    let mut random = Random::new(9);
    for (head_dim, n_heads) in [(64, 9), (96, 4), (128, 40), (256, 2), (576, 3), (20, 2), (1, 5)] {
        let width = hadamard_width(head_dim);
        assert!(
            width.is_power_of_two() && head_dim.is_multiple_of(width) && (width == 256 || (head_dim / width) % 2 == 1)
        );
        let (n_rows, widths) = (5, [n_heads * head_dim, head_dim, 2 * head_dim]);
        let matrices = widths.map(|n_cols| random.numbers(n_rows * n_cols));
        let truth = |x: &[f32]| -> Vec<f64> {
            let turn = |numbers: &[f32]| -> Vec<f64> {
                let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let sum = |i: usize| numbers.iter().enumerate().map(|(j, x)| sign(i, j) * f64::from(*x)).sum::<f64>();
                (0..width).map(|i| sum(i) / (width as f64).sqrt()).collect()
            };
            x.chunks(width).flat_map(turn).collect()
        };
        let on_host = |n: usize, pool: &Pool, start: &[Vec<f32>]| {
            let mut copies = start[..n].to_vec();
            let mut views: Vec<ViewMut> =
                copies.iter_mut().zip(widths).map(|(x, n_cols)| ViewMut::of_f32(x, n_cols)).collect();
            hadamard(Exec::Cpu(pool), &mut views, width).unwrap();
            drop(views);
            copies
        };
        for pool in pools() {
            for n in 1..=3 {
                let once = on_host(n, &pool, &matrices);
                once.iter().zip(&matrices).for_each(|(out, x)| assert_close("hadamard", out, &truth(x), 1e-6));
                for (back, x) in on_host(n, &pool, &once).iter().zip(&matrices) {
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    assert_close("hadamard twice", back, &x, 1e-6);
                }
                for card in cards().iter() {
                    let some: Vec<_> = matrices.iter().zip(widths).take(n).map(|(x, n)| (&x[..], n)).collect();
                    assert_eq!(card.hadamard(&some, width), once, "{}", card.name());
                }
            }
        }
    }
    let pool = Pool::new(1);
    let mut x = vec![0.0; 12];
    let outcome = hadamard(Exec::Cpu(&pool), &mut [ViewMut::of_f32(&mut x, 12)], 8);
    assert!(outcome.unwrap_err().to_string().contains("turned by 8 columns"));
}

/// For the counters of the software GPU (`GFX_COUNTERS`): one step of one sequence of `KEYS` tokens, `GROUP` query heads for each of
/// `KV_HEADS` KV heads of `HEAD_DIM` numbers in `KV` (F16, Q8_0 or Q4_0).
#[test]
#[ignore = "a tool: counts, and proves nothing"]
fn counts_of_few_queries() {
    let number = |name: &str, usual: usize| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let dtype = match std::env::var("KV").as_deref() {
        Ok("Q8_0") => Dtype::Q8_0,
        Ok("Q4_0") => Dtype::Q4_0,
        _ => Dtype::F16,
    };
    let n_kv_heads = number("KV_HEADS", 32);
    let shape = heads(n_kv_heads * number("GROUP", 4), n_kv_heads, number("HEAD_DIM", 128));
    check_attention(&Pool::new(1), dtype, shape, &[Sequence { n_past: number("KEYS", 512) - 1, n_new: 1 }], true);
}
