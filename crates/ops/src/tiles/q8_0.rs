//! Tiles of Q8_0.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, pack_f16s};
use crate::formats::Q8_0;
use crate::formats::block::BlockFormat;

/// A tile: sixteen scales, then the bytes.
const QUANTS: usize = 2 * TILE_ROWS;

impl TileFormat for Q8_0 {
    const HAS_MIN: bool = false;
    const TILE_BYTES: usize = QUANTS + TILE_ROWS * GROUP;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        for (row, block) in blocks.iter().enumerate() {
            for (k, &byte) in block[2..].iter().enumerate() {
                tile[place(row, k)] = byte;
            }
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let mut block = [0; Self::BYTES];
        block[..2].copy_from_slice(&tile[2 * row..][..2]);
        for (k, byte) in block[2..].iter_mut().enumerate() {
            *byte = tile[place(row, k)];
        }
        Self::decode(&block, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, _group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise: four weights of sixteen rows take 64 bytes.
        unsafe {
            let at = tile.add(QUANTS + 128 * eighth);
            let lanes = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())];
            let low = |lanes| _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(lanes));
            let high = |lanes| _mm512_srai_epi16::<8>(lanes);
            [low(lanes[0]), high(lanes[0]), low(lanes[1]), high(lanes[1])]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, _group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let at = tile.add(QUANTS + 128 * eighth + 32 * half);
            let lanes = [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(64).cast())];
            let low = |lanes| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(lanes));
            let high = |lanes| _mm256_srai_epi16::<8>(lanes);
            [low(lanes[0]), high(lanes[0]), low(lanes[1]), high(lanes[1])]
        }
    }
}

/// Position of byte `k` of a row in a tile: four weights a lane, 0 and 1 in its low bytes of 16 bits, 2 and 3 in the
/// high ones, so that a shift makes a pair.
fn place(row: usize, k: usize) -> usize {
    let (vector, pair, second) = (k / 4, k % 4 / 2, k % 2);
    QUANTS + vector * 64 + row * 4 + second * 2 + pair
}
