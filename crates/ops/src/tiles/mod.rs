//! Tiles: how a CPU with vectors holds packed weights, sixteen neighbouring rows interleaved, so that one vector holds the
//! same weights of sixteen rows. Products then need no sum across lanes, and one vector of scales serves sixteen rows.
//! A tile holds one block of each row and keeps every weight exactly. Formats share their parts: `coded` and `leveled`
//! (4 bits that pick a level), `five_bit` and `two_bit`; what a codebook packs tighter than that takes more bytes here.
//!
//! Inside a tile, 32-bit lanes belong to rows. A lane is unpacked into *pairs*: two 16-bit integers, the weights at k
//! and k + 1, which is what the CPU's paired multiply-add takes. `weight = d * q + m`, with q small enough that a group
//! of products fits a 32-bit sum.

pub(crate) mod coded;
pub(crate) mod five_bit;
pub(crate) mod leveled;
pub(crate) mod nibble;
mod q2_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
pub(crate) mod two_bit;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256i, __m512, __m512i, _mm256_setzero_ps, _mm512_setzero_ps};

use weights::Dtype;

use crate::formats::BlockFormat;

/// Weights per group: activations are scaled once per group.
pub(crate) const GROUP: usize = 32;
/// Rows of a tile: the 32-bit lanes of the widest vector.
pub(crate) const TILE_ROWS: usize = 16;

/// A packed format with tiles; its blocks are whole groups.
pub(crate) trait TileFormat: BlockFormat {
    /// Whether `m` can differ from zero.
    const HAS_MIN: bool;
    const TILE_BYTES: usize;
    /// Weights that share `d` and `m`: a group, or half of one.
    const SPAN: usize = GROUP;
    /// The largest integer, of either sign, that the pairs hold.
    const LARGEST: i32 = 128;
    /// Groups that one sum of integers may run over where there are many rows. They lie in one block and share its `d`
    /// once [`TileFormat::folded_512`] has put their scales into the integers.
    const SUM_GROUPS: usize = 1;
    /// Many rows go in bytes against these weights (`cpu/x86/bytes.rs`), where the CPU has the instruction: one in so many
    /// numbers of a row is left out of the bytes. The fewer bits a weight has the more a model makes of an error, and of one
    /// to three bits so much that they stay with activations in 16.
    const OUTLIERS: Option<usize> = None;
    /// The largest integer, of either sign, that [`TileFormat::small_512`] holds.
    const SMALL_LARGEST: i32 = 128;

    /// Interleaves one block of each of sixteen rows; a missing row is all zero bytes.
    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]);
    /// The weights of one row of a tile, as `decode` gives them.
    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]);

    /// `(d, m)` of sixteen rows for a span. Where a format does not say otherwise, a tile starts with sixteen f16 `d`, and
    /// there is no `m`.
    ///
    /// # Safety
    /// The CPU has AVX-512F and F16C; `tile` points at `TILE_BYTES` readable bytes; `span < LEN / SPAN`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_512(tile: *const u8, _span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise: the tile starts with sixteen scales.
        unsafe { (f16s_512(tile), _mm512_setzero_ps()) }
    }

    /// Weights `8 * eighth..8 * eighth + 8` of a group as four vectors of pairs.
    ///
    /// # Safety
    /// The CPU has AVX-512BW; else as [`TileFormat::scales_512`]; `group < LEN / GROUP`, `eighth < 4`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4];

    /// As [`TileFormat::pairs_512`], for many rows, which pay for more work on a weight: a group's own scale is in the integers,
    /// so that sums can run over several groups.
    ///
    /// # Safety
    /// As [`TileFormat::pairs_512`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::pairs_512(tile, group, eighth) }
    }

    /// `(d, m)` that belong to [`TileFormat::folded_512`].
    ///
    /// # Safety
    /// As [`TileFormat::scales_512`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_scales_512(tile: *const u8, span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { Self::scales_512(tile, span) }
    }

    /// As [`TileFormat::pairs_512`], with integers that fit a byte with a sign.
    ///
    /// # Safety
    /// As [`TileFormat::pairs_512`]; the format is one of those in bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn small_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::pairs_512(tile, group, eighth) }
    }

    /// `(d, m)` that belong to [`TileFormat::small_512`], for a group.
    ///
    /// # Safety
    /// As [`TileFormat::scales_512`]; `group < LEN / GROUP`; the format is one of those in bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn small_scales_512(tile: *const u8, group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { Self::scales_512(tile, group) }
    }

    /// As [`TileFormat::scales_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C; else as [`TileFormat::scales_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scales_256(tile: *const u8, _span: usize, half: usize) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { (f16s_256(tile.add(16 * half)), _mm256_setzero_ps()) }
    }

    /// As [`TileFormat::pairs_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2; else as [`TileFormat::pairs_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4];
}

/// The largest 16-bit activation with which the sum of so many groups stays below 2^31.
pub(crate) fn largest_activation<P: TileFormat>(n_groups: usize) -> i32 {
    (i32::MAX / ((n_groups * GROUP) as i32 * P::LARGEST)).min(i32::from(i16::MAX))
}

/// Whether weights of this type can lie in tiles: all but plain numbers.
pub fn has_tiles(dtype: Dtype) -> bool {
    dtype.block_len() > 1
}

/// Copies the two bytes at `from` of every block to `to..` of the tile, one after another.
pub(crate) fn pack_f16s(blocks: &[&[u8]; TILE_ROWS], from: usize, tile: &mut [u8], to: usize) {
    for (row, block) in blocks.iter().enumerate() {
        tile[to + 2 * row..][..2].copy_from_slice(&block[from..][..2]);
    }
}

/// Sixteen f16 numbers as f32.
///
/// # Safety
/// The CPU has AVX-512F; `at` points at 32 readable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn f16s_512(at: *const u8) -> __m512 {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

/// Eight f16 numbers as f32.
///
/// # Safety
/// The CPU has F16C; `at` points at 16 readable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn f16s_256(at: *const u8) -> __m256 {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}
