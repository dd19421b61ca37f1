//! The formats that are no blocks: F32, F16, BF16. Their products run in f32.

use half::{bf16, f16};

pub(crate) trait Float {
    const BYTES: usize;
    /// Plain numbers stay in rows: there is no tile to measure.
    const NO_TILES: Option<usize> = None;
    fn decode(bytes: &[u8]) -> f32;
    fn encode(value: f32, bytes: &mut [u8]);

    /// Eight elements as f32.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C; `at` points at `8 * BYTES` readable bytes.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(at: *const u8) -> std::arch::x86_64::__m256;
}

pub(crate) enum F32 {}
pub(crate) enum F16 {}
pub(crate) enum Bf16 {}

impl Float for F32 {
    const BYTES: usize = 4;

    fn decode(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(at: *const u8) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(at.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    fn decode(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32_const()
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes());
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(at: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    fn decode(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32_const()
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(at: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))) }
    }
}
