//! Floating-point arithmetic, lane by lane, by AMD's pseudocode.
//!
//! Reciprocal, root, exponential and logarithm are computed in f64 and rounded once: silicon is allowed an ulp, so
//! tests above must not depend on the last bit of these. Denormals are kept, as HIP's defaults ask.

use super::lane::lane_ops;
use super::value::F16;

/// IEEE maxNum with -0 < +0.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}

#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

/// IEEE's newer maximum: no number wins, and quietly.
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    let quiet = |x: f32| f32::from_bits(x.to_bits() | 0x40_0000);
    if a.is_nan() {
        quiet(a)
    } else if b.is_nan() {
        quiet(b)
    } else {
        max(a, b)
    }
}

#[inline(always)]
pub fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { maximum(a, b) } else { min(a, b) }
}

#[inline(always)]
fn max64(a: f64, b: f64) -> f64 {
    if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}

#[inline(always)]
fn min64(a: f64, b: f64) -> f64 {
    if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

#[inline(always)]
fn maximum64(a: f64, b: f64) -> f64 {
    let quiet = |x: f64| f64::from_bits(x.to_bits() | 1 << 51);
    if a.is_nan() {
        quiet(a)
    } else if b.is_nan() {
        quiet(b)
    } else {
        max64(a, b)
    }
}

#[inline(always)]
fn med3(a: f32, b: f32, c: f32) -> f32 {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return min(min(a, b), c);
    }
    max(min(a, b), min(max(a, b), c))
}

/// x * 2^e without overflow on the way.
#[inline(always)]
pub fn ldexp(x: f32, e: i32) -> f32 {
    let e = e.clamp(-400, 400);
    (x as f64 * f64::from_bits(((1023 + e) as u64) << 52)) as f32
}

/// The same for doubles, with one rounding: only the last factor may take the result below the normal range.
fn ldexp64(x: f64, e: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let from = frexp_exp(x);
    let to = (from as i64 + e as i64).clamp(-1100, 1100) as i32;
    // The mantissa in [0.5, 1), exactly; 2^1023 is the largest power there is.
    let mantissa = x * 2f64.powi(-from / 2) * 2f64.powi(-from - -from / 2);
    let step = to.clamp(-1000, 1000);
    mantissa * 2f64.powi(step) * 2f64.powi(to - step)
}

/// Exponent such that x = mantissa * 2^e with the mantissa in [0.5, 1).
fn frexp_exp(x: f64) -> i32 {
    if x == 0.0 || !x.is_finite() {
        return 0;
    }
    let bits = x.to_bits();
    match (bits >> 52 & 0x7ff) as i32 {
        0 => -1021 - (bits << 12).leading_zeros() as i32 - 1,
        e => e - 1022,
    }
}

fn frexp_mant(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() { x } else { ldexp64(x, -frexp_exp(x)) }
}

pub fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 0xff) as i32
}

fn exponent64(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32
}

/// Repairs the last step of a division: special operands, sign, over- and underflow. Between numbers an estimate that
/// is no number has overflowed on its way (AMD's text leaves that out; others measured it).
fn div_fixup(q: f32, den: f32, num: f32) -> f32 {
    let is_negative = den.is_sign_negative() ^ num.is_sign_negative();
    let signed = |x: f32| if is_negative { -x } else { x };
    if num.is_nan() {
        f32::from_bits(num.to_bits() | 0x40_0000)
    } else if den.is_nan() {
        f32::from_bits(den.to_bits() | 0x40_0000)
    } else if (den == 0.0 && num == 0.0) || (den.is_infinite() && num.is_infinite()) {
        f32::from_bits(0xffc0_0000)
    } else if den == 0.0 || num.is_infinite() {
        signed(f32::INFINITY)
    } else if den.is_infinite() || num == 0.0 || exponent(num) - exponent(den) < -150 {
        signed(0.0)
    } else if q.is_nan() {
        signed(f32::INFINITY)
    } else {
        signed(q.abs())
    }
}

fn div_fixup64(q: f64, den: f64, num: f64) -> f64 {
    let is_negative = den.is_sign_negative() ^ num.is_sign_negative();
    let signed = |x: f64| if is_negative { -x } else { x };
    if num.is_nan() || den.is_nan() || (den == 0.0 && num == 0.0) || (den.is_infinite() && num.is_infinite()) {
        f64::NAN
    } else if den == 0.0 || num.is_infinite() {
        signed(f64::INFINITY)
    } else if den.is_infinite() || num == 0.0 || exponent64(num) - exponent64(den) < -1075 {
        signed(0.0)
    } else if q.is_nan() {
        signed(f64::INFINITY)
    } else {
        signed(q.abs())
    }
}

/// Halves multiply exactly in f32. The sum is rounded to odd: what was lost makes its last bit one, so that the half it
/// is stored as is the one the exact sum would be rounded to. All of it in operations that vectorise.
#[inline(always)]
pub fn fma16(a: f32, b: f32, c: f32) -> F16 {
    let product = a * b;
    let sum = product + c;
    // What the addition lost, exactly; no number where the sum is none.
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    // Away from zero where what was lost has the sum's sign, else toward it.
    let step = if (lost > 0.0) == (sum > 0.0) { 1u32 } else { u32::MAX };
    let is_inexact = (lost > 0.0) | (lost < 0.0);
    let is_even = bits & 1 == 0;
    F16(f32::from_bits(if is_inexact & is_even { bits.wrapping_add(step) } else { bits }))
}

/// Largest value below one: the fraction of a tiny negative number must not round up to it.
const BELOW_ONE: f32 = f32::from_bits(0x3f7f_ffff);
const BELOW_ONE_F16: f32 = 2047.0 / 2048.0;
const BELOW_ONE_F64: f64 = f64::from_bits(0x3fef_ffff_ffff_ffff);

/// The first 1201 bits of 2 / pi after the point, highest first.
const TWO_OVER_PI: [u64; 19] = [
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
    0xfe1d_eb1c_b129_a73e,
    0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41,
    0x3991_d639_8353_39f4,
    0x9c84_5f8b_bdf9_283b,
    0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f,
    0x6d36_7ecf_27cb_09b7,
    0x4f46_3f66_9e5f_ea2d,
    0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea,
    0x6bfb_5fb1_1f8d_5d08,
    0x5603_3046_fc7b_0000,
];

/// 53 bits of 2 / pi, picked by `segment` and the argument's exponent: the reduction of large angles multiplies by them.
fn trig_preop(x: f64, segment: u32) -> f64 {
    let exponent = exponent64(x);
    let first = (segment & 31) as i32 * 53 + (exponent - 1077).max(0);
    let bit = |k: i32| TWO_OVER_PI.get(k as usize / 64).map_or(0, |word| word >> (63 - k % 64) & 1);
    let bits = (first..first + 53).fold(0, |bits, k| bits << 1 | bit(k));
    ldexp64(bits as f64, -53 - first + if exponent >= 1968 { 128 } else { 0 })
}

lane_ops! {
    /// Arithmetic on f32, f16 and f64.
    fn find;
    "v_add_f32" => (a: f32, b: f32) -> f32 { a + b }
    "v_sub_f32" => (a: f32, b: f32) -> f32 { a - b }
    "v_subrev_f32" => (a: f32, b: f32) -> f32 { b - a }
    "v_mul_f32" => (a: f32, b: f32) -> f32 { a * b }
    "v_mul_dx9_zero_f32" | "v_mul_legacy_f32" => (a: f32, b: f32) -> f32 { if a == 0.0 || b == 0.0 { 0.0 } else { a * b } }
    "v_fmac_dx9_zero_f32" => (a: f32, b: f32; d: f32) -> f32 { if a == 0.0 || b == 0.0 { d } else { a.mul_add(b, d) } }
    "v_fma_dx9_zero_f32" => (a: f32, b: f32, c: f32) -> f32 { if a == 0.0 || b == 0.0 { c } else { a.mul_add(b, c) } }
    "v_max_f32" => (a: f32, b: f32) -> f32 { max(a, b) }
    "v_min_f32" => (a: f32, b: f32) -> f32 { min(a, b) }
    "v_fmac_f32" => (a: f32, b: f32; d: f32) -> f32 { a.mul_add(b, d) }
    "v_fma_f32" | "v_fmamk_f32" | "v_fmaak_f32" => (a: f32, b: f32, c: f32) -> f32 { a.mul_add(b, c) }
    "v_max3_f32" => (a: f32, b: f32, c: f32) -> f32 { max(max(a, b), c) }
    "v_min3_f32" => (a: f32, b: f32, c: f32) -> f32 { min(min(a, b), c) }
    "v_med3_f32" => (a: f32, b: f32, c: f32) -> f32 { med3(a, b, c) }
    "v_maxmin_f32" => (a: f32, b: f32, c: f32) -> f32 { min(max(a, b), c) }
    "v_minmax_f32" => (a: f32, b: f32, c: f32) -> f32 { max(min(a, b), c) }
    "v_maximum_f32" => (a: f32, b: f32) -> f32 { maximum(a, b) }
    "v_minimum_f32" => (a: f32, b: f32) -> f32 { minimum(a, b) }
    "v_maximum3_f32" => (a: f32, b: f32, c: f32) -> f32 { maximum(maximum(a, b), c) }
    "v_minimum3_f32" => (a: f32, b: f32, c: f32) -> f32 { minimum(minimum(a, b), c) }
    "v_maximumminimum_f32" => (a: f32, b: f32, c: f32) -> f32 { minimum(maximum(a, b), c) }
    "v_minimummaximum_f32" => (a: f32, b: f32, c: f32) -> f32 { maximum(minimum(a, b), c) }
    "v_rcp_f32" | "v_rcp_iflag_f32" => (a: f32) -> f32 { (1.0 / a as f64) as f32 }
    "v_rsq_f32" => (a: f32) -> f32 { (1.0 / (a as f64).sqrt()) as f32 }
    "v_sqrt_f32" => (a: f32) -> f32 { (a as f64).sqrt() as f32 }
    "v_exp_f32" => (a: f32) -> f32 { (a as f64).exp2() as f32 }
    "v_log_f32" => (a: f32) -> f32 { (a as f64).log2() as f32 }
    "v_sin_f32" => (a: f32) -> f32 { (a as f64 * std::f64::consts::TAU).sin() as f32 }
    "v_cos_f32" => (a: f32) -> f32 { (a as f64 * std::f64::consts::TAU).cos() as f32 }
    "v_floor_f32" => (a: f32) -> f32 { a.floor() }
    "v_ceil_f32" => (a: f32) -> f32 { a.ceil() }
    "v_trunc_f32" => (a: f32) -> f32 { a.trunc() }
    "v_rndne_f32" => (a: f32) -> f32 { a.round_ties_even() }
    "v_fract_f32" => (a: f32) -> f32 { min(a - a.floor(), BELOW_ONE) }
    "v_ldexp_f32" => (a: f32, b: i32) -> f32 { ldexp(a, b) }
    "v_frexp_mant_f32" => (a: f32) -> f32 { frexp_mant(a as f64) as f32 }
    "v_frexp_exp_i32_f32" => (a: f32) -> i32 { frexp_exp(a as f64) }
    "v_div_fixup_f32" => (a: f32, b: f32, c: f32) -> f32 { div_fixup(a, b, c) }

    "v_add_f16" => (a: F16, b: F16) -> F16 { F16(a.0 + b.0) }
    "v_sub_f16" => (a: F16, b: F16) -> F16 { F16(a.0 - b.0) }
    "v_subrev_f16" => (a: F16, b: F16) -> F16 { F16(b.0 - a.0) }
    "v_mul_f16" => (a: F16, b: F16) -> F16 { F16(a.0 * b.0) }
    "v_max_f16" => (a: F16, b: F16) -> F16 { F16(max(a.0, b.0)) }
    "v_min_f16" => (a: F16, b: F16) -> F16 { F16(min(a.0, b.0)) }
    "v_max3_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(max(max(a.0, b.0), c.0)) }
    "v_min3_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(min(min(a.0, b.0), c.0)) }
    "v_med3_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(med3(a.0, b.0, c.0)) }
    "v_maxmin_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(min(max(a.0, b.0), c.0)) }
    "v_minmax_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(max(min(a.0, b.0), c.0)) }
    "v_maximum_f16" => (a: F16, b: F16) -> F16 { F16(maximum(a.0, b.0)) }
    "v_minimum_f16" => (a: F16, b: F16) -> F16 { F16(minimum(a.0, b.0)) }
    "v_maximum3_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(maximum(maximum(a.0, b.0), c.0)) }
    "v_minimum3_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(minimum(minimum(a.0, b.0), c.0)) }
    "v_maximumminimum_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(minimum(maximum(a.0, b.0), c.0)) }
    "v_minimummaximum_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(maximum(minimum(a.0, b.0), c.0)) }
    "v_fma_f16" | "v_fmamk_f16" | "v_fmaak_f16" => (a: F16, b: F16, c: F16) -> F16 { fma16(a.0, b.0, c.0) }
    "v_fmac_f16" => (a: F16, b: F16; d: F16) -> F16 { fma16(a.0, b.0, d.0) }
    "v_rcp_f16" => (a: F16) -> F16 { F16((1.0 / a.0 as f64) as f32) }
    "v_rsq_f16" => (a: F16) -> F16 { F16((1.0 / (a.0 as f64).sqrt()) as f32) }
    "v_sqrt_f16" => (a: F16) -> F16 { F16(a.0.sqrt()) }
    "v_exp_f16" => (a: F16) -> F16 { F16((a.0 as f64).exp2() as f32) }
    "v_log_f16" => (a: F16) -> F16 { F16((a.0 as f64).log2() as f32) }
    "v_sin_f16" => (a: F16) -> F16 { F16((a.0 as f64 * std::f64::consts::TAU).sin() as f32) }
    "v_cos_f16" => (a: F16) -> F16 { F16((a.0 as f64 * std::f64::consts::TAU).cos() as f32) }
    "v_floor_f16" => (a: F16) -> F16 { F16(a.0.floor()) }
    "v_ceil_f16" => (a: F16) -> F16 { F16(a.0.ceil()) }
    "v_trunc_f16" => (a: F16) -> F16 { F16(a.0.trunc()) }
    "v_rndne_f16" => (a: F16) -> F16 { F16(a.0.round_ties_even()) }
    "v_fract_f16" => (a: F16) -> F16 { F16(min(a.0 - a.0.floor(), BELOW_ONE_F16)) }
    "v_ldexp_f16" => (a: F16, b: i16) -> F16 { F16(ldexp(a.0, b as i32)) }
    "v_frexp_mant_f16" => (a: F16) -> F16 { F16(frexp_mant(a.0 as f64) as f32) }
    "v_frexp_exp_i16_f16" => (a: F16) -> i16 { frexp_exp(a.0 as f64) as i16 }
    "v_div_fixup_f16" => (a: F16, b: F16, c: F16) -> F16 { F16(div_fixup(a.0, b.0, c.0)) }

    "v_add_f64" => (a: f64, b: f64) -> f64 { a + b }
    "v_mul_f64" => (a: f64, b: f64) -> f64 { a * b }
    "v_fma_f64" => (a: f64, b: f64, c: f64) -> f64 { a.mul_add(b, c) }
    "v_fmac_f64" => (a: f64, b: f64; d: f64) -> f64 { a.mul_add(b, d) }
    "v_max_f64" => (a: f64, b: f64) -> f64 { max64(a, b) }
    "v_min_f64" => (a: f64, b: f64) -> f64 { min64(a, b) }
    "v_maximum_f64" => (a: f64, b: f64) -> f64 { maximum64(a, b) }
    "v_minimum_f64" => (a: f64, b: f64) -> f64 { if a.is_nan() || b.is_nan() { maximum64(a, b) } else { min64(a, b) } }
    "v_rcp_f64" => (a: f64) -> f64 { 1.0 / a }
    "v_rsq_f64" => (a: f64) -> f64 { 1.0 / a.sqrt() }
    "v_sqrt_f64" => (a: f64) -> f64 { a.sqrt() }
    "v_floor_f64" => (a: f64) -> f64 { a.floor() }
    "v_ceil_f64" => (a: f64) -> f64 { a.ceil() }
    "v_trunc_f64" => (a: f64) -> f64 { a.trunc() }
    "v_rndne_f64" => (a: f64) -> f64 { a.round_ties_even() }
    "v_fract_f64" => (a: f64) -> f64 { min64(a - a.floor(), BELOW_ONE_F64) }
    "v_trig_preop_f64" => (a: f64, b: u32) -> f64 { trig_preop(a, b) }
    "v_ldexp_f64" => (a: f64, b: i32) -> f64 { ldexp64(a, b) }
    "v_frexp_mant_f64" => (a: f64) -> f64 { frexp_mant(a) }
    "v_frexp_exp_i32_f64" => (a: f64) -> i32 { frexp_exp(a) }
    "v_div_fixup_f64" => (a: f64, b: f64, c: f64) -> f64 { div_fixup64(a, b, c) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::value::{f32_to_half, f64_to_half, half_to_f32};

    /// Fused products of halves against one rounding from f64, where product and sum are exact: every exponent, ties,
    /// subnormal results, infinities and what is no number.
    #[test]
    fn fused_halves_are_rounded_once() {
        let mut dice = 1u64;
        let mut half = || {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (dice >> 40) as u16
        };
        for n in 0..2_000_000 {
            let (a, b, mut c) = (half(), half(), half());
            // Every other sum is one of near neighbours, where most is lost.
            if n % 2 == 0 {
                let product = f32_to_half(half_to_f32(a) * half_to_f32(b));
                c = (product ^ 0x8000).wrapping_add(c % 5).wrapping_sub(2).wrapping_sub((c >> 8) % 3 << 10);
            }
            let [x, y, z] = [a, b, c].map(half_to_f32);
            let want = f64_to_half(x as f64 * y as f64 + z as f64);
            let got = f32_to_half(fma16(x, y, z).0);
            let are_nan = want & 0x7fff > 0x7c00 && got & 0x7fff > 0x7c00;
            assert!(got == want || are_nan, "{a:#x} * {b:#x} + {c:#x}: {got:#x}, not {want:#x}");
        }
    }
}
