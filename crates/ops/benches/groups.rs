//! A mixture's products on this machine: `cargo bench -p roci-ops --bench groups`. The experts of a batch in one region
//! (`group_matmul`) against a region for each expert; the best of many rounds each.

use std::time::Instant;

use ops::{
    Arena, Exec, GroupProduct, Pool, Product, RowGroup, Tensor, View, ViewMut, group_matmul, matmul, pack, packed,
};
use weights::Dtype;

/// As Qwen3 30B-A3B's: small experts, eight of them a token.
const N_EXPERTS: usize = 64;
const N_USED: usize = 8;
const N_IN: usize = 2048;
const N_OUT: usize = 768;

fn main() {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::new(n_threads);
    let exec = Exec::Cpu(&pool);
    let dtype = Dtype::Q4K;
    let bytes: Vec<u8> = (0..dtype.row_bytes(N_IN).unwrap() * N_OUT).map(|i| (i * 7 % 31) as u8).collect();
    let lay_out = |_| -> Tensor {
        let (layout, n_bytes) = packed(exec, dtype, [N_OUT, N_IN]).unwrap();
        let mut weight = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, dtype, [N_OUT, N_IN]);
        pack(exec, View::host(dtype, [N_OUT, N_IN], &bytes), &mut weight.view_mut()).unwrap();
        weight
    };
    let experts: Vec<Tensor> = (0..N_EXPERTS).map(lay_out).collect();
    println!("{:>6} {:>8} {:>14} {:>14}", "tokens", "experts", "one each, us", "together, us");
    for n_tokens in [1, 2, 4, 8, 16, 64] {
        // Spread as evenly as a trained router would.
        let n_pairs = n_tokens * N_USED;
        let n_busy = n_pairs.min(N_EXPERTS);
        let rows: Vec<std::ops::Range<usize>> =
            (0..n_busy).map(|i| i * n_pairs / n_busy..(i + 1) * n_pairs / n_busy).collect();
        let x: Vec<f32> = (0..n_pairs * N_IN).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = vec![0.0; n_pairs * N_OUT];
        let mut best = [f64::INFINITY; 2];
        for _ in 0..200 {
            let start = Instant::now();
            for (rows, weight) in rows.iter().zip(&experts) {
                let to = ViewMut::of_f32(&mut out[rows.start * N_OUT..rows.end * N_OUT], N_OUT);
                let x = View::of_f32(&x[rows.start * N_IN..rows.end * N_IN], N_IN);
                matmul(exec, x, &mut [Product::write(weight.view(), to)]).unwrap();
            }
            best[0] = best[0].min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let groups = rows.iter().zip(&experts);
            let groups = groups.map(|(rows, weight)| RowGroup { rows: rows.clone(), weight: weight.view() }).collect();
            let product = GroupProduct { groups, out: ViewMut::of_f32(&mut out, N_OUT) };
            group_matmul(exec, View::of_f32(&x, N_IN), &mut [product]).unwrap();
            best[1] = best[1].min(start.elapsed().as_secs_f64());
        }
        println!("{n_tokens:>6} {n_busy:>8} {:>14.1} {:>14.1}", best[0] * 1e6, best[1] * 1e6);
    }
}
