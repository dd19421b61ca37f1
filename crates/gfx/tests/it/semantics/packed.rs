//! Packed halves, mixed products, dot products, pairs of floats and dual instructions.

use super::numbers::*;
use super::{Case, cases, check_vector};

fn each(a: u64, b: u64, op: fn(u64, u64) -> u64) -> u64 {
    two(op(u16_(a), u16_(b)), op(up(a), up(b)))
}

fn each3(a: u64, b: u64, c: u64, op: fn(u64, u64, u64) -> u64) -> u64 {
    two(op(u16_(a), u16_(b), u16_(c)), op(up(a), up(b), up(c)))
}

fn pair(lo: f32, hi: f32) -> u64 {
    fb(lo) | fb(hi) << 32
}

fn hi(x: u64) -> f32 {
    f(x >> 32)
}

/// Two products added to a float, in f32.
fn dot2(a: [f32; 2], b: [f32; 2], c: f32) -> u64 {
    fb(c + a[0] * b[0] + a[1] * b[1])
}

fn halves(x: u64) -> [f32; 2] {
    [h(x) as f32, h(up(x)) as f32]
}

fn bfloats(x: u64) -> [f32; 2] {
    [bf(u16_(x)), bf(up(x))]
}

pub const CASES: &[Case] = cases! {
    "v_pk_add_f16 d, a, b neg_lo:[0,1] neg_hi:[0,1]" / 32 => |a, b, _, _| each(a, b, |x, y| hb(h(x) - h(y)));
    "v_pk_add_f16 d, a, b neg_hi:[1,0]" / 32 => |a, b, _, _| two(hb(h(a) + h(b)), hb(h(up(b)) - h(up(a))));
    "v_pk_mul_f16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| hb(h(x) * h(y)));
    "v_pk_mul_f16 d, a, b op_sel:[1,0] op_sel_hi:[0,1]" / 32 => |a, b, _, _| two(hb(h(up(a)) * h(b)), hb(h(a) * h(up(b))));
    "v_pk_fma_f16 d, a, b, c" / 32 => |a, b, c, _| each3(a, b, c, |x, y, z| hb(h(x).mul_add(h(y), h(z))));
    "v_pk_fmac_f16 d, a, b" / 32 => |a, b, _, d| each3(a, b, d, |x, y, z| hb(h(x).mul_add(h(y), h(z))));
    "v_pk_max_f16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| hb(max(h(x), h(y))));
    "v_pk_min_f16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| hb(min(h(x), h(y))));
    "v_pk_add_u16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x + y);
    "v_pk_add_i16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x + y);
    "v_pk_sub_u16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x.wrapping_sub(y));
    "v_pk_sub_i16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x.wrapping_sub(y));
    "v_pk_mul_lo_u16 d, a, b op_sel_hi:[0,1]" / 32 => |a, b, _, _| two(u16_(a) * u16_(b), u16_(a) * up(b));
    "v_pk_mad_u16 d, a, b, c" / 32 => |a, b, c, _| each3(a, b, c, |x, y, z| x * y + z);
    "v_pk_mad_i16 d, a, b, c" / 32 => |a, b, c, _| each3(a, b, c, |x, y, z| x * y + z);
    "v_pk_lshlrev_b16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| y << (x & 15));
    "v_pk_lshrrev_b16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| y >> (x & 15));
    "v_pk_ashrrev_i16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| (s16(y) >> (x & 15)) as u64);
    "v_pk_max_u16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x.max(y));
    "v_pk_min_u16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| x.min(y));
    "v_pk_max_i16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| s16(x).max(s16(y)) as u64);
    "v_pk_min_i16 d, a, b" / 32 => |a, b, _, _| each(a, b, |x, y| s16(x).min(s16(y)) as u64);

    "v_fma_mix_f32 d, a, b, c op_sel:[0,1,0] op_sel_hi:[0,1,0]" / 32 => |a, b, c, _| fb(f(a).mul_add(h(up(b)) as f32, f(c)));
    "v_fma_mix_f32 d, -a, |b|, c op_sel_hi:[1,0,0]" / 32 => |a, b, c, _| fb((-h(a) as f32).mul_add(f(b).abs(), f(c)));
    "v_fma_mixlo_f16 d, a, b, c op_sel_hi:[1,0,1]" / 32 => |a, b, c, d| two(hb((h(a) as f32).mul_add(f(b), h(c) as f32) as f64), up(d));
    "v_fma_mixhi_f16 d, a, b, c op_sel:[1,0,0] op_sel_hi:[1,0,0]" / 32 => |a, b, c, d| two(d, hb((h(up(a)) as f32).mul_add(f(b), f(c)) as f64));

    "v_dot4_i32_iu8 d, a, b, c neg_lo:[1,1,0]" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((s8(a, n) * s8(b, n)) as u64));
    "v_dot4_i32_iu8 d, a, b, c neg_lo:[0,1,0]" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((byte(a, n) as i64 * s8(b, n)) as u64));
    "v_dot4_i32_iu8 d, a, b, c neg_lo:[1,0,0]" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((s8(a, n) * byte(b, n) as i64) as u64));
    "v_dot4_i32_i8 d, a, b, c" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((s8(a, n) * s8(b, n)) as u64));
    "v_dot4c_i32_i8 d, a, b" / 32 => |a, b, _, d| (0..4).fold(d, |s, n| s.wrapping_add((s8(a, n) * s8(b, n)) as u64));
    "v_dot4_u32_u8 d, a, b, c" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add(byte(a, n) * byte(b, n)));
    "v_dot8_i32_iu4 d, a, b, c neg_lo:[1,1,0]" / 32 => |a, b, c, _| (0..8).fold(c, |s, n| s.wrapping_add((s4(a, n) * s4(b, n)) as u64));
    "v_dot8_i32_iu4 d, a, b, c neg_lo:[0,1,0]" / 32 => |a, b, c, _| (0..8).fold(c, |s, n| s.wrapping_add((nibble(a, n) as i64 * s4(b, n)) as u64));
    "v_dot8_i32_i4 d, a, b, c" / 32 => |a, b, c, _| (0..8).fold(c, |s, n| s.wrapping_add((s4(a, n) * s4(b, n)) as u64));
    "v_dot8_u32_u4 d, a, b, c" / 32 => |a, b, c, _| (0..8).fold(c, |s, n| s.wrapping_add(nibble(a, n) * nibble(b, n)));
    "v_dot2_i32_i16 d, a, b, c" / 32 => |a, b, c, _| c.wrapping_add((s16(a) * s16(b) + s16(up(a)) * s16(up(b))) as u64);
    "v_dot2_u32_u16 d, a, b, c" / 32 => |a, b, c, _| c.wrapping_add(u16_(a) * u16_(b) + up(a) * up(b));
    "v_dot2_f32_f16 d, a, b, c" / 32 => |a, b, c, _| dot2(halves(a), halves(b), f(c));
    "rdna4: v_pk_maximum_f16 d, a, b" / 32 => |a, b, _, _| two(hb(maximum(h(a), h(b))), hb(maximum(h(up(a)), h(up(b)))));
    "rdna4: v_pk_minimum_f16 d, a, b" / 32 => |a, b, _, _| two(hb(minimum(h(a), h(b))), hb(minimum(h(up(a)), h(up(b)))));
    "rdna3: v_dot2_f32_bf16 d, a, b, c" / 32 => |a, b, c, _| dot2(bfloats(a), bfloats(b), f(c));
    "v_dot2acc_f32_f16|v_dot2c_f32_f16 d, a, b" / 32 => |a, b, _, d| dot2(halves(a), halves(b), f(d));

    "v_pk_fma_f32 D, A, B, C" / 64 => |a, b, c, _| pair(f(a).mul_add(f(b), f(c)), hi(a).mul_add(hi(b), hi(c)));
    "v_pk_mul_f32 D, A, B op_sel:[1,0] op_sel_hi:[0,1]" / 64 => |a, b, _, _| pair(hi(a) * f(b), f(a) * hi(b));
    "v_pk_add_f32 D, A, B neg_lo:[1,0] neg_hi:[0,1]" / 64 => |a, b, _, _| pair(f(b) - f(a), hi(a) - hi(b));
    "v_pk_mov_b32 D, A, B op_sel:[1,0]" / 64 => |a, b, _, _| a >> 32 | b << 32;

    // Two at once: both read before either writes. Only waves of 32 lanes may.
    "v_dual_add_f32 v8, v2, v5 :: v_dual_mul_f32 v9, v3, v4" / 64 => |a, b, _, _| pair(f(a) + hi(b), hi(a) * f(b));
    "v_dual_sub_f32 v8, v2, v5 :: v_dual_subrev_f32 v9, v3, v4" / 64 => |a, b, _, _| pair(f(a) - hi(b), f(b) - hi(a));
    "v_dual_max_f32 v8, v2, v5 :: v_dual_min_f32 v9, v3, v4" / 64 => |a, b, _, _| pair(max(f(a) as f64, hi(b) as f64) as f32, min(hi(a) as f64, f(b) as f64) as f32);
    "v_dual_fmac_f32 v8, v2, v5 :: v_dual_mov_b32 v9, v3" / 64 => |a, b, _, d| fb(f(a).mul_add(hi(b), f(d))) | a >> 32 << 32;
    "v_dual_fmamk_f32 v8, v2, 0x40490fdb, v5 :: v_dual_fmaak_f32 v9, v3, v4, 0x40490fdb" / 64 => |a, b, _, _| { let k = f(0x40490fdb); pair(f(a).mul_add(k, hi(b)), hi(a).mul_add(f(b), k)) };
    "v_dual_mul_dx9_zero_f32 v8, v2, v5 :: v_dual_fmac_f32 v9, v3, v4" / 64 => |a, b, _, d| pair(if f(a) == 0.0 || hi(b) == 0.0 { 0.0 } else { f(a) * hi(b) }, hi(a).mul_add(f(b), hi(d)));
    "v_cmp_gt_i32 vcc, a, b\n v_dual_cndmask_b32 v8, v2, v5 :: v_dual_mov_b32 v9, v4" / 64 => |a, b, _, _| if i(a) > i(b) { b >> 32 } else { a & 0xffff_ffff } | b << 32;
    "v_dual_dot2acc_f32_f16 v8, v2, v5 :: v_dual_mov_b32 v9, v3" / 64 => |a, b, _, d| dot2(halves(a), halves(b >> 32), f(d)) | a >> 32 << 32;
    "v_dual_mov_b32 v2, v3 :: v_dual_mov_b32 v3, v2\n v_mov_b32 d, a\n v_mov_b32 d1, a1" / 64 => |a, _, _, _| a.rotate_left(32);
    "v_dual_add_f32 v2, v3, v4 :: v_dual_fmac_f32 v3, v2, v5\n v_mov_b32 d, a\n v_mov_b32 d1, a1" / 64 => |a, b, _, _| pair(hi(a) + f(b), f(a).mul_add(hi(b), hi(a)));
};

#[test]
fn packed_values_follow_the_pseudocode() {
    check_vector(CASES, |case, got, want| match case.bits {
        // Two floats.
        64 => is_same(32, got & 0xffff_ffff, want & 0xffff_ffff) && is_same(32, got >> 32, want >> 32),
        bits => is_same(bits, got, want),
    });
}
