//! How tiles hold the formats of 256 weights that pick levels, whatever their blocks look like: an f16 `d` for the
//! block, a small integer scale for every 16 weights, and a code of 4 bits a weight for one of sixteen levels:
//! `weight = (UNIT * d) * (scale * level)`, exactly, with the integer below 2^13.
//!
//! 4.6 bits a weight, which is more than most of these formats take in a file: their codebooks would have to be looked
//! up again for every product. A memory plan counts the tiles, not the file.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, nibble};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};
use crate::formats::block::BlockFormat;

/// A format that fits these tiles.
pub(crate) trait Coded: BlockFormat {
    const UNIT: f32;
    /// What the codes mean; levels that a format lacks are repeated.
    const LEVELS: [i8; 16];
    /// The bits of `d`, and the scale of every 16 weights.
    fn scales(block: &[u8]) -> (u16, [i8; 16]);
}

/// A tile: sixteen `d`, then eight groups of two times sixteen scales and the codes.
const GROUPS: usize = 2 * TILE_ROWS;
const CODES: usize = 2 * TILE_ROWS;
const GROUP_BYTES: usize = CODES + nibble::BYTES;
pub(crate) const TILE_BYTES: usize = GROUPS + 8 * GROUP_BYTES;

/// The largest level, of either sign.
pub(crate) const fn largest_level(levels: &[i8; 16]) -> i32 {
    let (mut largest, mut i) = (0, 0);
    while i < 16 {
        let level = (levels[i] as i32).abs();
        largest = if level > largest { level } else { largest };
        i += 1;
    }
    largest
}

/// The code of every level from -128 to 127.
pub(crate) const fn codes_of(levels: &[i8; 16]) -> [u8; 256] {
    let mut codes = [0; 256];
    let mut code = 16;
    while code > 0 {
        code -= 1;
        codes[(levels[code] as i16 + 128) as usize] = code as u8;
    }
    codes
}

/// Codes of the weights of a block, found from their values: `unit` is what a level of 1 is worth.
pub(crate) fn find_codes(table: &[u8; 256], values: &[f32], unit: f32, codes: &mut [u8]) {
    for (code, value) in codes.iter_mut().zip(values) {
        // All but an integer, so that half of one rounds it. Where the unit is zero every code is right, and the cast makes
        // one of what is not a number.
        *code = table[usize::from((value / unit + 128.5) as u8)];
    }
}

pub(crate) fn pack_tile<B: Coded>(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let table = const { &codes_of(&B::LEVELS) };
    let (mut values, mut codes) = ([0.0; 256], [0; 256]);
    for (row, block) in blocks.iter().enumerate() {
        let (d, scales) = B::scales(block);
        tile[2 * row..][..2].copy_from_slice(&d.to_le_bytes());
        let d = B::UNIT * half::f16::from_bits(d).to_f32_const();
        B::decode(block, &mut values);
        for (i, scale) in scales.iter().enumerate() {
            let (values, codes) = (&values[16 * i..][..16], &mut codes[16 * i..][..16]);
            find_codes(table, values, d * f32::from(*scale), codes);
        }
        for (g, codes) in codes.chunks_exact(GROUP).enumerate() {
            let tile = &mut tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
            tile[row] = scales[2 * g] as u8;
            tile[TILE_ROWS + row] = scales[2 * g + 1] as u8;
            nibble::put_codes(&mut tile[CODES..], row, codes);
        }
    }
}

pub(crate) fn decode_row<B: Coded>(tile: &[u8], row: usize, out: &mut [f32]) {
    let d = B::UNIT * crate::formats::f16_at(tile, 2 * row);
    for (k, x) in out.iter_mut().enumerate() {
        let group = &tile[GROUPS + k / GROUP * GROUP_BYTES..][..GROUP_BYTES];
        let scale = f32::from(group[TILE_ROWS * (k % GROUP / 16) + row] as i8);
        *x = (d * scale) * f32::from(B::LEVELS[usize::from(nibble::get(&group[CODES..], row, k % GROUP))]);
    }
}

/// Levels as 16-bit numbers, twice, for the lookup of 32.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn wide(levels: &[i8; 16]) -> [i16; 32] {
    let mut wide = [0; 32];
    let mut i = 0;
    while i < 32 {
        wide[i] = levels[i % 16] as i16;
        i += 1;
    }
    wide
}

/// # Safety
/// The CPU has AVX-512F and F16C; `tile` points at a tile.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_512<B: Coded>(tile: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller's promise: the tile starts with sixteen `d`.
    unsafe { (_mm512_mul_ps(f16s_512(tile), _mm512_set1_ps(B::UNIT)), _mm512_setzero_ps()) }
}

/// # Safety
/// The CPU has AVX-512BW; `tile` points at a tile, `group < 8`, `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_512<B: Coded>(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let at = tile.add(GROUPS + group * GROUP_BYTES + TILE_ROWS * (eighth / 2));
        // A row's scale in both halves of its lane.
        let scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
        let scales = _mm512_mask_blend_epi16(0xAAAA_AAAA, scales, _mm512_slli_epi32::<16>(scales));
        let mut pairs = small_512::<B>(tile, group, eighth);
        for pair in &mut pairs {
            *pair = _mm512_mullo_epi16(*pair, scales);
        }
        pairs
    }
}

/// The levels alone.
///
/// # Safety
/// As [`pairs_512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn small_512<B: Coded>(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
    let levels = const { &wide(&B::LEVELS) };
    // SAFETY: the caller's promise.
    unsafe {
        let levels = _mm512_loadu_si512(levels.as_ptr().cast());
        let mut pairs = nibble::pairs_512(tile.add(GROUPS + group * GROUP_BYTES + CODES + 64 * eighth));
        for pair in &mut pairs {
            *pair = _mm512_permutexvar_epi16(*pair, levels);
        }
        pairs
    }
}

/// What a level of 1 is worth in a group whose halves have one scale.
///
/// # Safety
/// As [`scales_512`]; `group < 8`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn small_scales_512<B: Coded>(tile: *const u8, group: usize) -> (__m512, __m512) {
    // SAFETY: the caller's promise: two times sixteen scales start a group.
    unsafe {
        let at = tile.add(GROUPS + group * GROUP_BYTES);
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())));
        let (d, zero) = scales_512::<B>(tile);
        (_mm512_mul_ps(d, scales), zero)
    }
}

/// # Safety
/// The CPU has AVX2 and F16C; `tile` points at a tile, `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_256<B: Coded>(tile: *const u8, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    unsafe { (_mm256_mul_ps(f16s_256(tile.add(16 * half)), _mm256_set1_ps(B::UNIT)), _mm256_setzero_ps()) }
}

/// # Safety
/// The CPU has AVX2; else as [`pairs_512`], `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_256<B: Coded>(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let group = tile.add(GROUPS + group * GROUP_BYTES);
        let scales = group.add(TILE_ROWS * (eighth / 2) + 8 * half);
        let scales = _mm256_cvtepi8_epi32(_mm_loadl_epi64(scales.cast()));
        let scales = _mm256_blend_epi16::<0b1010_1010>(scales, _mm256_slli_epi32::<16>(scales));
        // Level and scale are both in the high bytes: the high half of their product is `level * scale`.
        let scales = _mm256_slli_epi16::<8>(scales);
        let mut pairs = nibble::pairs_256(group.add(CODES + 64 * eighth + 32 * half));
        for pair in &mut pairs {
            *pair = _mm256_mulhi_epi16(high_levels_256(&B::LEVELS, *pair), scales);
        }
        pairs
    }
}

/// The levels of codes in the low bytes of 16 bits, in their high bytes.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn high_levels_256(levels: &[i8; 16], codes: __m256i) -> __m256i {
    // SAFETY: sixteen levels; an index with its top bit set gives zero.
    unsafe {
        let levels = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast()));
        _mm256_shuffle_epi8(levels, _mm256_or_si256(_mm256_slli_epi16::<8>(codes), _mm256_set1_epi16(0x0080)))
    }
}

/// Gives a format these tiles: with the largest scale times the largest level, [`super::TileFormat::SUM_GROUPS`], as many as
/// leave activations 14 bits, and [`super::TileFormat::OUTLIERS`].
macro_rules! coded {
    ($format:ty, $largest:expr, $sum_groups:expr, $outliers:expr) => {
        impl $crate::tiles::TileFormat for $format {
            const HAS_MIN: bool = false;
            const TILE_BYTES: usize = $crate::tiles::coded::TILE_BYTES;
            const LARGEST: i32 = $largest;
            const SUM_GROUPS: usize = $sum_groups;
            const OUTLIERS: Option<usize> = $outliers;
            const SMALL_LARGEST: i32 =
                $crate::tiles::coded::largest_level(&<Self as $crate::tiles::coded::Coded>::LEVELS);

            fn pack_tile(blocks: &[&[u8]; $crate::tiles::TILE_ROWS], tile: &mut [u8]) {
                $crate::tiles::coded::pack_tile::<Self>(blocks, tile);
            }

            fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
                $crate::tiles::coded::decode_row::<Self>(tile, row, out);
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn scales_512(
                tile: *const u8,
                _span: usize,
            ) -> (std::arch::x86_64::__m512, std::arch::x86_64::__m512) {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::coded::scales_512::<Self>(tile) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [std::arch::x86_64::__m512i; 4] {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::coded::pairs_512::<Self>(tile, group, eighth) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn small_512(tile: *const u8, group: usize, eighth: usize) -> [std::arch::x86_64::__m512i; 4] {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::coded::small_512::<Self>(tile, group, eighth) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn small_scales_512(
                tile: *const u8,
                group: usize,
            ) -> (std::arch::x86_64::__m512, std::arch::x86_64::__m512) {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::coded::small_scales_512::<Self>(tile, group) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn scales_256(
                tile: *const u8,
                _span: usize,
                half: usize,
            ) -> (std::arch::x86_64::__m256, std::arch::x86_64::__m256) {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::coded::scales_256::<Self>(tile, half) }
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
                unsafe { $crate::tiles::coded::pairs_256::<Self>(tile, group, eighth, half) }
            }
        }
    };
}
pub(crate) use coded;
