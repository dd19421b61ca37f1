//! Activations rounded to 16 bits: per group of 32, one scale and 32 signed numbers up to `largest`.
//!
//! The error is at most 2^-16 of the group's largest value, 256 times below that of 8 bits (2^-15 for a format whose
//! sums need the bit).
//!
//! For the kernel of many rows scales are powers of two, which may serve several groups (then `largest` is smaller, as
//! the sums run over more products, and the error up to 2^-12 of the largest value): applying one to a sum is then an
//! addition to its exponent, which the ports that multiply have nothing to do with.
//!
//! A NaN or an infinity has no integer. It makes the scale of its group, or the base of its row, a number that is none
//! either, so that it shows in every product of the row instead of vanishing.
//!
//! The rows of a *tile* lie interleaved by groups: a group of a row is one cache line, the same group of the tile's
//! other rows follows. A kernel then walks over one stream, with every row at a fixed distance.

use std::cell::RefCell;

use super::left::HostLeft;
#[cfg(target_arch = "x86_64")]
use super::x86::winograd::{self, PairSum};
use crate::Pool;
use crate::tiles::GROUP;
use crate::view::SharedPtr;

/// A group of a row: one cache line.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
pub(crate) struct Line([i16; GROUP]);

pub(crate) struct Activations {
    /// `[n_tiles, n_groups, tile_rows]`
    lines: Vec<Line>,
    /// As `lines`: what a unit of a line is worth. Exact scales only.
    scales: Vec<f32>,
    /// As `lines`: what to add to the bits of a number, not below zero, to turn units of a line into units of `bases`.
    /// Powers of two only.
    shifts: Vec<i32>,
    /// As `lines`, in the first of the groups that share a scale: what their sums start from. Winograd only.
    starts: Vec<i32>,
    /// `[n_rows]`: what `shifts`, `sums` and `halves` count in. Powers of two only.
    bases: Vec<f32>,
    /// As `lines`: the sum of the group, for formats with a minimum.
    sums: Vec<f32>,
    /// `[n_tiles, n_groups, 2, tile_rows]`: the sums of both halves of the group, for formats with a minimum for each.
    halves: Vec<f32>,
    n_groups: usize,
    tile_rows: usize,
    together: usize,
    #[cfg(target_arch = "x86_64")]
    pair_sum: Option<PairSum>,
}

/// How rows are rounded, as the formats and the kernel want them.
#[derive(Copy, Clone)]
pub(crate) struct Rounding {
    pub(crate) largest: f32,
    pub(crate) scaling: Scaling,
    /// Groups that share a scale: sums of integers then run over so many.
    pub(crate) together: usize,
    /// Lines are made for `winograd`. Powers of two only.
    #[cfg(target_arch = "x86_64")]
    pub(crate) pair_sum: Option<PairSum>,
    /// Whether a format has a minimum for a group, and whether one has it for half of a group.
    pub(crate) has_sums: bool,
    pub(crate) has_halves: bool,
}

/// Which threads round.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum RoundedBy {
    /// The pool, where there are rows enough.
    Pool,
    /// The calling thread, which may be one of the pool's.
    Caller,
}

/// How the scales of a row are chosen.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Scaling {
    /// So that the largest number becomes the largest integer.
    Exact,
    /// A power of two.
    Power,
}

/// The binary orders that the scales of a row span. What is smaller than that below its largest number is nothing, and
/// a sum of 2^31 units with the largest `d` that an f16 holds is still a number.
const MAX_SHIFT: i32 = 60;
/// The smallest scale, far above where numbers lose bits.
const MIN_POWER: i32 = -60;

/// A tile's activations from one group on.
#[derive(Copy, Clone)]
pub(crate) struct ActivationTile {
    /// `[n_groups, tile_rows, GROUP]`
    pub(crate) q: *const i16,
    /// `[n_groups, tile_rows]`
    pub(crate) scales: *const f32,
    /// `[n_groups, tile_rows]`
    pub(crate) shifts: *const i32,
    /// `[n_groups, tile_rows]`
    pub(crate) starts: *const i32,
    /// `[tile_rows]`
    pub(crate) bases: *const f32,
    /// `[n_groups, tile_rows]`
    pub(crate) sums: *const f32,
    /// `[n_groups, 2, tile_rows]`
    pub(crate) halves: *const f32,
}

impl Activations {
    pub(crate) const fn new() -> Self {
        Self {
            lines: Vec::new(),
            scales: Vec::new(),
            shifts: Vec::new(),
            starts: Vec::new(),
            bases: Vec::new(),
            sums: Vec::new(),
            halves: Vec::new(),
            n_groups: 0,
            tile_rows: 1,
            together: 1,
            #[cfg(target_arch = "x86_64")]
            pair_sum: None,
        }
    }

    /// Rows of a tile; the last one is filled up with rows that mean nothing.
    pub(crate) fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// Groups that share a scale.
    pub(crate) fn together(&self) -> usize {
        self.together
    }

    /// How `winograd` adds pairs, where lines are made for it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pair_sum(&self) -> Option<PairSum> {
        self.pair_sum
    }

    /// A tile from group `first_group` on.
    pub(crate) fn tile(&self, tile_idx: usize, first_group: usize) -> ActivationTile {
        let at = (tile_idx * self.n_groups + first_group) * self.tile_rows;
        ActivationTile {
            q: self.lines[at..].as_ptr().cast(),
            scales: self.scales[at..].as_ptr(),
            shifts: self.shifts[at..].as_ptr(),
            starts: self.starts[at..].as_ptr(),
            bases: self.bases[tile_idx * self.tile_rows..].as_ptr(),
            sums: self.sums[at..].as_ptr(),
            halves: self.halves[2 * at..].as_ptr(),
        }
    }

    /// Rounds the rows of `left`, `[n_rows, n_in]`, into tiles of `tile_rows` rows.
    pub(crate) fn round(
        &mut self,
        pool: &Pool,
        by: RoundedBy,
        left: &HostLeft,
        [n_rows, n_in]: [usize; 2],
        tile_rows: usize,
        rounding: Rounding,
    ) {
        let n_groups = n_in / GROUP;
        (self.n_groups, self.tile_rows, self.together) = (n_groups, tile_rows, rounding.together);
        #[cfg(target_arch = "x86_64")]
        {
            self.pair_sum = rounding.pair_sum;
        }
        let n_all_rows = n_rows.next_multiple_of(tile_rows);
        let n_lines = n_all_rows * n_groups;
        if self.lines.len() < n_lines || self.bases.len() < n_all_rows {
            self.lines.resize(n_lines, Line([0; GROUP]));
            self.scales.resize(n_lines, 0.0);
            self.shifts.resize(n_lines, 0);
            self.starts.resize(n_lines, 0);
            self.bases.resize(n_all_rows, 1.0);
            self.sums.resize(n_lines, 0.0);
            self.halves.resize(2 * n_lines, 0.0);
        }
        let lines = SharedPtr::new(&mut self.lines);
        let (scales, shifts) = (SharedPtr::new(&mut self.scales), SharedPtr::new(&mut self.shifts));
        let starts = SharedPtr::new(&mut self.starts);
        let (bases, sums) = (SharedPtr::new(&mut self.bases), SharedPtr::new(&mut self.sums));
        let halves = SharedPtr::new(&mut self.halves);
        let tiles = |range: std::ops::Range<usize>| {
            for tile_idx in range {
                let first = tile_idx * tile_rows;
                let at = first * n_groups;
                // SAFETY: each tile belongs to one range, and all seven hold every tile.
                let (lines, scales, shifts, starts, bases, sums, halves) = unsafe {
                    (
                        lines.slice(at, tile_rows * n_groups),
                        scales.slice(at, tile_rows * n_groups),
                        shifts.slice(at, tile_rows * n_groups),
                        starts.slice(at, tile_rows * n_groups),
                        bases.slice(first, tile_rows),
                        sums.slice(at, tile_rows * n_groups),
                        halves.slice(2 * at, 2 * tile_rows * n_groups),
                    )
                };
                MADE.with_borrow_mut(|made| {
                    for row in first..n_rows.min(first + tile_rows) {
                        let x = left.row(pool.isa(), row, n_in, made);
                        let (at, step) = (row - first, tile_rows);
                        let mut to = ActivationRow { lines, scales, shifts, starts, bases, sums, halves, at, step };
                        round_row(pool, x, rounding, &mut to);
                    }
                });
            }
        };
        let n_tiles = n_rows.div_ceil(tile_rows);
        if by == RoundedBy::Caller || n_rows <= 4 {
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
struct ActivationRow<'a> {
    lines: &'a mut [Line],
    scales: &'a mut [f32],
    shifts: &'a mut [i32],
    starts: &'a mut [i32],
    bases: &'a mut [f32],
    sums: &'a mut [f32],
    halves: &'a mut [f32],
    at: usize,
    step: usize,
}

impl ActivationRow<'_> {
    #[inline(always)]
    fn line(&mut self, group_idx: usize) -> &mut [i16; GROUP] {
        &mut self.lines[self.at + group_idx * self.step].0
    }

    #[inline(always)]
    fn put_scale(&mut self, group_idx: usize, scale: f32, scaling: Scaling) {
        let at = self.at + group_idx * self.step;
        match scaling {
            Scaling::Exact => self.scales[at] = scale,
            _ => self.shifts[at] = scale.to_bits() as i32,
        }
    }

    #[inline(always)]
    fn put_sums(&mut self, group_idx: usize, scale: f32, sums: [i32; 2], rounding: Rounding) {
        self.sums[self.at + group_idx * self.step] = (sums[0] + sums[1]) as f32 * scale;
        if rounding.has_halves {
            let at = self.at + 2 * group_idx * self.step;
            self.halves[at] = sums[0] as f32 * scale;
            self.halves[at + self.step] = sums[1] as f32 * scale;
        }
    }

    /// Lets scales that are powers of two, and the sums, count from a base; `largest` is the largest of the scales. A row
    /// with a number that is none gets a base that is none.
    #[inline(always)]
    fn count_from_base(&mut self, n_groups: usize, largest: f32, is_finite: bool, rounding: Rounding) {
        let base = largest * power(-MAX_SHIFT);
        self.bases[self.at] = if is_finite { base } else { f32::NAN };
        for shift in self.shifts.iter_mut().skip(self.at).step_by(self.step).take(n_groups) {
            *shift = shift.wrapping_sub(base.to_bits() as i32).max(0);
        }
        let inverse = 1.0 / base;
        if rounding.has_sums {
            self.sums.iter_mut().skip(self.at).step_by(self.step).take(n_groups).for_each(|sum| *sum *= inverse);
        }
        if rounding.has_halves {
            self.halves.iter_mut().skip(self.at).step_by(self.step).take(2 * n_groups).for_each(|sum| *sum *= inverse);
        }
    }
}

/// 2^n, for what is no less than the smallest plain number and no more than the largest.
const fn power(n: i32) -> f32 {
    f32::from_bits(((127 + n) as u32) << 23)
}

/// What a unit is worth where `largest` has to become at most `limit`, and its inverse.
#[inline(always)]
fn scale_of(largest: f32, limit: f32, scaling: Scaling) -> (f32, f32) {
    if scaling == Scaling::Exact {
        return (largest / limit, if largest > 0.0 { limit / largest } else { 0.0 });
    }
    // The next power of two, by its exponent. What is not finite is told by the row's base.
    let largest = if largest.is_finite() { largest } else { 0.0 };
    let bits = (largest / limit).max(power(MIN_POWER)).to_bits().wrapping_add(0x7F_FFFF) & 0xFF80_0000;
    (f32::from_bits(bits), f32::from_bits(power(127).to_bits().wrapping_sub(bits)))
}

fn round_row(pool: &Pool, x: &[f32], rounding: Rounding, row: &mut ActivationRow) {
    #[cfg(target_arch = "x86_64")]
    if pool.isa() >= crate::Isa::Avx2 {
        // SAFETY: the CPU has AVX2 and FMA; the tile holds as many groups a row as `x`.
        unsafe { round_row_avx2(x, rounding, row) };
        return;
    }
    let _ = pool;
    let (mut largest_scale, mut is_finite) = (0.0_f32, true);
    for (i, x) in x.chunks(rounding.together * GROUP).enumerate() {
        let largest = largest_of(x);
        is_finite &= largest.is_finite();
        let (scale, inverse) = scale_of(largest, rounding.largest, rounding.scaling);
        largest_scale = largest_scale.max(scale);
        for (k, x) in x.chunks_exact(GROUP).enumerate() {
            let group_idx = i * rounding.together + k;
            let mut sums = [0; 2];
            for (i, (q, x)) in row.line(group_idx).iter_mut().zip(x).enumerate() {
                *q = (x * inverse).round_ties_even() as i16;
                sums[i / 16] += i32::from(*q);
            }
            row.put_scale(group_idx, scale, rounding.scaling);
            if rounding.has_sums {
                row.put_sums(group_idx, scale, sums, rounding);
            }
        }
    }
    if rounding.scaling != Scaling::Exact {
        row.count_from_base(x.len() / GROUP, largest_scale, is_finite, rounding);
    }
}

/// The largest absolute value; not finite if one number is not. As integers, the bits of numbers without a sign are in
/// the order of the numbers, with infinity and NaN above all of them; a maximum of numbers would pass NaN over.
fn largest_of(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0))
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn round_row_avx2(x: &[f32], rounding: Rounding, row: &mut ActivationRow) {
    use std::arch::x86_64::*;
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let (mut largest_scale, mut is_finite) = (0.0_f32, true);
    for (i, x) in x.chunks_exact(rounding.together * GROUP).enumerate() {
        // SAFETY: 32 numbers of a group of `x`, 32 numbers of a line.
        unsafe {
            // The maximum as integers, as in `largest_of`.
            let mut max = _mm256_setzero_si256();
            for x in x.chunks_exact(GROUP) {
                let v: [__m256i; 4] = std::array::from_fn(|part| {
                    _mm256_and_si256(_mm256_loadu_si256(x.as_ptr().add(part * 8).cast()), magnitude)
                });
                let (low, high) = (_mm256_max_epi32(v[0], v[1]), _mm256_max_epi32(v[2], v[3]));
                max = _mm256_max_epi32(max, _mm256_max_epi32(low, high));
            }
            let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
            let max = _mm_max_epi32(max, _mm_unpackhi_epi64(max, max));
            let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01>(max));
            let largest = f32::from_bits(_mm_cvtsi128_si32(max) as u32);
            is_finite &= largest.is_finite();
            let (scale, inverse) = scale_of(largest, rounding.largest, rounding.scaling);
            largest_scale = largest_scale.max(scale);
            let inverse = _mm256_set1_ps(inverse);
            let mut taken = 0_i32;
            for (group, x) in x.chunks_exact(GROUP).enumerate() {
                let group_idx = i * rounding.together + group;
                let mut q = [_mm256_setzero_si256(); 4];
                for part in 0..4 {
                    q[part] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.as_ptr().add(part * 8)), inverse));
                }
                // Packing works within 128-bit lanes; the permutation puts the quarters back in order.
                let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(q[0], q[1]));
                let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(q[2], q[3]));
                let line = row.line(group_idx).as_mut_ptr();
                _mm256_storeu_si256(line.cast(), low);
                _mm256_storeu_si256(line.add(16).cast(), high);
                if let Some(pair_sum) = rounding.pair_sum {
                    taken = taken.wrapping_add(winograd::prepare_line(row.line(group_idx), pair_sum));
                }
                row.put_scale(group_idx, scale, rounding.scaling);
                if rounding.has_sums {
                    // Two horizontal steps leave the sum of the first sixteen in lane 0, of the others in lane 1.
                    let first = _mm256_add_epi32(q[0], q[1]);
                    let second = _mm256_add_epi32(q[2], q[3]);
                    let first = _mm_add_epi32(_mm256_castsi256_si128(first), _mm256_extracti128_si256::<1>(first));
                    let second = _mm_add_epi32(_mm256_castsi256_si128(second), _mm256_extracti128_si256::<1>(second));
                    let both = _mm_hadd_epi32(first, second);
                    let both = _mm_hadd_epi32(both, both);
                    let sums = [_mm_cvtsi128_si32(both), _mm_extract_epi32::<1>(both)];
                    row.put_sums(group_idx, scale, sums, rounding);
                }
            }
            if rounding.pair_sum.is_some() {
                row.starts[row.at + i * rounding.together * row.step] = taken.wrapping_neg();
            }
        }
    }
    if rounding.scaling != Scaling::Exact {
        row.count_from_base(x.len() / GROUP, largest_scale, is_finite, rounding);
    }
}
