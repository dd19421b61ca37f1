//! Recurrent ops against f64, with a sequence cut into chunks that go from slot to slot beside another sequence.

use ops::{
    ConvFilter, ConvOutput, DeltaRows, DeltaShape, Exec, HeadOrder, Isa, Pool, Selected, SsmRows, SsmShape, SsmWeights,
    StateSpan, StateSpans, View, ViewMut, WkvOut, WkvRows, WkvWeights, conv1d, delta_scan, selective_scan, ssm_scan,
    wkv_scan,
};

use crate::card::cards;

const BOUND: f64 = 1e-5;
const N_ROWS: usize = 107;
const N_SLOTS: usize = 5;

fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Steps over `N_ROWS` rows of three sequences: rows of the first in chunks of several lengths, with a checkpoint in the
/// middle that others start from; all rows of the second in one step, beside few and beside many; the third has few.
fn steps() -> Vec<Vec<StateSpan>> {
    let span = |first_row, n_rows, from, to, copy| StateSpan { first_row, n_rows, from, to, copy };
    vec![
        vec![span(0, 4, None, 3, None), span(57, 43, None, 1, None), span(100, 5, None, 2, None)],
        vec![span(4, 19, Some(3), 3, Some(0)), span(105, 2, Some(2), 2, None)],
        vec![span(23, 34, Some(0), 4, None)],
    ]
}

/// The rows of each sequence.
const SEQUENCES: [std::ops::Range<usize>; 3] = [0..57, 57..100, 100..N_ROWS];

/// An op on its inputs, its state and the spans of a step; it writes the rows of its spans, and into a second place of the
/// same shape what else it gives.
pub type Scan<'a> = &'a dyn Fn(Exec, &[View], &mut ViewMut, StateSpans, [&mut ViewMut; 2]) -> Result<(), ops::Error>;

/// Runs the steps on every instruction set and every GPU. `inputs` are matrices with so many columns.
fn check(what: &str, (n_cols, state_len): (usize, usize), truth: &[f64], inputs: &[(&[f32], usize)], op: Scan) {
    let assert_close = |found: &[f32], place: &str| {
        let error = test_support::golden::relative_error(found.iter().map(|x| f64::from(*x)), truth.iter().copied());
        assert!(error < BOUND, "{what} on {place}: {error:.2e}");
    };
    for card in cards().iter() {
        let found = card.recur(inputs, (N_SLOTS, state_len), (N_ROWS, n_cols), &steps(), op);
        assert_close(&found, card.name());
    }
    let views: Vec<View> = inputs.iter().map(|(numbers, n_cols)| View::of_f32(numbers, *n_cols)).collect();
    for isa in Isa::available() {
        let pool = Pool::with_isa(2, isa);
        // What is left in a slot must not matter.
        let mut state = vec![f32::NAN; N_SLOTS * state_len];
        let mut found = vec![0.0_f32; N_ROWS * n_cols];
        for spans in steps() {
            let mut out = vec![0.0_f32; N_ROWS * n_cols];
            let view = &mut ViewMut::of_f32(&mut state, state_len);
            let mut other = vec![0.0_f32; N_ROWS * n_cols];
            let outs = [&mut ViewMut::of_f32(&mut out, n_cols), &mut ViewMut::of_f32(&mut other, n_cols)];
            op(Exec::Cpu(&pool), &views, view, (&*spans).into(), outs).unwrap();
            for span in &spans {
                let range = span.first_row * n_cols..(span.first_row + span.n_rows) * n_cols;
                found[range.clone()].copy_from_slice(&out[range]);
            }
        }
        assert_close(&found, &isa.to_string());
    }
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

#[test]
fn convolutions() {
    let (n_cols, n_taps) = (300, 4);
    let (x, weight, bias) = (noise(1, N_ROWS * n_cols), noise(2, n_taps * n_cols), noise(3, n_cols));
    for output in [ConvOutput::Plain, ConvOutput::Silu] {
        let mut truth = vec![0.0; N_ROWS * n_cols];
        for rows in SEQUENCES {
            for (row, col) in rows.clone().flat_map(|row| (0..n_cols).map(move |col| (row, col))) {
                let taps = (0..n_taps).filter(|tap| row + tap + 1 >= rows.start + n_taps);
                let sum: f64 = taps
                    .map(|tap| f64::from(weight[tap * n_cols + col] * x[(row + tap + 1 - n_taps) * n_cols + col]))
                    .sum();
                let y = sum + f64::from(bias[col]);
                truth[row * n_cols + col] = if output == ConvOutput::Silu { y / (1.0 + (-y).exp()) } else { y };
            }
        }
        let inputs = [&x, &weight, &bias].map(|numbers| (&numbers[..], n_cols));
        check("conv1d", (n_cols, (n_taps - 1) * n_cols), &truth, &inputs, &|exec, inputs, state, spans, [out, _]| {
            let (weight, bias) = (inputs[1], Some(inputs[2]));
            conv1d(exec, inputs[0], ConvFilter { weight, bias, output }, state, spans, out)
        });
    }
}

/// Small and odd, and wider than a block's columns and a lane's first numbers.
#[test]
fn mamba2() {
    check_mamba2(SsmShape { n_heads: 6, head_dim: 12, state_dim: 10, n_groups: 2 });
    check_mamba2(SsmShape { n_heads: 2, head_dim: 40, state_dim: 130, n_groups: 1 });
}

fn check_mamba2(shape: SsmShape) {
    let SsmShape { n_heads, head_dim, state_dim, n_groups } = shape;
    let inner = n_heads * head_dim;
    let width = inner + 2 * n_groups * state_dim;
    let (xbc, dt) = (noise(1, N_ROWS * width), noise(2, N_ROWS * n_heads));
    let a: Vec<f32> = noise(3, n_heads).iter().map(|x| -x.exp()).collect();
    let (d, dt_bias) = (noise(4, n_heads), noise(5, n_heads));
    let mut truth = vec![0.0; N_ROWS * inner];
    for (rows, head) in SEQUENCES.into_iter().flat_map(|rows| (0..n_heads).map(move |head| (rows.clone(), head))) {
        let group = head / (n_heads / n_groups);
        let mut h = vec![0.0; head_dim * state_dim];
        for row in rows {
            let at = |i: usize| f64::from(xbc[row * width + i]);
            let dt = softplus(f64::from(dt[row * n_heads + head]) + f64::from(dt_bias[head]));
            for p in 0..head_dim {
                let x = at(head * head_dim + p);
                let mut y = f64::from(d[head]) * x;
                for n in 0..state_dim {
                    let h = &mut h[p * state_dim + n];
                    *h = *h * (dt * f64::from(a[head])).exp() + dt * at(inner + group * state_dim + n) * x;
                    y += at(inner + (n_groups + group) * state_dim + n) * *h;
                }
                truth[row * inner + head * head_dim + p] = y;
            }
        }
    }
    let inputs: [(&[f32], usize); 5] =
        [(&xbc, width), (&dt, n_heads), (&a, n_heads), (&d, n_heads), (&dt_bias, n_heads)];
    check("ssm_scan", (inner, inner * state_dim), &truth, &inputs, &|exec, inputs, state, spans, [out, _]| {
        let weights = SsmWeights { a: inputs[2], d: inputs[3], dt_bias: inputs[4] };
        let rows = SsmRows { xbc: inputs[0], dt: inputs[1] };
        ssm_scan(exec, shape, rows, weights, state, spans, out)
    });
}

#[test]
fn mamba() {
    let (n_cols, n_states) = (70, 6);
    let (x, dt) = (noise(1, N_ROWS * n_cols), noise(2, N_ROWS * n_cols));
    let (b, c) = (noise(3, N_ROWS * n_states), noise(4, N_ROWS * n_states));
    let a: Vec<f32> = noise(5, n_states * n_cols).iter().map(|x| -x.exp()).collect();
    let d = noise(6, n_cols);
    let mut truth = vec![0.0; N_ROWS * n_cols];
    for (rows, col) in SEQUENCES.into_iter().flat_map(|rows| (0..n_cols).map(move |col| (rows.clone(), col))) {
        let mut h = vec![0.0; n_states];
        for row in rows {
            let (x, dt) = (f64::from(x[row * n_cols + col]), softplus(f64::from(dt[row * n_cols + col])));
            let mut y = f64::from(d[col]) * x;
            for (n, h) in h.iter_mut().enumerate() {
                let (b, c) = (f64::from(b[row * n_states + n]), f64::from(c[row * n_states + n]));
                *h = *h * (dt * f64::from(a[n * n_cols + col])).exp() + dt * b * x;
                y += c * *h;
            }
            truth[row * n_cols + col] = y;
        }
    }
    let inputs: [(&[f32], usize); 6] =
        [(&x, n_cols), (&dt, n_cols), (&b, n_states), (&c, n_states), (&a, n_cols), (&d, n_cols)];
    check("selective_scan", (n_cols, n_states * n_cols), &truth, &inputs, &|exec, inputs, state, spans, [out, _]| {
        let selected = Selected { x: inputs[0], dt: inputs[1], b: inputs[2], c: inputs[3] };
        selective_scan(exec, selected, inputs[4], inputs[5], state, spans, out)
    });
}

#[test]
fn delta_nets() {
    let small = DeltaShape { n_key_heads: 2, n_value_heads: 6, key_dim: 9, value_dim: 12, order: HeadOrder::Grouped };
    let wide = DeltaShape { n_key_heads: 1, n_value_heads: 3, key_dim: 140, value_dim: 34, order: HeadOrder::Grouped };
    for (shape, is_by_channel, gate) in [
        (small, false, 0.0),
        (DeltaShape { order: HeadOrder::Tiled, ..small }, false, 0.0),
        (small, true, 0.0),
        (wide, false, 0.0),
        (wide, true, 0.0),
        // Nearly all is forgotten at each token: the inverse of a chunk's decays would be far beyond f32.
        (small, false, 20.0),
        (small, true, 20.0),
    ] {
        let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, order } = shape;
        let per_head = if is_by_channel { key_dim } else { 1 };
        let (n_keys, n_values, n_gates) = (n_key_heads * key_dim, n_value_heads * value_dim, n_value_heads * per_head);
        let (q, k, v) = (noise(1, N_ROWS * n_keys), noise(2, N_ROWS * n_keys), noise(3, N_ROWS * n_values));
        let (mut forget, beta) = (noise(4, N_ROWS * n_gates), noise(5, N_ROWS * n_value_heads));
        forget.iter_mut().for_each(|forget| *forget += gate);
        let forget_bias = noise(6, n_gates);
        let a: Vec<f32> = noise(7, n_value_heads).iter().map(|x| -x.exp()).collect();
        let mut truth = vec![0.0; N_ROWS * n_values];
        let heads = SEQUENCES.into_iter().flat_map(|rows| (0..n_value_heads).map(move |head| (rows.clone(), head)));
        for (rows, head) in heads {
            let key_head = if order == HeadOrder::Tiled { head % n_key_heads } else { head / 3 };
            let mut s = vec![0.0; key_dim * value_dim];
            for row in rows {
                let unit = |x: &[f32]| {
                    let x: Vec<f64> = x[(row * n_key_heads + key_head) * key_dim..][..key_dim]
                        .iter()
                        .map(|x| f64::from(*x))
                        .collect();
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect::<Vec<f64>>()
                };
                let (q, k) = (unit(&q), unit(&k));
                let beta = 1.0 / (1.0 + (-f64::from(beta[row * n_value_heads + head])).exp());
                for d in 0..key_dim {
                    let gate = head * per_head + if is_by_channel { d } else { 0 };
                    let forget = f64::from(forget[row * n_gates + gate]) + f64::from(forget_bias[gate]);
                    let decay = (f64::from(a[head]) * softplus(forget)).exp();
                    s[d * value_dim..][..value_dim].iter_mut().for_each(|s| *s *= decay);
                }
                for e in 0..value_dim {
                    let known: f64 = (0..key_dim).map(|d| s[d * value_dim + e] * k[d]).sum();
                    let value = f64::from(v[(row * n_value_heads + head) * value_dim + e]);
                    (0..key_dim).for_each(|d| s[d * value_dim + e] += k[d] * beta * (value - known));
                    let y: f64 = (0..key_dim).map(|d| s[d * value_dim + e] * q[d]).sum();
                    truth[(row * n_value_heads + head) * value_dim + e] = y / (key_dim as f64).sqrt();
                }
            }
        }
        let inputs: [(&[f32], usize); 7] = [
            (&q, n_keys),
            (&k, n_keys),
            (&v, n_values),
            (&forget, n_gates),
            (&beta, n_value_heads),
            (&forget_bias, n_gates),
            (&a, n_value_heads),
        ];
        check(
            "delta_scan",
            (n_values, n_values * key_dim),
            &truth,
            &inputs,
            &|exec, inputs, state, spans, [out, _]| {
                let [q, k, v, forget, beta, forget_bias, a] = *inputs else { unreachable!("seven inputs") };
                delta_scan(exec, shape, DeltaRows { q, k, v, forget, beta, forget_bias, a }, state, spans, out)
            },
        );
    }
}

/// The published width, and one that is no multiple of a block's columns; with and without the first layer's values.
#[test]
fn wkv() {
    for (n_heads, dim, has_first) in [(2, 64, true), (3, 40, true), (2, 12, false)] {
        check_wkv(n_heads, dim, has_first);
    }
}

fn check_wkv(n_heads: usize, dim: usize, has_first: bool) {
    let n_cols = n_heads * dim;
    let rows = |seed| noise(seed, N_ROWS * n_cols);
    let (r, k, v, mut decay, rate, first, share) = (rows(1), rows(2), rows(3), rows(4), rows(5), rows(6), rows(7));
    // Some numbers of the key decay as fast as they can, and some not at all.
    decay.iter_mut().for_each(|decay| *decay *= 10.0);
    let (removal, rate_of_key, weight) = (noise(8, n_cols), noise(9, n_cols), noise(10, n_cols));
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    let (mut read, mut bonus) = (vec![0.0; N_ROWS * n_cols], vec![0.0; N_ROWS * n_cols]);
    for (rows, head) in SEQUENCES.into_iter().flat_map(|rows| (0..n_heads).map(move |head| (rows.clone(), head))) {
        // By the formula: values are rows here, keys columns.
        let mut s = vec![0.0_f64; dim * dim];
        for row in rows {
            let at = |i: usize| row * n_cols + head * dim + i;
            let of = |numbers: &[f32], i: usize| f64::from(numbers[at(i)]);
            let of_head = |numbers: &[f32], i: usize| f64::from(numbers[head * dim + i]);
            let asked: Vec<f64> = (0..dim).map(|i| of(&k, i) * of_head(&removal, i)).collect();
            let length = asked.iter().map(|x| x * x).sum::<f64>().sqrt();
            let asked: Vec<f64> = asked.iter().map(|x| x / length).collect();
            let rates: Vec<f64> = (0..dim).map(|i| sigmoid(rate[at(i)])).collect();
            let keys: Vec<f64> =
                (0..dim).map(|i| of(&k, i) * (1.0 + (rates[i] - 1.0) * of_head(&rate_of_key, i))).collect();
            let past: f64 = (0..dim).map(|i| of(&r, i) * keys[i] * of_head(&weight, i)).sum();
            for e in 0..dim {
                let (own, share) = (of(&v, e), sigmoid(share[at(e)]));
                let value = if has_first { own + (of(&first, e) - own) * share } else { own };
                let s = &mut s[e * dim..][..dim];
                let known: f64 = s.iter().zip(&asked).map(|(s, asked)| s * asked).sum();
                for d in 0..dim {
                    let kept = (-(-0.5_f64).exp() * sigmoid(decay[at(d)])).exp();
                    s[d] = s[d] * kept - known * rates[d] * asked[d] + value * keys[d];
                }
                read[at(e)] = (0..dim).map(|d| s[d] * of(&r, d)).sum();
                bonus[at(e)] = past * value;
            }
        }
    }
    let inputs = [&r, &k, &v, &decay, &rate, &first, &share, &removal, &rate_of_key, &weight];
    let inputs = inputs.map(|numbers| (&numbers[..], n_cols));
    for (which, truth) in [("read", &read), ("bonus", &bonus)] {
        check(
            &format!("wkv_scan: {which}"),
            (n_cols, n_cols * dim),
            truth,
            &inputs,
            &|exec, inputs, state, spans, [out, other]| {
                let [r, k, v, decay, rate, first, share, removal, rate_of_key, weight] = *inputs else {
                    unreachable!("ten inputs")
                };
                let rows = WkvRows { r, k, v, decay, rate, first: has_first.then_some([first, share]) };
                let weights = WkvWeights { removal, rate_of_key, bonus: weight };
                let (read, bonus) = if which == "read" { (out, other) } else { (other, out) };
                wkv_scan(exec, dim, rows, weights, state, spans, WkvOut { read, bonus })
            },
        );
    }
}

/// What the kernels that take some rows at once give for a long prompt of each recurrence's published width, beside those
/// that walk. `GFX_COUNTERS=FILE` then has the instructions of both.
#[test]
#[ignore = "counts instructions: GFX_COUNTERS=FILE crates/gfx/run"]
fn long_prompts_as_matrices_and_row_by_row() {
    let n_rows = 128;
    let span = StateSpan { first_row: 0, n_rows, from: None, to: 0, copy: None };
    let compare = |what: &str, (n_cols, state_len): (usize, usize), inputs: &[(&[f32], usize)], op: Scan| {
        let run = |card: &crate::card::Card| {
            card.recur(inputs, (1, state_len), (n_rows, n_cols), &[vec![span]], op).into_iter().map(f64::from)
        };
        let (chunks, walks) = (cards(), crate::card::invariant_cards());
        assert!(!chunks.is_empty(), "no GPU");
        for (chunk, walk) in chunks.iter().zip(&walks) {
            let error = test_support::golden::relative_error(run(chunk), run(walk));
            assert!(error < BOUND, "{what} on {}: {error:.2e}", chunk.name());
        }
    };
    let rows = |seed, n_cols| (noise(seed, n_rows * n_cols), n_cols);
    let vector = |seed, n_cols| (noise(seed, n_cols).iter().map(|x| -x.exp()).collect::<Vec<f32>>(), n_cols);
    fn views(inputs: &[(Vec<f32>, usize)]) -> Vec<(&[f32], usize)> {
        inputs.iter().map(|(numbers, n_cols)| (&numbers[..], *n_cols)).collect()
    }
    let shape = SsmShape { n_heads: 1, head_dim: 64, state_dim: 128, n_groups: 1 };
    let inputs = [rows(1, 64 + 256), rows(2, 1), vector(3, 1), vector(4, 1), vector(5, 1)];
    compare("Mamba 2", (64, 64 * 128), &views(&inputs), &|exec, inputs, state, spans, [out, _]| {
        let weights = SsmWeights { a: inputs[2], d: inputs[3], dt_bias: inputs[4] };
        ssm_scan(exec, shape, SsmRows { xbc: inputs[0], dt: inputs[1] }, weights, state, spans, out)
    });
    let shape =
        DeltaShape { n_key_heads: 1, n_value_heads: 1, key_dim: 128, value_dim: 128, order: HeadOrder::Grouped };
    for (what, n_gates) in [("delta net", 1), ("KDA", 128)] {
        let [q, k, v] = [1, 2, 3].map(|seed| rows(seed, 128));
        let inputs = [q, k, v, rows(4, n_gates), rows(5, 1), vector(6, n_gates), vector(7, 1)];
        compare(what, (128, 128 * 128), &views(&inputs), &|exec, inputs, state, spans, [out, _]| {
            let [q, k, v, forget, beta, forget_bias, a] = *inputs else { unreachable!("seven inputs") };
            delta_scan(exec, shape, DeltaRows { q, k, v, forget, beta, forget_bias, a }, state, spans, out)
        });
    }
    let inputs = [1, 2, 3, 4, 5, 6, 7].map(|seed| rows(seed, 64)).into_iter().chain([8, 9, 10].map(|s| vector(s, 64)));
    let inputs: Vec<(Vec<f32>, usize)> = inputs.collect();
    compare("RWKV 7", (64, 64 * 64), &views(&inputs), &|exec, inputs, state, spans, [read, bonus]| {
        let [r, k, v, decay, rate, first, share, removal, rate_of_key, weight] = *inputs else {
            unreachable!("ten inputs")
        };
        let rows = WkvRows { r, k, v, decay, rate, first: Some([first, share]) };
        let weights = WkvWeights { removal, rate_of_key, bonus: weight };
        wkv_scan(exec, 64, rows, weights, state, spans, WkvOut { read, bonus })
    });
}

#[test]
fn slots_that_two_sequences_share_are_refused() {
    let pool = Pool::new(1);
    let (x, weight) = (vec![0.0; 8], vec![0.0; 4]);
    let span = |first_row, from, to, copy| StateSpan { first_row, n_rows: 2, from, to, copy };
    let run = |spans: &[StateSpan]| {
        let (mut state, mut out) = (vec![0.0; 3 * 2], vec![0.0; 8]);
        let (x, weight) = (View::of_f32(&x, 2), View::of_f32(&weight, 2));
        let (state, out) = (&mut ViewMut::of_f32(&mut state, 2), &mut ViewMut::of_f32(&mut out, 2));
        let filter = ConvFilter { weight, bias: None, output: ConvOutput::Plain };
        conv1d(Exec::Cpu(&pool), x, filter, state, spans, out).is_ok()
    };
    assert!(run(&[span(0, None, 0, None), span(2, Some(2), 1, None)]));
    assert!(run(&[span(0, Some(2), 0, None), span(2, Some(2), 1, None)]));
    for spans in [
        [span(0, None, 0, None), span(2, None, 0, None)],
        [span(0, None, 0, None), span(2, Some(0), 1, None)],
        [span(0, None, 0, Some(1)), span(2, None, 1, None)],
        [span(0, None, 0, None), span(1, None, 1, None)],
        [span(0, None, 0, Some(0)), span(2, None, 1, None)],
        [span(0, None, 3, None), span(2, None, 1, None)],
    ] {
        assert!(!run(&spans), "{spans:?}");
    }
}
