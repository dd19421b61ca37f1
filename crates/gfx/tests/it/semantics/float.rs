//! Floating-point instructions: exact ones bit for bit, approximations to a unit in the last place.

use super::numbers::*;
use super::{Case, HALF, cases, check_vector};

pub const CASES: &[Case] = cases! {
    "v_add_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(a) + f(b));
    "v_sub_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(a) - f(b));
    "v_sub_f32_e64 d, |a|, -b" / 32 => |a, b, _, _| fb(f(a).abs() + f(b));
    "v_subrev_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(b) - f(a));
    "v_mul_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(a) * f(b));
    "v_mul_dx9_zero_f32|v_mul_legacy_f32 d, a, b" / 32 => |a, b, _, _| fb(if f(a) == 0.0 || f(b) == 0.0 { 0.0 } else { f(a) * f(b) });
    "v_fma_dx9_zero_f32 d, a, b, c" / 32 => |a, b, c, _| fb(if f(a) == 0.0 || f(b) == 0.0 { f(c) } else { f(a).mul_add(f(b), f(c)) });
    "v_fmac_dx9_zero_f32 d, a, b" / 32 => |a, b, _, d| fb(if f(a) == 0.0 || f(b) == 0.0 { f(d) } else { f(a).mul_add(f(b), f(d)) });
    "v_fma_f32 d, a, b, c" / 32 => |a, b, c, _| fb(f(a).mul_add(f(b), f(c)));
    "v_fma_f32 d, -a, |b|, c" / 32 => |a, b, c, _| fb((-f(a)).mul_add(f(b).abs(), f(c)));
    "v_fmac_f32_e32 d, a, b" / 32 => |a, b, _, d| fb(f(a).mul_add(f(b), f(d)));
    "v_fmamk_f32 d, a, 0x40490fdb, b" / 32 => |a, b, _, _| fb(f(a).mul_add(f32::from_bits(0x40490fdb), f(b)));
    "v_fmaak_f32 d, a, b, 0x40490fdb" / 32 => |a, b, _, _| fb(f(a).mul_add(f(b), f32::from_bits(0x40490fdb)));
    "v_max_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(max(f(a) as f64, f(b) as f64) as f32);
    "v_min_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(min(f(a) as f64, f(b) as f64) as f32);
    "v_max3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(max(max(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "v_min3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(min(min(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "v_med3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(med(f(a) as f64, f(b) as f64, f(c) as f64) as f32);
    "v_maxmin_f32 d, a, b, c" / 32 => |a, b, c, _| fb(min(max(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "v_minmax_f32 d, a, b, c" / 32 => |a, b, c, _| fb(max(min(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "v_add_f32_e64 d, a, b clamp" / 32 => |a, b, _, _| { let x = f(a) + f(b); fb(if x > 0.0 { x.min(1.0) } else { 0.0 }) };
    "v_mul_f32_e64 d, a, b mul:2" / 32 => |a, b, _, _| fb(f(a) * f(b) * 2.0);
    "v_mul_f32_e64 d, a, b mul:4" / 32 => |a, b, _, _| fb(f(a) * f(b) * 4.0);
    "v_mul_f32_e64 d, a, b div:2" / 32 => |a, b, _, _| fb(f(a) * f(b) * 0.5);
    "v_floor_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).floor());
    "v_ceil_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).ceil());
    "v_trunc_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).trunc());
    "v_rndne_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).round_ties_even());
    "v_fract_f32_e32 d, a" / 32 => |a, _, _, _| fb(min((f(a) - f(a).floor()) as f64, f32::from_bits(0x3f7fffff) as f64) as f32);
    "v_ldexp_f32 d, a, 5" / 32 => |a, _, _, _| fb(f(a) * 32.0);
    "v_ldexp_f32 d, a, b" / 32 => |a, b, _, _| fb((f(a) as f64 * 2f64.powi(i(b).clamp(-400, 400))) as f32);
    "v_frexp_mant_f32 d, a" / 32 => |a, _, _, _| fb(frexp(f(a) as f64).0 as f32);
    "v_frexp_exp_i32_f32 d, a" / 32 => |a, _, _, _| frexp(f(a) as f64).1 as u64;

    "rdna4: v_maximum_f32 d, a, b" / 32 => |a, b, _, _| fb(maximum(f(a) as f64, f(b) as f64) as f32);
    "rdna4: v_minimum_f32 d, a, b" / 32 => |a, b, _, _| fb(minimum(f(a) as f64, f(b) as f64) as f32);
    "rdna4: v_maximum3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(maximum(maximum(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "rdna4: v_minimum3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(minimum(minimum(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "rdna4: v_maximumminimum_f32 d, a, b, c" / 32 => |a, b, c, _| fb(minimum(maximum(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "rdna4: v_minimummaximum_f32 d, a, b, c" / 32 => |a, b, c, _| fb(maximum(minimum(f(a) as f64, f(b) as f64), f(c) as f64) as f32);
    "rdna4: v_maximum_f16 d, a, b" / 16 => |a, b, _, _| hb(maximum(h(a), h(b)));
    "rdna4: v_minimum_f16 d, a, b" / 16 => |a, b, _, _| hb(minimum(h(a), h(b)));
    "rdna4: v_maximum3_f16 d, a, b, c" / 16 => |a, b, c, _| hb(maximum(maximum(h(a), h(b)), h(c)));
    "rdna4: v_minimum3_f16 d, a, b, c" / 16 => |a, b, c, _| hb(minimum(minimum(h(a), h(b)), h(c)));
    "rdna4: v_maximumminimum_f16 d, a, b, c" / 16 => |a, b, c, _| hb(minimum(maximum(h(a), h(b)), h(c)));
    "rdna4: v_minimummaximum_f16 d, a, b, c" / 16 => |a, b, c, _| hb(maximum(minimum(h(a), h(b)), h(c)));
    "rdna4: v_maximum_f64 D, A, B" / 64 => |a, b, _, _| gb(maximum(g(a), g(b)));
    "rdna4: v_minimum_f64 D, A, B" / 64 => |a, b, _, _| gb(minimum(g(a), g(b)));

    "v_add_f16 d, a, b" / HALF => |a, b, _, _| hb(h(a) + h(b));
    "v_sub_f16 d, a, b" / HALF => |a, b, _, _| hb(h(a) - h(b));
    "v_subrev_f16 d, a, b" / HALF => |a, b, _, _| hb(h(b) - h(a));
    "v_mul_f16 d, a, b" / HALF => |a, b, _, _| hb(h(a) * h(b));
    "v_max_f16 d, a, b" / HALF => |a, b, _, _| hb(max(h(a), h(b)));
    "v_min_f16 d, a, b" / HALF => |a, b, _, _| hb(min(h(a), h(b)));
    "v_max3_f16 d, a, b, c" / 16 => |a, b, c, _| hb(max(max(h(a), h(b)), h(c)));
    "v_min3_f16 d, a, b, c" / 16 => |a, b, c, _| hb(min(min(h(a), h(b)), h(c)));
    "v_med3_f16 d, a, b, c" / 16 => |a, b, c, _| hb(med(h(a), h(b), h(c)));
    "v_maxmin_f16 d, a, b, c" / 16 => |a, b, c, _| hb(min(max(h(a), h(b)), h(c)));
    "v_minmax_f16 d, a, b, c" / 16 => |a, b, c, _| hb(max(min(h(a), h(b)), h(c)));
    "v_fma_f16 d, a, b, c" / 16 => |a, b, c, _| hb(h(a).mul_add(h(b), h(c)));
    "v_fma_f16 d, a, -b, |c| op_sel:[1,0,1,0]" / 16 => |a, b, c, _| hb(h(up(a)).mul_add(-h(b), h(up(c)).abs()));
    "v_fmac_f16 d, a, b" / 16 => |a, b, _, d| hb(h(a).mul_add(h(b), h(d)));
    "v_fmamk_f16 d, a, 0x4248, b" / 16 => |a, b, _, _| hb(h(a).mul_add(h(0x4248), h(b)));
    "v_fmaak_f16 d, a, b, 0x4248" / 16 => |a, b, _, _| hb(h(a).mul_add(h(b), h(0x4248)));
    "v_floor_f16 d, a" / HALF => |a, _, _, _| hb(h(a).floor());
    "v_ceil_f16 d, a" / HALF => |a, _, _, _| hb(h(a).ceil());
    "v_trunc_f16 d, a" / HALF => |a, _, _, _| hb(h(a).trunc());
    "v_rndne_f16 d, a" / HALF => |a, _, _, _| hb(h(a).round_ties_even());
    "v_fract_f16 d, a" / HALF => |a, _, _, _| { let x = h(hb(h(a) - h(a).floor())); hb(min(x, 2047.0 / 2048.0)) };
    "v_ldexp_f16 d, a, b" / HALF => |a, b, _, _| hb(h(a) * 2f64.powi(s16(b).clamp(-100, 100) as i32));
    "v_frexp_mant_f16 d, a" / HALF => |a, _, _, _| hb(frexp(h(a)).0);
    "v_frexp_exp_i16_f16 d, a" / HALF => |a, _, _, _| frexp(h(a)).1 as u64 & 0xffff;

    "v_add_f64 D, A, B" / 64 => |a, b, _, _| gb(g(a) + g(b));
    "v_mul_f64 D, A, B" / 64 => |a, b, _, _| gb(g(a) * g(b));
    "v_mul_f64 D, |A|, -B" / 64 => |a, b, _, _| gb(g(a).abs() * -g(b));
    "v_fma_f64 D, A, B, C" / 64 => |a, b, c, _| gb(g(a).mul_add(g(b), g(c)));
    "v_fmac_f64 D, A, B" / 64 => |a, b, _, d| gb(g(a).mul_add(g(b), g(d)));
    "v_max_f64 D, A, B" / 64 => |a, b, _, _| gb(max(g(a), g(b)));
    "v_min_f64 D, A, B" / 64 => |a, b, _, _| gb(min(g(a), g(b)));
    "v_floor_f64 D, A" / 64 => |a, _, _, _| gb(g(a).floor());
    "v_ceil_f64 D, A" / 64 => |a, _, _, _| gb(g(a).ceil());
    "v_trunc_f64 D, A" / 64 => |a, _, _, _| gb(g(a).trunc());
    "v_rndne_f64 D, A" / 64 => |a, _, _, _| gb(g(a).round_ties_even());
    "v_fract_f64 D, A" / 64 => |a, _, _, _| gb(min(g(a) - g(a).floor(), f64::from_bits(0x3fef_ffff_ffff_ffff)));
    "v_ldexp_f64 D, A, b" / 64 => |a, b, _, _| gb(ldexp(g(a), i(b) as i64));
    "s_movk_i32 s26, -1030\n v_ldexp_f64 D, A, s26" / 64 => |a, _, _, _| gb(ldexp(g(a), -1030));
    "v_frexp_mant_f64 D, A" / 64 => |a, _, _, _| gb(frexp(g(a)).0);
    "v_frexp_exp_i32_f64 d, A" / 32 => |a, _, _, _| frexp(g(a)).1 as u64;

    "v_cvt_f32_f16 d, a" / 32 => |a, _, _, _| fb(h(a) as f32);
    "v_cvt_f16_f32 d, a" / HALF => |a, _, _, _| hb(f(a) as f64);
    "v_cvt_f64_f32 D, a" / 64 => |a, _, _, _| gb(f(a) as f64);
    "v_cvt_f32_f64 d, A" / 32 => |a, _, _, _| fb(g(a) as f32);
    "v_cvt_f32_i32 d, a" / 32 => |a, _, _, _| fb(i(a) as f32);
    "v_cvt_f32_u32 d, a" / 32 => |a, _, _, _| fb(u(a) as f32);
    "v_cvt_f64_i32 D, a" / 64 => |a, _, _, _| gb(i(a) as f64);
    "v_cvt_f64_u32 D, a" / 64 => |a, _, _, _| gb(u(a) as f64);
    "v_cvt_i32_f32 d, a" / 32 => |a, _, _, _| f(a) as i32 as u64;
    "v_cvt_u32_f32 d, a" / 32 => |a, _, _, _| f(a) as u32 as u64;
    "v_cvt_i32_f64 d, A" / 32 => |a, _, _, _| g(a) as i32 as u64;
    "v_cvt_u32_f64 d, A" / 32 => |a, _, _, _| g(a) as u32 as u64;
    "v_cvt_floor_i32_f32|v_cvt_flr_i32_f32 d, a" / 32 => |a, _, _, _| f(a).floor() as i32 as u64;
    "v_cvt_nearest_i32_f32|v_cvt_rpi_i32_f32 d, a" / 32 => |a, _, _, _| (f(a) + 0.5).floor() as i32 as u64;
    "v_cvt_f32_ubyte0 d, a" / 32 => |a, _, _, _| fb(byte(a, 0) as f32);
    "v_cvt_f32_ubyte1 d, a" / 32 => |a, _, _, _| fb(byte(a, 1) as f32);
    "v_cvt_f32_ubyte2 d, a" / 32 => |a, _, _, _| fb(byte(a, 2) as f32);
    "v_cvt_f32_ubyte3 d, a" / 32 => |a, _, _, _| fb(byte(a, 3) as f32);
    "v_cvt_f16_u16 d, a" / HALF => |a, _, _, _| hb(u16_(a) as f64);
    "v_cvt_f16_i16 d, a" / HALF => |a, _, _, _| hb(s16(a) as f64);
    "v_cvt_u16_f16 d, a" / HALF => |a, _, _, _| h(a) as u16 as u64;
    "v_cvt_i16_f16 d, a" / HALF => |a, _, _, _| h(a) as i16 as u16 as u64;
    "v_cvt_pk_rtz_f16_f32|v_cvt_pkrtz_f16_f32 d, a, b" / 32 => |a, b, _, _| two(hb_to_zero(f(a) as f64), hb_to_zero(f(b) as f64));
    "v_cvt_pk_i16_f32 d, a, b" / 32 => |a, b, _, _| two(f(a) as i16 as u64, f(b) as i16 as u64);
    "v_cvt_pk_u16_f32 d, a, b" / 32 => |a, b, _, _| two(f(a) as u16 as u64, f(b) as u16 as u64);
    "v_cvt_pk_u8_f32 d, a, b, c" / 32 => |a, b, c, _| c & !(0xff << (8 * (b & 3))) | (f(a) as u8 as u64) << (8 * (b & 3));
    "v_cvt_pk_norm_i16_f32|v_cvt_pknorm_i16_f32 d, a, b" / 32 => |a, b, _, _| two(signed_norm(f(a)), signed_norm(f(b)));
    "v_cvt_pk_norm_u16_f32|v_cvt_pknorm_u16_f32 d, a, b" / 32 => |a, b, _, _| two(norm(f(a)), norm(f(b)));
    "v_pack_b32_f16 d, a, b" / 32 => |a, b, _, _| two(a, b);
    "v_pack_b32_f16 d, a, b op_sel:[1,0,0]" / 32 => |a, b, _, _| two(up(a), b);
};

fn signed_norm(x: f32) -> u64 {
    if x.is_nan() { 0 } else { (x.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16 as u16 as u64 }
}

fn norm(x: f32) -> u64 {
    if x.is_nan() { 0 } else { (x.clamp(0.0, 1.0) * 65535.0).round_ties_even() as u64 }
}

/// Turns of a circle; beyond 256 of them the result is not defined, so those are cut down first.
fn turns(x: f64) -> f64 {
    if x.abs() < 200.0 { x } else { 0.0 }
}

/// Approximations: silicon promises about one unit in the last place.
pub const NEAR: &[Case] = cases! {
    "v_rcp_f32 d, a" / 32 => |a, _, _, _| fb((1.0 / f(a) as f64) as f32);
    "v_rcp_iflag_f32 d, a" / 32 => |a, _, _, _| fb((1.0 / f(a) as f64) as f32);
    "v_rsq_f32 d, a" / 32 => |a, _, _, _| fb((1.0 / (f(a) as f64).sqrt()) as f32);
    "v_sqrt_f32 d, a" / 32 => |a, _, _, _| fb((f(a) as f64).sqrt() as f32);
    "v_exp_f32 d, a" / 32 => |a, _, _, _| fb(2f64.powf(f(a) as f64) as f32);
    "v_log_f32 d, a" / 32 => |a, _, _, _| fb(((f(a) as f64).ln() / 2f64.ln()) as f32);
    "s_mov_b32 s26, 0x43480000\n v_cmp_lt_f32 vcc, |a|, s26\n v_cndmask_b32 d, 0, a, vcc\n v_sin_f32 d, d" / 32 => |a, _, _, _| fb((turns(f(a) as f64) * std::f64::consts::TAU).sin() as f32);
    "s_mov_b32 s26, 0x43480000\n v_cmp_lt_f32 vcc, |a|, s26\n v_cndmask_b32 d, 0, a, vcc\n v_cos_f32 d, d" / 32 => |a, _, _, _| fb((turns(f(a) as f64) * std::f64::consts::TAU).cos() as f32);
    "v_rcp_f16 d, a" / 16 => |a, _, _, _| hb(1.0 / h(a));
    "v_rsq_f16 d, a" / 16 => |a, _, _, _| hb(1.0 / h(a).sqrt());
    "v_sqrt_f16 d, a" / 16 => |a, _, _, _| hb(h(a).sqrt());
    "v_exp_f16 d, a" / 16 => |a, _, _, _| hb(2f64.powf(h(a)));
    "v_log_f16 d, a" / 16 => |a, _, _, _| hb(h(a).ln() / 2f64.ln());
    "s_mov_b32 s26, 0x5a40\n v_cmp_lt_f16 vcc, |a|, s26\n v_cndmask_b32 d, 0, a, vcc\n v_sin_f16 d, d" / 16 => |a, _, _, _| hb((turns(h(a)) * std::f64::consts::TAU).sin());
    "s_mov_b32 s26, 0x5a40\n v_cmp_lt_f16 vcc, |a|, s26\n v_cndmask_b32 d, 0, a, vcc\n v_cos_f16 d, d" / 16 => |a, _, _, _| hb((turns(h(a)) * std::f64::consts::TAU).cos());
    "v_rcp_f64 D, A" / 64 => |a, _, _, _| gb(1.0 / g(a));
    "v_rsq_f64 D, A" / 64 => |a, _, _, _| gb(1.0 / g(a).sqrt());
    "v_sqrt_f64 D, A" / 64 => |a, _, _, _| gb(g(a).sqrt());
};

#[test]
fn floats_follow_the_pseudocode() {
    check_vector(CASES, |case, got, want| is_same(case.bits, got, want));
}

#[test]
fn approximations_are_near() {
    check_vector(NEAR, |case, got, want| {
        // A sine near its zeros is as good as its argument's rounding.
        let is_tiny = |x: u64| match case.bits {
            16 => h(x).abs() < 1e-3,
            32 => f(x).abs() < 1e-6,
            _ => false,
        };
        let is_wave = case.asm.contains("_sin_") || case.asm.contains("_cos_");
        is_same(case.bits, got, want) || got.abs_diff(want) <= 1 || is_wave && is_tiny(got) && is_tiny(want)
    });
}
