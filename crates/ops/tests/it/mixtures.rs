//! Mixtures whose rows are grouped by expert, on every GPU that is here, against f64.

use ops::Activation;
use ops::quant::{dequantize, quantize};
use weights::Dtype;

use crate::card::{ExpertWeights, cards};
use crate::support::{Random, assert_close};

struct Case {
    /// Of the gate and its partner, and of the last product.
    dtypes: [Dtype; 2],
    n_rows: usize,
    n_used: usize,
    n_experts: usize,
    /// `n_in`, `n_ff`, `n_out`
    widths: [usize; 3],
    activation: Activation,
    has_biases: bool,
}

fn weights(random: &mut Random, case: &Case, dtype: Dtype, shape: [usize; 2]) -> (ExpertWeights, Vec<Vec<f32>>) {
    let [n_out, n_in] = shape;
    let (mut matrices, mut decoded) = (Vec::new(), Vec::new());
    for _ in 0..case.n_experts {
        let numbers: Vec<f32> = random.numbers(n_out * n_in).iter().map(|x| x * 0.2).collect();
        let mut bytes = vec![0; dtype.row_bytes(n_in).unwrap() * n_out];
        quantize(dtype, &numbers, &mut bytes);
        let mut kept = vec![0.0; n_out * n_in];
        dequantize(dtype, &bytes, &mut kept);
        matrices.push(bytes);
        decoded.push(kept);
    }
    let n_biases = if case.has_biases { case.n_experts } else { 0 };
    let biases = (0..n_biases).map(|_| random.numbers(n_out)).collect();
    (ExpertWeights { dtype, shape, matrices, biases }, decoded)
}

fn product(x: &[f64], expert: usize, (set, decoded): &(ExpertWeights, Vec<Vec<f32>>)) -> Vec<f64> {
    let n_in = set.shape[1];
    let bias = |o: usize| set.biases.get(expert).map_or(0.0, |bias| f64::from(bias[o]));
    let row = |o: usize| decoded[expert][o * n_in..][..n_in].iter().map(|w| f64::from(*w));
    (0..set.shape[0]).map(|o| x.iter().zip(row(o)).map(|(x, w)| x * w).sum::<f64>() + bias(o)).collect()
}

fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::ClampedSwiglu { alpha, limit } => {
            let (limit, gate) = (f64::from(limit), gate.min(f64::from(limit)));
            gate * sigmoid(f64::from(alpha) * gate) * (up.clamp(-limit, limit) + 1.0)
        }
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1.0 + u.tanh()) * up
        }
        _ => gate * sigmoid(gate) * up,
    }
}

fn check(random: &mut Random, case: &Case) {
    let [n_in, n_ff, n_out] = case.widths;
    let x = random.activations(case.n_rows * n_in);
    let gate = weights(random, case, case.dtypes[0], [n_ff, n_in]);
    let up = weights(random, case, case.dtypes[0], [n_ff, n_in]);
    let down = weights(random, case, case.dtypes[1], [n_out, n_ff]);
    // The last expert gets no row, the first one is everybody's.
    let n_open = case.n_experts - 1;
    let mut chosen = Vec::new();
    for _ in 0..case.n_rows {
        let shift = random.bits() as usize % (n_open - 1);
        chosen.extend((0..case.n_used).map(|j| if j == 0 { 0 } else { (1 + (shift + j) % (n_open - 1)) as u32 }));
    }
    let mut truth = Vec::new();
    for (pair, &expert) in chosen.iter().enumerate() {
        let row: Vec<f64> = x[pair / case.n_used * n_in..][..n_in].iter().map(|x| f64::from(*x)).collect();
        let (gates, ups) = (product(&row, expert as usize, &gate), product(&row, expert as usize, &up));
        let hidden: Vec<f64> = gates.iter().zip(ups).map(|(g, u)| gated(case.activation, *g, u)).collect();
        truth.extend(product(&hidden, expert as usize, &down));
    }
    for card in cards().iter() {
        let what = format!("{:?} {} rows {:?} {}", case.dtypes, case.n_rows, case.widths, card.name());
        let out = card.grouped_experts((&x, n_in), &chosen, case.activation, [&gate.0, &up.0, &down.0]);
        assert_eq!(out.is_some(), card.has_matrix_units(), "{what}: grouped where there are matrix units");
        // Activations, and what comes out of the gate, are rounded to eleven bits.
        if let Some(out) = out {
            assert_close(&what, &out, &truth, 2e-3);
        }
    }
}

#[test]
fn grouped_by_expert() {
    let mut random = Random::new(21);
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    let case = |dtypes, n_rows, n_used, n_experts, widths, activation, has_biases| Case {
        dtypes,
        n_rows,
        n_used,
        n_experts,
        widths,
        activation,
        has_biases,
    };
    let cases = [
        // Few rows; more experts than pairs.
        case([Dtype::Q4_0, Dtype::Q8_0], 4, 3, 40, [96, 160, 70], Activation::Silu, false),
        case([Dtype::Q8_0, Dtype::F16], 13, 2, 6, [64, 96, 37], clamped, true),
        case([Dtype::Q4K, Dtype::Q6K], 20, 2, 4, [256, 256, 130], Activation::Silu, false),
        case([Dtype::F16, Dtype::Q4_1], 30, 4, 8, [32, 64, 129], Activation::GeluTanh, true),
        // Experts with several tiles, the last of them not full.
        case([Dtype::Q4_0, Dtype::Q4_0], 150, 2, 4, [64, 64, 20], Activation::Silu, false),
        case([Dtype::Q4K, Dtype::Q4K], 90, 2, 3, [256, 256, 20], Activation::Silu, false),
        case([Dtype::Q6K, Dtype::Q6K], 90, 2, 3, [256, 256, 20], Activation::Silu, false),
        case([Dtype::F16, Dtype::F16], 140, 2, 3, [160, 96, 40], Activation::Silu, true),
    ];
    for case in &cases {
        check(&mut random, case);
    }
}
