//! Ops that do at once what others do one after the other: against f64, or against those others on the same GPU.

use ops::{Activation, Exec, NormKind, Pairing, Pool, View, ViewMut, add_rmsnorm, add_scaled, norm_heads};
use weights::Dtype;

use crate::card::cards;
use crate::support::{Random, assert_close};

#[test]
fn a_branch_is_normed_and_added() {
    let (mut random, eps, factor) = (Random::new(71), 1e-6, 0.5);
    let pool = Pool::new(2);
    // Odd columns; as many as a block keeps in registers, and more.
    for [n_rows, n_cols] in [[1, 1], [3, 37], [2, 640], [1, 3840], [2, 4100], [1, 9000]] {
        let n = n_rows * n_cols;
        let (x, y, weight) = (random.numbers(n), random.activations(n), random.numbers(n_cols));
        let mut truth = Vec::new();
        for (x, y) in x.chunks(n_cols).zip(y.chunks(n_cols)) {
            let mean = y.iter().map(|y| f64::from(*y).powi(2)).sum::<f64>() / n_cols as f64;
            let scale = f64::from(factor) / (mean + f64::from(eps)).sqrt();
            let each = x.iter().zip(y).zip(&weight);
            truth.extend(each.map(|((x, y), w)| f64::from(*x) + f64::from(*y) * scale * f64::from(*w)));
        }
        let (mut out, mut branch) = (x.clone(), y.clone());
        let (mut to, mut from) = (ViewMut::of_f32(&mut out, n_cols), ViewMut::of_f32(&mut branch, n_cols));
        add_rmsnorm(Exec::Cpu(&pool), &mut to, &mut from, View::of_f32(&weight, n_cols), eps, factor).unwrap();
        assert_close("add_rmsnorm", &out, &truth, 1e-6);
        let (mut apart, mut branch) = (x.clone(), y.clone());
        let (mut to, mut from) = (ViewMut::of_f32(&mut apart, n_cols), ViewMut::of_f32(&mut branch, n_cols));
        norm_heads(Exec::Cpu(&pool), &mut from, View::of_f32(&weight, n_cols), NormKind::Rms, eps).unwrap();
        add_scaled(Exec::Cpu(&pool), &mut to, from.as_view(), factor).unwrap();
        assert_eq!(out, apart, "on the CPU the same bits as one after the other");
        for card in cards().iter() {
            assert_close(card.name(), &card.add_rmsnorm(&x, &y, &weight, eps, factor), &truth, 2e-6);
        }
    }
}

#[test]
fn gates_are_made_on_the_way_into_products() {
    let (mut random, n_in, n_out) = (Random::new(72), 512, 40);
    let activations = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ClampedSwiglu { alpha: 1.702, limit: 1.5 },
        Activation::ReluSquared,
    ];
    for dtype in [Dtype::Q4_0, Dtype::F16] {
        let bytes = random.weights(dtype, n_out * n_in);
        // By one row at a time, by the matrix units for few rows, and by those for many.
        for n_rows in [1, 7, 40] {
            let (gate, up) = (random.numbers(n_rows * n_in), random.numbers(n_rows * n_in));
            for activation in activations {
                for card in cards().iter() {
                    let [fused, apart] = card.glu_matmul(activation, (&gate, &up), (dtype, [n_out, n_in], &bytes));
                    let apart: Vec<f64> = apart.iter().map(|x| f64::from(*x)).collect();
                    let what = format!("{activation:?} {dtype} {n_rows} rows {}", card.name());
                    assert_close(&what, &fused, &apart, 1e-5);
                }
            }
        }
    }
}

#[test]
fn heads_are_normed_rotated_and_stored_at_once() {
    let mut random = Random::new(73);
    // Query heads, KV heads, their size, numbers that are rotated, weights of each norm.
    let cases = [(4, 2, 64, 64, 1), (3, 1, 128, 128, 1), (4, 2, 256, 256, 1), (6, 3, 80, 32, 1), (4, 4, 64, 64, 4)];
    for (n_heads, n_kv_heads, head_dim, n_rot, n_norms) in cases {
        for pairing in [Pairing::Halves, Pairing::Adjacent] {
            for (dtype, bound) in [(Dtype::F32, 2e-6), (Dtype::F16, 1e-3)] {
                let n_rows = 3;
                let mut numbers = |n: usize| random.numbers(n);
                let q = numbers(n_rows * n_heads * head_dim);
                let [k, v] = [(); 2].map(|()| numbers(n_rows * n_kv_heads * head_dim));
                let norms = [(); 2].map(|()| numbers(n_norms * head_dim));
                let angles = numbers(n_rows * n_rot);
                for card in cards().iter() {
                    let run = |fused| {
                        card.norm_rope_store(
                            [&q, &k, &v],
                            &norms,
                            &angles,
                            (head_dim, n_kv_heads, pairing, dtype),
                            fused,
                        )
                    };
                    for (fused, apart) in run(true).iter().zip(run(false)) {
                        let apart: Vec<f64> = apart.iter().map(|x| f64::from(*x)).collect();
                        let what = format!("{n_heads}/{n_kv_heads}x{head_dim} {pairing:?} {dtype} {}", card.name());
                        assert_close(&what, fused, &apart, bound);
                    }
                }
            }
        }
    }
}
