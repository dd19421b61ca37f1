//! Small products of f32 matrices in a cache, for the chunked forms of recurrences: register tiles of AVX2. Other CPUs
//! walk recurrences token by token (`state_span::runs_chunks`) and have a plain loop here.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

/// Columns of a register tile: two vectors of eight.
#[cfg(target_arch = "x86_64")]
const COLS: usize = 16;
/// Rows of one: with two vectors of the other factor and one number, twelve sums fill AVX2's registers.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 6;

/// A matrix in row order; rows begin `stride` numbers apart.
#[derive(Copy, Clone)]
pub(crate) struct RowMatrix<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub n_rows: usize,
    pub n_cols: usize,
}

impl<'a> RowMatrix<'a> {
    /// Rows without gaps.
    #[inline(always)]
    pub fn dense(numbers: &'a [f32], n_cols: usize) -> Self {
        Self { numbers, stride: n_cols, n_rows: numbers.len() / n_cols, n_cols }
    }

    /// Whether all rows lie inside.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.n_rows == 0 || (self.n_rows - 1) * self.stride + self.n_cols <= self.numbers.len()
    }
}

/// `out = scale * out + x * s` (0: whatever was there), row by row: `x` is `[n, depth]`, `s` `[depth, n_cols]`, `out`
/// `[n, n_cols]` without gaps.
///
/// # Safety
/// On x86-64 the CPU has AVX2 and FMA.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
pub(crate) unsafe fn add_product(x: RowMatrix, s: RowMatrix, scale: f32, out: &mut [f32]) {
    let n_cols = s.n_cols;
    assert!(x.is_whole() && s.is_whole() && x.n_cols == s.n_rows && x.n_rows * n_cols <= out.len(), "factors fit");
    #[cfg(target_arch = "x86_64")]
    let first_col = {
        let whole_cols = n_cols / COLS * COLS;
        let whole_rows = x.n_rows / ROWS * ROWS;
        for row in (0..whole_rows).step_by(ROWS) {
            for col in (0..whole_cols).step_by(COLS) {
                // SAFETY: the tile lies inside of all three, as asserted above.
                unsafe { tile::<ROWS>(x, s, scale, (row, col), out) };
            }
        }
        for row in whole_rows..x.n_rows {
            for col in (0..whole_cols).step_by(COLS) {
                // SAFETY: as above.
                unsafe { tile::<1>(x, s, scale, (row, col), out) };
            }
        }
        whole_cols
    };
    #[cfg(not(target_arch = "x86_64"))]
    let first_col = 0;
    for row in 0..x.n_rows {
        for col in first_col..n_cols {
            let x = &x.numbers[row * x.stride..][..x.n_cols];
            let sum: f32 = x.iter().enumerate().map(|(d, x)| x * s.numbers[d * s.stride + col]).sum();
            let out = &mut out[row * n_cols + col];
            *out = if scale == 0.0 { sum } else { scale * *out + sum };
        }
    }
}

/// # Safety
/// The CPU has AVX2 and FMA; rows `row..row + N` of `x` and of `out` and columns `col..col + COLS` of `s` and of `out` lie
/// inside, and `s` has a row for each column of `x`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn tile<const N: usize>(x: RowMatrix, s: RowMatrix, scale: f32, (row, col): (usize, usize), out: &mut [f32]) {
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let of_rows = x.numbers[row * x.stride..].as_ptr();
    for d in 0..x.n_cols {
        // SAFETY: the caller's promise.
        unsafe {
            let at = s.numbers.as_ptr().add(d * s.stride + col);
            let (left, right) = (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*of_rows.add(i * x.stride + d));
                sums[0] = _mm256_fmadd_ps(x, left, sums[0]);
                sums[1] = _mm256_fmadd_ps(x, right, sums[1]);
            }
        }
    }
    let by = _mm256_set1_ps(scale);
    for (i, sums) in sums.iter().enumerate() {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let to = out.as_mut_ptr().add((row + i) * s.n_cols + col + 8 * half);
                let value = if scale == 0.0 { *sum } else { _mm256_fmadd_ps(by, _mm256_loadu_ps(to), *sum) };
                _mm256_storeu_ps(to, value);
            }
        }
    }
}
