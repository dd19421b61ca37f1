//! Products: every type, few rows and many, odd shapes, each instruction set.

use ops::quant::{dequantize, quantize};
use ops::{Arena, Error, Exec, Isa, Mode, Pool, Product, Tensor, View, ViewMut, device_dtype, matmul, pack, packed};
use test_support::share;
use weights::Dtype;

use crate::card::{Through, cards};
use crate::support::{Random, assert_close, pools};

/// More rows than this go through the kernel that rounds by powers of two, with AVX-512.
const EXACT_ROWS: usize = 24;

/// From so many rows on activations may go in bytes, with AVX-512.
const COARSE_ROWS: usize = 64;
/// The types that do.
const COARSE: [Dtype; 2] = [Dtype::Q5K, Dtype::IQ4XS];

/// The activations hold outliers a hundred times the rest, which is what rounding suffers from; Q6_K and IQ4_XS leave
/// activations 15 bits instead of 16. Scales that are powers of two cost up to a bit, those for several groups another one
/// or two where the sums need them, and more outliers share a scale. Plain numbers are not rounded at all.
fn bound(dtype: Dtype, isa: Isa, n_rows: usize) -> f64 {
    let is_exact = isa < Isa::Avx512 || n_rows <= EXACT_ROWS;
    match dtype {
        _ if dtype.block_len() == 1 => 1e-5,
        // Outliers are exact and most of the terms' size; a step is about a fiftieth of the mean size of the rest.
        _ if isa >= Isa::Avx512 && n_rows >= COARSE_ROWS && COARSE.contains(&dtype) => 1e-3,
        Dtype::Q6K | Dtype::IQ4XS if is_exact => 4e-4,
        Dtype::IQ4XS | Dtype::IQ3XXS => 8e-4,
        Dtype::Q6K => 1.2e-3,
        _ => {
            if is_exact {
                1e-4
            } else {
                4e-4
            }
        }
    }
}

struct Case {
    dtype: Dtype,
    n_rows: usize,
    n_in: usize,
    n_out: usize,
}

fn weight(random: &mut Random, case: &Case) -> (Vec<u8>, Vec<f32>) {
    let bytes = random.weights(case.dtype, case.n_in * case.n_out);
    let mut decoded = vec![0.0; case.n_in * case.n_out];
    dequantize(case.dtype, &bytes, &mut decoded);
    (bytes, decoded)
}

/// The weights as a model would hold them on this pool.
fn lay_out(pool: &Pool, rows: View) -> Tensor {
    let exec = Exec::Cpu(pool);
    let (layout, n_bytes) = packed(exec, rows.dtype, rows.shape).unwrap();
    let mut tensor = Arena::new(Arena::padded(n_bytes)).unwrap().carve_as(layout, rows.dtype, rows.shape);
    pack(exec, rows, &mut tensor.view_mut()).unwrap();
    tensor
}

fn truth(case: &Case, x: &[f32], weight: &[f32], start: &[f32]) -> Vec<f64> {
    let mut out = Vec::with_capacity(case.n_rows * case.n_out);
    for row in 0..case.n_rows {
        for col in 0..case.n_out {
            let x = &x[row * case.n_in..][..case.n_in];
            let w = &weight[col * case.n_in..][..case.n_in];
            let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            out.push(sum + f64::from(start[row * case.n_out + col]));
        }
    }
    out
}

/// The root of the sum of all squared terms: what the sums would measure if no two terms were alike.
fn size_of_terms(case: &Case, x: &[f32], weight: &[f32]) -> f64 {
    let mut sum = 0.0;
    for x in x.chunks_exact(case.n_in) {
        for w in weight.chunks_exact(case.n_in) {
            sum += x.iter().zip(w).map(|(x, w)| (f64::from(*x) * f64::from(*w)).powi(2)).sum::<f64>();
        }
    }
    sum.sqrt()
}

fn check(case: &Case) {
    let mut random = Random::new((case.n_rows * 31 + case.n_in * 7 + case.n_out) as u64);
    let (bytes, decoded) = weight(&mut random, case);
    let x = random.activations(case.n_rows * case.n_in);
    let start = random.numbers(case.n_rows * case.n_out);
    check_on_cpu(case, &bytes, &decoded, &x, &start);
    check_on_cards(case, &bytes, &decoded, &x, &start);
}

fn check_on_cpu(case: &Case, bytes: &[u8], decoded: &[f32], x: &[f32], start: &[f32]) {
    for pool in pools() {
        for mode in [Mode::Write, Mode::Add] {
            let mut out = if mode == Mode::Add { start.to_vec() } else { vec![f32::NAN; start.len()] };
            let base = if mode == Mode::Add { start.to_vec() } else { vec![0.0; start.len()] };
            let shape = [case.n_out, case.n_in];
            let laid_out = lay_out(&pool, View::host(case.dtype, shape, bytes));
            let weight = laid_out.view();
            let mut product =
                [Product { weight, out: ViewMut::of_f32(&mut out, case.n_out), mode, may_be_coarse: true }];
            matmul(Exec::Cpu(&pool), View::of_f32(x, case.n_in), &mut product).unwrap();
            let what = format!("{} {}x{}x{} {} {mode:?}", case.dtype, case.n_rows, case.n_in, case.n_out, pool.isa());
            let truth = truth(case, x, decoded, &base);
            // Against the size of the terms: a sum whose terms cancel each other is not held to its own size.
            let error: f64 = out.iter().zip(&truth).map(|(o, t)| (f64::from(*o) - t).powi(2)).sum::<f64>().sqrt();
            let error = error / size_of_terms(case, x, decoded);
            // A few sums may give an outlier's neighbours more weight than the outlier.
            let few = if case.n_rows * case.n_out < 64 { 4.0 } else { 1.0 };
            let bound = few * bound(case.dtype, pool.isa(), case.n_rows);
            assert!(error <= bound, "{what}: {error:.3e} of the terms, bound {bound:.1e}");
        }
    }
}

/// f16 activations and weights, where the vendor's library or the matrix units multiply.
const LIBRARY_BOUND: f64 = 2e-3;
/// The same, decoded on the way into the matrix units of this program's kernels.
const MATRIX_BOUND: f64 = 1e-3;
/// The kernels sum in another order than the CPU; 1.1e-4 was seen on an H200.
const KERNEL_BOUND: f64 = 2e-4;

fn check_on_cards(case: &Case, bytes: &[u8], decoded: &[f32], x: &[f32], start: &[f32]) {
    // What a device holds as F16 or F32 is tested as that.
    if device_dtype(case.dtype) != case.dtype {
        return;
    }
    let nothing = vec![f32::NAN; start.len()];
    let zeros = vec![0.0; start.len()];
    for card in cards().iter() {
        for (mode, from, base) in [(Mode::Write, &nothing[..], &zeros[..]), (Mode::Add, start, start)] {
            for (through, bound) in [(Through::Kernels, KERNEL_BOUND), (Through::Library, LIBRARY_BOUND)] {
                if through == Through::Library && (case.n_rows <= 2 || !card.has_blas()) {
                    continue;
                }
                let is_on_matrix_units = card.has_matrix_units() && through == Through::Kernels && case.n_rows > 1;
                let bound = if is_on_matrix_units { MATRIX_BOUND } else { bound };
                let outs = card.matmul(x, case.n_in, &[(case.dtype, case.n_out, bytes)], &[from], mode, through);
                let Case { dtype, n_rows, n_in, n_out } = case;
                let what = format!("{dtype} {n_rows}x{n_in}x{n_out} {} {mode:?} {through:?}", card.name());
                // Many rows go through the matrix units, where there are any.
                let bound = if *n_rows > 16 && *dtype != Dtype::F32 { LIBRARY_BOUND } else { bound };
                let truth = truth(case, x, decoded, base);
                if n_rows * n_out >= 64 {
                    assert_close(&what, &outs[0], &truth, bound);
                    continue;
                }
                // A few sums may be small beside their terms, and are held to the size of those, as on the CPU.
                let error: f64 = outs[0].iter().zip(&truth).map(|(o, t)| (f64::from(*o) - t).powi(2)).sum();
                let error = error.sqrt() / size_of_terms(case, x, decoded);
                assert!(error <= bound, "{what}: {error:.3e} of the terms, bound {bound:.1e}");
            }
        }
    }
}

#[test]
fn every_type_and_row_count() {
    for dtype in share(Dtype::ALL) {
        let n_in = if dtype.block_len() == 256 { 512 } else { 160_usize.next_multiple_of(dtype.block_len()) };
        for n_rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 25, 33, 70] {
            check(&Case { dtype, n_rows, n_in, n_out: 45 });
        }
    }
}

/// What `./check` also runs with kernels as chips without dot products have them.
#[test]
fn few_rows_of_every_type() {
    for dtype in share(Dtype::ALL) {
        for (n_rows, n_in, n_out) in [(1, 512, 45), (2, 256, 17), (1, 256 * 17, 3)] {
            check(&Case { dtype, n_rows, n_in, n_out });
        }
    }
}

#[test]
fn odd_shapes() {
    for dtype in share(Dtype::ALL) {
        let n_in = dtype.block_len().max(32);
        for n_out in [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 65] {
            for n_rows in [1, 2, 19] {
                check(&Case { dtype, n_rows, n_in, n_out });
            }
        }
    }
    for n_in in [1, 3, 7, 8, 9, 15, 17, 31, 100] {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            check(&Case { dtype, n_rows: 1, n_in, n_out: 5 });
            check(&Case { dtype, n_rows: 14, n_in, n_out: 19 });
        }
    }
}

#[test]
fn rows_longer_than_a_panel() {
    for dtype in share(Dtype::ALL) {
        check(&Case { dtype, n_rows: 9, n_in: 256 * 17, n_out: 34 });
        check(&Case { dtype, n_rows: 26, n_in: 256 * 17, n_out: 34 });
        check(&Case { dtype, n_rows: 1, n_in: 256 * 17, n_out: 3 });
    }
    // Blocks of 128 rows and of 256 weight rows, none of them full.
    for dtype in [Dtype::Q4_0, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K, Dtype::Q3K, Dtype::IQ3XXS] {
        check(&Case { dtype, n_rows: 140, n_in: 256 * 5, n_out: 270 });
    }
}

/// Prints nothing itself: with `GFX_COUNTERS` the software GPU counts what its kernels execute, and `ROCI_TUNING` chooses
/// them (docs/developer/notebook.md). Ignored because it compares nothing.
#[test]
#[ignore = "counts instructions on the software GPU"]
fn counts_of_some_rows() {
    let number = |name: &str, default: usize| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (n_rows, n_in, n_out) = (number("ROWS", 8), number("COLUMNS", 2048), number("OUTS", 512));
    let name = std::env::var("DTYPE").unwrap_or_else(|_| "Q4_K".to_owned());
    let dtype = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name).unwrap();
    let case = Case { dtype, n_rows, n_in, n_out };
    let mut random = Random::new(1);
    let (bytes, _) = weight(&mut random, &case);
    let x = random.activations(n_rows * n_in);
    let start = vec![0.0; n_rows * n_out];
    for card in cards().iter() {
        card.matmul(&x, n_in, &[(dtype, n_out, &bytes)], &[&start], Mode::Write, Through::Kernels);
    }
}

#[test]
fn several_products_share_a_region() {
    let mut random = Random::new(3);
    let (n_rows, n_in) = (10, 64);
    let x = random.activations(n_rows * n_in);
    let cases = [(Dtype::Q8_0, 40), (Dtype::F32, 3), (Dtype::Q4_1, 70)].map(|(dtype, n_out)| Case {
        dtype,
        n_rows,
        n_in,
        n_out,
    });
    let weights: Vec<_> = cases.iter().map(|case| weight(&mut random, case)).collect();
    for pool in pools() {
        let mut outs: Vec<Vec<f32>> = cases.iter().map(|c| vec![f32::NAN; n_rows * c.n_out]).collect();
        let laid_out: Vec<Tensor> = cases
            .iter()
            .zip(&weights)
            .map(|(c, w)| lay_out(&pool, View::host(c.dtype, [c.n_out, n_in], &w.0)))
            .collect();
        let mut products: Vec<Product> = laid_out
            .iter()
            .zip(&cases)
            .zip(&mut outs)
            .map(|((w, c), out)| Product {
                weight: w.view(),
                out: ViewMut::of_f32(out, c.n_out),
                mode: Mode::Write,
                may_be_coarse: true,
            })
            .collect();
        matmul(Exec::Cpu(&pool), View::of_f32(&x, n_in), &mut products).unwrap();
        drop(products);
        for ((c, w), out) in cases.iter().zip(&weights).zip(&outs) {
            assert_close(
                c.dtype.name(),
                out,
                &truth(c, &x, &w.1, &vec![0.0; out.len()]),
                bound(c.dtype, pool.isa(), n_rows),
            );
        }
    }
    for card in cards().iter() {
        for n_rows in [3, n_rows] {
            let x = &x[..n_rows * n_in];
            let parts: Vec<_> = cases.iter().zip(&weights).map(|(c, w)| (c.dtype, c.n_out, &w.0[..])).collect();
            let nothing: Vec<Vec<f32>> = cases.iter().map(|c| vec![f32::NAN; n_rows * c.n_out]).collect();
            let nothing: Vec<&[f32]> = nothing.iter().map(Vec::as_slice).collect();
            let outs = card.matmul(x, n_in, &parts, &nothing, Mode::Write, Through::Kernels);
            for ((c, w), out) in cases.iter().zip(&weights).zip(&outs) {
                let c = Case { n_rows, ..*c };
                let bound = if card.has_matrix_units() { MATRIX_BOUND } else { KERNEL_BOUND };
                assert_close(card.name(), out, &truth(&c, x, &w.1, &vec![0.0; out.len()]), bound);
            }
        }
    }
}

#[test]
fn bytes_and_outliers() {
    // Strips of every number, more than one chunk of `k`, a short last tile.
    for dtype in COARSE {
        for (n_rows, n_in, n_out) in [(64, 256, 16), (71, 2304, 50), (65, 512, 33), (130, 4608, 100)] {
            let case = Case { dtype, n_rows, n_in, n_out };
            let mut random = Random::new((n_rows * 31 + n_in * 7 + n_out) as u64);
            let (bytes, decoded) = weight(&mut random, &case);
            let x = random.activations(n_rows * n_in);
            let start = random.numbers(n_rows * n_out);
            check_on_cpu(&case, &bytes, &decoded, &x, &start);
        }
    }
}

/// Rows without a usable threshold: all numbers alike, nothing at all, one number among zeros, numbers of all sizes, and numbers
/// that are none, which stay in their row.
#[test]
fn bytes_of_strange_rows() {
    let (n_rows, n_in, n_out) = (COARSE_ROWS, 1024, 33);
    let mut random = Random::new(5);
    for dtype in COARSE {
        let case = Case { dtype, n_rows, n_in, n_out };
        let (bytes, decoded) = weight(&mut random, &case);
        let mut x = random.numbers(n_rows * n_in);
        let row = |i: usize| i * n_in..(i + 1) * n_in;
        x[row(1)].fill(-0.7);
        x[row(2)].fill(0.0);
        x[row(3)].fill(0.0);
        x[3 * n_in + 700] = 1e6;
        x[row(4)].iter_mut().enumerate().for_each(|(i, x)| *x *= 1.03_f32.powi(i as i32 % 700));
        x[row(5)].fill(1e-42);
        x[6 * n_in + 9] = f32::NAN;
        x[7 * n_in + 1000] = f32::INFINITY;
        x[row(8)].fill(f32::NAN);
        let truth = truth(&case, &x, &decoded, &vec![0.0; n_rows * n_out]);
        for pool in pools().into_iter().filter(|pool| pool.isa() >= Isa::Avx512) {
            let laid_out = lay_out(&pool, View::host(dtype, [n_out, n_in], &bytes));
            let mut out = vec![0.0; n_rows * n_out];
            let product = Product::write(laid_out.view(), ViewMut::of_f32(&mut out, n_out)).coarse();
            matmul(Exec::Cpu(&pool), View::of_f32(&x, n_in), &mut [product]).unwrap();
            for (i, (out, truth)) in out.chunks_exact(n_out).zip(truth.chunks_exact(n_out)).enumerate() {
                match i {
                    6..=8 => assert!(out.iter().all(|x| !x.is_finite()), "{dtype} row {i}: {out:?}"),
                    5 => assert!(out.iter().all(|x| x.abs() < 1e-38), "{dtype} row {i}: {out:?}"),
                    _ => assert_close(&format!("{dtype} row {i}"), out, truth, 1e-2),
                }
            }
        }
    }
}

#[test]
fn the_largest_integers_do_not_overflow() {
    // All weights and activations at the end of their range: the sums that come nearest to 32 bits. Where scales are powers
    // of two, an activation reaches the largest integer if it is just below a power of two.
    let just_below = [10, 12, 13, 14, 15, 16].map(|n| 1.0 - 0.5_f32.powi(n));
    for dtype in share(Dtype::ALL).into_iter().filter(|dtype| dtype.block_len() > 1) {
        let mut bytes = vec![0; dtype.row_bytes(512).unwrap() * 33];
        quantize(dtype, &vec![-1.0; 512 * 33], &mut bytes);
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            match dtype {
                // scale -128 and q - 32 = -32: the product 4096 that the format's sums are sized for.
                Dtype::Q6K => {
                    block[..192].fill(0);
                    block[192..208].fill(0x80);
                }
                // d = 1, dmin = 0, every scale 63 and every quant the largest.
                Dtype::Q4K | Dtype::Q5K => {
                    block.fill(0xFF);
                    block[..4].copy_from_slice(&[0, 0x3C, 0, 0]);
                }
                _ => {}
            }
        }
        let mut decoded = vec![0.0; 512 * 33];
        dequantize(dtype, &bytes, &mut decoded);
        for (n_rows, largest) in
            [(1, 1.0), (20, 1.0), (COARSE_ROWS, 1.0)].into_iter().chain(just_below.map(|x| (EXACT_ROWS + 2, x)))
        {
            let case = Case { dtype, n_rows, n_in: 512, n_out: 33 };
            let x = vec![largest; n_rows * 512];
            for pool in pools() {
                let mut out = vec![0.0; n_rows * 33];
                let laid_out = lay_out(&pool, View::host(dtype, [33, 512], &bytes));
                let weight = laid_out.view();
                let mut product =
                    [Product { weight, out: ViewMut::of_f32(&mut out, 33), mode: Mode::Write, may_be_coarse: true }];
                matmul(Exec::Cpu(&pool), View::of_f32(&x, 512), &mut product).unwrap();
                let truth = truth(&case, &x, &decoded, &vec![0.0; out.len()]);
                let what = format!("{dtype} {n_rows} rows of {largest} {}", pool.isa());
                assert_close(&what, &out, &truth, bound(dtype, pool.isa(), n_rows));
            }
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let pool = &pools()[0];
    let (x, w, mut out) = (vec![0.0; 64], vec![0.0; 96], vec![0.0; 6]);
    let mut product = [Product {
        weight: View::of_f32(&w, 48),
        out: ViewMut::of_f32(&mut out, 2),
        mode: Mode::Write,
        may_be_coarse: true,
    }];
    let outcome = matmul(Exec::Cpu(pool), View::of_f32(&x, 32), &mut product);
    assert!(matches!(outcome, Err(Error::Shape { what: "weight", found: [2, 48], expected: [2, 32], .. })));
    let bytes = [0_u8; 17];
    let weight = View::host(Dtype::Q4_0, [1, 32], &bytes);
    let mut product =
        [Product { weight, out: ViewMut::of_f32(&mut out[..2], 1), mode: Mode::Write, may_be_coarse: true }];
    let outcome = matmul(Exec::Cpu(pool), View::of_f32(&x, 32), &mut product);
    assert!(matches!(outcome, Err(Error::Bytes { found: 17, needed: 18, .. })));
}
