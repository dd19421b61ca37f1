//! Dot products with plain numbers (F32, F16, BF16) for few rows: each weight is converted once for up to eight
//! activation rows.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::formats::{Float, for_block};

/// Rows that one pass over the weights serves.
const MAX_ROWS: usize = 8;

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    for first in (0..input.n_rows).step_by(MAX_ROWS) {
        for_block!(job.dtype,
            P => { let _: Option<P> = None; unreachable!("packed formats come in tiles") },
            // SAFETY: `Isa` says that this CPU has AVX2, FMA and F16C; `matmul` checked every shape.
            P => unsafe {
                match input.n_rows - first {
                    1 => dot_cols::<P, 1>(input, job, cols.clone(), first),
                    2 => dot_cols::<P, 2>(input, job, cols.clone(), first),
                    3 => dot_cols::<P, 3>(input, job, cols.clone(), first),
                    4 => dot_cols::<P, 4>(input, job, cols.clone(), first),
                    5 => dot_cols::<P, 5>(input, job, cols.clone(), first),
                    6 => dot_cols::<P, 6>(input, job, cols.clone(), first),
                    7 => dot_cols::<P, 7>(input, job, cols.clone(), first),
                    _ => dot_cols::<P, 8>(input, job, cols.clone(), first),
                }
            }
        );
    }
}

/// # Safety
/// The CPU has AVX2, FMA and F16C; `cols` and rows `first..first + N` lie inside the job and the input, and the
/// columns are this task's.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_cols<P: Float, const N: usize>(input: &ProductInput, job: &ProductJob, cols: Range<usize>, first: usize) {
    let x = input.x[first * input.n_in..].as_ptr();
    let n_whole = input.n_in / 32 * 32;
    for col in cols {
        let weight = job.weight[col * job.stride..][..job.stride].as_ptr();
        let mut acc = [[_mm256_setzero_ps(); N]; 4];
        for k in (0..n_whole).step_by(32) {
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: k + 32 <= n_in, for the weights and for each activation row.
                unsafe {
                    let w = P::load8(weight.add((k + 8 * i) * P::BYTES));
                    for (n, acc) in acc.iter_mut().enumerate() {
                        let x = _mm256_loadu_ps(x.add(n * input.n_in + k + 8 * i));
                        *acc = _mm256_fmadd_ps(w, x, *acc);
                    }
                }
            }
        }
        for n in 0..N {
            let acc = _mm256_add_ps(_mm256_add_ps(acc[0][n], acc[1][n]), _mm256_add_ps(acc[2][n], acc[3][n]));
            let mut sum = sum8(acc);
            for k in n_whole..input.n_in {
                // SAFETY: k < n_in.
                unsafe {
                    let bytes = std::slice::from_raw_parts(weight.add(k * P::BYTES), P::BYTES);
                    sum += P::decode(bytes) * *x.add(n * input.n_in + k);
                }
            }
            // SAFETY: the caller's promise.
            unsafe { job.put(first + n, col, sum) };
        }
    }
}

#[target_feature(enable = "avx2")]
pub(crate) fn sum8(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}
