//! Q4_0: 32 weights, an f16 scale `d`, nibbles q in 0..16: `d * (q - 8)`. Low nibbles are elements 0 to 15, high
//! nibbles 16 to 31.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{Block, Format, TILE_ROWS, f16_at, nibble, pack_f16s, put_f16};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};

pub(crate) enum Q4_0 {}

/// A tile: sixteen scales, then the nibbles.
const QUANTS: usize = 2 * TILE_ROWS;

impl Block for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (i, byte) in block[2..18].iter().enumerate() {
            out[i] = d * (f32::from(byte & 15) - 8.0);
            out[i + 16] = d * (f32::from(byte >> 4) - 8.0);
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 4.6);
    }
}

impl Format for Q4_0 {
    const HAS_MIN: bool = false;
    const TILE_BYTES: usize = QUANTS + nibble::BYTES;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        for (row, block) in blocks.iter().enumerate() {
            nibble::pack_halves(&block[2..], row, &mut tile[QUANTS..]);
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let mut block = [0; Self::BYTES];
        block[..2].copy_from_slice(&tile[2 * row..][..2]);
        nibble::unpack_halves(&tile[QUANTS..], row, &mut block[2..]);
        Self::decode(&block, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, _group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise: the tile starts with sixteen scales.
        unsafe { (f16s_512(tile), _mm512_setzero_ps()) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, _group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pairs = nibble::pairs_512(tile.add(QUANTS + 64 * eighth));
            for pair in &mut pairs {
                *pair = _mm512_sub_epi16(*pair, _mm512_set1_epi16(8));
            }
            pairs
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, _group: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { (f16s_256(tile.add(16 * half)), _mm256_setzero_ps()) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, _group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pairs = nibble::pairs_256(tile.add(QUANTS + 64 * eighth + 32 * half));
            for pair in &mut pairs {
                *pair = _mm256_sub_epi16(*pair, _mm256_set1_epi16(8));
            }
            pairs
        }
    }
}
