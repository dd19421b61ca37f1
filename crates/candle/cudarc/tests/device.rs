//! What Candle leans on, on whatever GPU is there. Without one the tests say so and pass; `ROCI_REQUIRE_GPU=1` makes
//! that a failure.

use std::sync::Arc;

use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, StridedBatchedConfig, sys};
use cudarc::curand::CudaRng;
use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

fn stream() -> Option<Arc<CudaStream>> {
    match CudaContext::new(0) {
        Ok(context) => Some(context.per_thread_stream()),
        Err(error) if std::env::var_os("ROCI_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

const SCALE: &str = r#"
#include "prelude.h"
#define SCALE(T) KERNEL(256) scale_##T(T *x, T by, u32 n) { if (thread_x() < n) x[thread_x()] *= by; }
//@ scale_$T = SCALE($T) ; T: float u32
"#;

#[test]
fn a_loop_allocates_nothing_after_its_first_round() {
    let Some(stream) = stream() else { return };
    let counters = || stream.context().device().counters();
    let round = || {
        let host: Vec<u32> = (0..1000).collect();
        let a = stream.clone_htod(&host).unwrap();
        let b = a.try_clone().unwrap();
        let zeros = stream.alloc_zeros::<u8>(77).unwrap();
        assert_eq!(stream.clone_dtoh(&b).unwrap(), host);
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [0; 77]);
    };
    round();
    let before = counters().allocations;
    (0..10).for_each(|_| round());
    assert_eq!(counters().allocations, before);
}

#[test]
fn large_copies_come_back_as_they_went() {
    let Some(stream) = stream() else { return };
    // More than all staging chunks together, and no multiple of one.
    let host: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 % 251) as u8).collect();
    let device = stream.clone_htod(&host).unwrap();
    assert!(stream.clone_dtoh(&device).unwrap() == host);
    let mut part = vec![0u8; 1000];
    stream.memcpy_dtoh(&device.slice(2_999_000..3_000_000), &mut part).unwrap();
    assert!(part == host[2_999_000..3_000_000]);
    assert!(stream.memcpy_dtoh(&device, &mut part).unwrap_err().to_string().contains("do not fit"));
}

#[test]
fn kernels_come_from_tables_and_two_streams_keep_their_order() {
    let Some(stream) = stream() else { return };
    let module = stream.context().load_module(Ptx::from(SCALE)).unwrap();
    let function = module.load_function("scale_float").unwrap();
    let missing = module.load_function("scale_double").unwrap_err();
    assert!(missing.to_string().contains("no kernel `scale_double`"), "{missing}");
    let other = stream.context().new_stream().unwrap();
    let (by, n) = (2.0f32, 3u32);
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    let x = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
    for round in 0..6 {
        // By turns on the stream that owns the memory and on another.
        let on = if round % 2 == 0 { &stream } else { &other };
        let mut launch = on.launch_builder(&function);
        launch.arg(&x).arg(&by).arg(&n);
        // SAFETY: the kernel's three parameters, and three elements.
        unsafe { launch.launch(config).unwrap() };
    }
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [64.0, 128.0, 192.0]);
    let empty = LaunchConfig { grid_dim: (0, 1, 1), ..config };
    // SAFETY: nothing is launched.
    unsafe { stream.launch_builder(&function).launch(empty).unwrap() };
    let too_many = LaunchConfig { block_dim: (4096, 1, 1), ..config };
    // SAFETY: refused before the driver sees it.
    let refused = unsafe { stream.launch_builder(&function).arg(&x).arg(&by).arg(&n).launch(too_many).unwrap_err() };
    assert!(refused.to_string().contains("4096 threads"), "{refused}");
}

#[test]
fn source_that_does_not_compile_and_ptx_are_errors() {
    let Some(stream) = stream() else { return };
    let broken = stream.context().load_module(Ptx::from("#include \"prelude.h\"\nnonsense")).unwrap();
    assert!(broken.load_function("any").unwrap_err().to_string().contains("does not compile"));
    let ptx = stream.context().load_module(Ptx::from("//\n.version 8.4\n.target sm_80\n"));
    if stream.context().device().vendor() == gpu::Vendor::Amd {
        assert!(ptx.err().expect("PTX on AMD").to_string().contains("PTX"));
    }
}

#[test]
fn products_of_both_layouts_and_of_none() {
    let Some(stream) = stream() else { return };
    let blas = CudaBlas::new(stream.clone()).unwrap();
    println!("products: {}", blas.library());
    // Column-major: a [m, k], b [k, n], c [m, n], twice.
    let (m, n, k, batch) = (37usize, 5usize, 41usize, 2usize);
    let a: Vec<f64> = (0..batch * m * k).map(|i| ((i * 7 % 13) as f64) - 6.0).collect();
    let b: Vec<f64> = (0..batch * k * n).map(|i| ((i * 5 % 11) as f64) - 5.0).collect();
    use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
    for (transa, transb) in [(CUBLAS_OP_N, CUBLAS_OP_N), (CUBLAS_OP_T, CUBLAS_OP_N), (CUBLAS_OP_N, CUBLAS_OP_T)] {
        let at = |i: usize, row: usize, j: usize| {
            a[i * m * k + if transa == CUBLAS_OP_N { row + j * m } else { j + row * k }]
        };
        let bt = |i: usize, j: usize, column: usize| {
            b[i * k * n + if transb == CUBLAS_OP_N { j + column * k } else { column + j * n }]
        };
        let (x, y) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        let mut c = stream.alloc_zeros::<f64>(batch * m * n).unwrap();
        let lda = if transa == CUBLAS_OP_N { m } else { k } as i32;
        let ldb = if transb == CUBLAS_OP_N { k } else { n } as i32;
        let gemm = GemmConfig {
            transa,
            transb,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: 2.0,
            lda,
            ldb,
            beta: 0.0,
            ldc: m as i32,
        };
        let (stride_a, stride_b, stride_c) = ((m * k) as i64, (k * n) as i64, (m * n) as i64);
        let config = StridedBatchedConfig { gemm, batch_size: batch as i32, stride_a, stride_b, stride_c };
        // SAFETY: every matrix of the batch lies in its slice.
        unsafe { blas.gemm_strided_batched(config, &x, &y, &mut c).unwrap() };
        for (at_c, got) in stream.clone_dtoh(&c).unwrap().into_iter().enumerate() {
            let (i, column, row) = (at_c / (m * n), at_c / m % n, at_c % m);
            let want: f64 = (0..k).map(|j| 2.0 * at(i, row, j) * bt(i, j, column)).sum();
            assert_eq!(got, want, "{transa:?} {transb:?} at {at_c}");
        }
    }
}

/// Weights by few tokens, as Candle's linear layers ask for them; whole numbers, so that the order of a sum does not matter.
#[test]
fn products_with_few_columns_are_exact() {
    let Some(stream) = stream() else { return };
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let (m, batch, alpha, beta) = (37usize, 2usize, 2.0f32, 3.0f32);
    for (n, k) in [(1usize, 77usize), (3, 64), (8, 5), (9, 33)] {
        // Columns of A and B lie further apart than they are long, and C has room for another row.
        let (ld_k, ld_c) = (k + 3, m + 1);
        let a: Vec<f32> = (0..batch * m * ld_k).map(|i| ((i * 7 % 13) as f32) - 6.0).collect();
        let b: Vec<f32> = (0..batch * n * ld_k).map(|i| ((i * 5 % 11) as f32) - 5.0).collect();
        let before: Vec<f32> = (0..batch * n * ld_c).map(|i| (i % 17) as f32).collect();
        let (x, y) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        let mut c = stream.clone_htod(&before).unwrap();
        use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        let gemm = GemmConfig {
            transa: CUBLAS_OP_T,
            transb: CUBLAS_OP_N,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha,
            lda: ld_k as i32,
            ldb: ld_k as i32,
            beta,
            ldc: ld_c as i32,
        };
        let (stride_a, stride_b, stride_c) = ((m * ld_k) as i64, (n * ld_k) as i64, (n * ld_c) as i64);
        let config = StridedBatchedConfig { gemm, batch_size: batch as i32, stride_a, stride_b, stride_c };
        // SAFETY: every matrix of the batch lies in its slice.
        unsafe { blas.gemm_strided_batched(config, &x, &y, &mut c).unwrap() };
        for (at, got) in stream.clone_dtoh(&c).unwrap().into_iter().enumerate() {
            let (column_of_all, row) = (at / ld_c, at % ld_c);
            let i = column_of_all / n;
            let sum =
                |row: usize| -> f32 { (0..k).map(|j| a[(i * m + row) * ld_k + j] * b[column_of_all * ld_k + j]).sum() };
            let want = if row < m { alpha * sum(row) + beta * before[at] } else { before[at] };
            assert_eq!(got, want, "{n} columns, {k} deep, at {at}");
        }
    }
}

#[test]
fn random_numbers_repeat_with_their_seed() {
    let Some(stream) = stream() else { return };
    let draw = |seed: u64| {
        let rng = CudaRng::new(seed, stream.clone()).unwrap();
        let mut uniform = stream.alloc_zeros::<f32>(4097).unwrap();
        let mut normal = stream.alloc_zeros::<f32>(4097).unwrap();
        rng.fill_with_uniform(&mut uniform).unwrap();
        rng.fill_with_normal(&mut normal, 3.0, 2.0).unwrap();
        (stream.clone_dtoh(&uniform).unwrap(), stream.clone_dtoh(&normal).unwrap())
    };
    let (uniform, normal) = draw(7);
    assert!(draw(7) == (uniform.clone(), normal.clone()) && draw(8).0 != uniform);
    assert!(uniform.iter().all(|x| *x > 0.0 && *x < 1.0));
    let mean = |x: &[f32]| x.iter().map(|x| f64::from(*x)).sum::<f64>() / x.len() as f64;
    let spread = |x: &[f32]| (mean(&x.iter().map(|y| (y - 3.0) * (y - 3.0)).collect::<Vec<_>>())).sqrt();
    assert!((mean(&uniform) - 0.5).abs() < 0.02, "{}", mean(&uniform));
    assert!((mean(&normal) - 3.0).abs() < 0.15 && (spread(&normal) - 2.0).abs() < 0.1, "{}", spread(&normal));
}
