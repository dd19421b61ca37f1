//! Rows that must not matter: with `Numerics::RowInvariant` a row has the same bits alone and among others, however a
//! prompt was cut and however many threads compute.

use ops::{
    Arena, Exec, Heads, Isa, KV_BLOCK, Kv, KvSlot, Mode, Numerics, Pool, Product, QuerySpan, Shaping, Tensor, View,
    ViewMut, attention_with, kv_store, matmul, pack, packed,
};
use test_support::share;
use weights::Dtype;

use crate::card::{Through, invariant_cards};
use crate::support::Random;

/// Rows of a product: one, a few, both sides of every change of kernel, many.
const ROWS: [usize; 9] = [1, 2, 3, 5, 8, 16, 33, 64, 128];
/// Longer than the columns that are unpacked at a time, and a multiple of every block.
const N_IN: usize = 2560;
/// A whole tile and a part of one.
const N_OUT: usize = 19;

/// The weights as a model would hold them on this pool.
fn lay_out(pool: &Pool, dtype: Dtype, weight: &[u8]) -> Tensor {
    let (exec, shape) = (Exec::Cpu(pool), [N_OUT, N_IN]);
    let (layout, n_bytes) = packed(exec, dtype, shape).unwrap();
    let mut tensor = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, dtype, shape);
    pack(exec, View::host(dtype, shape, weight), &mut tensor.view_mut()).unwrap();
    tensor
}

/// `x` times the weights, written or added to something.
fn product(pool: &Pool, weight: &Tensor, x: &[f32], mode: Mode) -> Vec<f32> {
    let mut out = vec![0.25; x.len() / N_IN * N_OUT];
    let out_view = ViewMut::of_f32(&mut out, N_OUT);
    let product = Product { weight: weight.view(), out: out_view, mode, may_be_coarse: true };
    matmul(Exec::Cpu(pool), View::of_f32(x, N_IN), &mut [product]).unwrap();
    out
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// The first number of rows whose product differs from that of each row alone.
fn first_difference(isa: Isa, numerics: Numerics, dtype: Dtype, mode: Mode) -> Option<usize> {
    let mut random = Random::new(41);
    let most = ROWS[ROWS.len() - 1];
    let (weight, x) = (random.weights(dtype, N_IN * N_OUT), random.activations(most * N_IN));
    let pool = |n_threads: usize| Pool::with_isa(n_threads, isa).with_numerics(numerics);
    let (one, three) = (pool(1), pool(3));
    let weight = lay_out(&one, dtype, &weight);
    let row = |i: usize| &x[i * N_IN..(i + 1) * N_IN];
    let alone: Vec<u32> = (0..most).flat_map(|i| bits(&product(&one, &weight, row(i), mode))).collect();
    ROWS.into_iter().find(|&n| {
        // From the last row back, so that a row has another place among the others each time.
        let together = product(&three, &weight, &x[(most - n) * N_IN..], mode);
        bits(&together) != alone[(most - n) * N_OUT..]
    })
}

#[test]
fn a_row_of_a_product_has_the_bits_it_has_alone() {
    for isa in Isa::available() {
        let mut n_variant = 0;
        for dtype in Dtype::ALL {
            for mode in [Mode::Write, Mode::Add] {
                let found = first_difference(isa, Numerics::RowInvariant, dtype, mode);
                assert_eq!(found, None, "{dtype} {isa} {mode:?}: so many rows give other bits than one");
            }
            n_variant += usize::from(first_difference(isa, Numerics::Fastest, dtype, Mode::Write).is_some());
        }
        // Otherwise this test would pass with any kernel.
        assert!(isa < Isa::Avx2 || n_variant > 10, "{isa}: {n_variant} types differ without the mode");
    }
}

/// The same on every GPU; a row that shares a launch with others is one of a pass, a tile or a block.
#[test]
fn a_row_of_a_product_has_the_bits_it_has_alone_on_gpus() {
    const N_IN: usize = 288;
    for card in invariant_cards() {
        for dtype in share(Dtype::ALL) {
            if ops::device_dtype(dtype) != dtype {
                continue;
            }
            let n_in = if dtype.block_len() > 32 { 512 } else { N_IN };
            let mut random = Random::new(43);
            let (weight, x) = (random.weights(dtype, n_in * N_OUT), random.activations(33 * n_in));
            let product = |rows: std::ops::Range<usize>| {
                let starts = vec![0.25; rows.len() * N_OUT];
                let weights = [(dtype, N_OUT, &weight[..])];
                let x = &x[rows.start * n_in..rows.end * n_in];
                bits(&card.matmul(x, n_in, &weights, &[&starts], Mode::Add, Through::Kernels)[0])
            };
            let alone: Vec<u32> = [0, 7, 20, 32].into_iter().flat_map(|i| product(i..i + 1)).collect();
            let at = |together: &[u32], i: usize| together[i * N_OUT..(i + 1) * N_OUT].to_vec();
            let whole = product(0..33);
            let found: Vec<u32> = [0, 7, 20, 32].into_iter().flat_map(|i| at(&whole, i)).collect();
            assert_eq!(found, alone, "{dtype} {}: 33 rows", card.name());
            for (rows, i) in [(20..22, 0), (18..23, 2), (5..12, 2), (0..16, 7)] {
                let of = [0, 7, 20, 32].iter().position(|&row| row == rows.start + i).unwrap();
                let found = at(&product(rows.clone()), i);
                assert_eq!(found, alone[of * N_OUT..(of + 1) * N_OUT], "{dtype} {}: rows {rows:?}", card.name());
            }
        }
    }
}

/// A context whose rows attend in chunks of any size.
struct Context {
    heads: Heads,
    dtype: Dtype,
    shaping: (Option<usize>, Option<f32>, bool),
    table: Vec<u32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Context {
    fn new(heads: Heads, dtype: Dtype, n_tokens: usize, shaping: (Option<usize>, Option<f32>, bool)) -> Self {
        let mut random = Random::new(47);
        let Heads { n_heads, n_kv_heads, head_dim, .. } = heads;
        let n_blocks = n_tokens.div_ceil(KV_BLOCK);
        let q = random.numbers(n_tokens * n_heads * head_dim).iter().map(|x| x * 3.0).collect();
        let (k, v) =
            (random.numbers(n_tokens * n_kv_heads * head_dim), random.numbers(n_tokens * n_kv_heads * head_dim));
        Self { heads, dtype, shaping, table: (0..n_blocks as u32).rev().collect(), q, k, v }
    }

    fn n_tokens(&self) -> usize {
        self.q.len() / (self.heads.n_heads * self.heads.head_dim)
    }

    fn slots(&self, tokens: std::ops::Range<usize>) -> Vec<u32> {
        let slot = |i: usize| KvSlot { block: self.table[i / KV_BLOCK], token: (i % KV_BLOCK) as u32 }.index();
        tokens.map(slot).collect()
    }

    fn pool_shape(&self) -> [usize; 2] {
        [self.table.len() * self.heads.n_kv_heads, KV_BLOCK * self.heads.head_dim]
    }

    /// Not a number where nothing was written: reading it would show.
    fn poison(&self) -> Vec<u8> {
        let [n_rows, n_cols] = self.pool_shape();
        vec![0xff; self.dtype.row_bytes(n_cols).unwrap() * n_rows]
    }

    fn sinks(&self) -> Vec<f32> {
        (0..self.heads.n_heads).map(|i| i as f32 * 0.3 - 0.5).collect()
    }

    /// Chunk after chunk, each with the keys and values of its own tokens only; `n_times` sequences in each call.
    fn in_chunks(&self, pool: &Pool, chunk: usize, n_times: usize) -> Vec<f32> {
        let Heads { n_heads, n_kv_heads, head_dim, .. } = self.heads;
        let (exec, n_cols, n_kv) = (Exec::Cpu(pool), n_heads * head_dim, n_kv_heads * head_dim);
        let mut arena = Arena::new(2 * Arena::bytes_for(self.dtype, self.pool_shape())).unwrap();
        let [mut k_pool, mut v_pool]: [Tensor; 2] = std::array::from_fn(|_| arena.carve(self.dtype, self.pool_shape()));
        let mut out = Vec::new();
        let sinks = self.sinks();
        for first in (0..self.n_tokens()).step_by(chunk) {
            let n = chunk.min(self.n_tokens() - first);
            let of = |x: &[f32], n_cols: usize| x[first * n_cols..(first + n) * n_cols].to_vec();
            let (k, v) = (of(&self.k, n_kv), of(&self.v, n_kv));
            let slots = self.slots(first..first + n);
            let (k_view, v_view) = (View::of_f32(&k, n_kv), View::of_f32(&v, n_kv));
            kv_store(exec, k_view, v_view, &slots, head_dim, &mut k_pool.view_mut(), &mut v_pool.view_mut()).unwrap();
            let q = of(&self.q, n_cols).repeat(n_times);
            let span = |i: usize| {
                let blocks = &self.table[..];
                QuerySpan { first_row: i * n, n_rows: n, first_position: first, blocks, is_causal: true }
            };
            let spans: Vec<_> = (0..n_times).map(span).collect();
            let mut found = vec![f32::NAN; q.len()];
            let kv = Kv { k: k_pool.view(), v: v_pool.view() };
            let (window, softcap, has_sinks) = self.shaping;
            let shaping = Shaping {
                window,
                softcap,
                sinks: has_sinks.then(|| View::of_f32(&sinks, n_heads)),
                ..Shaping::default()
            };
            let to = &mut ViewMut::of_f32(&mut found, n_cols);
            attention_with(exec, View::of_f32(&q, n_cols), kv, self.heads, &spans, shaping, to).unwrap();
            // The last sequence, which stands where the others pushed it.
            out.extend(found.split_off(found.len() - n * n_cols));
        }
        out
    }
}

const fn heads(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Heads {
    Heads { n_heads, n_kv_heads, head_dim, scale: 0.125 }
}

#[test]
fn attention_does_not_depend_on_chunks_batches_or_threads() {
    let cases = [
        (heads(9, 3, 64), Dtype::F16, (None, None, false)),
        (heads(4, 4, 40), Dtype::F32, (None, None, false)),
        (heads(4, 1, 64), Dtype::F16, (Some(100), None, false)),
        (heads(2, 1, 96), Dtype::F16, (Some(33), Some(5.0), true)),
    ];
    for isa in Isa::available() {
        // More than two parts of a context, and an end in the middle of a block.
        let n_tokens = if isa < Isa::Avx2 { 270 } else { 523 };
        for (heads, dtype, shaping) in cases {
            let context = Context::new(heads, dtype, n_tokens, shaping);
            let pool = |n_threads, numerics| Pool::with_isa(n_threads, isa).with_numerics(numerics);
            let run = |numerics, chunk, n_threads, n_times| {
                bits(&context.in_chunks(&pool(n_threads, numerics), chunk, n_times))
            };
            let alone = run(Numerics::RowInvariant, 1, 1, 1);
            for (chunk, n_threads, n_times) in [(1, 3, 1), (1, 2, 5), (7, 2, 1), (64, 1, 2), (n_tokens, 3, 1)] {
                let found = run(Numerics::RowInvariant, chunk, n_threads, n_times);
                let what = format!(
                    "{isa} {dtype} {}: chunks of {chunk}, {n_threads} threads, {n_times} sequences",
                    heads.head_dim
                );
                assert!(found == alone, "{what}");
            }
            let fastest = [run(Numerics::Fastest, 1, 3, 1), run(Numerics::Fastest, n_tokens, 1, 1)];
            let is_variant = fastest[0] != fastest[1];
            assert!(isa < Isa::Avx2 || is_variant, "{isa} {dtype}: the same without the mode");
        }
    }
}

/// The same on every GPU: rows of a context that was written before, alone and in chunks.
#[test]
fn attention_does_not_depend_on_chunks_or_batches_on_gpus() {
    let cases = [
        (heads(6, 2, 64), Dtype::F16, (None, None, false)),
        (heads(2, 1, 64), Dtype::F16, (Some(40), Some(5.0), true)),
    ];
    // Two parts of a context, and rows on both sides of where the second begins.
    const N_TOKENS: usize = 300;
    const FIRST: usize = 240;
    for card in invariant_cards() {
        for (heads, dtype, shaping) in cases {
            let context = Context::new(heads, dtype, N_TOKENS, shaping);
            let Heads { n_heads, head_dim, .. } = heads;
            let n_cols = n_heads * head_dim;
            let pool = || card.tensor(dtype, context.pool_shape(), &context.poison());
            let (mut k_pool, mut v_pool) = (pool(), pool());
            let slots = context.slots(0..N_TOKENS);
            card.store(&context.k, &context.v, &slots, &heads, (&mut k_pool, &mut v_pool));
            let sinks = context.sinks();
            let rows = |ranges: &[std::ops::Range<usize>]| -> Vec<Vec<u32>> {
                let mut q = Vec::new();
                let mut spans = Vec::new();
                for range in ranges {
                    let first_row = q.len() / n_cols;
                    q.extend_from_slice(&context.q[range.start * n_cols..range.end * n_cols]);
                    let (n_rows, first_position, blocks) = (range.len(), range.start, &context.table[..]);
                    spans.push(QuerySpan { first_row, n_rows, first_position, blocks, is_causal: true });
                }
                let (window, softcap, has_sinks) = context.shaping;
                let shaping =
                    (Shaping { window, softcap, ..Shaping::default() }, has_sinks.then_some(&sinks[..]), None);
                let out = card.attention(&q, (&k_pool, &v_pool), heads, &spans, shaping);
                out.chunks_exact(n_cols).map(bits).collect()
            };
            let seen = [FIRST, FIRST + 15, FIRST + 16, 257, N_TOKENS - 1];
            let alone: Vec<Vec<u32>> =
                seen.iter().flat_map(|&row| rows(std::slice::from_ref(&(row..row + 1)))).collect();
            let what = |ranges: &str| format!("{} {} {dtype}: {ranges}", card.name(), heads.head_dim);
            let whole = rows(std::slice::from_ref(&(FIRST..N_TOKENS)));
            let found: Vec<_> = seen.iter().map(|row| whole[row - FIRST].clone()).collect();
            assert!(found == alone, "{}", what("one chunk"));
            // Other sequences first, so that rows stand elsewhere, and a short context beside the long one.
            let mixed = rows(&[3..10, 250..260, N_TOKENS - 1..N_TOKENS]);
            assert!(mixed[7 + 7] == alone[3], "{}", what("in the middle of a batch"));
            assert!(mixed[17] == alone[4], "{}", what("at the end of a batch"));
        }
    }
}
