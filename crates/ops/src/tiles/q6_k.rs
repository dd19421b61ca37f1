//! Tiles of Q6_K.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, TILE_ROWS, TileFormat, nibble, pack_f16s};
use crate::formats::Q6K;
use crate::formats::block::BlockFormat;
use crate::formats::q6_k::{D, SCALES, put_q, q_at};

/// A tile: sixteen `d`, then eight groups of two times sixteen scales, the low nibbles and the high bit pairs. As an
/// integer a weight is `scale * (q - 32)`, at most 4096: one `d` then serves a whole group.
const GROUPS: usize = 2 * TILE_ROWS;
const LOW_BITS: usize = 2 * TILE_ROWS;
const HIGH_BITS: usize = LOW_BITS + nibble::BYTES;
const GROUP_BYTES: usize = HIGH_BITS + nibble::BYTES / 2;

/// Position of the high bits of weight `k` of a group in its part of a tile: two vectors of sixteen weights, bits
/// `2p..` and `16 + 2p..` of a row's lane for pair p.
fn high_place(row: usize, k: usize) -> (usize, usize) {
    let (vector, pair, second) = (k / 16, k % 16 / 2, k % 2);
    (vector * 64 + row * 4 + second * 2 + pair / 4, 2 * (pair % 4))
}

impl TileFormat for Q6K {
    const HAS_MIN: bool = false;
    const TILE_BYTES: usize = GROUPS + 8 * GROUP_BYTES;
    const LARGEST: i32 = 4096;
    // Leaves activations 13 bits. Zen 4, 512 rows: 2 % faster than 64 weights and 14 bits.
    const SUM_GROUPS: usize = 4;

    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
        tile.fill(0);
        pack_f16s(blocks, D, tile, 0);
        for (row, block) in blocks.iter().enumerate() {
            for g in 0..8 {
                let tile = &mut tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
                tile[row] = block[SCALES + 2 * g];
                tile[TILE_ROWS + row] = block[SCALES + 2 * g + 1];
                let q: [u8; GROUP] = std::array::from_fn(|k| (q_at(block, g * GROUP + k) + 32) as u8);
                for (vector, bytes) in q.chunks_exact(8).enumerate() {
                    let bytes = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                    nibble::put_eight(&mut tile[LOW_BITS..], row, vector, bytes);
                }
                for (k, q) in q.iter().enumerate() {
                    let (byte, shift) = high_place(row, k);
                    tile[HIGH_BITS + byte] |= (q >> 4) << shift;
                }
            }
        }
    }

    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]) {
        let mut block = [0; Self::BYTES];
        block.fill(0);
        block[D..].copy_from_slice(&tile[2 * row..][..2]);
        for g in 0..8 {
            let tile = &tile[GROUPS + g * GROUP_BYTES..][..GROUP_BYTES];
            block[SCALES + 2 * g] = tile[row];
            block[SCALES + 2 * g + 1] = tile[TILE_ROWS + row];
            for k in 0..GROUP {
                let (byte, shift) = high_place(row, k);
                let high = tile[HIGH_BITS + byte] >> shift & 3;
                put_q(&mut block, g * GROUP + k, nibble::get(&tile[LOW_BITS..], row, k) | high << 4);
            }
        }
        Self::decode(&block, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let group = tile.add(GROUPS + group * GROUP_BYTES);
            // A row's scale in both halves of its lane.
            let scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(group.add(TILE_ROWS * (eighth / 2)).cast()));
            let scales = _mm512_mask_blend_epi16(0xAAAA_AAAA, scales, _mm512_slli_epi32::<16>(scales));
            let low = nibble::pairs_512(group.add(LOW_BITS + 64 * eighth));
            let high = _mm512_loadu_si512(group.add(HIGH_BITS + 64 * (eighth / 2)).cast());
            let high = if eighth.is_multiple_of(2) { high } else { _mm512_srli_epi32::<8>(high) };
            let mask = _mm512_set1_epi32(0x0030_0030);
            let high = [_mm512_slli_epi32::<4>(high), _mm512_slli_epi32::<2>(high), high, _mm512_srli_epi32::<2>(high)];
            let mut pairs = low;
            for i in 0..4 {
                let q = _mm512_or_si512(low[i], _mm512_and_si512(high[i], mask));
                pairs[i] = _mm512_mullo_epi16(_mm512_sub_epi16(q, _mm512_set1_epi16(32)), scales);
            }
            pairs
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = tile.add(GROUPS + group * GROUP_BYTES + TILE_ROWS * (eighth / 2) + 8 * half);
            let scales = _mm256_cvtepi8_epi32(_mm_loadl_epi64(scales.cast()));
            let scales = _mm256_blend_epi16::<0b1010_1010>(scales, _mm256_slli_epi32::<16>(scales));
            let group = tile.add(GROUPS + group * GROUP_BYTES + 32 * half);
            let low = nibble::pairs_256(group.add(LOW_BITS + 64 * eighth));
            let high = _mm256_loadu_si256(group.add(HIGH_BITS + 64 * (eighth / 2)).cast());
            let high = if eighth.is_multiple_of(2) { high } else { _mm256_srli_epi32::<8>(high) };
            let mask = _mm256_set1_epi32(0x0030_0030);
            let high = [_mm256_slli_epi32::<4>(high), _mm256_slli_epi32::<2>(high), high, _mm256_srli_epi32::<2>(high)];
            let mut pairs = low;
            for i in 0..4 {
                let q = _mm256_or_si256(low[i], _mm256_and_si256(high[i], mask));
                pairs[i] = _mm256_mullo_epi16(_mm256_sub_epi16(q, _mm256_set1_epi16(32)), scales);
            }
            pairs
        }
    }
}
