//! Tiles of Q2_K.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, pack_f16s, two_bit};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};
use crate::formats::Q2K;
use crate::formats::block::f16_at;

/// A tile: sixteen `d`, sixteen `dmin`, then eight groups of two times sixteen bytes of scale and minimum, as in the
/// block, and the quants.
const DMINS: usize = 2 * TILE_ROWS;
const GROUPS: usize = 2 * DMINS;
const QUANTS: usize = 2 * TILE_ROWS;
const GROUP_BYTES: usize = QUANTS + two_bit::BYTES;

/// Offset of the scales of a span of 16 in a tile.
const fn scales_at(span: usize) -> usize {
    GROUPS + span / 2 * GROUP_BYTES + span % 2 * TILE_ROWS
}

impl TileFormat for Q2K {
    const HAS_MIN: bool = true;
    const TILE_BYTES: usize = GROUPS + 8 * GROUP_BYTES;
    const SPAN: usize = 16;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 80, tile, 0);
        pack_f16s(blocks, 82, tile, DMINS);
        for (row, block) in blocks.iter().enumerate() {
            for g in 0..8 {
                let quants: [u8; GROUP] = std::array::from_fn(|i| block[16 + g / 4 * 32 + i] >> (g % 4 * 2) & 3);
                two_bit::put(&mut tile[GROUPS + g * GROUP_BYTES + QUANTS..][..two_bit::BYTES], row, &quants);
                tile[scales_at(2 * g) + row] = block[2 * g];
                tile[scales_at(2 * g + 1) + row] = block[2 * g + 1];
            }
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let (d, dmin) = (f16_at(tile, 2 * row), f16_at(tile, DMINS + 2 * row));
        for (k, x) in out.iter_mut().enumerate() {
            let scales = tile[scales_at(k / 16) + row];
            let quants = &tile[GROUPS + k / GROUP * GROUP_BYTES + QUANTS..][..two_bit::BYTES];
            let q = f32::from(two_bit::get(quants, row, k % GROUP));
            *x = (d * f32::from(scales & 15)) * q - dmin * f32::from(scales >> 4);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = _mm512_cvtepu8_epi32(_mm_loadu_si128(tile.add(scales_at(span)).cast()));
            let low = _mm512_cvtepi32_ps(_mm512_and_si512(scales, _mm512_set1_epi32(15)));
            let high = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(scales));
            let m = _mm512_mul_ps(f16s_512(tile.add(DMINS)), high);
            (_mm512_mul_ps(f16s_512(tile), low), _mm512_sub_ps(_mm512_setzero_ps(), m))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { two_bit::pairs_512(tile.add(GROUPS + group * GROUP_BYTES + QUANTS), eighth) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, span: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = _mm256_cvtepu8_epi32(_mm_loadl_epi64(tile.add(scales_at(span) + 8 * half).cast()));
            let low = _mm256_cvtepi32_ps(_mm256_and_si256(scales, _mm256_set1_epi32(15)));
            let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(scales));
            let m = _mm256_mul_ps(f16s_256(tile.add(DMINS + 16 * half)), high);
            (_mm256_mul_ps(f16s_256(tile.add(16 * half)), low), _mm256_sub_ps(_mm256_setzero_ps(), m))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe { two_bit::pairs_256(tile.add(GROUPS + group * GROUP_BYTES + QUANTS + 32 * half), eighth) }
    }
}
