//! Exact division as compilers expand it, and the repair step by itself. The scaling steps have no result that means
//! anything alone: a wrong one shows in quotients at the ends of the range.

use super::numbers::*;
use super::{Case, cases, check_vector};

/// AMD's pseudocode; `apart` is how far exponents may be apart before the quotient is nothing. Where the text would hand
/// on an estimate that is no number, silicon gives infinity: exact quotients below depend on it.
fn fixup(q: f64, den: f64, num: f64, apart: Option<i64>, exponent: fn(f64) -> i64, top: i64) -> f64 {
    let sign = |x: f64| if den.is_sign_negative() != num.is_sign_negative() { -x } else { x };
    if num.is_nan() || den.is_nan() || (den == 0.0 && num == 0.0) || (den.is_infinite() && num.is_infinite()) {
        f64::NAN
    } else if den == 0.0 || num.is_infinite() {
        sign(f64::INFINITY)
    } else if den.is_infinite() || num == 0.0 || apart.is_some_and(|n| exponent(num) - exponent(den) < -n) {
        sign(0.0)
    } else if exponent(den) == top || q.is_nan() {
        sign(f64::INFINITY)
    } else {
        sign(q.abs())
    }
}

fn exponent32(x: f64) -> i64 {
    (x as f32).to_bits() as i64 >> 23 & 0xff
}

fn exponent64(x: f64) -> i64 {
    x.to_bits() as i64 >> 52 & 0x7ff
}

pub const CASES: &[Case] = cases! {
    "v_div_fixup_f32 d, a, b, c" / 32 => |a, b, c, _| fb(fixup(f(a) as f64, f(b) as f64, f(c) as f64, Some(150), exponent32, 255) as f32);
    "v_div_fixup_f64 D, A, B, C" / 64 => |a, b, c, _| gb(fixup(g(a), g(b), g(c), Some(1075), exponent64, 2047));
    "v_div_fixup_f16 d, a, b, c" / 16 => |a, b, c, _| hb(fixup(h(a), h(b), h(c), None, exponent64, 2047));
    "v_div_scale_f32 v10, null, b, b, a
     v_div_scale_f32 v11, vcc, a, b, a
     v_rcp_f32 v12, v10
     v_fma_f32 v13, -v10, v12, 1.0
     v_fma_f32 v12, v13, v12, v12
     v_mul_f32 v13, v11, v12
     v_fma_f32 v14, -v10, v13, v11
     v_fma_f32 v13, v14, v12, v13
     v_fma_f32 v10, -v10, v13, v11
     v_div_fmas_f32 v10, v10, v12, v13
     v_div_fixup_f32 d, v10, b, a" / 32 => |a, b, _, _| fb(f(a) / f(b));
    "v_div_scale_f64 v[10:11], null, B, B, A
     v_rcp_f64 v[12:13], v[10:11]
     v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
     v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
     v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
     v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
     v_div_scale_f64 v[14:15], vcc, A, B, A
     v_mul_f64 v[16:17], v[14:15], v[12:13]
     v_fma_f64 v[10:11], -v[10:11], v[16:17], v[14:15]
     v_div_fmas_f64 v[10:11], v[10:11], v[12:13], v[16:17]
     v_div_fixup_f64 D, v[10:11], B, A" / 64 => |a, b, _, _| gb(g(a) / g(b));
};

#[test]
fn division_is_exact() {
    check_vector(CASES, |case, got, want| is_same(case.bits, got, want));
}
