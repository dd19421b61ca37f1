//! CDNA3's 8-bit floats (the FNUZ kinds), by their definition: a search over all 256 values.

use super::numbers::*;
use super::{Case, cases, check_vector};

/// The value of a code with `n_mantissa` bits and this bias; 0x80 is the one NaN.
fn value(code: u64, n_mantissa: u32, bias: i32) -> f64 {
    if code == 0x80 {
        return f64::NAN;
    }
    let (exponent, mantissa) = ((code & 0x7f) >> n_mantissa, code & ((1 << n_mantissa) - 1));
    let fraction = mantissa as f64 / 2f64.powi(n_mantissa as i32);
    let size = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        e => (1.0 + fraction) * 2f64.powi(e as i32 - bias),
    };
    if code & 0x80 != 0 { -size } else { size }
}

fn fp8(code: u64) -> f32 {
    value(code & 0xff, 3, 8) as f32
}

fn bf8(code: u64) -> f32 {
    value(code & 0xff, 2, 16) as f32
}

/// The nearest code, the even one of two that are as near; NaN beyond the largest and its rounding.
fn nearest(x: f32, n_mantissa: u32, bias: i32) -> u64 {
    let largest = value(0x7f, n_mantissa, bias);
    let step = largest - value(0x7e, n_mantissa, bias);
    if x.is_nan() || x.abs() as f64 >= largest + step / 2.0 {
        return 0x80;
    }
    let distance = |c: u64| (value(c, n_mantissa, bias) - x.abs() as f64).abs();
    let best = (0..0x80).reduce(|a, b| {
        let (da, db) = (distance(a), distance(b));
        if da < db || da == db && a % 2 == 0 { a } else { b }
    });
    match best.unwrap_or(0) {
        0 => 0,
        code => code | if x.is_sign_negative() { 0x80 } else { 0 },
    }
}

fn to_fp8(x: u64) -> u64 {
    nearest(f(x), 3, 8)
}

fn to_bf8(x: u64) -> u64 {
    nearest(f(x), 2, 16)
}

pub const CASES: &[Case] = cases! {
    "v_cvt_f32_fp8_e32 d, a" / 32 => |a, _, _, _| fb(fp8(a));
    "v_cvt_f32_bf8_e32 d, a" / 32 => |a, _, _, _| fb(bf8(a));
    "v_cvt_f32_fp8_sdwa d, a src0_sel:BYTE_2" / 32 => |a, _, _, _| fb(fp8(a >> 16));
    "v_cvt_f32_bf8_sdwa d, a src0_sel:BYTE_3" / 32 => |a, _, _, _| fb(bf8(a >> 24));
    "v_cvt_pk_f32_fp8_e32 D, a" / 64 => |a, _, _, _| fb(fp8(a)) | fb(fp8(a >> 8)) << 32;
    "v_cvt_pk_f32_bf8_e32 D, a" / 64 => |a, _, _, _| fb(bf8(a)) | fb(bf8(a >> 8)) << 32;
    "v_cvt_pk_f32_fp8_sdwa D, a src0_sel:WORD_1" / 64 => |a, _, _, _| fb(fp8(a >> 16)) | fb(fp8(a >> 24)) << 32;
    "v_cvt_pk_fp8_f32 d, a, b" / 32 => |a, b, _, d| two(to_fp8(a) | to_fp8(b) << 8, up(d));
    "v_cvt_pk_bf8_f32 d, a, b" / 32 => |a, b, _, d| two(to_bf8(a) | to_bf8(b) << 8, up(d));
    "v_cvt_pk_fp8_f32 d, a, -b op_sel:[0,0,1]" / 32 => |a, b, _, d| two(d, to_fp8(a) | to_fp8(b ^ 1 << 31) << 8);
    // Bytes as small numbers: the range of the formats themselves.
    "v_cvt_f32_ubyte0 v12, a\n v_mul_f32 v12, 0x3d000001, v12\n v_cvt_pk_fp8_f32 d, v12, v12" / 16 => |a, _, _, _| { let x = to_fp8(fb(byte(a, 0) as f32 * f32::from_bits(0x3d00_0001))); x | x << 8 };
    "v_cvt_f32_ubyte0 v12, a\n v_cvt_pk_bf8_f32 d, v12, v12" / 16 => |a, _, _, _| { let x = to_bf8(fb(byte(a, 0) as f32)); x | x << 8 };
};

/// One NaN is as good as another, in either half.
fn is_right(case: &Case, got: u64, want: u64) -> bool {
    let same = |shift: u32| is_same(32, got >> shift & 0xffff_ffff, want >> shift & 0xffff_ffff);
    if case.asm.starts_with("v_cvt_pk_f32") { same(0) && same(32) } else { is_same(case.bits, got, want) }
}

#[test]
fn small_floats_follow_their_definition() {
    check_vector(CASES, is_right);
}
