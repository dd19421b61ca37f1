//! How tiles hold quants of 5 bits: the low four as `nibble` has them, then 64 bytes with the fifth bit of 32 weights
//! of sixteen rows: in the lane of a row, bit p is that of weight `2p` and bit `16 + p` that of weight `2p + 1`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::nibble;

/// Bytes of a group's quants in a tile.
pub(crate) const BYTES: usize = nibble::BYTES + 64;

/// Sets the 32 quants of a row in a group's part of a tile.
pub(crate) fn put(tile: &mut [u8], row: usize, quants: &[u8]) {
    nibble::put_codes(tile, row, quants);
    let lane = |second: usize| (0..16).fold(0, |bits, p| bits | u32::from(quants[2 * p + second] >> 4 & 1) << p);
    let bits = lane(0) | lane(1) << 16;
    tile[nibble::BYTES + row * 4..][..4].copy_from_slice(&bits.to_le_bytes());
}

pub(crate) fn get(tile: &[u8], row: usize, k: usize) -> u8 {
    let high = tile[nibble::BYTES + row * 4 + k % 2 * 2 + k / 16] >> (k % 16 / 2) & 1;
    nibble::get(tile, row, k) | high << 4
}

/// Quants `8 * eighth..` of the group at `at` as pairs.
///
/// # Safety
/// The CPU has AVX-512F; `at` points at a group's quants; `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_512(at: *const u8, eighth: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let low = nibble::pairs_512(at.add(64 * eighth));
        let high = _mm512_loadu_si512(at.add(nibble::BYTES).cast());
        let high = _mm512_srl_epi32(high, _mm_cvtsi32_si128(4 * eighth as i32));
        let mask = _mm512_set1_epi32(0x0010_0010);
        [
            _mm512_or_si512(low[0], _mm512_and_si512(_mm512_slli_epi32::<4>(high), mask)),
            _mm512_or_si512(low[1], _mm512_and_si512(_mm512_slli_epi32::<3>(high), mask)),
            _mm512_or_si512(low[2], _mm512_and_si512(_mm512_slli_epi32::<2>(high), mask)),
            _mm512_or_si512(low[3], _mm512_and_si512(_mm512_slli_epi32::<1>(high), mask)),
        ]
    }
}

/// As [`pairs_512`], for rows `8 * half..8 * half + 8`.
///
/// # Safety
/// The CPU has AVX2; else as [`pairs_512`]; `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_256(at: *const u8, eighth: usize, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let low = nibble::pairs_256(at.add(64 * eighth + 32 * half));
        let high = _mm256_loadu_si256(at.add(nibble::BYTES + 32 * half).cast());
        let high = _mm256_srl_epi32(high, _mm_cvtsi32_si128(4 * eighth as i32));
        let mask = _mm256_set1_epi32(0x0010_0010);
        [
            _mm256_or_si256(low[0], _mm256_and_si256(_mm256_slli_epi32::<4>(high), mask)),
            _mm256_or_si256(low[1], _mm256_and_si256(_mm256_slli_epi32::<3>(high), mask)),
            _mm256_or_si256(low[2], _mm256_and_si256(_mm256_slli_epi32::<2>(high), mask)),
            _mm256_or_si256(low[3], _mm256_and_si256(_mm256_slli_epi32::<1>(high), mask)),
        ]
    }
}
