//! Ops that only some families use: each on the CPU and on every GPU that is here, against f64.

use ops::quant::{dequantize, quantize};
use ops::{
    Activation, Exec, Gating, Isa, NormKind, Place, Routes, Routing, View, ViewMut, Xielu, activate, add_bias,
    add_scaled, clamp, glu, join_columns, layernorm, norm_heads, route, scale, scale_rows, softcap, take_columns,
    turn_rows,
};
use weights::Dtype;

use crate::card::cards;
use crate::support::{Random, assert_close, pools};

/// Rows and columns: one number, odd counts, more than a block of threads.
const SHAPES: [[usize; 2]; 4] = [[1, 1], [3, 37], [5, 640], [2, 1030]];

/// `op` in place on every CPU instruction set and every card; `y` lies beside it.
fn check(
    what: &str,
    (x, n_cols): (&[f32], usize),
    (y, n_y_cols): (&[f32], usize),
    truth: &[f64],
    op: impl Fn(Exec, &mut ViewMut, View) -> Result<(), ops::Error>,
) {
    for pool in pools() {
        let mut out = x.to_vec();
        let mut view = ViewMut::of_f32(&mut out, n_cols);
        op(Exec::Cpu(&pool), &mut view, View::of_f32(y, n_y_cols)).unwrap();
        assert_close(&format!("{what} {}", pool.isa()), &out, truth, 2e-6);
    }
    for card in cards().iter() {
        let out = card.change((x, n_cols), (y, n_y_cols), &op);
        assert_close(&format!("{what} {}", card.name()), &out, truth, 5e-6);
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn numbers_are_scaled_added_and_capped() {
    let mut random = Random::new(11);
    for [n_rows, n_cols] in SHAPES {
        let n = n_rows * n_cols;
        let (x, y, bias) = (random.numbers(n), random.numbers(n), random.numbers(n_cols));
        let what = |op: &str| format!("{op} {n_rows}x{n_cols}");
        let all = (&x[..], n_cols);
        let truth: Vec<f64> = wide(&x).iter().map(|x| x * 2.5).collect();
        check(&what("scale"), all, (&y, n_cols), &truth, |exec, x, _| scale(exec, x, 2.5));
        let truth: Vec<f64> = wide(&x).iter().zip(wide(&y)).map(|(x, y)| x + f64::from(0.22f32) * y).collect();
        check(&what("add_scaled"), all, (&y, n_cols), &truth, |exec, x, y| add_scaled(exec, x, y, 0.22));
        let truth: Vec<f64> = wide(&x).iter().enumerate().map(|(i, x)| x + f64::from(bias[i % n_cols])).collect();
        check(&what("add_bias"), all, (&bias, n_cols), &truth, add_bias);
        let truth: Vec<f64> = wide(&x).iter().map(|x| 0.7 * (x / 0.7).tanh()).collect();
        check(&what("softcap"), all, (&y, n_cols), &truth, |exec, x, _| softcap(exec, x, 0.7));
        let factors = &y[..n_rows];
        let truth: Vec<f64> = wide(&x).iter().enumerate().map(|(i, x)| x * f64::from(factors[i / n_cols])).collect();
        check(&what("scale_rows"), all, (factors, 1), &truth, scale_rows);
        let truth: Vec<f64> = wide(&x).iter().map(|x| x.clamp(-f64::from(0.3_f32), f64::from(0.3_f32))).collect();
        check(&what("clamp"), all, (&y, n_cols), &truth, |exec, x, _| clamp(exec, x, 0.3));
    }
}

/// A factor of zero clears what is not a number, too: experts' sums start from memory that nobody wrote.
#[test]
fn a_factor_of_zero_clears() {
    let x = [f32::NAN, f32::INFINITY, 1.0];
    check("clear", (&x, 3), (&[0.0], 1), &[0.0; 3], |exec, x, _| scale(exec, x, 0.0));
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn truth_of(activation: Activation, gate: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => gate * sigmoid(gate),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1.0 + u.tanh())
        }
        Activation::Gelu => 0.5 * gate * (1.0 + erf(gate * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::ClampedSwiglu { alpha, limit } => {
            let gate = gate.min(f64::from(limit));
            gate * sigmoid(f64::from(alpha) * gate)
        }
        Activation::ReluSquared => gate.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(gate),
        Activation::Tanh => gate.tanh(),
        Activation::Identity => gate,
        Activation::Xielu(by) => {
            let [alpha_p, alpha_n, beta, eps] = [by.alpha_p, by.alpha_n, by.beta, by.eps].map(f64::from);
            let bent = if gate > 0.0 { alpha_p * gate.powi(2) } else { alpha_n * (gate.min(eps).exp_m1() - gate) };
            bent + beta * gate
        }
    }
}

#[test]
fn activations() {
    let mut random = Random::new(12);
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 1.5 };
    let xielu = Activation::Xielu(Xielu { alpha_p: 0.8, alpha_n: 1.3, beta: 0.5, eps: -1e-6 });
    let plain = [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::ReluSquared];
    let gates = [Activation::Sigmoid, Activation::Tanh, Activation::Identity];
    for activation in plain.into_iter().chain(gates).chain([clamped, xielu]) {
        for [n_rows, n_cols] in SHAPES {
            let n = n_rows * n_cols;
            let gate: Vec<f32> = random.numbers(n).iter().map(|x| x * 2.0).collect();
            let up: Vec<f32> = random.numbers(n).iter().map(|x| x * 2.0).collect();
            let limited = |up: f64| match activation {
                Activation::ClampedSwiglu { limit, .. } => up.clamp(-f64::from(limit), f64::from(limit)) + 1.0,
                _ => up,
            };
            let what = format!("{activation:?} {n_rows}x{n_cols}");
            let pairs = wide(&gate).into_iter().zip(wide(&up));
            let truth: Vec<f64> = pairs.map(|(g, u)| truth_of(activation, g) * limited(u)).collect();
            if activation != xielu {
                check(&what, (&gate, n_cols), (&up, n_cols), &truth, |exec, gate, up| glu(exec, activation, gate, up));
            }
            if activation != clamped {
                let truth: Vec<f64> = wide(&gate).into_iter().map(|g| truth_of(activation, g)).collect();
                check(&what, (&gate, n_cols), (&up, n_cols), &truth, |exec, x, _| activate(exec, activation, x));
            }
        }
    }
}

fn normed(x: &[f32], weight: &[f32], kind: NormKind, eps: f32) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if kind == NormKind::Layer { wide(x).iter().sum::<f64>() / n } else { 0.0 };
    let squares = wide(x).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let factor = 1.0 / (squares + f64::from(eps)).sqrt();
    wide(x).iter().zip(wide(weight)).map(|(x, w)| (x - mean) * factor * w).collect()
}

#[test]
fn heads_and_rows_are_normed() {
    let mut random = Random::new(13);
    for kind in [NormKind::Rms, NormKind::Layer] {
        // Rows, groups of a row, numbers of a group, weights.
        for [n_rows, n_groups, group, n_weights] in [[1, 1, 5, 1], [3, 4, 64, 1], [2, 6, 33, 3], [4, 2, 300, 2]] {
            let n_cols = n_groups * group;
            let x: Vec<f32> = random.numbers(n_rows * n_cols).iter().map(|x| x + 0.5).collect();
            let weight = random.numbers(n_weights * group);
            let groups = x.chunks(group).enumerate();
            let truth: Vec<f64> = groups
                .flat_map(|(i, x)| normed(x, &weight[i % n_groups % n_weights * group..][..group], kind, 1e-5))
                .collect();
            let what = format!("norm_heads {kind:?} {n_rows}x{n_groups}x{group}");
            check(&what, (&x, n_cols), (&weight, group), &truth, |exec, x, w| norm_heads(exec, x, w, kind, 1e-5));
        }
    }
}

/// Rows put together from parts, cut, and in another order; exactly, because numbers only move.
#[test]
fn columns_are_joined_and_rows_turned() {
    let mut random = Random::new(16);
    let exact = |numbers: Vec<f32>| wide(&numbers);
    for (n_outer, n_inner, n_a, n_b, n_out) in
        [(1, 1, 1, 0, 1), (3, 5, 7, 0, 9), (4, 6, 33, 8, 41), (17, 2, 300, 5, 310)]
    {
        let n_rows = n_outer * n_inner;
        let (a, b) = (random.numbers(n_rows * n_a), random.numbers(n_rows * n_b.max(1)));
        let start = vec![f32::NAN; n_rows * n_out];
        let joined = (0..n_rows).flat_map(|r| {
            let (left, right) = (&a[r * n_a..][..n_a], &b[r * n_b..][..n_b]);
            left.iter().chain(right).copied().chain(vec![0.0; n_out - n_a - n_b]).collect::<Vec<_>>()
        });
        let joined = exact(joined.collect());
        let pair = [&a[..], &b].concat();
        check("join", (&start, n_out), (&pair, 1), &joined, |exec, out, both| {
            let [a, b] = split_numbers(both, [[n_rows, n_a], [n_rows, n_b]]);
            join_columns(exec, a, b, out)
        });
        let start = vec![f32::NAN; n_rows * n_a];
        let turned = (0..n_inner).flat_map(|i| (0..n_outer).map(move |o| o * n_inner + i));
        let turned = exact(turned.flat_map(|row| a[row * n_a..][..n_a].to_vec()).collect());
        check("turn", (&start, n_a), (&a, n_a), &turned, |exec, out, x| turn_rows(exec, x, n_outer, out));
        let first = n_a.div_ceil(2);
        let start = vec![f32::NAN; n_rows * first];
        let taken = exact((0..n_rows).flat_map(|r| a[r * n_a..][..first].to_vec()).collect());
        check("take", (&start, first), (&a, n_a), &taken, |exec, out, x| take_columns(exec, x, out));
    }
}

/// One matrix after the other in the same numbers.
fn split_numbers(all: View, shapes: [[usize; 2]; 2]) -> [View; 2] {
    let n_first = shapes[0].iter().product::<usize>() * 4;
    let n_second = shapes[1].iter().product::<usize>() * 4;
    let part = |shape, range: std::ops::Range<usize>| {
        let place = match all.place {
            Place::Host(bytes) => Place::Host(&bytes[range]),
            Place::Device(bytes) => Place::Device(bytes.slice(range).unwrap()),
        };
        View { shape, place, ..all }
    };
    [part(shapes[0], 0..n_first), part(shapes[1], n_first..n_first + n_second)]
}

#[test]
fn layernorm_rows() {
    let mut random = Random::new(14);
    for [n_rows, n_cols] in [[1, 5], [3, 384], [2, 1025]] {
        let x: Vec<f32> = random.numbers(n_rows * n_cols).iter().map(|x| x + 0.5).collect();
        let (weight, bias) = (random.numbers(n_cols), random.numbers(n_cols));
        for bias in [None, Some(&bias[..])] {
            let plain = x.chunks(n_cols).flat_map(|x| normed(x, &weight, NormKind::Layer, 1e-5));
            let truth: Vec<f64> =
                plain.enumerate().map(|(i, x)| x + bias.map_or(0.0, |bias| f64::from(bias[i % n_cols]))).collect();
            let what = format!("layernorm {n_rows}x{n_cols}");
            let pool = pools().into_iter().find(|pool| pool.isa() == Isa::detect()).unwrap();
            let mut out = vec![f32::NAN; x.len()];
            let (rows, weights) = (View::of_f32(&x, n_cols), View::of_f32(&weight, n_cols));
            let biases = bias.map(|bias| View::of_f32(bias, n_cols));
            layernorm(Exec::Cpu(&pool), rows, weights, biases, 1e-5, &mut ViewMut::of_f32(&mut out, n_cols)).unwrap();
            assert_close(&what, &out, &truth, 2e-6);
            for card in cards().iter() {
                let out = card.layernorm(&x, &weight, bias, 1e-5);
                assert_close(&format!("{what} {}", card.name()), &out, &truth, 5e-6);
            }
        }
    }
}

/// The choice on a device is the CPU's; products and sums are f64's.
#[test]
fn experts_on_devices() {
    let mut random = Random::new(15);
    let routing = |n_used, gating, is_normalized, scale| Routing {
        n_used,
        gating,
        is_normalized,
        scale,
        n_groups: 1,
        n_groups_used: 1,
    };
    let grouped = |routing, n_groups, n_groups_used| Routing { n_groups, n_groups_used, ..routing };
    let cases = [
        (Dtype::F32, 8, routing(2, Gating::Softmax, true, 1.0), false),
        (Dtype::F16, 5, routing(5, Gating::Softmax, false, 1.0), true),
        (Dtype::Q4_0, 70, routing(4, Gating::SoftmaxOfBest, false, 1.0), true),
        (Dtype::Q8_0, 33, routing(6, Gating::Sigmoid, true, 2.5), false),
        (Dtype::Q4K, 4, routing(1, Gating::Softmax, false, 1.0), false),
        (Dtype::Q6K, 3, routing(2, Gating::Sigmoid, false, 1.0), false),
        (Dtype::F16, 72, grouped(routing(6, Gating::Sigmoid, true, 2.5), 8, 3), false),
        (Dtype::F16, 12, grouped(routing(4, Gating::Softmax, false, 1.0), 3, 2), false),
        (Dtype::F16, 70, grouped(routing(3, Gating::Softmax, false, 1.0), 7, 1), false),
    ];
    for (dtype, n_experts, routing, has_bias) in cases {
        let (n_rows, n_in, n_out, n_used) = (3, 256, 37, routing.n_used);
        let x = random.numbers(n_rows * n_in);
        let mut scores = random.numbers(n_rows * n_experts);
        // A tie goes to the first.
        scores[n_experts - 1] = scores[0];
        let choice_bias = (routing.gating == Gating::Sigmoid).then(|| random.numbers(n_experts));
        let (mut matrices, mut decoded) = (Vec::new(), Vec::new());
        for _ in 0..n_experts {
            let mut bytes = vec![0; dtype.row_bytes(n_in).unwrap() * n_out];
            quantize(dtype, &random.numbers(n_out * n_in), &mut bytes);
            let mut numbers = vec![0.0; n_out * n_in];
            dequantize(dtype, &bytes, &mut numbers);
            matrices.push(bytes);
            decoded.push(numbers);
        }
        let biases: Vec<Vec<f32>> = (0..if has_bias { n_experts } else { 0 }).map(|_| random.numbers(n_out)).collect();
        let mut routes = Routes::default();
        let (pool, bias) = (&pools()[0], choice_bias.as_ref().map(|bias| View::of_f32(bias, n_experts)));
        route(Exec::Cpu(pool), View::of_f32(&scores, n_experts), bias, &routing, &mut routes).unwrap();
        for card in cards().iter() {
            let what = format!("experts {dtype} {}", card.name());
            let scores = (&scores[..], choice_bias.as_deref());
            let found = card.experts((&x, n_in), scores, &routing, (dtype, n_out, &matrices), &biases);
            let (chosen, weights, out, sum) = found;
            let mut seen: Vec<(u32, u32)> = (0..).zip(&chosen).map(|(p, e)| (*e, p / n_used as u32)).collect();
            seen.sort_unstable();
            let expected = (0..n_experts).flat_map(|e| routes.of(e).map(move |i| (e as u32, i)));
            let expected: Vec<(u32, u32)> = expected.map(|(e, i)| (e, routes.rows[i])).collect();
            assert_eq!(seen, expected, "{what}: pairs of expert and row");
            for (pair, (&expert, &weight)) in chosen.iter().zip(&weights).enumerate() {
                let row = (pair / n_used) as u32;
                let i = routes.of(expert as usize).find(|&i| routes.rows[i] == row).unwrap();
                assert!((weight - routes.weights[i]).abs() < 1e-5, "{what}: {weight} and {}", routes.weights[i]);
            }
            let truth: Vec<f64> = (0..n_rows * n_used)
                .flat_map(|pair| (0..n_out).map(move |o| (pair, o)))
                .map(|(pair, o)| {
                    let (x, expert) = (&x[pair / n_used * n_in..][..n_in], chosen[pair] as usize);
                    let row = &decoded[expert][o * n_in..][..n_in];
                    let sum: f64 = x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    sum + biases.get(expert).map_or(0.0, |bias| f64::from(bias[o]))
                })
                .collect();
            assert_close(&what, &out, &truth, if dtype.block_len() > 1 { 1e-4 } else { 1e-5 });
            let summed: Vec<f64> = (0..n_rows)
                .flat_map(|row| (0..n_out).map(move |o| (row, o)))
                .map(|(row, o)| {
                    let pairs = row * n_used..(row + 1) * n_used;
                    pairs.map(|pair| f64::from(weights[pair]) * truth[pair * n_out + o]).sum()
                })
                .collect();
            assert_close(&format!("{what} sum"), &sum, &summed, if dtype.block_len() > 1 { 1e-4 } else { 1e-5 });
        }
    }
}
