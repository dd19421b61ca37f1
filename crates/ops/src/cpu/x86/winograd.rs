//! Products with half the multiplications, for many rows on cores that can add while they multiply (`Isa::Zen4`).
//!
//! Winograd's identity for inner products (1968): `x0 w0 + x2 w2 = (x0 + w2) (x2 + w0) - x0 x2 - w0 w2`. The subtracted
//! terms depend only on the row of activations or only on the row of weights, so they are summed once for each, and
//! sums start from there. Four products of 16 bits take one multiply-add and two additions instead of two
//! multiply-adds. On a core where two of four pipes multiply and all four add, that is one and a half cycles instead of
//! two. Integers are exact, and sums that overflow 32 bits on the way wrap back.

use std::arch::x86_64::*;

use super::strip::{ROWS_512, StripTarget, put_512};
use super::unpacked::PairGroup;
use crate::cpu::activations::ActivationTile;
use crate::cpu::matmul::ProductJob;
use crate::tiles::GROUP;

/// How pairs of words are added.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum PairSum {
    /// Word by word.
    Words,
    /// As one number, which loads and adds in one instruction: 4 % faster in a sketch of the loop (docs/developer/notebook.md). It
    /// carries from the lower into the higher word, so the lower activations are moved by [`OFFSET`] and never negative, nor is their sum with a weight, and a
    /// pair of weights is the number it makes: `low + 2^16 high`. That leaves activations 14 bits.
    Numbers,
}

/// What is added to the lower activation of a pair.
const OFFSET: i16 = 1 << 14;

impl PairSum {
    /// The faster one where it takes less than a third of a bit from activations up to `largest`.
    pub(crate) fn of(largest: f32, largest_weight: i32) -> Self {
        if largest < 1.25 * Self::Numbers.largest_activation(largest_weight) as f32 {
            Self::Numbers
        } else {
            Self::Words
        }
    }

    /// The largest activation whose sum with a weight up to `largest_weight` fits.
    pub(crate) fn largest_activation(self, largest_weight: i32) -> i32 {
        let most = if self == Self::Words { i16::MAX } else { OFFSET - 1 };
        i32::from(most) - largest_weight
    }

    fn offset(self) -> i32 {
        if self == Self::Words { 0 } else { OFFSET.into() }
    }
}

/// Notes what sums over `together` groups of these weights start from, and makes pairs what is added.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn prepare_weights(groups: &mut [PairGroup], together: usize, pair_sum: PairSum) {
    let offset = _mm512_set1_epi32(pair_sum.offset());
    for groups in groups.chunks_mut(together) {
        let mut start = _mm512_setzero_si512();
        for group in groups.iter_mut() {
            for two in group.pairs.as_chunks_mut::<2>().0 {
                // SAFETY: sixteen pairs each.
                let pairs = two.each_ref().map(|pairs| unsafe { _mm512_load_si512(pairs.as_ptr().cast()) });
                start = _mm512_sub_epi32(start, _mm512_madd_epi16(pairs[0], pairs[1]));
                if pair_sum == PairSum::Numbers {
                    for (pair, to) in pairs.into_iter().zip(two) {
                        start = _mm512_sub_epi32(start, _mm512_madd_epi16(pair, offset));
                        let borrowed = _mm512_slli_epi32::<1>(_mm512_and_si512(pair, _mm512_set1_epi32(0x8000)));
                        // SAFETY: as above.
                        unsafe { _mm512_store_si512(to.as_mut_ptr().cast(), _mm512_sub_epi32(pair, borrowed)) };
                    }
                }
            }
        }
        // SAFETY: sixteen numbers.
        unsafe { _mm512_store_si512(groups[0].start.as_mut_ptr().cast(), start) };
    }
}

/// Makes a group of activations what is added; what it takes away comes back.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn prepare_line(line: &mut [i16; GROUP], pair_sum: PairSum) -> i32 {
    let offset = _mm256_set1_epi32(pair_sum.offset());
    let mut taken = _mm256_setzero_si256();
    for half in line.as_chunks_mut::<16>().0 {
        // SAFETY: sixteen numbers.
        unsafe {
            let pairs = _mm256_add_epi16(_mm256_loadu_si256(half.as_ptr().cast()), offset);
            _mm256_storeu_si256(half.as_mut_ptr().cast(), pairs);
            // Of every two pairs the second stands in the first one's place, and nothing in its own.
            taken = _mm256_add_epi32(taken, _mm256_madd_epi16(pairs, _mm256_srli_epi64::<32>(pairs)));
        }
    }
    let taken = _mm_add_epi32(_mm256_castsi256_si128(taken), _mm256_extracti128_si256::<1>(taken));
    let taken = _mm_add_epi32(taken, _mm_srli_si128::<8>(taken));
    _mm_cvtsi128_si32(taken)
}

/// Two pairs of weights of sixteen rows against the two pairs at byte `$at` of up to twelve lines from `$q` on. Assembly for
/// the same reasons as `add_pair_512`.
macro_rules! add_winograd_512 {
    ($sums:ident, $pairs:expr, $q:expr, $at:literal) => {
        add_winograd_512!(@rows $sums, $pairs, $q, $at, 0 1 2 3 4 5 6 7 8 9 10 11);
    };
    (@rows $sums:ident, $pairs:expr, $q:expr, $at:literal, $($n:literal)*) => {
        $(if let Some(sum) = $sums.get_mut($n) {
            if IN_NUMBERS {
                std::arch::asm!(
                    "vpaddd {a}, {second}, dword ptr [{q} + {at}]{{1to16}}",
                    "vpaddd {b}, {first}, dword ptr [{q} + {at} + 4]{{1to16}}",
                    "vpdpwssd {sum}, {a}, {b}",
                    sum = inout(zmm_reg) *sum, first = in(zmm_reg) $pairs[0], second = in(zmm_reg) $pairs[1],
                    a = out(zmm_reg) _, b = out(zmm_reg) _, q = in(reg) $q, at = const 64 * $n + $at,
                    options(pure, readonly, nostack, preserves_flags)
                );
            } else {
                std::arch::asm!(
                    "vpbroadcastd {a}, dword ptr [{q} + {at}]",
                    "vpbroadcastd {b}, dword ptr [{q} + {at} + 4]",
                    "vpaddw {a}, {a}, {second}",
                    "vpaddw {b}, {b}, {first}",
                    "vpdpwssd {sum}, {a}, {b}",
                    sum = inout(zmm_reg) *sum, first = in(zmm_reg) $pairs[0], second = in(zmm_reg) $pairs[1],
                    a = out(zmm_reg) _, b = out(zmm_reg) _, q = in(reg) $q, at = const 64 * $n + $at,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
        })*
    };
}

/// The rows of a target.
///
/// # Safety
/// As [`rows_512`], with how the pairs of both sides are added.
pub(crate) unsafe fn rows<const HAS_MIN: bool, const EVERY: usize>(
    pair_sum: PairSum,
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (pair_sum, target.n_rows) {
            (PairSum::Numbers, 1..=4) => rows_512::<4, HAS_MIN, EVERY, true>(groups, x, job, target),
            (PairSum::Numbers, 5..=8) => rows_512::<8, HAS_MIN, EVERY, true>(groups, x, job, target),
            (PairSum::Numbers, _) => rows_512::<ROWS_512, HAS_MIN, EVERY, true>(groups, x, job, target),
            (PairSum::Words, 1..=4) => rows_512::<4, HAS_MIN, EVERY, false>(groups, x, job, target),
            (PairSum::Words, 5..=8) => rows_512::<8, HAS_MIN, EVERY, false>(groups, x, job, target),
            (PairSum::Words, _) => rows_512::<ROWS_512, HAS_MIN, EVERY, false>(groups, x, job, target),
        }
    }
}

/// The first `N` rows of a tile, with sums over `EVERY` groups.
///
/// # Safety
/// As `unpacked::rows_512`; weights and activations are prepared, as the last number says, for sums over `EVERY` groups.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn rows_512<const N: usize, const HAS_MIN: bool, const EVERY: usize, const IN_NUMBERS: bool>(
    groups: &[PairGroup],
    x: ActivationTile,
    job: &ProductJob,
    target: &StripTarget,
) {
    let mut acc = [_mm512_setzero_ps(); N];
    let ActivationTile { mut q, mut shifts, mut starts, mut sums, .. } = x;
    target.prefetch(job);
    macro_rules! add_twos {
        ($ints:ident, $group:expr, $($p:literal $at:literal)*) => {
            $({
                let first = _mm512_load_si512($group.pairs[$p].as_ptr().cast());
                let second = _mm512_load_si512($group.pairs[$p + 1].as_ptr().cast());
                add_winograd_512!($ints, [first, second], q, $at);
            })*
        };
    }
    for groups in groups.chunks_exact(EVERY) {
        // SAFETY: a group of activation rows is ROWS_512 lines; starts, shifts and sums hold one number a row and group;
        // vectors of sixteen numbers.
        unsafe {
            let start = _mm512_load_si512(groups[0].start.as_ptr().cast());
            let mut ints: [__m512i; N] =
                std::array::from_fn(|n| _mm512_add_epi32(start, _mm512_set1_epi32(*starts.add(n))));
            for group in groups {
                add_twos!(ints, group, 0 0 2 8 4 16 6 24 8 32 10 40 12 48 14 56);
                q = q.wrapping_add(ROWS_512 * GROUP);
            }
            let d = _mm512_load_ps(groups[0].d[0].as_ptr());
            for n in 0..N {
                // A zero becomes a number too small to be seen: shifts are never below zero.
                let bits = _mm512_castps_si512(_mm512_cvtepi32_ps(ints[n]));
                let units = _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(*shifts.add(n))));
                acc[n] = _mm512_fmadd_ps(units, d, acc[n]);
            }
            if HAS_MIN {
                for group in groups {
                    let m = _mm512_load_ps(group.m[0].as_ptr());
                    for n in 0..N {
                        acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(*sums.add(n)), acc[n]);
                    }
                    sums = sums.wrapping_add(ROWS_512);
                }
            }
        }
        shifts = shifts.wrapping_add(groups.len() * ROWS_512);
        starts = starts.wrapping_add(groups.len() * ROWS_512);
    }
    for n in 0..N {
        // SAFETY: one base a row of the tile.
        acc[n] = _mm512_mul_ps(acc[n], _mm512_set1_ps(unsafe { *x.bases.add(n) }));
    }
    // SAFETY: the caller's promise.
    unsafe { put_512(&acc, job, target) };
}
