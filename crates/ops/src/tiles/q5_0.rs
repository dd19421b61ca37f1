//! Tiles of Q5_0.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, five_bit, pack_f16s};
use crate::formats::Q5_0;
use crate::formats::block::{f16_at, u32_at};

/// A tile: sixteen scales, then the quants.
const QUANTS: usize = 2 * TILE_ROWS;
const TILE: usize = QUANTS + five_bit::BYTES;

impl TileFormat for Q5_0 {
    const HAS_MIN: bool = false;
    const TILE_BYTES: usize = TILE;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        for (row, block) in blocks.iter().enumerate() {
            let high = u32_at(block, 2);
            let quants: [u8; GROUP] =
                std::array::from_fn(|i| (block[6 + i % 16] >> (i / 16 * 4) & 15) | ((high >> i & 1) as u8) << 4);
            five_bit::put(&mut tile[QUANTS..], row, &quants);
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let d = f16_at(tile, 2 * row);
        for (k, x) in out.iter_mut().enumerate() {
            *x = d * (f32::from(five_bit::get(&tile[QUANTS..], row, k)) - 16.0);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, _group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pairs = five_bit::pairs_512(tile.add(QUANTS), eighth);
            for pair in &mut pairs {
                *pair = _mm512_sub_epi16(*pair, _mm512_set1_epi16(16));
            }
            pairs
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, _group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pairs = five_bit::pairs_256(tile.add(QUANTS), eighth, half);
            for pair in &mut pairs {
                *pair = _mm256_sub_epi16(*pair, _mm256_set1_epi16(16));
            }
            pairs
        }
    }
}
