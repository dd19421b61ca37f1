//! The recurrences of a prompt on this machine: `cargo bench -p roci-ops --bench scans`. By chunks, and token by token as
//! `--deterministic` runs them; in turns, the best of many rounds each.

use std::time::Instant;

use ops::{
    DeltaRows, DeltaShape, Exec, HeadOrder, Isa, Numerics, Pool, SsmRows, SsmShape, SsmWeights, StateSpan, View,
    ViewMut, delta_scan, ssm_scan,
};

const N_ROUNDS: usize = 15;

fn main() {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pools = [Numerics::Fastest, Numerics::RowInvariant]
        .map(|numerics| Pool::with_isa(n_threads, Isa::detect()).with_numerics(numerics));
    println!("{:>28} {:>7} {:>13} {:>13} {:>6}", "recurrence", "tokens", "chunks, us", "tokens, us", "gain");
    for n_rows in [8, 16, 32, 64, 512] {
        let span = [StateSpan { first_row: 0, n_rows, from: None, to: 0, copy: None }];
        // As Qwen3-Next's.
        let (heads, dim) = (16, 128);
        let shape = DeltaShape {
            n_key_heads: heads,
            n_value_heads: heads,
            key_dim: dim,
            value_dim: dim,
            order: HeadOrder::Grouped,
        };
        let [q, k, v] = [1, 2, 3].map(|seed| noise(seed, n_rows * heads * dim));
        let [forget, beta] = [4, 5].map(|seed| noise(seed, n_rows * heads));
        let (forget_bias, a) = (noise(6, heads), vec![-1.0; heads]);
        let (mut state, mut out) = (vec![0.0; heads * dim * dim], vec![0.0; n_rows * heads * dim]);
        report("delta net, 16 x 128 x 128", n_rows, &pools, |exec| {
            let rows = DeltaRows {
                q: View::of_f32(&q, heads * dim),
                k: View::of_f32(&k, heads * dim),
                v: View::of_f32(&v, heads * dim),
                forget: View::of_f32(&forget, heads),
                beta: View::of_f32(&beta, heads),
                forget_bias: View::of_f32(&forget_bias, heads),
                a: View::of_f32(&a, heads),
            };
            let state = &mut ViewMut::of_f32(&mut state, heads * dim * dim);
            delta_scan(exec, shape, rows, state, &span[..], &mut ViewMut::of_f32(&mut out, heads * dim)).unwrap();
        });
        // As Kimi Linear's: a decay for each number of a key, of which few are strong.
        let (gates, gate_bias) = (noise(7, n_rows * heads * dim), vec![-3.0; heads * dim]);
        report("KDA, 16 x 128 x 128", n_rows, &pools, |exec| {
            let rows = DeltaRows {
                q: View::of_f32(&q, heads * dim),
                k: View::of_f32(&k, heads * dim),
                v: View::of_f32(&v, heads * dim),
                forget: View::of_f32(&gates, heads * dim),
                beta: View::of_f32(&beta, heads),
                forget_bias: View::of_f32(&gate_bias, heads * dim),
                a: View::of_f32(&a, heads),
            };
            let state = &mut ViewMut::of_f32(&mut state, heads * dim * dim);
            delta_scan(exec, shape, rows, state, &span[..], &mut ViewMut::of_f32(&mut out, heads * dim)).unwrap();
        });
        // As Granite 4's.
        let shape = SsmShape { n_heads: 48, head_dim: 64, state_dim: 128, n_groups: 1 };
        let (inner, width) = (48 * 64, 48 * 64 + 256);
        let (xbc, dt, dt_bias) = (noise(1, n_rows * width), noise(2, n_rows * 48), noise(3, 48));
        let (a, d) = (vec![-1.0; 48], vec![1.0; 48]);
        let (mut state, mut out) = (vec![0.0; inner * 128], vec![0.0; n_rows * inner]);
        report("Mamba 2, 48 x 64 x 128", n_rows, &pools, |exec| {
            let rows = SsmRows { xbc: View::of_f32(&xbc, width), dt: View::of_f32(&dt, 48) };
            let weights =
                SsmWeights { a: View::of_f32(&a, 48), d: View::of_f32(&d, 48), dt_bias: View::of_f32(&dt_bias, 48) };
            let state = &mut ViewMut::of_f32(&mut state, inner * 128);
            ssm_scan(exec, shape, rows, weights, state, &span[..], &mut ViewMut::of_f32(&mut out, inner)).unwrap();
        });
    }
}

fn report(what: &str, n_rows: usize, pools: &[Pool; 2], mut run: impl FnMut(Exec)) {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..N_ROUNDS {
        for (best, pool) in best.iter_mut().zip(pools) {
            let start = Instant::now();
            run(Exec::Cpu(pool));
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let [chunks, tokens] = best.map(|seconds| seconds * 1e6);
    println!("{what:>28} {n_rows:>7} {chunks:>13.1} {tokens:>13.1} {:>5.2}x", tokens / chunks);
}

fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
