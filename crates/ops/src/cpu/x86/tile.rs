//! The f32 product of a few rows with a panel, all sums in registers. `matmul` and `attention` are built on it.

use std::arch::x86_64::*;

/// Panel width with AVX2: 6 x 16 sums in twelve registers.
pub(crate) const WIDTH_256: usize = 16;
/// Panel width with AVX-512: 12 x 32 sums in 24 registers.
pub(crate) const WIDTH_512: usize = 32;

/// Rows of a full tile.
pub(crate) const fn max_rows<const W: usize>() -> usize {
    if W == WIDTH_512 { 12 } else { 6 }
}

/// `out[r, c] (+)= sum_k x[r, k] * panel[k, c]`
pub(crate) struct PanelProduct {
    pub(crate) n_rows: usize,
    pub(crate) n_k: usize,
    pub(crate) x: *const f32,
    pub(crate) x_stride: usize,
    /// `[n_k, W]`
    pub(crate) panel: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// Columns to store, at most `W`.
    pub(crate) n_cols: usize,
    pub(crate) adds: bool,
}

/// # Safety
/// The CPU has AVX2 and FMA (`W == WIDTH_256`) or AVX-512F (`W == WIDTH_512`); `n_rows <= max_rows::<W>()` rows of
/// `n_k` numbers, `n_k * W` panel numbers and `n_rows` rows of `n_cols` outputs exist, and nobody else uses the outputs.
pub(crate) unsafe fn product<const W: usize>(p: &PanelProduct) {
    // SAFETY: the caller's promise.
    unsafe {
        match (W, p.n_rows) {
            (WIDTH_512, 1) => rows_512::<1>(p),
            (WIDTH_512, 2) => rows_512::<2>(p),
            (WIDTH_512, 3) => rows_512::<3>(p),
            (WIDTH_512, 4) => rows_512::<4>(p),
            (WIDTH_512, 5) => rows_512::<5>(p),
            (WIDTH_512, 6) => rows_512::<6>(p),
            (WIDTH_512, 7) => rows_512::<7>(p),
            (WIDTH_512, 8) => rows_512::<8>(p),
            (WIDTH_512, 9) => rows_512::<9>(p),
            (WIDTH_512, 10) => rows_512::<10>(p),
            (WIDTH_512, 11) => rows_512::<11>(p),
            (WIDTH_512, _) => rows_512::<12>(p),
            (_, 1) => rows_256::<1>(p),
            (_, 2) => rows_256::<2>(p),
            (_, 3) => rows_256::<3>(p),
            (_, 4) => rows_256::<4>(p),
            (_, 5) => rows_256::<5>(p),
            _ => rows_256::<6>(p),
        }
    }
}

/// # Safety
/// As [`product`] with `W == WIDTH_512` and `R` rows.
#[target_feature(enable = "avx512f")]
unsafe fn rows_512<const R: usize>(p: &PanelProduct) {
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    let mut panel = p.panel;
    for k in 0..p.n_k {
        // SAFETY: the panel holds n_k vectors of 32, each row n_k numbers.
        unsafe {
            let w = [_mm512_loadu_ps(panel), _mm512_loadu_ps(panel.add(16))];
            panel = panel.add(WIDTH_512);
            for r in 0..R {
                let x = _mm512_set1_ps(*p.x.add(r * p.x_stride + k));
                acc[r][0] = _mm512_fmadd_ps(x, w[0], acc[r][0]);
                acc[r][1] = _mm512_fmadd_ps(x, w[1], acc[r][1]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: the output row holds n_cols numbers, `row` 32.
        unsafe {
            if p.n_cols == WIDTH_512 {
                let out = p.out.add(r * p.out_stride);
                for half in 0..2 {
                    let out = out.add(16 * half);
                    let old = if p.adds { _mm512_loadu_ps(out) } else { _mm512_setzero_ps() };
                    _mm512_storeu_ps(out, _mm512_add_ps(old, acc[r][half]));
                }
            } else {
                let mut row = [0.0; WIDTH_512];
                _mm512_storeu_ps(row.as_mut_ptr(), acc[r][0]);
                _mm512_storeu_ps(row.as_mut_ptr().add(16), acc[r][1]);
                put_row(p, r, &row);
            }
        }
    }
}

/// # Safety
/// As [`product`] with `W == WIDTH_256` and `R` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows_256<const R: usize>(p: &PanelProduct) {
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let mut panel = p.panel;
    for k in 0..p.n_k {
        // SAFETY: the panel holds n_k vectors of 16, each row n_k numbers.
        unsafe {
            let w = [_mm256_loadu_ps(panel), _mm256_loadu_ps(panel.add(8))];
            panel = panel.add(WIDTH_256);
            for r in 0..R {
                let x = _mm256_broadcast_ss(&*p.x.add(r * p.x_stride + k));
                acc[r][0] = _mm256_fmadd_ps(x, w[0], acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(x, w[1], acc[r][1]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: the output row holds n_cols numbers, `row` 16.
        unsafe {
            if p.n_cols == WIDTH_256 {
                let out = p.out.add(r * p.out_stride);
                for half in 0..2 {
                    let out = out.add(8 * half);
                    let old = if p.adds { _mm256_loadu_ps(out) } else { _mm256_setzero_ps() };
                    _mm256_storeu_ps(out, _mm256_add_ps(old, acc[r][half]));
                }
            } else {
                let mut row = [0.0; WIDTH_256];
                _mm256_storeu_ps(row.as_mut_ptr(), acc[r][0]);
                _mm256_storeu_ps(row.as_mut_ptr().add(8), acc[r][1]);
                put_row(p, r, &row);
            }
        }
    }
}

/// # Safety
/// Row `r` of the output holds `n_cols <= row.len()` numbers that nobody else uses.
#[inline(always)]
unsafe fn put_row(p: &PanelProduct, r: usize, row: &[f32]) {
    // SAFETY: the caller's promise.
    let out = unsafe { std::slice::from_raw_parts_mut(p.out.add(r * p.out_stride), p.n_cols) };
    if p.adds {
        out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
    } else {
        out.copy_from_slice(&row[..p.n_cols]);
    }
}

/// Rows to columns of eight by eight. Written out: closures would not take over the target feature.
#[target_feature(enable = "avx2")]
pub(crate) fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    let low = [
        _mm256_unpacklo_ps(r[0], r[1]),
        _mm256_unpacklo_ps(r[2], r[3]),
        _mm256_unpacklo_ps(r[4], r[5]),
        _mm256_unpacklo_ps(r[6], r[7]),
    ];
    let high = [
        _mm256_unpackhi_ps(r[0], r[1]),
        _mm256_unpackhi_ps(r[2], r[3]),
        _mm256_unpackhi_ps(r[4], r[5]),
        _mm256_unpackhi_ps(r[6], r[7]),
    ];
    let first = [
        _mm256_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
        _mm256_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
        _mm256_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
        _mm256_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
    ];
    let second = [
        _mm256_shuffle_ps::<0b01_00_01_00>(low[2], low[3]),
        _mm256_shuffle_ps::<0b11_10_11_10>(low[2], low[3]),
        _mm256_shuffle_ps::<0b01_00_01_00>(high[2], high[3]),
        _mm256_shuffle_ps::<0b11_10_11_10>(high[2], high[3]),
    ];
    [
        _mm256_permute2f128_ps::<0x20>(first[0], second[0]),
        _mm256_permute2f128_ps::<0x20>(first[1], second[1]),
        _mm256_permute2f128_ps::<0x20>(first[2], second[2]),
        _mm256_permute2f128_ps::<0x20>(first[3], second[3]),
        _mm256_permute2f128_ps::<0x31>(first[0], second[0]),
        _mm256_permute2f128_ps::<0x31>(first[1], second[1]),
        _mm256_permute2f128_ps::<0x31>(first[2], second[2]),
        _mm256_permute2f128_ps::<0x31>(first[3], second[3]),
    ]
}
