//! Q5_1: 32 weights, an f16 scale `d` and an f16 minimum `m`, a fifth bit for each in 4 bytes, then nibbles:
//! `d * q + m`. Low nibbles are elements 0 to 15, high nibbles 16 to 31.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::block::{Block, f16_at, put_f16, u32_at};
use super::{Format, GROUP, TILE_ROWS, five, pack_f16s};
#[cfg(target_arch = "x86_64")]
use super::{f16s_256, f16s_512};

pub(crate) enum Q5_1 {}

impl Block for Q5_1 {
    const LEN: usize = 32;
    const BYTES: usize = 24;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        for i in 0..16 {
            let byte = block[8 + i];
            let q = |low: u8, i: usize| f32::from(low | (((high >> i & 1) as u8) << 4));
            out[i] = d * q(byte & 15, i) + m;
            out[i + 16] = d * q(byte >> 4, i + 16) + m;
        }
    }

    fn put_scales(block: &mut [u8], std: f32) {
        put_f16(block, 0, std / 9.2);
        put_f16(block, 2, -15.5 * std / 9.2);
    }
}

/// A tile: sixteen scales, sixteen minima, then the quants.
const MINS: usize = 2 * TILE_ROWS;
const QUANTS: usize = 2 * MINS;
const TILE: usize = QUANTS + five::BYTES;

impl Format for Q5_1 {
    const HAS_MIN: bool = true;
    const TILE_BYTES: usize = TILE;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        pack_f16s(blocks, 0, tile, 0);
        pack_f16s(blocks, 2, tile, MINS);
        for (row, block) in blocks.iter().enumerate() {
            let high = u32_at(block, 4);
            let quants: [u8; GROUP] =
                std::array::from_fn(|i| (block[8 + i % 16] >> (i / 16 * 4) & 15) | ((high >> i & 1) as u8) << 4);
            five::put(&mut tile[QUANTS..], row, &quants);
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let (d, m) = (f16_at(tile, 2 * row), f16_at(tile, MINS + 2 * row));
        for (k, x) in out.iter_mut().enumerate() {
            *x = d * f32::from(five::get(&tile[QUANTS..], row, k)) + m;
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
        unsafe { five::pairs_512(tile.add(QUANTS), eighth) }
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
        unsafe { five::pairs_256(tile.add(QUANTS), eighth, half) }
    }
}
