//! Dot products with plain numbers (F32, F16, BF16) for many rows, in the order of `dot`: thirty-two sums side by side,
//! added up at the end. Used where the bits of a row must not depend on the number of rows; `panel` is faster.
//!
//! `dot` keeps four vectors of sums for each output. Here they are made one after the other, so that a tile of three rows
//! and four columns has all its sums of one pass in registers.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::dot::sum8;
use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::formats::{Float, for_block};

/// Vectors of sums of an output, as in `dot`, and the columns of `k` that they take together.
const PASSES: usize = 4;
const STEP: usize = 8 * PASSES;
/// Rows and columns of a tile: twelve sums, and room for what is multiplied.
const TILE_ROWS: usize = 3;
const TILE_COLS: usize = 4;
/// Columns that are decoded together: so often is a row used that was read from afar.
const COLS: usize = 2 * TILE_COLS;

thread_local! {
    /// Each thread's decoded weights, `[COLS, PASSES, n_in / STEP, 8]`; grows once.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    DECODED.with_borrow_mut(|decoded| {
        let n_whole = input.n_in / STEP * STEP;
        if decoded.len() < COLS * n_whole {
            decoded.resize(COLS * n_whole, 0.0);
        }
        for first in cols.clone().step_by(COLS) {
            let cols = first..cols.end.min(first + COLS);
            for_block!(job.dtype,
                P => { let _: Option<P> = None; unreachable!("packed formats come in tiles") },
                // SAFETY: `Isa` says that this CPU has AVX2, FMA and F16C; `matmul` checked every shape, and the columns
                // are this task's.
                P => unsafe { some_cols::<P>(input, job, cols, decoded) }
            );
        }
    });
}

/// # Safety
/// The CPU has AVX2, FMA and F16C; up to [`COLS`] columns that lie inside the job and are this task's.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_cols<P: Float>(input: &ProductInput, job: &ProductJob, cols: Range<usize>, decoded: &mut [f32]) {
    let n_whole = input.n_in / STEP * STEP;
    for (i, decoded) in decoded.chunks_exact_mut(n_whole.max(1)).take(COLS).enumerate() {
        // Columns past the last repeat it; nobody stores their sums.
        let weight = &job.weight[(cols.start + i).min(cols.end - 1) * job.stride..][..job.stride];
        for k in (0..n_whole).step_by(8) {
            let to = k / 8 % PASSES * (n_whole / PASSES) + k / STEP * 8;
            // SAFETY: k + 8 <= n_in; each pass has a quarter of the numbers, eight from each step.
            unsafe { _mm256_storeu_ps(decoded[to..][..8].as_mut_ptr(), P::load8(weight[k * P::BYTES..].as_ptr())) };
        }
    }
    for first_row in (0..input.n_rows).step_by(TILE_ROWS) {
        for first_col in cols.clone().step_by(TILE_COLS) {
            let decoded = &decoded[(first_col - cols.start) * n_whole..][..TILE_COLS * n_whole];
            let target = TileTarget { first_row, cols: first_col..cols.end.min(first_col + TILE_COLS) };
            // SAFETY: the caller's promise; the rows exist.
            unsafe {
                match input.n_rows - first_row {
                    1 => tile::<P, 1>(input, job, decoded, &target),
                    2 => tile::<P, 2>(input, job, decoded, &target),
                    _ => tile::<P, TILE_ROWS>(input, job, decoded, &target),
                }
            }
        }
    }
}

/// Where the sums of a tile go.
struct TileTarget {
    first_row: usize,
    cols: Range<usize>,
}

/// # Safety
/// As [`some_cols`], for `R` rows that exist; `decoded` is `[TILE_COLS, PASSES, n_in / STEP, 8]`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<P: Float, const R: usize>(input: &ProductInput, job: &ProductJob, decoded: &[f32], target: &TileTarget) {
    let n_whole = input.n_in / STEP * STEP;
    let x: [&[f32]; R] = std::array::from_fn(|r| &input.x[(target.first_row + r) * input.n_in..][..input.n_in]);
    let mut sums = [[[_mm256_setzero_ps(); TILE_COLS]; R]; PASSES];
    for (pass, sums) in sums.iter_mut().enumerate() {
        let mut acc = [[_mm256_setzero_ps(); TILE_COLS]; R];
        let weights = decoded[pass * (n_whole / PASSES)..].as_ptr();
        for step in 0..n_whole / STEP {
            // SAFETY: eight numbers of each row and of each decoded column lie at this step of the pass.
            unsafe {
                let mut rows = [_mm256_setzero_ps(); R];
                for r in 0..R {
                    rows[r] = _mm256_loadu_ps(x[r].as_ptr().add(step * STEP + 8 * pass));
                }
                for c in 0..TILE_COLS {
                    let w = _mm256_loadu_ps(weights.add(c * n_whole + 8 * step));
                    for r in 0..R {
                        acc[r][c] = _mm256_fmadd_ps(w, rows[r], acc[r][c]);
                    }
                }
            }
        }
        *sums = acc;
    }
    for r in 0..R {
        for (c, col) in target.cols.clone().enumerate() {
            let [a, b] = [0, 2].map(|i| _mm256_add_ps(sums[i][r][c], sums[i + 1][r][c]));
            let mut sum = sum8(_mm256_add_ps(a, b));
            let weight = &job.weight[col * job.stride..][..job.stride];
            for k in n_whole..input.n_in {
                sum += P::decode(&weight[k * P::BYTES..][..P::BYTES]) * x[r][k];
            }
            // SAFETY: the row exists and the column is this task's.
            unsafe { job.put(target.first_row + r, col, sum) };
        }
    }
}
