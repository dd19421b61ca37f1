//! Integer products from tiles: sixteen weight rows against up to twelve activation rows. Weights are unpacked in
//! registers; every 32-bit lane sums one output, so nothing is added across lanes, and one vector of scales serves
//! sixteen rows. A few strips stay in the second-level cache while the activation rows pass by.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{Input, Job, Mode};
use crate::isa::Isa;
use crate::quant::{Format, GROUP, TILE_ROWS, for_dtype};

/// Rows of a full AVX-512 tile: an integer and a float register each.
const ROWS_512: usize = 12;
/// The same for AVX2, which has half the registers.
const ROWS_256: usize = 4;

/// How much of `k` is worked on at a time where there are many rows: eight strips of it and twelve activation rows fit
/// the second-level cache together. A multiple of every block.
const K_CHUNK: usize = 2048;

pub(super) fn cols(input: &Input, job: &Job, cols: Range<usize>) {
    let max_rows = if input.isa == Isa::Avx512 { ROWS_512 } else { ROWS_256 };
    // One tile of rows reads every weight once: then the weights are best read in the order they lie.
    let k_chunk = if input.n_rows <= max_rows { input.n_in } else { K_CHUNK };
    for first_k in (0..input.n_in).step_by(k_chunk) {
        let n_k = (input.n_in - first_k).min(k_chunk);
        let mut first_row = 0;
        while first_row < input.n_rows {
            // Even tiles: 16 rows are 8 + 8 and not 12 + 4.
            let n_left = input.n_rows - first_row;
            let n = n_left.div_ceil(n_left.div_ceil(max_rows));
            for first_col in cols.clone().step_by(TILE_ROWS) {
                let strip = &job.weight[first_col / TILE_ROWS * job.stride..][..job.stride];
                let target = Target { strip: strip.as_ptr(), first_row, first_col, first_k, n_k };
                for_dtype!(job.dtype,
                    // SAFETY: `Isa` says what this CPU has; `matmul` checked every shape and `strip` is a whole strip.
                    P => unsafe { rows::<P>(input, job, &target, n) },
                    P => { let _: Option<P> = None; unreachable!("{} has no tiles", job.dtype) },
                    P => { let _: Option<P> = None; unreachable!("plain numbers have no tiles") }
                );
            }
            first_row += n;
        }
    }
}

/// Which part of the product a kernel call computes.
struct Target {
    strip: *const u8,
    first_row: usize,
    first_col: usize,
    /// Whole blocks.
    first_k: usize,
    n_k: usize,
}

impl Target {
    /// Whether the outputs hold something to add to: the residual, or an earlier part of `k`.
    fn adds(&self, job: &Job) -> bool {
        job.mode == Mode::Add || self.first_k > 0
    }
}

/// # Safety
/// As [`rows_512`] or [`rows_256`], whichever the input's instruction set asks for, for `n` rows.
unsafe fn rows<P: Format>(input: &Input, job: &Job, target: &Target, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (input.isa, n) {
            (Isa::Avx512, 1) => rows_512::<P, 1>(input, job, target),
            (Isa::Avx512, 2) => rows_512::<P, 2>(input, job, target),
            (Isa::Avx512, 3) => rows_512::<P, 3>(input, job, target),
            (Isa::Avx512, 4) => rows_512::<P, 4>(input, job, target),
            (Isa::Avx512, 5) => rows_512::<P, 5>(input, job, target),
            (Isa::Avx512, 6) => rows_512::<P, 6>(input, job, target),
            (Isa::Avx512, 7) => rows_512::<P, 7>(input, job, target),
            (Isa::Avx512, 8) => rows_512::<P, 8>(input, job, target),
            (Isa::Avx512, 9) => rows_512::<P, 9>(input, job, target),
            (Isa::Avx512, 10) => rows_512::<P, 10>(input, job, target),
            (Isa::Avx512, 11) => rows_512::<P, 11>(input, job, target),
            (Isa::Avx512, _) => rows_512::<P, 12>(input, job, target),
            (_, 1) => rows_256::<P, 1>(input, job, target),
            (_, 2) => rows_256::<P, 2>(input, job, target),
            (_, 3) => rows_256::<P, 3>(input, job, target),
            _ => rows_256::<P, 4>(input, job, target),
        }
    }
}

/// One pair of weights of sixteen rows against the pairs at byte `$at` behind `$q` of up to twelve rows, `$stride`
/// numbers apart.
///
/// Assembly, because the compiler takes the intrinsic apart into a product and a sum and loads the broadcast by
/// itself, three instructions for one. Written out row by row, because a loop around assembly is not unrolled and its
/// sums would live in memory. Three rows share a base: the addressing mode multiplies the step by 0, 1 or 2.
macro_rules! add_pair_512 {
    ($sums:ident, $pair:expr, $q:expr, $stride:expr, $at:literal) => {
        add_pair_512!(@three $sums, $pair, $q, $stride, $at, 0, 1, 2);
        add_pair_512!(@three $sums, $pair, $q.wrapping_add(3 * $stride), $stride, $at, 3, 4, 5);
        add_pair_512!(@three $sums, $pair, $q.wrapping_add(6 * $stride), $stride, $at, 6, 7, 8);
        add_pair_512!(@three $sums, $pair, $q.wrapping_add(9 * $stride), $stride, $at, 9, 10, 11);
    };
    (@three $sums:ident, $pair:expr, $base:expr, $stride:expr, $at:literal, $a:literal, $b:literal, $c:literal) => {
        add_pair_512!(@row $sums, $pair, $base, $stride, $at, $a, "0");
        add_pair_512!(@row $sums, $pair, $base, $stride, $at, $b, "1");
        add_pair_512!(@row $sums, $pair, $base, $stride, $at, $c, "2");
    };
    (@row $sums:ident, $pair:expr, $base:expr, $stride:expr, $at:literal, $n:literal, "0") => {
        if let Some(sum) = $sums.get_mut($n) {
            asm!(
                "vpdpwssd {sum}, {pair}, dword ptr [{base} + {at}]{{1to16}}",
                sum = inout(zmm_reg) *sum, pair = in(zmm_reg) $pair, base = in(reg) $base, at = const $at,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
    };
    (@row $sums:ident, $pair:expr, $base:expr, $stride:expr, $at:literal, $n:literal, $times:literal) => {
        if let Some(sum) = $sums.get_mut($n) {
            asm!(
                concat!("vpdpwssd {sum}, {pair}, dword ptr [{base} + {step}*", $times, " + {at}]{{1to16}}"),
                sum = inout(zmm_reg) *sum, pair = in(zmm_reg) $pair, base = in(reg) $base,
                step = in(reg) 2 * $stride, at = const $at, options(pure, readonly, nostack, preserves_flags)
            );
        }
    };
}

/// # Safety
/// The CPU has AVX-512 F, BW, VNNI and F16C. The strip holds `n_in` weights of sixteen rows, the target's `k` are whole
/// blocks of them; `N` activation rows from `first_row` are rounded; the columns from `first_col` are this task's.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,f16c")]
unsafe fn rows_512<P: Format, const N: usize>(input: &Input, job: &Job, target: &Target) {
    let n_groups = input.n_in / GROUP;
    let stride = input.rounded.stride;
    let q = input.rounded.q[target.first_row * stride..].as_ptr();
    let scales = input.rounded.scales[target.first_row * n_groups..].as_ptr();
    let sums = input.rounded.sums[target.first_row * n_groups..].as_ptr();
    let mut acc = [_mm512_setzero_ps(); N];
    for b in target.first_k / P::LEN..(target.first_k + target.n_k) / P::LEN {
        // SAFETY: block b of the strip.
        let tile = unsafe { target.strip.add(b * P::TILE_BYTES) };
        for g in 0..P::LEN / GROUP {
            let group = b * (P::LEN / GROUP) + g;
            let mut ints = [_mm512_setzero_si512(); N];
            for eighth in 0..4 {
                // SAFETY: inside the tile; every activation row holds n_in numbers.
                unsafe {
                    let pairs = P::pairs_512(tile, g, eighth);
                    let q = q.add(group * GROUP + eighth * 8);
                    add_pair_512!(ints, pairs[0], q, stride, 0);
                    add_pair_512!(ints, pairs[1], q, stride, 4);
                    add_pair_512!(ints, pairs[2], q, stride, 8);
                    add_pair_512!(ints, pairs[3], q, stride, 12);
                }
            }
            // SAFETY: inside the tile; scales and sums hold one number a row and group.
            unsafe {
                let (d, m) = P::scales_512(tile, g);
                for n in 0..N {
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(*scales.add(n * n_groups + group)));
                    acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints[n]), scale, acc[n]);
                    if P::HAS_MIN {
                        let sum = _mm512_set1_ps(*sums.add(n * n_groups + group));
                        acc[n] = _mm512_fmadd_ps(m, sum, acc[n]);
                    }
                }
            }
        }
    }
    let is_whole = target.first_col + TILE_ROWS <= job.n_out;
    for n in 0..N {
        // SAFETY: the outputs are this task's; `row` holds sixteen numbers.
        unsafe {
            if is_whole {
                let out = job.out.slice((target.first_row + n) * job.n_out + target.first_col, TILE_ROWS).as_mut_ptr();
                let old = if target.adds(job) { _mm512_loadu_ps(out) } else { _mm512_setzero_ps() };
                _mm512_storeu_ps(out, _mm512_add_ps(old, acc[n]));
            } else {
                let mut row = [0.0; TILE_ROWS];
                _mm512_storeu_ps(row.as_mut_ptr(), acc[n]);
                put_cols(job, target, n, &row);
            }
        }
    }
}

/// One pair of weights of eight rows against the pairs at `q` of `N` rows, `stride` numbers apart.
///
/// # Safety
/// The CPU has AVX2; each of the rows has two numbers at `q`.
#[inline(always)]
unsafe fn add_pair_256<const N: usize>(sums: &mut [__m256i; N], pair: __m256i, q: *const i16, stride: usize) {
    for n in 0..N {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm256_set1_epi32(q.add(n * stride).cast::<i32>().read_unaligned());
            sums[n] = _mm256_add_epi32(sums[n], _mm256_madd_epi16(pair, x));
        }
    }
}

/// # Safety
/// The CPU has AVX2, FMA and F16C. Else as [`rows_512`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_256<P: Format, const N: usize>(input: &Input, job: &Job, target: &Target) {
    let n_groups = input.n_in / GROUP;
    let stride = input.rounded.stride;
    let q = input.rounded.q[target.first_row * stride..].as_ptr();
    let scales = input.rounded.scales[target.first_row * n_groups..].as_ptr();
    let sums = input.rounded.sums[target.first_row * n_groups..].as_ptr();
    let mut acc = [[_mm256_setzero_ps(); N]; 2];
    for b in target.first_k / P::LEN..(target.first_k + target.n_k) / P::LEN {
        // SAFETY: block b of the strip.
        let tile = unsafe { target.strip.add(b * P::TILE_BYTES) };
        for g in 0..P::LEN / GROUP {
            let group = b * (P::LEN / GROUP) + g;
            for (half, acc) in acc.iter_mut().enumerate() {
                let mut ints = [_mm256_setzero_si256(); N];
                for eighth in 0..4 {
                    // SAFETY: inside the tile; every activation row holds n_in numbers.
                    unsafe {
                        let pairs = P::pairs_256(tile, g, eighth, half);
                        let q = q.add(group * GROUP + eighth * 8);
                        add_pair_256(&mut ints, pairs[0], q, stride);
                        add_pair_256(&mut ints, pairs[1], q.add(2), stride);
                        add_pair_256(&mut ints, pairs[2], q.add(4), stride);
                        add_pair_256(&mut ints, pairs[3], q.add(6), stride);
                    }
                }
                // SAFETY: inside the tile; scales and sums hold one number a row and group.
                unsafe {
                    let (d, m) = P::scales_256(tile, g, half);
                    for n in 0..N {
                        let scale = _mm256_mul_ps(d, _mm256_set1_ps(*scales.add(n * n_groups + group)));
                        acc[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints[n]), scale, acc[n]);
                        if P::HAS_MIN {
                            let sum = _mm256_set1_ps(*sums.add(n * n_groups + group));
                            acc[n] = _mm256_fmadd_ps(m, sum, acc[n]);
                        }
                    }
                }
            }
        }
    }
    for n in 0..N {
        let mut row = [0.0; TILE_ROWS];
        // SAFETY: `row` holds sixteen numbers; the outputs are this task's.
        unsafe {
            _mm256_storeu_ps(row.as_mut_ptr(), acc[0][n]);
            _mm256_storeu_ps(row.as_mut_ptr().add(8), acc[1][n]);
            put_cols(job, target, n, &row);
        }
    }
}

/// Writes or adds the columns of a strip that exist, for row `n` of the target.
///
/// # Safety
/// The row lies inside the output, and the columns are this task's.
#[inline(always)]
unsafe fn put_cols(job: &Job, target: &Target, n: usize, values: &[f32; TILE_ROWS]) {
    let n_cols = (job.n_out - target.first_col).min(TILE_ROWS);
    // SAFETY: inside the output; columns are split over tasks.
    let out = unsafe { job.out.slice((target.first_row + n) * job.n_out + target.first_col, n_cols) };
    if target.adds(job) {
        out.iter_mut().zip(values).for_each(|(out, x)| *out += x);
    } else {
        out.copy_from_slice(&values[..n_cols]);
    }
}
