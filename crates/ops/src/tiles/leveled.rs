//! How tiles hold the 4-bit formats that pick levels and have a scale of 16 bits for every span of 16 or 32 weights:
//! `weight = d * level`. IQ4_NL, MXFP4, NVFP4; the tile of a block is its scales, then its codes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::coded::{codes_of, find_codes};
#[cfg(target_arch = "x86_64")]
use super::coded::{high_levels_256, wide};
use super::{GROUP, TILE_ROWS, nibble};
use crate::formats::block::BlockFormat;

/// A format that fits these tiles.
pub(crate) trait Leveled: BlockFormat {
    const LEVELS: [i8; 16];
    /// Weights that share a scale: 16 or 32.
    const SPAN: usize;
    /// How 16 bits hold a scale exactly.
    const SCALE_BITS: ScaleBits;
    /// What a level of 1 is worth in a span.
    fn scale(block: &[u8], span: usize) -> f32;
}

#[derive(Copy, Clone, Eq, PartialEq)]
pub(crate) enum ScaleBits {
    F16,
    /// For powers of two of any size.
    Bf16,
}

const SCALES_BYTES: usize = 2 * TILE_ROWS;

const fn codes_at<B: Leveled>() -> usize {
    B::LEN / B::SPAN * SCALES_BYTES
}

pub(crate) const fn tile_bytes<B: Leveled>() -> usize {
    codes_at::<B>() + B::LEN / GROUP * nibble::BYTES
}

fn to_bits(kind: ScaleBits, scale: f32) -> u16 {
    match kind {
        ScaleBits::F16 => half::f16::from_f32(scale).to_bits(),
        ScaleBits::Bf16 => half::bf16::from_f32(scale).to_bits(),
    }
}

fn from_bits(kind: ScaleBits, bits: u16) -> f32 {
    match kind {
        ScaleBits::F16 => half::f16::from_bits(bits).to_f32_const(),
        ScaleBits::Bf16 => half::bf16::from_bits(bits).to_f32_const(),
    }
}

pub(crate) fn pack_tile<B: Leveled>(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let table = const { &codes_of(&B::LEVELS) };
    let (mut values, mut codes) = ([0.0; 64], [0; 64]);
    for (row, block) in blocks.iter().enumerate() {
        B::decode(block, &mut values[..B::LEN]);
        for span in 0..B::LEN / B::SPAN {
            let scale = B::scale(block, span);
            let at = span * SCALES_BYTES + 2 * row;
            tile[at..at + 2].copy_from_slice(&to_bits(B::SCALE_BITS, scale).to_le_bytes());
            let (values, codes) = (&values[span * B::SPAN..][..B::SPAN], &mut codes[span * B::SPAN..][..B::SPAN]);
            find_codes(table, values, scale, codes);
        }
        for (g, codes) in codes[..B::LEN].chunks_exact(GROUP).enumerate() {
            nibble::put_codes(&mut tile[codes_at::<B>() + g * nibble::BYTES..][..nibble::BYTES], row, codes);
        }
    }
}

pub(crate) fn decode_row<B: Leveled>(tile: &[u8], row: usize, out: &mut [f32]) {
    for (k, x) in out.iter_mut().enumerate() {
        let at = k / B::SPAN * SCALES_BYTES + 2 * row;
        let scale = from_bits(B::SCALE_BITS, u16::from_le_bytes([tile[at], tile[at + 1]]));
        let codes = &tile[codes_at::<B>() + k / GROUP * nibble::BYTES..][..nibble::BYTES];
        *x = scale * f32::from(B::LEVELS[usize::from(nibble::get(codes, row, k % GROUP))]);
    }
}

/// # Safety
/// The CPU has AVX-512F; `tile` points at a tile of at least `span + 1` spans.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_512<B: Leveled>(tile: *const u8, span: usize) -> (__m512, __m512) {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_loadu_si256(tile.add(span * SCALES_BYTES).cast());
        let d = match B::SCALE_BITS {
            ScaleBits::F16 => _mm512_cvtph_ps(bits),
            ScaleBits::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
        };
        (d, _mm512_setzero_ps())
    }
}

/// # Safety
/// The CPU has AVX-512BW; `tile` points at a tile with that group, `eighth < 4`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_512<B: Leveled>(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
    let levels = const { &wide(&B::LEVELS) };
    // SAFETY: the caller's promise.
    unsafe {
        let levels = _mm512_loadu_si512(levels.as_ptr().cast());
        let mut pairs = nibble::pairs_512(tile.add(codes_at::<B>() + group * nibble::BYTES + 64 * eighth));
        for pair in &mut pairs {
            *pair = _mm512_permutexvar_epi16(*pair, levels);
        }
        pairs
    }
}

/// # Safety
/// The CPU has AVX2 and F16C; else as [`scales_512`], `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scales_256<B: Leveled>(tile: *const u8, span: usize, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm_loadu_si128(tile.add(span * SCALES_BYTES + 16 * half).cast());
        let d = match B::SCALE_BITS {
            ScaleBits::F16 => _mm256_cvtph_ps(bits),
            ScaleBits::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))),
        };
        (d, _mm256_setzero_ps())
    }
}

/// # Safety
/// The CPU has AVX2; else as [`pairs_512`], `half < 2`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_256<B: Leveled>(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let at = codes_at::<B>() + group * nibble::BYTES + 64 * eighth + 32 * half;
        let mut pairs = nibble::pairs_256(tile.add(at));
        for pair in &mut pairs {
            *pair = _mm256_srai_epi16::<8>(high_levels_256(&B::LEVELS, *pair));
        }
        pairs
    }
}

/// Gives a format these tiles.
macro_rules! leveled {
    ($format:ty) => {
        impl $crate::tiles::TileFormat for $format {
            const HAS_MIN: bool = false;
            const TILE_BYTES: usize = $crate::tiles::leveled::tile_bytes::<Self>();
            const SPAN: usize = <Self as $crate::tiles::leveled::Leveled>::SPAN;

            fn pack_tile(blocks: &[&[u8]; $crate::tiles::TILE_ROWS], tile: &mut [u8]) {
                $crate::tiles::leveled::pack_tile::<Self>(blocks, tile);
            }

            fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
                $crate::tiles::leveled::decode_row::<Self>(tile, row, out);
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn scales_512(
                tile: *const u8,
                span: usize,
            ) -> (std::arch::x86_64::__m512, std::arch::x86_64::__m512) {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::leveled::scales_512::<Self>(tile, span) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [std::arch::x86_64::__m512i; 4] {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::leveled::pairs_512::<Self>(tile, group, eighth) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn scales_256(
                tile: *const u8,
                span: usize,
                half: usize,
            ) -> (std::arch::x86_64::__m256, std::arch::x86_64::__m256) {
                // SAFETY: the caller's promise.
                unsafe { $crate::tiles::leveled::scales_256::<Self>(tile, span, half) }
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
                unsafe { $crate::tiles::leveled::pairs_256::<Self>(tile, group, eighth, half) }
            }
        }
    };
}
pub(crate) use leveled;
