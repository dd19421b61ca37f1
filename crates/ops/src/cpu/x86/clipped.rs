//! Activations in bytes, for many rows. Each row has one quantization step, small enough that a few numbers do not fit.
//! Those outliers, 3 or 4 % depending on the type of the weights, are zero among the bytes and kept exactly, in a list
//! of their own.
//!
//! A byte is enough when the largest numbers do not determine the step: they are what makes 8 bits per row or group too
//! coarse. Mean KL divergence per token, simulated on SmolLM2 with all layers but the last
//! (docs/developer/notebook.md): 2.3e-3 with bytes for groups of 32; with 1, 2, 3, 4 and 5 % left out 9.7e-4, 4.8e-4,
//! 3.0e-4, 2.3e-4 and 2.0e-4.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::strip::ROWS_512;
use crate::Pool;
use crate::cpu::left::HostLeft;
use crate::tiles::GROUP;
use crate::view::SharedPtr;

/// What is added to a weight, so that it is a byte without a sign, as the multiply-add wants one of its sides.
pub(crate) const WEIGHT_OFFSET: i32 = 128;
/// Attempts to find a threshold: some to bracket it, the others to bisect.
const TRIES: usize = 12;
/// Whole vectors are stored, of which the first numbers count.
const SLACK: usize = 16;

/// A group of a row.
#[derive(Copy, Clone)]
#[repr(C, align(32))]
struct ClippedLine([i8; GROUP]);

pub(crate) struct Clipped {
    /// `[n_tiles, n_groups, ROWS_512]`
    lines: Vec<ClippedLine>,
    /// `[n_tiles, n_groups, ROWS_512]`: minus `WEIGHT_OFFSET` times the sum of the group, what a sum of products with
    /// weights that were moved starts from.
    wholes: Vec<i32>,
    /// `[n_all_rows]`: what a unit of the bytes is worth.
    steps: Vec<f32>,
    /// `[n_tiles, n_groups / 2, ROWS_512]`: the sums of two groups, 16 bits each, for formats with a minimum.
    sums: Vec<i32>,
    /// `[n_all_rows, stride]`: numbers that are left out, and their positions in the row.
    values: Vec<f32>,
    places: Vec<u32>,
    /// `[n_all_rows, n_chunks + 1]`: where the outliers of a chunk of `k` begin.
    starts: Vec<u32>,
    n_groups: usize,
    n_chunks: usize,
    stride: usize,
}

/// A tile's activations from one group on.
#[derive(Copy, Clone)]
pub(crate) struct ByteTile {
    /// `[n_groups, ROWS_512, GROUP]`
    pub(crate) q: *const i8,
    /// `[n_groups, ROWS_512]`
    pub(crate) wholes: *const i32,
    /// `[n_groups / 2, ROWS_512]`
    pub(crate) sums: *const i32,
    /// `[ROWS_512]`
    pub(crate) steps: *const f32,
}

impl Clipped {
    pub(crate) const fn new() -> Self {
        Self {
            lines: Vec::new(),
            wholes: Vec::new(),
            steps: Vec::new(),
            sums: Vec::new(),
            values: Vec::new(),
            places: Vec::new(),
            starts: Vec::new(),
            n_groups: 0,
            n_chunks: 0,
            stride: 0,
        }
    }

    pub(crate) fn tile(&self, tile_idx: usize, first_group: usize) -> ByteTile {
        let at = (tile_idx * self.n_groups + first_group) * ROWS_512;
        ByteTile {
            q: self.lines[at..].as_ptr().cast(),
            wholes: self.wholes[at..].as_ptr(),
            sums: self.sums[at / 2..].as_ptr(),
            steps: self.steps[tile_idx * ROWS_512..].as_ptr(),
        }
    }

    /// The outliers of a row in a chunk of `k`: values and places in the row.
    pub(crate) fn outliers(&self, row: usize, chunk: usize) -> (&[f32], &[u32]) {
        let starts = &self.starts[row * (self.n_chunks + 1) + chunk..][..2];
        let range = row * self.stride + starts[0] as usize..row * self.stride + starts[1] as usize;
        (&self.values[range.clone()], &self.places[range])
    }

    /// Rounds the rows of `left`, `[n_rows, n_in]`, and leaves one in `outliers` numbers out, with lists for chunks of
    /// `k_chunk`. The CPU has AVX-512; a row is whole pairs of groups.
    pub(crate) fn round(
        &mut self,
        pool: &Pool,
        left: &HostLeft,
        [n_rows, n_in]: [usize; 2],
        outliers: usize,
        k_chunk: usize,
    ) {
        assert!(pool.isa() >= crate::Isa::Avx512, "bytes are for AVX-512");
        assert_eq!(n_in % (2 * GROUP), 0, "rows of whole pairs of groups");
        let n_all_rows = n_rows.next_multiple_of(ROWS_512);
        (self.n_groups, self.n_chunks) = (n_in / GROUP, n_in.div_ceil(k_chunk));
        self.stride = room(n_in, outliers) + SLACK;
        grow(&mut self.lines, n_all_rows * self.n_groups, ClippedLine([0; GROUP]));
        grow(&mut self.wholes, n_all_rows * self.n_groups, 0);
        grow(&mut self.steps, n_all_rows, 0.0);
        grow(&mut self.sums, n_all_rows * self.n_groups / 2, 0);
        grow(&mut self.values, n_all_rows * self.stride, 0.0);
        grow(&mut self.places, n_all_rows * self.stride, 0);
        grow(&mut self.starts, n_all_rows * (self.n_chunks + 1), 0);
        let (n_groups, n_starts, stride) = (self.n_groups, self.n_chunks + 1, self.stride);
        let (lines, wholes) = (SharedPtr::new(&mut self.lines), SharedPtr::new(&mut self.wholes));
        let steps = SharedPtr::new(&mut self.steps);
        let (values, places) = (SharedPtr::new(&mut self.values), SharedPtr::new(&mut self.places));
        let (starts, sums) = (SharedPtr::new(&mut self.starts), SharedPtr::new(&mut self.sums));
        pool.run_ranges(n_rows.div_ceil(ROWS_512), 1, |tiles: Range<usize>, _| {
            MADE.with_borrow_mut(|made| {
                for row in tiles.start * ROWS_512..n_rows.min(tiles.end * ROWS_512) {
                    let x = left.row(pool.isa(), row, n_in, made);
                    let first = row / ROWS_512 * ROWS_512 * n_groups;
                    // SAFETY: the tile of the row belongs to this range, and so do the row's own numbers; the CPU has
                    // AVX-512; every part holds as many groups as `x`.
                    unsafe {
                        let mut to = ByteRow {
                            lines: lines.slice(first, ROWS_512 * n_groups),
                            wholes: wholes.slice(first, ROWS_512 * n_groups),
                            sums: sums.slice(first / 2, ROWS_512 * n_groups / 2),
                            step: &mut steps.slice(row, 1)[0],
                            values: values.slice(row * stride, stride),
                            places: places.slice(row * stride, stride),
                            starts: starts.slice(row * n_starts, n_starts),
                            at: row % ROWS_512,
                        };
                        round_row(x, outliers, k_chunk, &mut to);
                    }
                }
            });
        });
    }
}

/// How many outliers a row has room for: more than are wanted, as they are counted in a part of the row.
fn room(n_in: usize, outliers: usize) -> usize {
    3 * n_in / (2 * outliers)
}

fn grow<T: Copy>(list: &mut Vec<T>, n: usize, filler: T) {
    if list.len() < n {
        list.resize(n, filler);
    }
}

thread_local! {
    /// A row that is made where it is rounded.
    static MADE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Where a row goes: of its tile every `ROWS_512`th group from `at` on, of the lists its own part.
struct ByteRow<'a> {
    lines: &'a mut [ClippedLine],
    wholes: &'a mut [i32],
    sums: &'a mut [i32],
    step: &'a mut f32,
    values: &'a mut [f32],
    places: &'a mut [u32],
    starts: &'a mut [u32],
    at: usize,
}

/// # Safety
/// The CPU has AVX-512 F; `x` is whole groups, as many as the row has room for.
#[target_feature(enable = "avx512f")]
unsafe fn round_row(x: &[f32], outliers: usize, k_chunk: usize, row: &mut ByteRow) {
    let limit = _mm512_set1_ps(border(x, outliers));
    let step = _mm512_cvtss_f32(limit) / 127.0;
    let is_tiny = step < f32::MIN_POSITIVE * 1024.0 || !step.is_finite();
    // A step that is no number makes all products of the row none: nothing that is not finite is lost.
    let step_or_nothing = if step.is_finite() { 0.0 } else { f32::NAN };
    let (step, inverse) = if is_tiny { (step_or_nothing, 0.0) } else { (step, 1.0 / step) };
    *row.step = step;
    let mut n = 0;
    for (chunk, x) in x.chunks(k_chunk).enumerate() {
        row.starts[chunk] = n as u32;
        for (g, x) in x.chunks_exact(GROUP).enumerate() {
            let group = chunk * (k_chunk / GROUP) + g;
            let at = group * ROWS_512 + row.at;
            let mut sum = 0;
            for half in 0..2 {
                // SAFETY: sixteen numbers of the group, half of a line, and as much room in the lists as is asked for.
                unsafe {
                    let v = _mm512_loadu_ps(x.as_ptr().add(16 * half));
                    // Also what is not a number, so that it is not lost.
                    let out = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_abs_ps(v), limit);
                    let q = _mm512_maskz_cvtps_epi32(!out, _mm512_mul_ps(v, _mm512_set1_ps(inverse)));
                    let line = row.lines[at].0.as_mut_ptr().add(16 * half);
                    _mm_storeu_si128(line.cast(), _mm512_cvtsepi32_epi8(q));
                    sum += _mm512_reduce_add_epi32(q);
                    if n + SLACK <= row.values.len() {
                        let first = (group * GROUP + 16 * half) as i32;
                        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                        let places = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
                        let to = row.values.as_mut_ptr().add(n);
                        _mm512_storeu_ps(to, _mm512_maskz_compress_ps(out, v));
                        let to = row.places.as_mut_ptr().add(n);
                        _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi32(out, places));
                        n += out.count_ones() as usize;
                    }
                }
            }
            row.wholes[at] = -WEIGHT_OFFSET * sum;
            let two = &mut row.sums[group / 2 * ROWS_512 + row.at];
            *two = if group.is_multiple_of(2) { sum & 0xFFFF } else { *two | sum << 16 };
        }
    }
    row.starts[x.len().div_ceil(k_chunk)] = n as u32;
}

/// A threshold that about as many numbers exceed as are to be outliers, and no more than there is room for.
///
/// # Safety
/// The CPU has AVX-512 F; `x` is whole groups.
#[target_feature(enable = "avx512f")]
fn border(x: &[f32], outliers: usize) -> f32 {
    // A quarter of a long row tells nearly as much as the whole.
    if x.len() >= 1024 {
        let border = border_of(x, outliers, 4);
        if n_beyond(x, 1, border) <= room(x.len(), outliers) {
            return border;
        }
    }
    border_of(x, outliers, 1)
}

/// The smallest threshold found that not too many numbers of every `step`th vector exceed.
#[target_feature(enable = "avx512f")]
fn border_of(x: &[f32], outliers: usize, step: usize) -> f32 {
    let n_vectors = x.len().div_ceil(16 * step);
    let most = 16 * n_vectors / outliers;
    let (mut sum, mut max) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    for x in x.chunks_exact(16).step_by(step) {
        // SAFETY: sixteen numbers.
        let v = _mm512_abs_ps(unsafe { _mm512_loadu_ps(x.as_ptr()) });
        sum = _mm512_add_ps(sum, v);
        max = _mm512_max_ps(max, v);
    }
    let (mean, max) = (_mm512_reduce_add_ps(sum) / (16 * n_vectors) as f32, _mm512_reduce_max_ps(max));
    // Of numbers in a bell 4 % lie further out than 2.6 times their mean distance.
    let (mut low, mut high, mut border, mut factor) = (0.0_f32, max, 2.6 * mean, 1.25_f32);
    for _ in 0..TRIES {
        let n = n_beyond(x, step, border);
        if n > most {
            low = border;
        } else {
            high = border;
            if n * 5 >= most * 4 {
                break;
            }
        }
        border = if high == max {
            factor *= factor;
            (border * factor).min(0.5 * (border + max))
        } else if low == 0.0 {
            factor *= factor;
            border / factor
        } else {
            0.5 * (low + high)
        };
    }
    high
}

/// How many numbers of every `step`th vector exceed a threshold, or are NaN.
#[target_feature(enable = "avx512f")]
fn n_beyond(x: &[f32], step: usize, border: f32) -> usize {
    let border = _mm512_set1_ps(border);
    let mut counts = _mm512_setzero_si512();
    for x in x.chunks_exact(16).step_by(step) {
        // SAFETY: sixteen numbers.
        let v = _mm512_abs_ps(unsafe { _mm512_loadu_ps(x.as_ptr()) });
        let beyond = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(v, border);
        counts = _mm512_mask_add_epi32(counts, beyond, counts, _mm512_set1_epi32(1));
    }
    _mm512_reduce_add_epi32(counts) as usize
}
