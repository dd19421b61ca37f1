//! Activations rounded to 16 bits: per group of 32, one scale and 32 signed numbers up to `largest`.
//!
//! The error is at most 2^-16 of the group's largest value, 256 times below that of 8 bits (2^-15 for a format whose
//! sums need the bit).

use crate::Pool;
use crate::quant::GROUP;
use crate::view::Shared;

pub(crate) struct Activations {
    /// `[n_rows, stride]`
    pub(crate) q: Vec<i16>,
    /// From one row of q to the next: `n_in` and a cache line more, because the rows of a tile are read side by side
    /// and at a power of two they would all want the same place in the cache.
    pub(crate) stride: usize,
    /// `[n_rows, n_in / GROUP]`: what a unit of q is worth.
    pub(crate) scales: Vec<f32>,
    /// `[n_rows, n_in / GROUP]`: the sum of the group, for formats with a minimum.
    pub(crate) sums: Vec<f32>,
}

impl Activations {
    pub(crate) const fn new() -> Self {
        Self { q: Vec::new(), stride: 0, scales: Vec::new(), sums: Vec::new() }
    }

    pub(crate) fn round(&mut self, pool: &Pool, x: &[f32], n_rows: usize, n_in: usize, largest: f32) {
        let n_groups = n_in / GROUP;
        let stride = n_in + GROUP;
        self.stride = stride;
        if self.q.len() < n_rows * stride {
            self.q.resize(n_rows * stride, 0);
        }
        if self.scales.len() < n_rows * n_groups {
            self.scales.resize(n_rows * n_groups, 0.0);
            self.sums.resize(n_rows * n_groups, 0.0);
        }
        let (q, scales, sums) = (Shared::new(&mut self.q), Shared::new(&mut self.scales), Shared::new(&mut self.sums));
        let rows = |range: std::ops::Range<usize>| {
            for row in range {
                // SAFETY: each row belongs to one range, and all three hold n_rows rows.
                let (q, scales, sums) = unsafe {
                    (
                        q.slice(row * stride, n_groups * GROUP),
                        scales.slice(row * n_groups, n_groups),
                        sums.slice(row * n_groups, n_groups),
                    )
                };
                round_row(pool, &x[row * n_in..][..n_groups * GROUP], largest, q, scales, sums);
            }
        };
        if n_rows <= 4 {
            rows(0..n_rows);
        } else {
            pool.run_ranges(n_rows, 4, |range, _| rows(range));
        }
    }
}

fn round_row(pool: &Pool, x: &[f32], limit: f32, q: &mut [i16], scales: &mut [f32], sums: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if pool.isa() >= crate::Isa::Avx2 {
        // SAFETY: the CPU has AVX2 and FMA; the slices hold the same number of whole groups.
        unsafe { round_row_avx2(x, limit, q, scales, sums) };
        return;
    }
    let _ = pool;
    for (group_idx, (x, q)) in x.chunks_exact(GROUP).zip(q.chunks_exact_mut(GROUP)).enumerate() {
        let largest = x.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        let inverse = if largest > 0.0 { limit / largest } else { 0.0 };
        let mut sum = 0;
        for (q, x) in q.iter_mut().zip(x) {
            *q = (x * inverse).round_ties_even() as i16;
            sum += i32::from(*q);
        }
        scales[group_idx] = largest / limit;
        sums[group_idx] = sum as f32 * scales[group_idx];
    }
}

/// # Safety
/// The CPU has AVX2 and FMA. The slices hold the same number of whole groups.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn round_row_avx2(x: &[f32], limit: f32, q: &mut [i16], scales: &mut [f32], sums: &mut [f32]) {
    use std::arch::x86_64::*;
    let sign = _mm256_set1_ps(-0.0);
    for group_idx in 0..scales.len() {
        // SAFETY: group_idx * GROUP + 32 <= x.len() == q.len().
        unsafe {
            let x = x.as_ptr().add(group_idx * GROUP);
            // Written out: closures given to `map` would not take over the target feature.
            let v =
                [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8)), _mm256_loadu_ps(x.add(16)), _mm256_loadu_ps(x.add(24))];
            let low = _mm256_max_ps(_mm256_andnot_ps(sign, v[0]), _mm256_andnot_ps(sign, v[1]));
            let high = _mm256_max_ps(_mm256_andnot_ps(sign, v[2]), _mm256_andnot_ps(sign, v[3]));
            let max = _mm256_max_ps(low, high);
            let max = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps::<1>(max));
            let max = _mm_max_ps(max, _mm_movehl_ps(max, max));
            let largest = _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
            let inverse = _mm256_set1_ps(if largest > 0.0 { limit / largest } else { 0.0 });
            let i = [
                _mm256_cvtps_epi32(_mm256_mul_ps(v[0], inverse)),
                _mm256_cvtps_epi32(_mm256_mul_ps(v[1], inverse)),
                _mm256_cvtps_epi32(_mm256_mul_ps(v[2], inverse)),
                _mm256_cvtps_epi32(_mm256_mul_ps(v[3], inverse)),
            ];
            let total = _mm256_add_epi32(_mm256_add_epi32(i[0], i[1]), _mm256_add_epi32(i[2], i[3]));
            // Packing works within 128-bit lanes; the permutation puts the quarters back in order.
            let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(i[0], i[1]));
            let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(i[2], i[3]));
            let q = q.as_mut_ptr().add(group_idx * GROUP);
            _mm256_storeu_si256(q.cast(), low);
            _mm256_storeu_si256(q.add(16).cast(), high);
            let total = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
            let total = _mm_add_epi32(total, _mm_unpackhi_epi64(total, total));
            let total = _mm_cvtsi128_si32(_mm_add_epi32(total, _mm_shuffle_epi32::<1>(total)));
            scales[group_idx] = largest / limit;
            sums[group_idx] = total as f32 * scales[group_idx];
        }
    }
}
