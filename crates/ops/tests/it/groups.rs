//! Products of groups of rows, each with a matrix of its own: number for number what each group gives by itself, and
//! close to f64.

use ops::quant::dequantize;
use ops::{
    Arena, Exec, GroupProduct, Pool, Product, RowGroup, Tensor, View, ViewMut, group_matmul, matmul, pack, packed,
};
use weights::Dtype;

use crate::support::{Random, assert_close, pools};

const N_IN: usize = 256;
/// Rows of each group: none, one, a few, as many as go together, and more.
const ROWS: [usize; 7] = [1, 0, 3, 24, 1, 31, 8];

fn lay_out(pool: &Pool, dtype: Dtype, shape: [usize; 2], bytes: &[u8]) -> Tensor {
    let exec = Exec::Cpu(pool);
    let (layout, n_bytes) = packed(exec, dtype, shape).unwrap();
    let mut tensor = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, dtype, shape);
    pack(exec, View::host(dtype, shape, bytes), &mut tensor.view_mut()).unwrap();
    tensor
}

fn check(pool: &Pool, dtype: Dtype) {
    let mut random = Random::new(17);
    let n_rows = ROWS.iter().sum::<usize>() + 2;
    let x = random.activations(n_rows * N_IN);
    // Two products of the same rows, as an expert's gate and up; the second is as wide as no tile.
    let widths = [96, 37];
    let make = |random: &mut Random, n_out: usize| -> (Tensor, Vec<f32>) {
        let bytes = random.weights(dtype, n_out * N_IN);
        let mut numbers = vec![0.0; n_out * N_IN];
        dequantize(dtype, &bytes, &mut numbers);
        (lay_out(pool, dtype, [n_out, N_IN], &bytes), numbers)
    };
    let weights: Vec<Vec<(Tensor, Vec<f32>)>> =
        widths.iter().map(|n_out| ROWS.iter().map(|_| make(&mut random, *n_out)).collect()).collect();
    // The first and the last row belong to no group.
    let starts = ROWS.iter().scan(1, |start, n| {
        *start += n;
        Some(*start - n..*start)
    });
    let ranges: Vec<std::ops::Range<usize>> = starts.collect();
    let exec = Exec::Cpu(pool);
    let mut outs: Vec<Vec<f32>> = widths.iter().map(|n_out| vec![7.0; n_rows * n_out]).collect();
    let mut products: Vec<GroupProduct> = outs
        .iter_mut()
        .zip(&weights)
        .zip(widths)
        .map(|((out, weights), n_out)| {
            let groups = ranges.iter().zip(weights);
            GroupProduct {
                groups: groups.map(|(rows, weight)| RowGroup { rows: rows.clone(), weight: weight.0.view() }).collect(),
                out: ViewMut::of_f32(out, n_out),
            }
        })
        .collect();
    group_matmul(exec, View::of_f32(&x, N_IN), &mut products).unwrap();
    drop(products);
    for ((out, weights), n_out) in outs.iter().zip(&weights).zip(widths) {
        let mut alone = vec![7.0; n_rows * n_out];
        let mut truth = vec![7.0_f64; n_rows * n_out];
        for (rows, (weight, numbers)) in ranges.iter().zip(weights) {
            let x = &x[rows.start * N_IN..rows.end * N_IN];
            let to = &mut alone[rows.start * n_out..rows.end * n_out];
            if !rows.is_empty() {
                let product = Product::write(weight.view(), ViewMut::of_f32(to, n_out));
                matmul(exec, View::of_f32(x, N_IN), &mut [product]).unwrap();
            }
            for (row, x) in rows.clone().zip(x.chunks_exact(N_IN)) {
                for (col, w) in numbers.chunks_exact(N_IN).enumerate() {
                    let sum = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    truth[row * n_out + col] = sum;
                }
            }
        }
        let what = format!("{} {dtype}", pool.isa());
        assert!(*out == alone, "{what}: together and alone differ");
        assert_close(&what, out, &truth, 1e-3);
    }
}

#[test]
fn groups_together_are_what_they_are_alone() {
    for pool in pools() {
        for dtype in
            [Dtype::F32, Dtype::F16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K, Dtype::MXFP4]
        {
            check(&pool, dtype);
        }
    }
}

#[test]
fn groups_that_overlap_or_reach_too_far_are_refused() {
    let pool = &pools()[0];
    let weight = lay_out(pool, Dtype::F32, [8, 32], &vec![0; 4 * 8 * 32]);
    let x = vec![0.0; 4 * 32];
    for bad in [[0..2, 1..3], [0..2, 2..5], [2..4, 0..1]] {
        let mut out = vec![0.0; 4 * 8];
        let groups = bad.iter().map(|rows| RowGroup { rows: rows.clone(), weight: weight.view() }).collect();
        let product = GroupProduct { groups, out: ViewMut::of_f32(&mut out, 8) };
        assert!(group_matmul(Exec::Cpu(pool), View::of_f32(&x, 32), &mut [product]).is_err(), "{bad:?}");
    }
}
