//! Block formats: what the bits inside a block mean. One file per format.
//!
//! Each format has three faces:
//! - `decode`: exact, the truth other programs agree on;
//! - `encode`: a plain quantiser;
//! - the *tile*: sixteen neighbouring rows interleaved, so that one vector holds the same weights of sixteen rows.
//!   Products then need no sum across lanes, and one vector of scales serves sixteen rows. A tile holds one block of
//!   each row, takes (nearly) the same bytes, and keeps every weight exactly.
//!
//! Inside a tile, 32-bit lanes belong to rows. A lane is unpacked into *pairs*: two 16-bit integers, the weights at k
//! and k + 1, which is what the CPU's paired multiply-add takes. `weight = d * q + m`, with q small enough that a group
//! of products fits a 32-bit sum.

mod float;
mod nibble;
mod q4_0;
mod q4_1;
mod q4_k;
mod q6_k;
mod q8_0;

pub(crate) use float::{Bf16, F16, F32, Float};
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256i, __m512, __m512i};

use weights::Dtype;

/// Weights per group: activations are scaled once per group.
pub(crate) const GROUP: usize = 32;
/// Rows of a tile: the 32-bit lanes of the widest vector.
pub(crate) const TILE_ROWS: usize = 16;

/// A packed format whose blocks are whole groups.
pub(crate) trait Format {
    /// Weights of a block.
    const LEN: usize;
    const BYTES: usize;
    /// Whether `m` can differ from zero.
    const HAS_MIN: bool;
    const TILE_BYTES: usize;
    /// The largest 16-bit activation with which the sum of a group stays below 2^31.
    const LARGEST_ACTIVATION: f32 = 32_767.0;

    fn decode(block: &[u8], out: &mut [f32]);
    fn encode(values: &[f32], block: &mut [u8]);

    /// Interleaves one block of each of sixteen rows; a missing row is all zero bytes.
    fn pack_tile(blocks: &[&[u8]; TILE_ROWS], tile: &mut [u8]);
    /// The block of one row, taken out of a tile again.
    fn unpack_row(tile: &[u8], row: usize, block: &mut [u8]);

    /// `(d, m)` of sixteen rows for a group.
    ///
    /// # Safety
    /// The CPU has AVX-512F and F16C; `tile` points at `TILE_BYTES` readable bytes; `group < LEN / GROUP`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn scales_512(tile: *const u8, group: usize) -> (__m512, __m512);

    /// Weights `8 * eighth..8 * eighth + 8` of a group as four vectors of pairs.
    ///
    /// # Safety
    /// The CPU has AVX-512BW; else as [`Format::scales_512`]; `eighth < 4`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_512(tile: *const u8, group: usize, eighth: usize) -> [__m512i; 4];

    /// As [`Format::scales_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C; else as [`Format::scales_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn scales_256(tile: *const u8, group: usize, half: usize) -> (__m256, __m256);

    /// As [`Format::pairs_512`], for rows `8 * half..8 * half + 8`.
    ///
    /// # Safety
    /// The CPU has AVX2; else as [`Format::pairs_512`]; `half < 2`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pairs_256(tile: *const u8, group: usize, eighth: usize, half: usize) -> [__m256i; 4];
}

/// Runs `$body` with `$format` bound to the packed format of `$dtype`, or `$float_body` with `$float` to the plain one.
macro_rules! for_dtype {
    ($dtype:expr, $format:ident => $body:expr, $float:ident => $float_body:expr) => {
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
            weights::Dtype::Q4_0 => {
                type $format = $crate::quant::Q4_0;
                $body
            }
            weights::Dtype::Q4_1 => {
                type $format = $crate::quant::Q4_1;
                $body
            }
            weights::Dtype::Q8_0 => {
                type $format = $crate::quant::Q8_0;
                $body
            }
            weights::Dtype::Q4K => {
                type $format = $crate::quant::Q4K;
                $body
            }
            weights::Dtype::Q6K => {
                type $format = $crate::quant::Q6K;
                $body
            }
        }
    };
}
pub(crate) use for_dtype;

/// Decodes whole blocks into numbers, exactly as `gguf` does.
///
/// # Panics
/// If `bytes` and `out` do not hold the same whole blocks.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "bytes for {} elements of {dtype}", out.len());
    for_dtype!(dtype,
        P => bytes.chunks_exact(P::BYTES).zip(out.chunks_exact_mut(P::LEN)).for_each(|(b, o)| P::decode(b, o)),
        P => bytes.chunks_exact(P::BYTES).zip(out).for_each(|(b, o)| *o = P::decode(b))
    );
}

/// Encodes numbers into whole blocks.
///
/// # Panics
/// If `values` and `bytes` do not hold the same whole blocks.
pub fn quantize(dtype: Dtype, values: &[f32], bytes: &mut [u8]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(values.len()), "bytes for {} elements of {dtype}", values.len());
    for_dtype!(dtype,
        P => bytes.chunks_exact_mut(P::BYTES).zip(values.chunks_exact(P::LEN)).for_each(|(b, v)| P::encode(v, b)),
        P => bytes.chunks_exact_mut(P::BYTES).zip(values).for_each(|(b, v)| P::encode(*v, b))
    );
}

/// The f16 at `offset` of a block.
pub(crate) fn f16_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32_const()
}

pub(crate) fn put_f16(block: &mut [u8], offset: usize, value: f32) {
    block[offset..offset + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
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
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        // Sixteen even levels deviate by 4.6, 256 by 74; K-quants multiply with random scales of 6 or 8 bits.
        match dtype {
            Dtype::Q4_0 => put_f16(block, 0, std / 4.6),
            Dtype::Q4_1 => {
                put_f16(block, 0, std / 4.6);
                put_f16(block, 2, -7.5 * std / 4.6);
            }
            Dtype::Q8_0 => put_f16(block, 0, std / 74.0),
            Dtype::Q4K => {
                put_f16(block, 0, std / 4.6 / 32.0);
                put_f16(block, 2, 7.5 * std / 4.6 / 32.0);
            }
            Dtype::Q6K => put_f16(block, 208, std / 18.5 / 74.0),
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => unreachable!("plain numbers were filled above"),
        }
    }
}
