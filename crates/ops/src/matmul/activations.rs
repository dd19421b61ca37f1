//! Activations rounded to 16 bits: per group of 32, one scale and 32 signed numbers up to `largest`.
//!
//! The error is at most 2^-16 of the group's largest value, 256 times below that of 8 bits (2^-15 for a format whose
//! sums need the bit).
//!
//! The rows of a *tile* lie interleaved by groups: a group of a row is one cache line, the same group of the tile's
//! other rows follows. A kernel then walks over one stream, with every row at a fixed distance.

use std::cell::RefCell;

use super::left::Left;
use crate::Pool;
use crate::quant::GROUP;
use crate::view::Shared;

/// A group of a row: one cache line.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
pub(crate) struct Line([i16; GROUP]);

pub(crate) struct Activations {
    /// `[n_tiles, n_groups, tile_rows]`
    lines: Vec<Line>,
    /// As `lines`: what a unit of a line is worth.
    scales: Vec<f32>,
    /// As `lines`: the sum of the group, for formats with a minimum.
    sums: Vec<f32>,
    /// `[n_tiles, n_groups, 2, tile_rows]`: the sums of both halves of the group, for formats with a minimum for each.
    halves: Vec<f32>,
    n_groups: usize,
    tile_rows: usize,
}

/// A tile's activations from one group on.
#[derive(Copy, Clone)]
pub(super) struct Tile {
    /// `[n_groups, tile_rows, GROUP]`
    pub(super) q: *const i16,
    /// `[n_groups, tile_rows]`
    pub(super) scales: *const f32,
    /// `[n_groups, tile_rows]`
    pub(super) sums: *const f32,
    /// `[n_groups, 2, tile_rows]`
    pub(super) halves: *const f32,
}

impl Activations {
    pub(crate) const fn new() -> Self {
        Self { lines: Vec::new(), scales: Vec::new(), sums: Vec::new(), halves: Vec::new(), n_groups: 0, tile_rows: 1 }
    }

    /// Rows of a tile; the last one is filled up with rows that mean nothing.
    pub(crate) fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// A tile from group `first_group` on.
    pub(super) fn tile(&self, tile_idx: usize, first_group: usize) -> Tile {
        let at = (tile_idx * self.n_groups + first_group) * self.tile_rows;
        Tile {
            q: self.lines[at..].as_ptr().cast(),
            scales: self.scales[at..].as_ptr(),
            sums: self.sums[at..].as_ptr(),
            halves: self.halves[2 * at..].as_ptr(),
        }
    }

    /// Rounds the rows of `left`, `[n_rows, n_in]`, into tiles of `tile_rows` rows.
    pub(super) fn round(
        &mut self,
        pool: &Pool,
        left: &Left,
        [n_rows, n_in]: [usize; 2],
        tile_rows: usize,
        largest: f32,
    ) {
        let n_groups = n_in / GROUP;
        (self.n_groups, self.tile_rows) = (n_groups, tile_rows);
        let n_lines = n_rows.next_multiple_of(tile_rows) * n_groups;
        if self.lines.len() < n_lines {
            self.lines.resize(n_lines, Line([0; GROUP]));
            self.scales.resize(n_lines, 0.0);
            self.sums.resize(n_lines, 0.0);
            self.halves.resize(2 * n_lines, 0.0);
        }
        let lines = Shared::new(&mut self.lines);
        let (scales, sums) = (Shared::new(&mut self.scales), Shared::new(&mut self.sums));
        let halves = Shared::new(&mut self.halves);
        let tiles = |range: std::ops::Range<usize>| {
            for tile_idx in range {
                let first = tile_idx * tile_rows;
                let at = first * n_groups;
                // SAFETY: each tile belongs to one range, and all four hold every tile.
                let (lines, scales, sums, halves) = unsafe {
                    (
                        lines.slice(at, tile_rows * n_groups),
                        scales.slice(at, tile_rows * n_groups),
                        sums.slice(at, tile_rows * n_groups),
                        halves.slice(2 * at, 2 * tile_rows * n_groups),
                    )
                };
                MADE.with_borrow_mut(|made| {
                    for row in first..n_rows.min(first + tile_rows) {
                        let x = left.row(pool.isa(), row, n_in, made);
                        let mut to = Row { lines, scales, sums, halves, at: row - first, step: tile_rows };
                        round_row(pool, x, largest, &mut to);
                    }
                });
            }
        };
        let n_tiles = n_rows.div_ceil(tile_rows);
        if n_rows <= 4 {
            tiles(0..n_tiles);
        } else {
            pool.run_ranges(n_tiles, 1, |range, _| tiles(range));
        }
    }
}

thread_local! {
    /// A row that is made where it is rounded.
    static MADE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Where a row of a tile goes: groups `at`, `at + step` and so on.
struct Row<'a> {
    lines: &'a mut [Line],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    halves: &'a mut [f32],
    at: usize,
    step: usize,
}

impl Row<'_> {
    #[inline(always)]
    fn put_sums(&mut self, group_idx: usize, scale: f32, sums: [i32; 2]) {
        let at = self.at + group_idx * self.step;
        self.scales[at] = scale;
        self.sums[at] = (sums[0] + sums[1]) as f32 * scale;
        let at = self.at + 2 * group_idx * self.step;
        self.halves[at] = sums[0] as f32 * scale;
        self.halves[at + self.step] = sums[1] as f32 * scale;
    }
}

fn round_row(pool: &Pool, x: &[f32], limit: f32, row: &mut Row) {
    #[cfg(target_arch = "x86_64")]
    if pool.isa() >= crate::Isa::Avx2 {
        // SAFETY: the CPU has AVX2 and FMA; the tile holds as many groups a row as `x`.
        unsafe { round_row_avx2(x, limit, row) };
        return;
    }
    let _ = pool;
    for (group_idx, x) in x.chunks_exact(GROUP).enumerate() {
        let at = row.at + group_idx * row.step;
        let largest = x.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        let inverse = if largest > 0.0 { limit / largest } else { 0.0 };
        let mut sums = [0; 2];
        for (i, (q, x)) in row.lines[at].0.iter_mut().zip(x).enumerate() {
            *q = (x * inverse).round_ties_even() as i16;
            sums[i / 16] += i32::from(*q);
        }
        row.put_sums(group_idx, largest / limit, sums);
    }
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn round_row_avx2(x: &[f32], limit: f32, row: &mut Row) {
    use std::arch::x86_64::*;
    let sign = _mm256_set1_ps(-0.0);
    for (group_idx, x) in x.chunks_exact(GROUP).enumerate() {
        let at = row.at + group_idx * row.step;
        // SAFETY: 32 numbers of `x`, 32 numbers of a line.
        unsafe {
            let x = x.as_ptr();
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
            // Two horizontal steps leave the sum of the first sixteen in lane 0, of the others in lane 1.
            let first = _mm256_add_epi32(i[0], i[1]);
            let second = _mm256_add_epi32(i[2], i[3]);
            let first = _mm_add_epi32(_mm256_castsi256_si128(first), _mm256_extracti128_si256::<1>(first));
            let second = _mm_add_epi32(_mm256_castsi256_si128(second), _mm256_extracti128_si256::<1>(second));
            let both = _mm_hadd_epi32(first, second);
            let both = _mm_hadd_epi32(both, both);
            // Packing works within 128-bit lanes; the permutation puts the quarters back in order.
            let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(i[0], i[1]));
            let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(i[2], i[3]));
            let q = row.lines[at].0.as_mut_ptr();
            _mm256_storeu_si256(q.cast(), low);
            _mm256_storeu_si256(q.add(16).cast(), high);
            row.put_sums(group_idx, largest / limit, [_mm_cvtsi128_si32(both), _mm_extract_epi32::<1>(both)]);
        }
    }
}
