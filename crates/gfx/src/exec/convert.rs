//! Conversions between number formats, by AMD's pseudocode. Float to integer saturates and takes NaN to zero.

use super::fp8::{BF8, FP8};
use super::lane::lane_ops;
use super::value::{F16, H16, f32_to_bf16, f32_to_half_rtz};

#[inline(always)]
fn snorm16(x: f32) -> u32 {
    ((x.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16) as u16 as u32
}

#[inline(always)]
fn unorm16(x: f32) -> u32 {
    (x.clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16 as u32
}

/// Two floats in a pair of registers.
fn pair(lo: f32, hi: f32) -> u64 {
    lo.to_bits() as u64 | (hi.to_bits() as u64) << 32
}

lane_ops! {
    /// Conversions.
    fn find;
    "v_cvt_f32_i32" => (a: i32) -> f32 { a as f32 }
    "v_cvt_f32_u32" => (a: u32) -> f32 { a as f32 }
    "v_cvt_i32_f32" => (a: f32) -> i32 { a as i32 }
    "v_cvt_u32_f32" => (a: f32) -> u32 { a as u32 }
    "v_cvt_f32_f16" => (a: F16) -> f32 { a.0 }
    "v_cvt_f16_f32" => (a: f32) -> F16 { F16(a) }
    "v_cvt_f32_bf16" => (a: u16) -> f32 { f32::from_bits((a as u32) << 16) }
    "v_cvt_floor_i32_f32" => (a: f32) -> i32 { a.floor() as i32 }
    "v_cvt_nearest_i32_f32" => (a: f32) -> i32 { (a + 0.5).floor() as i32 }
    "v_cvt_f32_ubyte0" => (a: u32) -> f32 { (a & 255) as f32 }
    "v_cvt_f32_ubyte1" => (a: u32) -> f32 { (a >> 8 & 255) as f32 }
    "v_cvt_f32_ubyte2" => (a: u32) -> f32 { (a >> 16 & 255) as f32 }
    "v_cvt_f32_ubyte3" => (a: u32) -> f32 { (a >> 24) as f32 }
    "v_cvt_i32_i16" => (a: i16) -> i32 { a as i32 }
    "v_cvt_u32_u16" => (a: u16) -> u32 { a as u32 }
    "v_cvt_f16_u16" => (a: u16) -> F16 { F16(a as f32) }
    "v_cvt_f16_i16" => (a: i16) -> F16 { F16(a as f32) }
    "v_cvt_u16_f16" => (a: F16) -> u16 { a.0 as u16 }
    "v_cvt_i16_f16" => (a: F16) -> i16 { a.0 as i16 }
    "v_cvt_f64_f32" => (a: f32) -> f64 { a as f64 }
    "v_cvt_f32_f64" => (a: f64) -> f32 { a as f32 }
    "v_cvt_f64_i32" => (a: i32) -> f64 { a as f64 }
    "v_cvt_f64_u32" => (a: u32) -> f64 { a as f64 }
    "v_cvt_i32_f64" => (a: f64) -> i32 { a as i32 }
    "v_cvt_u32_f64" => (a: f64) -> u32 { a as u32 }
    "v_cvt_pk_rtz_f16_f32" => (a: f32, b: f32) -> u32 { f32_to_half_rtz(a) as u32 | (f32_to_half_rtz(b) as u32) << 16 }
    "v_cvt_pk_bf16_f32" => (a: f32, b: f32) -> u32 { f32_to_bf16(a) as u32 | (f32_to_bf16(b) as u32) << 16 }
    "v_cvt_pk_u16_u32" => (a: u32, b: u32) -> u32 { a.min(0xffff) | b.min(0xffff) << 16 }
    "v_cvt_pk_i16_i32" => (a: i32, b: i32) -> u32 {
        a.clamp(-32768, 32767) as u16 as u32 | (b.clamp(-32768, 32767) as u16 as u32) << 16
    }
    "v_cvt_pk_i16_f32" => (a: f32, b: f32) -> u32 { a as i16 as u16 as u32 | (b as i16 as u16 as u32) << 16 }
    "v_cvt_pk_u16_f32" => (a: f32, b: f32) -> u32 { a as u16 as u32 | (b as u16 as u32) << 16 }
    "v_cvt_pk_u8_f32" => (a: f32, b: u32, c: u32) -> u32 {
        let at = 8 * (b & 3);
        (c & !(0xff << at)) | ((a as u8 as u32) << at)
    }
    "v_cvt_pk_norm_i16_f32" => (a: f32, b: f32) -> u32 { snorm16(a) | snorm16(b) << 16 }
    "v_cvt_pk_norm_u16_f32" => (a: f32, b: f32) -> u32 { unorm16(a) | unorm16(b) << 16 }
    "v_cvt_f32_fp8" => (a: u32) -> f32 { FP8.widen(a as u8) }
    "v_cvt_f32_bf8" => (a: u32) -> f32 { BF8.widen(a as u8) }
    "v_cvt_pk_f32_fp8" => (a: u32) -> u64 { pair(FP8.widen(a as u8), FP8.widen((a >> 8) as u8)) }
    "v_cvt_pk_f32_bf8" => (a: u32) -> u64 { pair(BF8.widen(a as u8), BF8.widen((a >> 8) as u8)) }
    "v_cvt_pk_fp8_f32" => (a: f32, b: f32) -> u16 { FP8.narrow(a) as u16 | (FP8.narrow(b) as u16) << 8 }
    "v_cvt_pk_bf8_f32" => (a: f32, b: f32) -> u16 { BF8.narrow(a) as u16 | (BF8.narrow(b) as u16) << 8 }
    "v_pack_b32_f16" => (a: H16, b: H16) -> u32 { a.0 as u32 | (b.0 as u32) << 16 }
}
