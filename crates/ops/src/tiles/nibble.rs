//! How tiles hold nibbles: 256 bytes for 32 weights of sixteen rows, in four vectors of eight weights each.
//!
//! In the 32-bit lane of a row, bits `4p..4p + 4` are weight `2p` and bits `16 + 4p..` weight `2p + 1` of the eight, so
//! that a shift and a mask make a pair.

use super::{GROUP, TILE_ROWS};

/// Bytes of a group's nibbles in a tile.
pub(crate) const BYTES: usize = TILE_ROWS * GROUP / 2;

/// Position of nibble `k` of a row in a group's part of a tile: `(byte, shift)`.
fn place(row: usize, k: usize) -> (usize, usize) {
    let (vector, pair, second) = (k / 8, k % 8 / 2, k % 2);
    (vector * 64 + row * 4 + second * 2 + pair / 2, 4 * (pair % 2))
}

/// The low nibbles of bytes 0, 2, 4 and 6, side by side.
fn gather(bytes: u64) -> u32 {
    let pairs = bytes & 0x000F_000F_000F_000F;
    let quads = (pairs | pairs >> 12) & 0x0000_00FF_0000_00FF;
    (quads | quads >> 24) as u32 & 0xFFFF
}

/// Sets weights `8 * vector..8 * vector + 8` of a row to the low nibbles of eight bytes.
pub(crate) fn put_eight(tile: &mut [u8], row: usize, vector: usize, bytes: u64) {
    let lane = gather(bytes) | gather(bytes >> 8) << 16;
    tile[vector * 64 + row * 4..][..4].copy_from_slice(&lane.to_le_bytes());
}

/// Sets the 32 weights of a row in a group's part of a tile to the low nibbles of as many bytes.
pub(crate) fn put_codes(tile: &mut [u8], row: usize, codes: &[u8]) {
    for (vector, bytes) in codes.chunks_exact(8).enumerate() {
        put_eight(tile, row, vector, u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    }
}

pub(crate) fn get(tile: &[u8], row: usize, k: usize) -> u8 {
    let (byte, shift) = place(row, k);
    tile[byte] >> shift & 15
}

/// Low nibbles of 16 bytes are weights 0 to 15 of the group, high nibbles 16 to 31: the order of Q4_0 and Q4_1.
pub(crate) fn pack_halves(bytes: &[u8], row: usize, tile: &mut [u8]) {
    for (half, bytes) in bytes.chunks_exact(8).enumerate() {
        let bytes = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        put_eight(tile, row, half, bytes);
        put_eight(tile, row, 2 + half, bytes >> 4);
    }
}

pub(crate) fn unpack_halves(tile: &[u8], row: usize, bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = get(tile, row, i) | get(tile, row, i + 16) << 4;
    }
}

/// # Safety
/// The CPU has AVX-512F; `at` points at 64 readable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_512(at: *const u8) -> [std::arch::x86_64::__m512i; 4] {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = _mm512_loadu_si512(at.cast());
        let mask = _mm512_set1_epi32(0x000F_000F);
        [
            _mm512_and_si512(lanes, mask),
            _mm512_and_si512(_mm512_srli_epi32::<4>(lanes), mask),
            _mm512_and_si512(_mm512_srli_epi32::<8>(lanes), mask),
            _mm512_and_si512(_mm512_srli_epi32::<12>(lanes), mask),
        ]
    }
}

/// # Safety
/// The CPU has AVX2; `at` points at 32 readable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn pairs_256(at: *const u8) -> [std::arch::x86_64::__m256i; 4] {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = _mm256_loadu_si256(at.cast());
        let mask = _mm256_set1_epi32(0x000F_000F);
        [
            _mm256_and_si256(lanes, mask),
            _mm256_and_si256(_mm256_srli_epi32::<4>(lanes), mask),
            _mm256_and_si256(_mm256_srli_epi32::<8>(lanes), mask),
            _mm256_and_si256(_mm256_srli_epi32::<12>(lanes), mask),
        ]
    }
}
