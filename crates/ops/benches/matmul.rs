//! Rates of the products on this machine: `cargo bench -p roci-ops [-- FILTER]`. Best of several timed rounds each.

use std::time::Instant;

use ops::{Arena, Exec, Isa, Mode, Pool, Product, View, ViewMut, matmul, pack, packed};
use weights::Dtype;

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{:<8} {:<6} {:>6} {:>12} {:>10} {:>10}", "isa", "type", "rows", "shape", "GMAC/s", "GB/s");
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Plain) {
        let pool = Pool::with_isa(n_threads, isa);
        for dtype in Dtype::ALL {
            for n_rows in [1, 2, 4, 8, 16, 512] {
                let name = format!("{isa} {dtype} {n_rows}");
                if filter.as_ref().is_none_or(|f| name.contains(f.as_str())) {
                    measure(&pool, dtype, n_rows);
                }
            }
        }
    }
}

fn measure(pool: &Pool, dtype: Dtype, n_rows: usize) {
    let n_in = if dtype.block_len() == 256 { 1024 } else { 576 };
    let n_out = if n_rows > 16 { 1536 } else { 49152 };
    // Finite scales everywhere: small f16 numbers and bytes of one pattern.
    let bytes: Vec<u8> = (0..dtype.row_bytes(n_in).unwrap() * n_out).map(|i| (i * 7 % 31) as u8).collect();
    let exec = Exec::Cpu(pool);
    let (layout, n_bytes) = packed(exec, dtype, [n_out, n_in]).unwrap();
    let mut weight = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, dtype, [n_out, n_in]);
    pack(exec, View::host(dtype, [n_out, n_in], &bytes), &mut weight.view_mut()).unwrap();
    // Nearly a bell, as activations are: where the large ones stand matters to `bytes`.
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let x: Vec<f32> = (0..n_rows * n_in).map(|_| (0..6).map(|_| uniform()).sum()).collect();
    let mut out = vec![0.0; n_rows * n_out];
    let mut best = f64::INFINITY;
    for _ in 0..12 {
        let mut product = [Product {
            weight: weight.view(),
            out: ViewMut::of_f32(&mut out, n_out),
            mode: Mode::Write,
            may_be_coarse: true,
        }];
        let start = Instant::now();
        matmul(exec, View::of_f32(&x, n_in), &mut product).unwrap();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let macs = n_rows as f64 * n_in as f64 * n_out as f64;
    println!(
        "{:<8} {:<6} {n_rows:>6} {:>12} {:>10.1} {:>10.1}",
        pool.isa().name(),
        dtype.name(),
        format!("{n_out}x{n_in}"),
        macs / best / 1e9,
        bytes.len() as f64 / best / 1e9
    );
}
