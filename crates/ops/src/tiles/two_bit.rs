//! How tiles hold quants of 2 bits: 128 bytes for 32 weights of sixteen rows, in two vectors of sixteen weights each.
//! In the 32-bit lane of a row, bits `2p..2p + 2` are weight `2p` and bits `16 + 2p..` weight `2p + 1` of the sixteen.
//!
//! `Few` are the formats that have one scale a block and levels from -1 up: TQ1_0, TQ2_0, Q1_0, Q2_0. Q2_K has tiles of
//! its own, made of the same parts.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS};
use crate::formats::block::BlockFormat;

/// Bytes of a group's quants in a tile.
pub(crate) const BYTES: usize = TILE_ROWS * GROUP / 4;

/// Sets the 32 quants of a row in a group's part of a tile.
pub(crate) fn put(tile: &mut [u8], row: usize, quants: &[u8]) {
    for (vector, quants) in quants.chunks_exact(16).enumerate() {
        let lane = |second: usize| (0..8).fold(0, |bits, p| bits | u32::from(quants[2 * p + second] & 3) << (2 * p));
        let bits = lane(0) | lane(1) << 16;
        tile[vector * 64 + row * 4..][..4].copy_from_slice(&bits.to_le_bytes());
    }
}

pub(crate) fn get(tile: &[u8], row: usize, k: usize) -> u8 {
    let (vector, pair, second) = (k / 16, k % 16 / 2, k % 2);
    tile[vector * 64 + row * 4 + second * 2 + pair / 4] >> (2 * (pair % 4)) & 3
}

/// Quants `8 * eighth..` of the group at `at` as pairs.
///
/// # Safety
/// The CPU has AVX-512F; `at` points at 128 readable bytes; `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_512(at: *const u8, eighth: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = _mm512_loadu_si512(at.add(64 * (eighth / 2)).cast());
        let lanes = if eighth.is_multiple_of(2) { lanes } else { _mm512_srli_epi32::<8>(lanes) };
        let mask = _mm512_set1_epi32(0x0003_0003);
        [
            _mm512_and_si512(lanes, mask),
            _mm512_and_si512(_mm512_srli_epi32::<2>(lanes), mask),
            _mm512_and_si512(_mm512_srli_epi32::<4>(lanes), mask),
            _mm512_and_si512(_mm512_srli_epi32::<6>(lanes), mask),
        ]
    }
}

/// As [`pairs_512`], for the eight rows of `at`.
///
/// # Safety
/// The CPU has AVX2; `at` points at 96 readable bytes; `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_256(at: *const u8, eighth: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = _mm256_loadu_si256(at.add(64 * (eighth / 2)).cast());
        let lanes = if eighth.is_multiple_of(2) { lanes } else { _mm256_srli_epi32::<8>(lanes) };
        let mask = _mm256_set1_epi32(0x0003_0003);
        [
            _mm256_and_si256(lanes, mask),
            _mm256_and_si256(_mm256_srli_epi32::<2>(lanes), mask),
            _mm256_and_si256(_mm256_srli_epi32::<4>(lanes), mask),
            _mm256_and_si256(_mm256_srli_epi32::<6>(lanes), mask),
        ]
    }
}

/// A format of `d * (q - 1)`, q of two bits.
pub(crate) trait TwoBit: BlockFormat {
    /// The bits of the f16 `d`.
    fn scale(block: &[u8]) -> u16;
}

/// A tile: sixteen `d`, then the groups.
const GROUPS: usize = 2 * TILE_ROWS;

pub(crate) const fn tile_bytes<B: TwoBit>() -> usize {
    GROUPS + B::LEN / GROUP * BYTES
}

pub(crate) fn pack_tile<B: TwoBit>(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let (mut values, mut quants) = ([0.0; 256], [0_u8; 256]);
    for (row, block) in blocks.iter().enumerate() {
        let bits = B::scale(block);
        tile[2 * row..][..2].copy_from_slice(&bits.to_le_bytes());
        B::decode(block, &mut values[..B::LEN]);
        let d = half::f16::from_bits(bits).to_f32_const();
        for (q, value) in quants.iter_mut().zip(&values[..B::LEN]) {
            *q = ((value / d).round_ties_even() + 1.0) as u8;
        }
        for (g, quants) in quants[..B::LEN].chunks_exact(GROUP).enumerate() {
            put(&mut tile[GROUPS + g * BYTES..][..BYTES], row, quants);
        }
    }
}

pub(crate) fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
    let d = crate::formats::f16_at(tile, 2 * row);
    for (k, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(get(&tile[GROUPS + k / GROUP * BYTES..][..BYTES], row, k % GROUP)) - 1.0);
    }
}

/// # Safety
/// The CPU has AVX-512BW; `tile` points at a tile with that group; `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn few_pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut pairs = pairs_512(tile.add(GROUPS + group * BYTES), eighth);
        for pair in &mut pairs {
            *pair = _mm512_sub_epi16(*pair, _mm512_set1_epi16(1));
        }
        pairs
    }
}

/// # Safety
/// The CPU has AVX2; else as [`few_pairs_512`]; `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn few_pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut pairs = pairs_256(tile.add(GROUPS + group * BYTES + 32 * half), eighth);
        for pair in &mut pairs {
            *pair = _mm256_sub_epi16(*pair, _mm256_set1_epi16(1));
        }
        pairs
    }
}

/// Gives a format the tiles of [`TwoBit`].
macro_rules! few {
    ($format:ty) => {
        impl $crate::tiles::TileFormat for $format {
            const HAS_MIN: bool = false;
            const TILE_BYTES: usize = $crate::tiles::two_bit::tile_bytes::<Self>();
            const SUM_GROUPS: usize = 2;

            fn pack_tile(blocks: &[&[u8]; $crate::tiles::TILE_ROWS], tile: &mut [u8]) {
                $crate::tiles::two_bit::pack_tile::<Self>(blocks, tile);
            }

            fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
                $crate::tiles::two_bit::decode_row(tile, row, out);
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [std::arch::x86_64::__m512i; 4] {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::two_bit::few_pairs_512(tile, group, eighth) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn pairs_256(
                tile: *const u8,
                group: usize,
                eighth: usize,
                half: usize,
            ) -> [std::arch::x86_64::__m256i; 4] {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::two_bit::few_pairs_256(tile, group, eighth, half) }
            }
        }
    };
}
pub(crate) use few;
