//! Tiles of Q5_K.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::q4_k::{fold_512, folded_scales_512, scales_and_mins_256, scales_and_mins_512};
use super::{GROUP, TILE_ROWS, TileFormat, five_bit, pack_f16s};
use crate::formats::Q5K;
use crate::formats::block::f16_at;
use crate::formats::q4_k::scale_and_min;

/// A tile: as Q4_K's, with quants of five bits.
const DMINS: usize = 2 * TILE_ROWS;
const GROUPS: usize = 2 * DMINS;
const GROUP_BYTES: usize = 2 * TILE_ROWS + five_bit::BYTES;
/// As Q4_K's, for five bits.
const CENTER: i32 = 16;
const TILE: usize = GROUPS + 8 * GROUP_BYTES;

impl TileFormat for Q5K {
    const HAS_MIN: bool = true;
    const LARGEST: i32 = 63 * CENTER;
    const SUM_GROUPS: usize = 4;
    const OUTLIERS: Option<usize> = Some(32);
    const SMALL_LARGEST: i32 = 31;
    const TILE_BYTES: usize = TILE;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        pack_f16s(blocks, 2, tile, DMINS);
        for (row, block) in blocks.iter().enumerate() {
            let packed = block[4..16].try_into().expect("twelve bytes");
            for g in 0..8 {
                let tile = &mut tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
                (tile[row], tile[TILE_ROWS + row]) = scale_and_min(packed, g);
                let quants: [u8; GROUP] = std::array::from_fn(|i| {
                    (block[48 + g / 2 * 32 + i] >> (g % 2 * 4) & 15) | (block[16 + i] >> g & 1) << 4
                });
                five_bit::put(&mut tile[2 * TILE_ROWS..], row, &quants);
            }
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let (d, dmin) = (f16_at(tile, 2 * row), f16_at(tile, DMINS + 2 * row));
        for (k, x) in out.iter_mut().enumerate() {
            let group = &tile[GROUPS + k / GROUP * GROUP_BYTES..][..GROUP_BYTES];
            let q = f32::from(five_bit::get(&group[2 * TILE_ROWS..], row, k % GROUP));
            *x = (d * f32::from(group[row])) * q - dmin * f32::from(group[TILE_ROWS + row]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { scales_and_mins_512(tile, tile.add(GROUPS + span * GROUP_BYTES)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { five_bit::pairs_512(tile.add(GROUPS + group * GROUP_BYTES + 2 * TILE_ROWS), eighth) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { fold_512(Self::pairs_512(tile, group, eighth), CENTER, tile.add(GROUPS + group * GROUP_BYTES)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_scales_512(tile: *const u8, span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { folded_scales_512(Self::scales_512(tile, span), CENTER, tile) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, span: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { scales_and_mins_256(tile, tile.add(GROUPS + span * GROUP_BYTES), half) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe { five_bit::pairs_256(tile.add(GROUPS + group * GROUP_BYTES + 2 * TILE_ROWS), eighth, half) }
    }
}
