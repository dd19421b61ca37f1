//! What eight adapters of rank 16 add to a step of nine rows: `cargo bench -p roci-ops --bench low_rank`. Every matrix of
//! every layer has numbers of its own, so that they come from memory as in a model.

use std::time::Instant;

use ops::{Exec, Isa, LowRank, LowRankEntry, LowRankProduct, MatrixWidth, Pool, View, ViewMut, low_rank};

const N_ADAPTERS: usize = 8;
const N_ROWS: usize = 9;
const RANK: usize = 16;

fn main() {
    // SmolLM2 135M, and Qwen2.5 1.5B: layers, and the products of each input.
    measure("SmolLM2 135M", 30, &[(576, &[576, 192, 192]), (576, &[576]), (576, &[1536, 1536]), (1536, &[576])]);
    measure("Qwen2.5 1.5B", 28, &[(1536, &[1536, 256, 256]), (1536, &[1536]), (1536, &[8960, 8960]), (8960, &[1536])]);
}

fn measure(name: &str, n_layers: usize, regions: &[(usize, &[usize])]) {
    let slots: Vec<u32> = (0..N_ROWS as u32).map(|row| row.checked_sub(1).unwrap_or(LowRankEntry::NONE)).collect();
    for width in [MatrixWidth::F16, MatrixWidth::F24, MatrixWidth::F32] {
        let mut n_numbers = 0;
        let mut place = |n: usize| {
            let start = n_numbers as u32;
            n_numbers += LowRankEntry::matrix_len(n, width);
            start
        };
        let entry = |place: &mut dyn FnMut(usize) -> u32, n_in: usize, n_out: usize| LowRankEntry {
            rank: RANK as u32,
            a: place(RANK * n_in),
            b: place(RANK * n_out),
            gain: None,
            scale: 1.0,
            width,
        };
        let mut tables = vec![Vec::new(); n_layers * regions.len()];
        let mut adapters = vec![vec![Vec::new(); n_layers * regions.len()]; N_ADAPTERS];
        for adapter in &mut adapters {
            for (i, found) in adapter.iter_mut().enumerate() {
                let (n_in, outs) = regions[i % regions.len()];
                *found = outs.iter().map(|n_out| entry(&mut place, n_in, *n_out).words()).collect();
            }
        }
        for (i, table) in tables.iter_mut().enumerate() {
            let n_products = regions[i % regions.len()].1.len();
            *table = (0..n_products)
                .map(|p| adapters.iter().flat_map(|adapter| adapter[i][p]).collect::<Vec<u32>>())
                .collect::<Vec<_>>();
        }
        let numbers = vec![0.001_f32; n_numbers];
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            let x = vec![0.5_f32; N_ROWS * 8960];
            let mut outs: Vec<Vec<f32>> = (0..3).map(|_| vec![0.0; N_ROWS * 8960]).collect();
            let mut best = f64::INFINITY;
            for _ in 0..8 {
                let start = Instant::now();
                for (i, table) in tables.iter().enumerate() {
                    let (n_in, widths) = regions[i % regions.len()];
                    let mut products: Vec<LowRankProduct> = (table.iter().zip(widths).zip(&mut outs))
                        .map(|((words, n_out), out)| LowRankProduct {
                            change: LowRank { numbers: View::of_f32(&numbers, n_numbers), entries: words.into() },
                            out: ViewMut::of_f32(&mut out[..N_ROWS * n_out], *n_out),
                        })
                        .collect();
                    let x = View::of_f32(&x[..N_ROWS * n_in], n_in);
                    let mut hidden = [0.0; N_ROWS * RANK];
                    let hidden = &mut ViewMut::of_f32(&mut hidden, RANK);
                    low_rank(Exec::Cpu(&pool), x, (&slots).into(), hidden, &mut products).unwrap();
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            let mib = (4 * n_numbers) as f64 / f64::from(1 << 20);
            println!("{name}, {width:?}, {isa}: {:.2} ms a step, {mib:.0} MiB", 1e3 * best);
        }
    }
}
