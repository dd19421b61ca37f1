//! The main formats as NEON reads them: a group of 32 weights as four vectors of 16-bit integers, straight from the
//! file's blocks. There are no tiles here: a lane sums its part of one row, and the lanes are added once at the row's
//! end. Formats that are not here are decoded to f32 first (`arm/products.rs`).

use std::arch::aarch64::*;

use crate::formats::q4_k::scale_and_min;
use crate::formats::{BlockFormat, Q4_0, Q4_1, Q4K, Q6K, Q8_0, f16_at};
use crate::tiles::GROUP;

/// A group of a block: `weight = d * q + m`, with one `d` and `m` for each half.
pub(crate) struct BlockGroup {
    pub(crate) q: [int16x8_t; 4],
    pub(crate) d: [f32; 2],
    pub(crate) m: [f32; 2],
}

pub(crate) trait Unpack: BlockFormat {
    /// Whether `m` can differ from zero.
    const HAS_MIN: bool;
    /// Whether the halves of a group have scales of their own.
    const HAS_HALVES: bool;

    /// Group `g` of a block of `BYTES` bytes; `g < LEN / GROUP`.
    fn group(block: &[u8], g: usize) -> BlockGroup;
}

/// Sixteen bytes of a block.
#[inline(always)]
fn bytes16(block: &[u8], at: usize) -> uint8x16_t {
    let bytes: &[u8; 16] = block[at..at + 16].try_into().expect("sixteen bytes");
    // SAFETY: sixteen readable bytes; NEON is part of every aarch64 this program is built for.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Thirty-two signed bytes as four vectors.
#[inline(always)]
fn widen(low: int8x16_t, high: int8x16_t) -> [int16x8_t; 4] {
    // SAFETY: register arithmetic only.
    unsafe { [vmovl_s8(vget_low_s8(low)), vmovl_high_s8(low), vmovl_s8(vget_low_s8(high)), vmovl_high_s8(high)] }
}

/// The low and the high nibbles of sixteen bytes, less `zero`.
#[inline(always)]
fn nibbles(bytes: uint8x16_t, zero: i8) -> (int8x16_t, int8x16_t) {
    // SAFETY: register arithmetic only.
    unsafe {
        let (low, high) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
        let zero = vdupq_n_s8(zero);
        (vsubq_s8(vreinterpretq_s8_u8(low), zero), vsubq_s8(vreinterpretq_s8_u8(high), zero))
    }
}

impl Unpack for Q4_0 {
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn group(block: &[u8], _g: usize) -> BlockGroup {
        let (low, high) = nibbles(bytes16(block, 2), 8);
        BlockGroup { q: widen(low, high), d: [f16_at(block, 0); 2], m: [0.0; 2] }
    }
}

impl Unpack for Q4_1 {
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn group(block: &[u8], _g: usize) -> BlockGroup {
        let (low, high) = nibbles(bytes16(block, 4), 0);
        BlockGroup { q: widen(low, high), d: [f16_at(block, 0); 2], m: [f16_at(block, 2); 2] }
    }
}

impl Unpack for Q8_0 {
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn group(block: &[u8], _g: usize) -> BlockGroup {
        // SAFETY: register arithmetic only.
        let (low, high) = unsafe { (vreinterpretq_s8_u8(bytes16(block, 2)), vreinterpretq_s8_u8(bytes16(block, 18))) };
        BlockGroup { q: widen(low, high), d: [f16_at(block, 0); 2], m: [0.0; 2] }
    }
}

impl Unpack for Q4K {
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn group(block: &[u8], g: usize) -> BlockGroup {
        let at = 16 + g / 2 * GROUP;
        let (first, second) = (nibbles(bytes16(block, at), 0), nibbles(bytes16(block, at + 16), 0));
        let (low, high) = if g % 2 == 0 { (first.0, second.0) } else { (first.1, second.1) };
        let packed: &[u8; 12] = block[4..16].try_into().expect("twelve bytes");
        let (scale, min) = scale_and_min(packed, g);
        let (d, m) = (f16_at(block, 0) * f32::from(scale), f16_at(block, 2) * f32::from(min));
        BlockGroup { q: widen(low, high), d: [d; 2], m: [-m; 2] }
    }
}

impl Unpack for Q6K {
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = true;

    #[inline(always)]
    fn group(block: &[u8], g: usize) -> BlockGroup {
        let (half, part) = (g / 4, g % 4);
        let sixteen = |i: usize| {
            let low = bytes16(block, 64 * half + 32 * (part % 2) + 16 * i);
            let top = bytes16(block, 128 + 32 * half + 16 * i);
            // SAFETY: register arithmetic only. Shifting left by a negative number shifts right.
            unsafe {
                let low = if part < 2 { vandq_u8(low, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(low) };
                let top = vandq_u8(vshlq_u8(top, vdupq_n_s8(-2 * part as i8)), vdupq_n_u8(3));
                let q = vorrq_u8(low, vshlq_n_u8::<4>(top));
                vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(32))
            }
        };
        let d = f16_at(block, 208);
        let scale = |i: usize| d * f32::from(block[192 + 2 * g + i] as i8);
        BlockGroup { q: widen(sixteen(0), sixteen(1)), d: [scale(0), scale(1)], m: [0.0; 2] }
    }
}
