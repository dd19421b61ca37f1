//! Tiles of Q4_0.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{TILE_ROWS, TileFormat, nibble, pack_f16s};
use crate::formats::Q4_0;
use crate::formats::block::BlockFormat;

/// A tile: sixteen scales, then the nibbles.
const QUANTS: usize = 2 * TILE_ROWS;

impl TileFormat for Q4_0 {
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
