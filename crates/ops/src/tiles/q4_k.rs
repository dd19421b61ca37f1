//! Tiles of Q4_K.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, nibble, pack_f16s};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};
use crate::formats::Q4K;
use crate::formats::block::BlockFormat;
use crate::formats::q4_k::{packed_scales, put_scale_and_min, scale_and_min};

/// A tile: sixteen `d`, sixteen `dmin`, then eight groups of sixteen scales, sixteen minima (a byte each: 64 bytes
/// more than packed in 6 bits) and the nibbles.
const DMINS: usize = 2 * TILE_ROWS;
const GROUPS: usize = 2 * DMINS;
const GROUP_BYTES: usize = 2 * TILE_ROWS + nibble::BYTES;

/// What is taken off a nibble before its group's scale goes into it: half of the range, so that integers are small.
const CENTER: i32 = 8;

/// `(pair - center) * scale`, with sixteen scales of a byte each at `scales`.
///
/// # Safety
/// The CPU has AVX-512BW; sixteen bytes are readable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn fold_512(pairs: [__m512i; 4], center: i32, scales: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast()));
        let scales = _mm512_or_si512(scales, _mm512_slli_epi32::<16>(scales));
        let center = _mm512_set1_epi16(center as i16);
        pairs.map(|pair| _mm512_mullo_epi16(_mm512_sub_epi16(pair, center), scales))
    }
}

/// `(d, m)` for what [`fold_512`] makes, from those for quants as they are, `[d * scale, m]`, and a tile's `d`.
///
/// # Safety
/// The CPU has AVX-512F and F16C; `tile` starts with sixteen `d`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn folded_scales_512((d, m): (__m512, __m512), center: i32, tile: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller's promise.
    unsafe { (f16s_512(tile), _mm512_fmadd_ps(d, _mm512_set1_ps(center as f32), m)) }
}

/// `[d * scale, -dmin * min]` of a tile that starts with sixteen `d` and sixteen `dmin`, for the group at `at`: sixteen
/// scales and sixteen mins of a byte each.
///
/// # Safety
/// The CPU has AVX-512F and F16C; both are readable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_and_mins_512(tile: *const u8, at: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = |at: *const u8| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())));
        let d = _mm512_mul_ps(f16s_512(tile), bytes(at));
        let m = _mm512_mul_ps(f16s_512(tile.add(DMINS)), bytes(at.add(TILE_ROWS)));
        (d, _mm512_sub_ps(_mm512_setzero_ps(), m))
    }
}

/// As [`scales_and_mins_512`], for rows `8 * half..8 * half + 8`.
///
/// # Safety
/// The CPU has AVX2 and F16C; both are readable; `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_and_mins_256(tile: *const u8, at: *const u8, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = at.add(8 * half);
        let bytes = |at: *const u8| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
        let d = _mm256_mul_ps(f16s_256(tile.add(16 * half)), bytes(at));
        let m = _mm256_mul_ps(f16s_256(tile.add(DMINS + 16 * half)), bytes(at.add(TILE_ROWS)));
        (d, _mm256_sub_ps(_mm256_setzero_ps(), m))
    }
}

impl TileFormat for Q4K {
    const HAS_MIN: bool = true;
    const LARGEST: i32 = 63 * CENTER;
    const SUM_GROUPS: usize = 4;
    const TILE_BYTES: usize = GROUPS + 8 * GROUP_BYTES;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        pack_f16s(blocks, 2, tile, DMINS);
        for (row, block) in blocks.iter().enumerate() {
            for g in 0..8 {
                let tile = &mut tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
                (tile[row], tile[TILE_ROWS + row]) = scale_and_min(packed_scales(block), g);
                for (vector, bytes) in block[16 + g / 2 * GROUP..][..GROUP].chunks_exact(8).enumerate() {
                    let bytes = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                    nibble::put_eight(&mut tile[2 * TILE_ROWS..], row, vector, bytes >> (4 * (g % 2)));
                }
            }
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let mut block = [0; Self::BYTES];
        block[..2].copy_from_slice(&tile[2 * row..][..2]);
        block[2..4].copy_from_slice(&tile[DMINS + 2 * row..][..2]);
        block[4..].fill(0);
        for g in 0..8 {
            let tile = &tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
            put_scale_and_min(&mut block, g, tile[row], tile[TILE_ROWS + row]);
            for k in 0..GROUP {
                block[16 + g / 2 * GROUP + k] |= nibble::get(&tile[2 * TILE_ROWS..], row, k) << (4 * (g % 2));
            }
        }
        Self::decode(&block, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise: eight groups stand behind the f16 numbers.
        unsafe { scales_and_mins_512(tile, tile.add(GROUPS + group * GROUP_BYTES)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { nibble::pairs_512(tile.add(GROUPS + group * GROUP_BYTES + 2 * TILE_ROWS + 64 * eighth)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { fold_512(Self::pairs_512(tile, group, eighth), CENTER, tile.add(GROUPS + group * GROUP_BYTES)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_scales_512(tile: *const u8, group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { folded_scales_512(Self::scales_512(tile, group), CENTER, tile) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, group: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { scales_and_mins_256(tile, tile.add(GROUPS + group * GROUP_BYTES), half) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        let offset = GROUPS + group * GROUP_BYTES + 2 * TILE_ROWS + 64 * eighth + 32 * half;
        // SAFETY: the caller's promise.
        unsafe { nibble::pairs_256(tile.add(offset)) }
    }
}
