//! Tiles of Q5_1.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, five_bit, pack_f16s};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};
use crate::formats::Q5_1;
use crate::formats::block::{f16_at, u32_at};

/// A tile: sixteen scales, sixteen minima, then the quants.
const MINS: usize = 2 * TILE_ROWS;
const QUANTS: usize = 2 * MINS;
const TILE: usize = QUANTS + five_bit::BYTES;

impl TileFormat for Q5_1 {
    const HAS_MIN: bool = true;
    const TILE_BYTES: usize = TILE;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        pack_f16s(blocks, 2, tile, MINS);
        for (row, block) in blocks.iter().enumerate() {
            let high = u32_at(block, 4);
            let quants: [u8; GROUP] =
                std::array::from_fn(|i| (block[8 + i % 16] >> (i / 16 * 4) & 15) | ((high >> i & 1) as u8) << 4);
            five_bit::put(&mut tile[QUANTS..], row, &quants);
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let (d, m) = (f16_at(tile, 2 * row), f16_at(tile, MINS + 2 * row));
        for (k, x) in out.iter_mut().enumerate() {
            *x = d * f32::from(five_bit::get(&tile[QUANTS..], row, k)) + m;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, _span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { (f16s_512(tile), f16s_512(tile.add(MINS))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, _group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { five_bit::pairs_512(tile.add(QUANTS), eighth) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, _span: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { (f16s_256(tile.add(16 * half)), f16s_256(tile.add(MINS + 16 * half))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, _group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe { five_bit::pairs_256(tile.add(QUANTS), eighth, half) }
    }
}
