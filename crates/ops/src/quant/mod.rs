//! Block formats: what the bits inside a block mean. One file per format.
//!
//! A format has up to three faces:
//! - `Block`: `decode`, exact, the truth other programs agree on; every format has it;
//! - `Encode`: a quantiser (`encode/`);
//! - `Format`: the *tile*: sixteen neighbouring rows interleaved, so that one vector holds the same weights of sixteen
//!   rows. Products then need no sum across lanes, and one vector of scales serves sixteen rows. A tile holds one block
//!   of each row and keeps every weight exactly. Many formats share a kind of tile: `coded` and `leveled` (4 bits that
//!   pick a level), `five` and `crumb` (5 and 2 bits); what a codebook packs tighter than that takes more bytes here.
//!
//! Inside a tile, 32-bit lanes belong to rows. A lane is unpacked into *pairs*: two 16-bit integers, the weights at k
//! and k + 1, which is what the CPU's paired multiply-add takes. `weight = d * q + m`, with q small enough that a group
//! of products fits a 32-bit sum.

mod block;
mod coded;
mod crumb;
mod encode;
mod five;
mod float;
mod grids;
mod integer;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod leveled;
mod mxfp4;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod nibble;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

pub(crate) use block::{Block, f16_at, put_f16};
pub use encode::{quantize, quantize_for};
pub(crate) use float::{Bf16, F16, F32, Float};
pub(crate) use integer::{F64, I8, I16, I32, I64};
pub(crate) use iq1_m::Iq1M;
pub(crate) use iq1_s::Iq1S;
pub(crate) use iq2_s::Iq2S;
pub(crate) use iq2_xs::Iq2Xs;
pub(crate) use iq2_xxs::Iq2Xxs;
pub(crate) use iq3_s::Iq3S;
pub(crate) use iq3_xxs::Iq3Xxs;
pub(crate) use iq4_nl::Iq4Nl;
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use mxfp4::Mxfp4;
pub(crate) use nvfp4::Nvfp4;
pub(crate) use q1_0::Q1_0;
pub(crate) use q2_0::Q2_0;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;
pub(crate) use tq1_0::Tq1_0;
pub(crate) use tq2_0::Tq2_0;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256i, __m512, __m512i};

use weights::Dtype;

/// Weights per group: activations are scaled once per group.
pub(crate) const GROUP: usize = 32;
/// Rows of a tile: the 32-bit lanes of the widest vector.
pub(crate) const TILE_ROWS: usize = 16;

/// A packed format with tiles; its blocks are whole groups.
pub(crate) trait Format: Block {
    /// Whether `m` can differ from zero.
    const HAS_MIN: bool;
    const TILE_BYTES: usize;
    /// Weights that share `d` and `m`: a group, or half of one.
    const SPAN: usize = GROUP;
    /// The largest integer, of either sign, that the pairs hold.
    const LARGEST: i32 = 128;
    /// Groups that one sum of integers may run over where there are many rows. They lie in one block and share its `d`
    /// once [`Format::folded_512`] has put their scales into the integers.
    const SUM_GROUPS: usize = 1;
    /// Many rows go in bytes against these weights (`matmul::bytes`), where the CPU has the instruction: one in so many
    /// numbers of a row is left out of the bytes. The fewer bits a weight has the more a model makes of an error, and of one
    /// to three bits so much that they stay with activations in 16.
    const OUTLIERS: Option<usize> = None;
    /// The largest integer, of either sign, that [`Format::small_512`] holds.
    const SMALL_LARGEST: i32 = 128;

    /// Interleaves one block of each of sixteen rows; a missing row is all zero bytes.
    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]);
    /// The weights of one row of a tile, as `decode` gives them.
    fn decode_row(tile: &[u8], row: usize, out: &mut [f32]);

    /// `(d, m)` of sixteen rows for a span.
    ///
    /// # Safety
    /// The CPU has AVX-512F and F16C; `tile` points at `TILE_BYTES` readable bytes; `span < LEN / SPAN`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn scales_512(tile: *const u8, span: usize) -> (__m512, __m512);

    /// Weights `8 * eighth..8 * eighth + 8` of a group as four vectors of pairs.
    ///
    /// # Safety
    /// The CPU has AVX-512BW; else as [`Format::scales_512`]; `group < LEN / GROUP`, `eighth < 4`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4];

    /// As [`Format::pairs_512`], for many rows, which pay for more work on a weight: a group's own scale is in the integers,
    /// so that sums can run over several groups.
    ///
    /// # Safety
    /// As [`Format::pairs_512`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::pairs_512(tile, group, eighth) }
    }

    /// `(d, m)` that belong to [`Format::folded_512`].
    ///
    /// # Safety
    /// As [`Format::scales_512`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn folded_scales_512(tile: *const u8, span: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { Self::scales_512(tile, span) }
    }

    /// As [`Format::pairs_512`], with integers that fit a byte with a sign.
    ///
    /// # Safety
    /// As [`Format::pairs_512`]; the format is one of those in bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn small_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::pairs_512(tile, group, eighth) }
    }

    /// `(d, m)` that belong to [`Format::small_512`], for a group.
    ///
    /// # Safety
    /// As [`Format::scales_512`]; `group < LEN / GROUP`; the format is one of those in bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn small_scales_512(tile: *const u8, group: usize) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { Self::scales_512(tile, group) }
    }

    /// As [`Format::scales_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C; else as [`Format::scales_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn scales_256(tile: *const u8, span: usize, half: usize) -> (__m256, __m256);

    /// As [`Format::pairs_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2; else as [`Format::pairs_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4];
}

/// The largest 16-bit activation with which the sum of so many groups stays below 2^31.
pub(crate) fn largest_activation<P: Format>(n_groups: usize) -> i32 {
    (i32::MAX / ((n_groups * GROUP) as i32 * P::LARGEST)).min(i32::from(i16::MAX))
}

/// Runs one of two bodies with a name bound to the format of `$dtype`: of a packed format, of plain numbers.
macro_rules! for_block {
    ($dtype:expr, $block:ident => $body:expr, $float:ident => $float_body:expr) => {
        match $dtype {
            weights::Dtype::F32 => {
                type $float = $crate::quant::F32;
                $float_body
            }
            weights::Dtype::F16 => {
                type $float = $crate::quant::F16;
                $float_body
            }
            weights::Dtype::BF16 => {
                type $float = $crate::quant::Bf16;
                $float_body
            }
            weights::Dtype::I8 => {
                type $float = $crate::quant::I8;
                $float_body
            }
            weights::Dtype::I16 => {
                type $float = $crate::quant::I16;
                $float_body
            }
            weights::Dtype::I32 => {
                type $float = $crate::quant::I32;
                $float_body
            }
            weights::Dtype::I64 => {
                type $float = $crate::quant::I64;
                $float_body
            }
            weights::Dtype::F64 => {
                type $float = $crate::quant::F64;
                $float_body
            }
            weights::Dtype::Q4_0 => {
                type $block = $crate::quant::Q4_0;
                $body
            }
            weights::Dtype::Q4_1 => {
                type $block = $crate::quant::Q4_1;
                $body
            }
            weights::Dtype::Q8_0 => {
                type $block = $crate::quant::Q8_0;
                $body
            }
            weights::Dtype::Q4K => {
                type $block = $crate::quant::Q4K;
                $body
            }
            weights::Dtype::Q6K => {
                type $block = $crate::quant::Q6K;
                $body
            }
            weights::Dtype::Q5_0 => {
                type $block = $crate::quant::Q5_0;
                $body
            }
            weights::Dtype::Q5_1 => {
                type $block = $crate::quant::Q5_1;
                $body
            }
            weights::Dtype::Q2K => {
                type $block = $crate::quant::Q2K;
                $body
            }
            weights::Dtype::Q3K => {
                type $block = $crate::quant::Q3K;
                $body
            }
            weights::Dtype::Q5K => {
                type $block = $crate::quant::Q5K;
                $body
            }
            weights::Dtype::IQ2XXS => {
                type $block = $crate::quant::Iq2Xxs;
                $body
            }
            weights::Dtype::IQ2XS => {
                type $block = $crate::quant::Iq2Xs;
                $body
            }
            weights::Dtype::IQ3XXS => {
                type $block = $crate::quant::Iq3Xxs;
                $body
            }
            weights::Dtype::IQ1S => {
                type $block = $crate::quant::Iq1S;
                $body
            }
            weights::Dtype::IQ4NL => {
                type $block = $crate::quant::Iq4Nl;
                $body
            }
            weights::Dtype::IQ3S => {
                type $block = $crate::quant::Iq3S;
                $body
            }
            weights::Dtype::IQ2S => {
                type $block = $crate::quant::Iq2S;
                $body
            }
            weights::Dtype::IQ4XS => {
                type $block = $crate::quant::Iq4Xs;
                $body
            }
            weights::Dtype::IQ1M => {
                type $block = $crate::quant::Iq1M;
                $body
            }
            weights::Dtype::TQ1_0 => {
                type $block = $crate::quant::Tq1_0;
                $body
            }
            weights::Dtype::TQ2_0 => {
                type $block = $crate::quant::Tq2_0;
                $body
            }
            weights::Dtype::MXFP4 => {
                type $block = $crate::quant::Mxfp4;
                $body
            }
            weights::Dtype::NVFP4 => {
                type $block = $crate::quant::Nvfp4;
                $body
            }
            weights::Dtype::Q1_0 => {
                type $block = $crate::quant::Q1_0;
                $body
            }
            weights::Dtype::Q2_0 => {
                type $block = $crate::quant::Q2_0;
                $body
            }
        }
    };
}
pub(crate) use for_block;

/// Whether weights of this type can lie in tiles: all but plain numbers.
pub fn has_tiles(dtype: Dtype) -> bool {
    dtype.block_len() > 1
}

/// Decodes whole blocks into numbers, exactly as `gguf` does.
///
/// # Panics
/// If `bytes` and `out` do not hold the same whole blocks.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "bytes for {} elements of {dtype}", out.len());
    for_block!(dtype,
        P => bytes.chunks_exact(P::BYTES).zip(out.chunks_exact_mut(P::LEN)).for_each(|(b, o)| P::decode(b, o)),
        P => bytes.chunks_exact(P::BYTES).zip(out).for_each(|(b, o)| *o = P::decode(b))
    );
}

/// Copies the two bytes at `from` of every block to `to..` of the tile, one after another.
fn pack_f16s(blocks: &[&[u8]; TILE_ROWS], from: usize, tile: &mut [u8], to: usize) {
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
unsafe fn f16s_512(at: *const u8) -> __m512 {
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
unsafe fn f16s_256(at: *const u8) -> __m256 {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

/// Fills blocks with random weights of about the given standard deviation, without quantising anything: random bits
/// for the quants, fixed scales.
pub fn randomize(dtype: Dtype, std: f32, mut bits: impl FnMut() -> u64, bytes: &mut [u8]) {
    if dtype.block_len() == 1 {
        let mut value = [0.0];
        for bytes in bytes.chunks_exact_mut(dtype.block_bytes()) {
            // Uniform, so that no table or logarithm is needed: sqrt(3) wide for a deviation of 1.
            value[0] = ((bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * std * 1.732;
            quantize(dtype, &value, bytes);
        }
        return;
    }
    for chunk in bytes.chunks_mut(8) {
        let random = bits().to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    for_block!(dtype,
        P => bytes.chunks_exact_mut(P::BYTES).for_each(|block| P::put_scales(block, std)),
        P => unreachable!("{:?}: plain numbers were filled above", P::NO_TILES)
    );
}
