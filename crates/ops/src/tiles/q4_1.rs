//! Tiles of Q4_1.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{TILE_ROWS, TileFormat, nibble, pack_f16s};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};
use crate::formats::Q4_1;
use crate::formats::block::BlockFormat;

/// A tile: sixteen scales, sixteen minima, then the nibbles.
const MINS: usize = 2 * TILE_ROWS;
const QUANTS: usize = 2 * MINS;

impl TileFormat for Q4_1 {
    const HAS_MIN: bool = true;
    const TILE_BYTES: usize = QUANTS + nibble::BYTES;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        pack_f16s(blocks, 2, tile, MINS);
        for (row, block) in blocks.iter().enumerate() {
            nibble::pack_halves(&block[4..], row, &mut tile[QUANTS..]);
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let mut block = [0; Self::BYTES];
        block[..2].copy_from_slice(&tile[2 * row..][..2]);
        block[2..4].copy_from_slice(&tile[MINS + 2 * row..][..2]);
        nibble::unpack_halves(&tile[QUANTS..], row, &mut block[4..]);
        Self::decode(&block, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, _group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise: the tile starts with sixteen scales and sixteen minima.
        unsafe { (f16s_512(tile), f16s_512(tile.add(MINS))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, _group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { nibble::pairs_512(tile.add(QUANTS + 64 * eighth)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, _group: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { (f16s_256(tile.add(16 * half)), f16s_256(tile.add(MINS + 16 * half))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, _group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe { nibble::pairs_256(tile.add(QUANTS + 64 * eighth + 32 * half)) }
    }
}
