//! Integer products from tiles: sixteen weight rows against up to twelve activation rows. Weights are unpacked in
//! registers; every 32-bit lane sums one output, so nothing is added across lanes, and one vector of scales serves
//! sixteen rows. A few strips stay in the second-level cache while the activation rows pass by.

use std::arch::x86_64::*;
use std::ops::Range;

use super::unpacked::K_CHUNK;
use crate::cpu::activations::ActivationTile;
use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::formats::for_block;
use crate::matmul::Mode;
use crate::plan::SOME_ROWS;
use crate::tiles::{GROUP, TILE_ROWS, TileFormat};
use crate::{Isa, Numerics};

/// Rows of a full AVX-512 tile: an integer and a float register each.
pub(crate) const ROWS_512: usize = 12;
/// The same for AVX2, which has half the registers.
const ROWS_256: usize = 4;

/// Rows of an activation tile for so many rows: even tiles, so that 16 rows are 8 + 8 and not 12 + 4. The kernel of many
/// rows cuts its last tile short instead.
pub(crate) fn tile_rows(isa: Isa, n_rows: usize) -> usize {
    if isa >= Isa::Avx512 && n_rows > SOME_ROWS {
        return ROWS_512;
    }
    let max_rows = if isa >= Isa::Avx512 { ROWS_512 } else { ROWS_256 };
    n_rows.div_ceil(n_rows.div_ceil(max_rows))
}

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    let tile_rows = input.rounded.tile_rows();
    // Where rows must not matter, sums are put away as often as `unpacked` does it.
    let n_k = if input.numerics == Numerics::RowInvariant { K_CHUNK } else { input.n_in };
    for first_col in cols.step_by(TILE_ROWS) {
        let strip = &job.weight[first_col / TILE_ROWS * job.stride..][..job.stride];
        // The strip stays in the first-level cache for the tiles after the first.
        for (tile_idx, first_row) in (0..input.n_rows).step_by(tile_rows).enumerate() {
            let n_rows = (input.n_rows - first_row).min(tile_rows);
            for first_k in (0..input.n_in).step_by(n_k) {
                let adds = job.mode == Mode::Add || first_k > 0;
                let target = StripTarget { first_row, n_rows, first_col, adds };
                let tile = input.rounded.tile(tile_idx, first_k / GROUP);
                let ks = first_k..input.n_in.min(first_k + n_k);
                for_block!(job.dtype,
                    // SAFETY: `Isa` says what this CPU has; `matmul` checked every shape; the strip's blocks and the
                    // tile's groups from `first_k` on are there.
                    P => unsafe { rows::<P>(input, job, blocks::<P>(strip, ks), tile, &target) },
                    P => { let _: Option<P> = None; unreachable!("plain numbers have no tiles") }
                );
            }
        }
    }
}

/// The blocks of a strip that hold these columns.
fn blocks<P: TileFormat>(strip: &[u8], ks: Range<usize>) -> &[u8] {
    &strip[ks.start / P::LEN * P::TILE_BYTES..ks.end.div_ceil(P::LEN) * P::TILE_BYTES]
}

/// Where the sums of sixteen columns of a tile go.
pub(crate) struct StripTarget {
    pub(crate) first_row: usize,
    /// Rows of the tile that exist.
    pub(crate) n_rows: usize,
    pub(crate) first_col: usize,
    /// Whether the outputs hold something to add to: the residual, or an earlier part of `k`.
    pub(crate) adds: bool,
}

impl StripTarget {
    /// Prefetches the outputs, which are long out of the cache, while the sums are computed.
    #[inline(always)]
    pub(crate) fn prefetch(&self, job: &ProductJob) {
        for n in 0..self.n_rows {
            // SAFETY: prefetching touches nothing; the address lies inside the output.
            unsafe {
                let out = job.out.slice((self.first_row + n) * job.n_out + self.first_col, 1);
                _mm_prefetch::<_MM_HINT_T0>(out.as_ptr().cast());
            }
        }
    }
}

/// # Safety
/// As [`rows_512`] or [`rows_256`], whichever the input's instruction set asks for.
unsafe fn rows<P: TileFormat>(
    input: &ProductInput,
    job: &ProductJob,
    strip: &[u8],
    tile: ActivationTile,
    target: &StripTarget,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (input.isa, input.rounded.tile_rows()) {
            (Isa::Avx512 | Isa::Zen4, 1) => rows_512::<P, 1>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 2) => rows_512::<P, 2>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 3) => rows_512::<P, 3>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 4) => rows_512::<P, 4>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 5) => rows_512::<P, 5>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 6) => rows_512::<P, 6>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 7) => rows_512::<P, 7>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 8) => rows_512::<P, 8>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 9) => rows_512::<P, 9>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 10) => rows_512::<P, 10>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, 11) => rows_512::<P, 11>(strip, tile, job, target),
            (Isa::Avx512 | Isa::Zen4, _) => rows_512::<P, 12>(strip, tile, job, target),
            (_, 1) => rows_256::<P, 1>(strip, tile, job, target),
            (_, 2) => rows_256::<P, 2>(strip, tile, job, target),
            (_, 3) => rows_256::<P, 3>(strip, tile, job, target),
            _ => rows_256::<P, 4>(strip, tile, job, target),
        }
    }
}

/// One pair of weights of sixteen rows against the pairs at byte `$at` of up to twelve lines from `$q` on.
///
/// Assembly, because the compiler splits the intrinsic into a product and a sum and loads the broadcast by
/// itself, three instructions for one. Written out row by row, because a loop around assembly is not unrolled and its
/// sums would live in memory.
macro_rules! add_pair_512 {
    ($sums:ident, $pair:expr, $q:expr, $at:literal) => {
        add_pair_512!(@rows $sums, $pair, $q, $at, 0 1 2 3 4 5 6 7 8 9 10 11);
    };
    (@rows $sums:ident, $pair:expr, $q:expr, $at:literal, $($n:literal)*) => {
        $(if let Some(sum) = $sums.get_mut($n) {
            std::arch::asm!(
                "vpdpwssd {sum}, {pair}, dword ptr [{q} + {at}]{{1to16}}",
                sum = inout(zmm_reg) *sum, pair = in(zmm_reg) $pair, q = in(reg) $q, at = const 64 * $n + $at,
                options(pure, readonly, nostack, preserves_flags)
            );
        })*
    };
}
pub(crate) use add_pair_512;

impl ActivationTile {
    /// The sums of `N` rows that belong to a span of a group.
    #[inline(always)]
    fn sums_of<P: TileFormat, const N: usize>(&self, group: usize, span: usize) -> *const f32 {
        if P::SPAN == GROUP {
            self.sums.wrapping_add(group * N)
        } else {
            self.halves.wrapping_add((2 * group + span % 2) * N)
        }
    }
}

/// # Safety
/// The CPU has AVX-512 F, BW, VNNI and F16C. The strip holds sixteen rows of as many weights as the tile `N` rows of
/// activations; the columns of the target are this task's.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,f16c")]
unsafe fn rows_512<P: TileFormat, const N: usize>(
    strip: &[u8],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [_mm512_setzero_ps(); N];
    for (b, tile) in strip.chunks_exact(P::TILE_BYTES).enumerate() {
        for span in 0..P::LEN / P::SPAN {
            let g = span * P::SPAN / GROUP;
            let group = b * (P::LEN / GROUP) + g;
            let first = span * P::SPAN % GROUP / 8;
            let mut ints = [_mm512_setzero_si512(); N];
            for eighth in first..first + P::SPAN / 8 {
                // SAFETY: inside the tile; a group of N activation rows is N lines.
                unsafe {
                    let pairs = P::pairs_512(tile.as_ptr(), g, eighth);
                    let q = x.q.add(group * N * GROUP + eighth * 8);
                    add_pair_512!(ints, pairs[0], q, 0);
                    add_pair_512!(ints, pairs[1], q, 4);
                    add_pair_512!(ints, pairs[2], q, 8);
                    add_pair_512!(ints, pairs[3], q, 12);
                }
            }
            // SAFETY: inside the tile; scales and sums hold one number a row and group.
            unsafe {
                let (d, m) = P::scales_512(tile.as_ptr(), span);
                let sums = x.sums_of::<P, N>(group, span);
                for n in 0..N {
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(*x.scales.add(group * N + n)));
                    acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints[n]), scale, acc[n]);
                    if P::HAS_MIN {
                        acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(*sums.add(n)), acc[n]);
                    }
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { put_512(&acc, job, target) };
}

/// Writes or adds the sums of sixteen columns of a tile.
///
/// # Safety
/// The CPU has AVX-512F; the columns are this task's, and the rows exist.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn put_512<const N: usize>(acc: &[__m512; N], job: &ProductJob, target: &StripTarget) {
    let n_cols = (job.n_out - target.first_col).min(TILE_ROWS);
    let mask = (u32::MAX >> (32 - n_cols)) as u16;
    for n in 0..N {
        if n < target.n_rows {
            // SAFETY: the outputs are this task's; the mask leaves out columns past the last.
            unsafe {
                let out = job.out.slice((target.first_row + n) * job.n_out + target.first_col, n_cols).as_mut_ptr();
                let old = _mm512_maskz_loadu_ps(if target.adds { mask } else { 0 }, out);
                _mm512_mask_storeu_ps(out, mask, _mm512_add_ps(old, acc[n]));
            }
        }
    }
}

/// # Safety
/// The CPU has AVX2, FMA and F16C. Else as [`rows_512`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_256<P: TileFormat, const N: usize>(
    strip: &[u8],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [[_mm256_setzero_ps(); N]; 2];
    for (b, tile) in strip.chunks_exact(P::TILE_BYTES).enumerate() {
        let tile = tile.as_ptr();
        for span in 0..P::LEN / P::SPAN {
            let g = span * P::SPAN / GROUP;
            let group = b * (P::LEN / GROUP) + g;
            let first = span * P::SPAN % GROUP / 8;
            for (half, acc) in acc.iter_mut().enumerate() {
                let mut ints = [_mm256_setzero_si256(); N];
                for eighth in first..first + P::SPAN / 8 {
                    // SAFETY: inside the tile; a group of N activation rows is N lines.
                    unsafe {
                        let pairs = P::pairs_256(tile, g, eighth, half);
                        let q = x.q.add(group * N * GROUP + eighth * 8);
                        add_pair_256(&mut ints, pairs[0], q);
                        add_pair_256(&mut ints, pairs[1], q.add(2));
                        add_pair_256(&mut ints, pairs[2], q.add(4));
                        add_pair_256(&mut ints, pairs[3], q.add(6));
                    }
                }
                // SAFETY: inside the tile; scales and sums hold one number a row and group.
                unsafe {
                    let (d, m) = P::scales_256(tile, span, half);
                    let sums = x.sums_of::<P, N>(group, span);
                    for n in 0..N {
                        let scale = _mm256_mul_ps(d, _mm256_set1_ps(*x.scales.add(group * N + n)));
                        acc[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints[n]), scale, acc[n]);
                        if P::HAS_MIN {
                            acc[n] = _mm256_fmadd_ps(m, _mm256_set1_ps(*sums.add(n)), acc[n]);
                        }
                    }
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { put_256(&acc, job, target) };
}

/// One pair of weights of eight rows against the first pairs of `N` lines from `q` on.
///
/// # Safety
/// The CPU has AVX2; there are `N` lines.
#[inline(always)]
unsafe fn add_pair_256<const N: usize>(sums: &mut [__m256i; N], pair: __m256i, q: *const i16) {
    for n in 0..N {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm256_set1_epi32(q.add(n * GROUP).cast::<i32>().read_unaligned());
            sums[n] = _mm256_add_epi32(sums[n], _mm256_madd_epi16(pair, x));
        }
    }
}

/// As [`put_512`].
///
/// # Safety
/// The CPU has AVX2; else as [`put_512`].
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn put_256<const N: usize>(acc: &[[__m256; N]; 2], job: &ProductJob, target: &StripTarget) {
    let n_cols = (job.n_out - target.first_col).min(TILE_ROWS);
    for n in 0..N.min(target.n_rows) {
        let mut values = [0.0; TILE_ROWS];
        // SAFETY: `values` holds sixteen numbers; the outputs are this task's.
        let out = unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), acc[0][n]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), acc[1][n]);
            job.out.slice((target.first_row + n) * job.n_out + target.first_col, n_cols)
        };
        if target.adds {
            out.iter_mut().zip(values).for_each(|(out, x)| *out += x);
        } else {
            out.copy_from_slice(&values[..n_cols]);
        }
    }
}
