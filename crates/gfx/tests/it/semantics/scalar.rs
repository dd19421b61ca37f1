//! Scalar instructions: values and the condition bit, which comes back as bit 63 of a 32-bit result, or by itself.

use gfx_model::bare::Arg;

use super::numbers::*;
use super::{Case, TARGETS, Target, cases, upload, words64};

fn scc(is_set: bool) -> u64 {
    (is_set as u64) << 63
}

fn nonzero(v: u64) -> u64 {
    v & 0xffff_ffff | scc(v & 0xffff_ffff != 0)
}

fn sum(a: u32, b: u32, carry: u64) -> u64 {
    let v = a as u64 + b as u64 + carry;
    v & 0xffff_ffff | scc(v >> 32 != 0)
}

fn shifted_sum(a: u64, shift: u32, b: u64) -> u64 {
    let v = ((a & 0xffff_ffff) << shift) + (b & 0xffff_ffff);
    v & 0xffff_ffff | scc(v >> 32 != 0)
}

/// A field by offset and width in one operand, bits 0 up and 16 up.
fn field(x: i128, b: u64, n_bits: u32) -> i128 {
    let (at, n) = (b as u32 & (n_bits - 1), b as u32 >> 16 & 127);
    if n == 0 { 0 } else { (x >> at) & if n > 100 { -1 } else { (1i128 << n) - 1 } }
}

fn signed_field(x: i128, b: u64, n_bits: u32) -> i128 {
    let n = (b as u32 >> 16 & 127).min(n_bits);
    let v = field(x, b, n_bits);
    if n == 0 { 0 } else { v << (128 - n) >> (128 - n) }
}

const FIELDS: u64 = 0x001f_003f; // widths and offsets that stay in range

/// `d` is s20 (preloaded with the old destination), `D` s[20:21], `A` s[16:17], `B` s[18:19]. 32: the condition bit is
/// bit 63. 64: the whole pair. 1: the condition bit alone.
#[allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    clippy::nonminimal_bool,
    reason = "NaN makes `!(a >= b)` differ from `a < b`"
)]
const CASES: &[Case] = cases! {
    "s_add_u32 d, a, b" / 32 => |a, b, _, _| sum(u(a), u(b), 0);
    "s_sub_u32 d, a, b" / 32 => |a, b, _, _| u(a).wrapping_sub(u(b)) as u64 | scc(u(a) < u(b));
    "s_add_i32 d, a, b" / 32 => |a, b, _, _| i(a).wrapping_add(i(b)) as u32 as u64 | scc(i(a).checked_add(i(b)).is_none());
    "s_sub_i32 d, a, b" / 32 => |a, b, _, _| i(a).wrapping_sub(i(b)) as u32 as u64 | scc(i(a).checked_sub(i(b)).is_none());
    "s_cmp_eq_u32 a, a\n s_addc_u32 d, a, b" / 32 => |a, b, _, _| sum(u(a), u(b), 1);
    "s_addc_u32 d, a, b" / 32 => |a, b, _, _| sum(u(a), u(b), 0);
    "s_cmp_eq_u32 a, a\n s_subb_u32 d, a, b" / 32 => |a, b, _, _| u(a).wrapping_sub(u(b)).wrapping_sub(1) as u64 | scc((u(a) as u64) < u(b) as u64 + 1);
    "s_absdiff_i32 d, a, b" / 32 => |a, b, _, _| nonzero(i(a).wrapping_sub(i(b)).wrapping_abs() as u32 as u64);
    "s_mul_i32 d, a, b" / 32 => |a, b, _, _| u(a).wrapping_mul(u(b)) as u64;
    "s_mul_hi_u32 d, a, b" / 32 => |a, b, _, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32;
    "s_mul_hi_i32 d, a, b" / 32 => |a, b, _, _| ((i(a) as i64 * i(b) as i64) >> 32) as u32 as u64;
    "s_min_i32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u32 as u64 | scc(i(a) < i(b));
    "s_min_u32 d, a, b" / 32 => |a, b, _, _| u(a).min(u(b)) as u64 | scc(u(a) < u(b));
    "s_max_i32 d, a, b" / 32 => |a, b, _, _| i(a).max(i(b)) as u32 as u64 | scc(i(a) >= i(b));
    "s_max_u32 d, a, b" / 32 => |a, b, _, _| u(a).max(u(b)) as u64 | scc(u(a) >= u(b));
    "s_and_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a & b);
    "s_or_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a | b);
    "s_xor_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a ^ b);
    "s_nand_b32 d, a, b" / 32 => |a, b, _, _| nonzero(!(a & b));
    "s_nor_b32 d, a, b" / 32 => |a, b, _, _| nonzero(!(a | b));
    "s_xnor_b32 d, a, b" / 32 => |a, b, _, _| nonzero(!(a ^ b));
    "s_and_not1_b32|s_andn2_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a & !b);
    "s_or_not1_b32|s_orn2_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a | !b);
    "s_and_b64 D, A, B" / 64 => |a, b, _, _| a & b;
    "s_or_b64 D, A, B" / 64 => |a, b, _, _| a | b;
    "s_xor_b64 D, A, B" / 64 => |a, b, _, _| a ^ b;
    "s_nand_b64 D, A, B" / 64 => |a, b, _, _| !(a & b);
    "s_nor_b64 D, A, B" / 64 => |a, b, _, _| !(a | b);
    "s_xnor_b64 D, A, B" / 64 => |a, b, _, _| !(a ^ b);
    "s_and_not1_b64|s_andn2_b64 D, A, B" / 64 => |a, b, _, _| a & !b;
    "s_or_not1_b64|s_orn2_b64 D, A, B" / 64 => |a, b, _, _| a | !b;
    "s_and_b64 D, A, B" / 1 => |a, b, _, _| (a & b != 0) as u64;
    "s_or_b64 D, A, B" / 1 => |a, b, _, _| (a | b != 0) as u64;
    "s_xor_b64 D, A, B" / 1 => |a, b, _, _| (a != b) as u64;
    "s_nand_b64 D, A, B" / 1 => |a, b, _, _| (a & b != !0) as u64;
    "s_nor_b64 D, A, B" / 1 => |a, b, _, _| (a | b != !0) as u64;
    "s_and_not1_b64|s_andn2_b64 D, A, B" / 1 => |a, b, _, _| (a & !b != 0) as u64;
    "s_lshl_b32 d, a, b" / 32 => |a, b, _, _| nonzero((u(a) << (b & 31)) as u64);
    "s_lshr_b32 d, a, b" / 32 => |a, b, _, _| nonzero((u(a) >> (b & 31)) as u64);
    "s_ashr_i32 d, a, b" / 32 => |a, b, _, _| nonzero((i(a) >> (b & 31)) as u64);
    "s_lshl_b64 D, A, b" / 64 => |a, b, _, _| a << (b & 63);
    "s_lshr_b64 D, A, b" / 64 => |a, b, _, _| a >> (b & 63);
    "s_ashr_i64 D, A, b" / 64 => |a, b, _, _| ((a as i64) >> (b & 63)) as u64;
    "s_lshl_b64 D, A, b" / 1 => |a, b, _, _| (a << (b & 63) != 0) as u64;
    "s_lshl1_add_u32 d, a, b" / 32 => |a, b, _, _| shifted_sum(a, 1, b);
    "s_lshl2_add_u32 d, a, b" / 32 => |a, b, _, _| shifted_sum(a, 2, b);
    "s_lshl3_add_u32 d, a, b" / 32 => |a, b, _, _| shifted_sum(a, 3, b);
    "s_lshl4_add_u32 d, a, b" / 32 => |a, b, _, _| shifted_sum(a, 4, b);
    "s_bfe_u32 d, a, 0x70005" / 32 => |a, _, _, _| nonzero(a >> 5 & 127);
    "s_bfe_i32 d, a, 0x70005" / 32 => |a, _, _, _| nonzero((i(a) << 20 >> 25) as u64);
    "s_and_b32 s22, b, 0x1f003f\n s_bfe_u32 d, a, s22" / 32 => |a, b, _, _| nonzero(field(u(a) as i128, b & FIELDS, 32) as u64);
    "s_and_b32 s22, b, 0x1f003f\n s_bfe_i32 d, a, s22" / 32 => |a, b, _, _| nonzero(signed_field(i(a) as i128, b & FIELDS, 32) as u64);
    "s_and_b32 s22, b, 0x1f003f\n s_bfe_u64 D, A, s22" / 64 => |a, b, _, _| field(a as i128, b & FIELDS, 64) as u64;
    "s_and_b32 s22, b, 0x1f003f\n s_bfe_i64 D, A, s22" / 64 => |a, b, _, _| signed_field(a as i64 as i128, b & FIELDS, 64) as u64;
    "s_bfm_b32 d, a, b" / 32 => |a, b, _, _| ((1u32 << (a & 31)).wrapping_sub(1) << (b & 31)) as u64;
    "s_bfm_b64 D, a, b" / 64 => |a, b, _, _| ((1u64 << (a & 63)) - 1) << (b & 63);
    "s_pack_ll_b32_b16 d, a, b" / 32 => |a, b, _, _| two(a, b);
    "s_pack_lh_b32_b16 d, a, b" / 32 => |a, b, _, _| two(a, up(b));
    "s_pack_hh_b32_b16 d, a, b" / 32 => |a, b, _, _| two(up(a), up(b));
    "s_pack_hl_b32_b16 d, a, b" / 32 => |a, b, _, _| two(up(a), b);
    "s_mov_b32 d, a" / 32 => |a, _, _, _| a & 0xffff_ffff;
    "s_mov_b64 D, A" / 64 => |a, _, _, _| a;
    "s_not_b32 d, a" / 32 => |a, _, _, _| nonzero(!a);
    "s_not_b64 D, A" / 64 => |a, _, _, _| !a;
    "s_not_b64 D, A" / 1 => |a, _, _, _| (a != !0) as u64;
    "s_abs_i32 d, a" / 32 => |a, _, _, _| nonzero(i(a).wrapping_abs() as u32 as u64);
    "s_brev_b32 d, a" / 32 => |a, _, _, _| (0..32).fold(0, |r, n| r | (a >> n & 1) << (31 - n));
    "s_brev_b64 D, A" / 64 => |a, _, _, _| (0..64).fold(0, |r, n| r | (a >> n & 1) << (63 - n));
    "s_clz_i32_u32|s_flbit_i32_b32 d, a" / 32 => |a, _, _, _| (0..32).find(|n| a >> (31 - n) & 1 == 1).unwrap_or(0xffff_ffff);
    "s_clz_i32_u64|s_flbit_i32_b64 d, A" / 32 => |a, _, _, _| (0..64).find(|n| a >> (63 - n) & 1 == 1).unwrap_or(0xffff_ffff);
    "s_ctz_i32_b32|s_ff1_i32_b32 d, a" / 32 => |a, _, _, _| (0..32).find(|n| a >> n & 1 == 1).unwrap_or(0xffff_ffff);
    "s_ctz_i32_b64|s_ff1_i32_b64 d, A" / 32 => |a, _, _, _| (0..64).find(|n| a >> n & 1 == 1).unwrap_or(0xffff_ffff);
    "s_cls_i32|s_flbit_i32 d, a" / 32 => |a, _, _, _| (1..32).find(|n| a >> (31 - n) & 1 != a >> 31 & 1).unwrap_or(0xffff_ffff);
    "s_bcnt0_i32_b32 d, a" / 32 => |a, _, _, _| nonzero((0..32).filter(|n| a >> n & 1 == 0).count() as u64);
    "s_bcnt1_i32_b32 d, a" / 32 => |a, _, _, _| nonzero((0..32).filter(|n| a >> n & 1 == 1).count() as u64);
    "s_bcnt0_i32_b64 d, A" / 32 => |a, _, _, _| nonzero((0..64).filter(|n| a >> n & 1 == 0).count() as u64);
    "s_bcnt1_i32_b64 d, A" / 32 => |a, _, _, _| nonzero((0..64).filter(|n| a >> n & 1 == 1).count() as u64);
    "s_sext_i32_i8 d, a" / 32 => |a, _, _, _| s8(a, 0) as u32 as u64;
    "s_sext_i32_i16 d, a" / 32 => |a, _, _, _| s16(a) as u32 as u64;
    "s_bitreplicate_b64_b32 D, a" / 64 => |a, _, _, _| (0..64).fold(0, |r, n| r | (a >> (n / 2) & 1) << n);
    "s_bitset0_b32 d, a" / 32 => |a, _, _, d| d & 0xffff_ffff & !(1 << (a & 31));
    "s_bitset1_b32 d, a" / 32 => |a, _, _, d| d & 0xffff_ffff | 1 << (a & 31);
    "s_bitset0_b64 D, a" / 64 => |a, _, _, d| d & !(1 << (a & 63));
    "s_bitset1_b64 D, a" / 64 => |a, _, _, d| d | 1 << (a & 63);
    "s_cmp_lt_i32 a, b\n s_cmov_b32 d, a" / 32 => |a, b, _, d| if i(a) < i(b) { a & 0xffff_ffff | scc(true) } else { d & 0xffff_ffff };
    "s_cmp_lt_i32 a, b\n s_cmov_b64 D, A" / 64 => |a, b, _, d| if i(a) < i(b) { a } else { d };
    "s_cmp_lt_i32 a, b\n s_cmovk_i32 d, 0x8123" / 32 => |a, b, _, d| if i(a) < i(b) { 0xffff_8123 | scc(true) } else { d & 0xffff_ffff };
    "s_cmp_lt_i32 a, b\n s_cselect_b32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u32 as u64 | scc(i(a) < i(b));
    "s_cmp_lt_u32 a, b\n s_cselect_b64 D, A, B" / 64 => |a, b, _, _| if u(a) < u(b) { a } else { b };
    "s_cmp_eq_i32 a, b" / 1 => |a, b, _, _| (i(a) == i(b)) as u64;
    "s_cmp_lg_i32 a, b" / 1 => |a, b, _, _| (i(a) != i(b)) as u64;
    "s_cmp_gt_i32 a, b" / 1 => |a, b, _, _| (i(a) > i(b)) as u64;
    "s_cmp_ge_i32 a, b" / 1 => |a, b, _, _| (i(a) >= i(b)) as u64;
    "s_cmp_lt_i32 a, b" / 1 => |a, b, _, _| (i(a) < i(b)) as u64;
    "s_cmp_le_i32 a, b" / 1 => |a, b, _, _| (i(a) <= i(b)) as u64;
    "s_cmp_eq_u32 a, b" / 1 => |a, b, _, _| (u(a) == u(b)) as u64;
    "s_cmp_lg_u32 a, b" / 1 => |a, b, _, _| (u(a) != u(b)) as u64;
    "s_cmp_gt_u32 a, b" / 1 => |a, b, _, _| (u(a) > u(b)) as u64;
    "s_cmp_ge_u32 a, b" / 1 => |a, b, _, _| (u(a) >= u(b)) as u64;
    "s_cmp_lt_u32 a, b" / 1 => |a, b, _, _| (u(a) < u(b)) as u64;
    "s_cmp_le_u32 a, b" / 1 => |a, b, _, _| (u(a) <= u(b)) as u64;
    "s_cmp_eq_u64 A, B" / 1 => |a, b, _, _| (a == b) as u64;
    "s_cmp_lg_u64 A, B" / 1 => |a, b, _, _| (a != b) as u64;
    "s_bitcmp0_b32 a, b" / 1 => |a, b, _, _| (a >> (b & 31) & 1 == 0) as u64;
    "s_bitcmp1_b32 a, b" / 1 => |a, b, _, _| a >> (b & 31) & 1;
    "s_bitcmp0_b64 A, b" / 1 => |a, b, _, _| (a >> (b & 63) & 1 == 0) as u64;
    "s_bitcmp1_b64 A, b" / 1 => |a, b, _, _| a >> (b & 63) & 1;
    "s_movk_i32 d, 0x8123" / 32 => |_, _, _, _| 0xffff_8123;
    "s_addk_i32 d, 0x7f" / 32 => |_, _, _, d| i(d).wrapping_add(127) as u32 as u64 | scc(i(d).checked_add(127).is_none());
    "s_addk_i32 d, 0x8001" / 32 => |_, _, _, d| i(d).wrapping_add(-32767) as u32 as u64 | scc(i(d).checked_add(-32767).is_none());
    "s_mulk_i32 d, 0x8123" / 32 => |_, _, _, d| i(d).wrapping_mul(0x8123 - 0x10000) as u32 as u64;
    "s_cmpk_eq_i32 d, 1" / 1 => |_, _, _, d| (i(d) == 1) as u64;
    "s_cmpk_lg_i32 d, 1" / 1 => |_, _, _, d| (i(d) != 1) as u64;
    "s_cmpk_gt_i32 d, 0xffff" / 1 => |_, _, _, d| (i(d) > -1) as u64;
    "s_cmpk_ge_i32 d, 0xffff" / 1 => |_, _, _, d| (i(d) >= -1) as u64;
    "s_cmpk_lt_i32 d, 1" / 1 => |_, _, _, d| (i(d) < 1) as u64;
    "s_cmpk_le_i32 d, 0" / 1 => |_, _, _, d| (i(d) <= 0) as u64;
    "s_cmpk_eq_u32 d, 1" / 1 => |_, _, _, d| (u(d) == 1) as u64;
    "s_cmpk_lg_u32 d, 1" / 1 => |_, _, _, d| (u(d) != 1) as u64;
    "s_cmpk_gt_u32 d, 0xffff" / 1 => |_, _, _, d| (u(d) > 0xffff) as u64;
    "s_cmpk_ge_u32 d, 1" / 1 => |_, _, _, d| (u(d) >= 1) as u64;
    "s_cmpk_lt_u32 d, 0xffff" / 1 => |_, _, _, d| (u(d) < 0xffff) as u64;
    "s_cmpk_le_u32 d, 1" / 1 => |_, _, _, d| (u(d) <= 1) as u64;
    "rdna4: s_add_f32 d, a, b" / 32 => |a, b, _, _| fb(f(a) + f(b));
    "rdna4: s_add_f16 d, a, b" / 32 => |a, b, _, _| hb(h(a) + h(b));
    "rdna4: s_sub_f32 d, a, b" / 32 => |a, b, _, _| fb(f(a) - f(b));
    "rdna4: s_sub_f16 d, a, b" / 32 => |a, b, _, _| hb(h(a) - h(b));
    "rdna4: s_mul_f32 d, a, b" / 32 => |a, b, _, _| fb(f(a) * f(b));
    "rdna4: s_mul_f16 d, a, b" / 32 => |a, b, _, _| hb(h(a) * h(b));
    "rdna4: s_min_num_f32 d, a, b" / 32 => |a, b, _, _| fb(min(f(a) as f64, f(b) as f64) as f32);
    "rdna4: s_min_num_f16 d, a, b" / 32 => |a, b, _, _| hb(min(h(a), h(b)));
    "rdna4: s_minimum_f32 d, a, b" / 32 => |a, b, _, _| fb(minimum(f(a) as f64, f(b) as f64) as f32);
    "rdna4: s_minimum_f16 d, a, b" / 32 => |a, b, _, _| hb(minimum(h(a), h(b)));
    "rdna4: s_max_num_f32 d, a, b" / 32 => |a, b, _, _| fb(max(f(a) as f64, f(b) as f64) as f32);
    "rdna4: s_max_num_f16 d, a, b" / 32 => |a, b, _, _| hb(max(h(a), h(b)));
    "rdna4: s_maximum_f32 d, a, b" / 32 => |a, b, _, _| fb(maximum(f(a) as f64, f(b) as f64) as f32);
    "rdna4: s_maximum_f16 d, a, b" / 32 => |a, b, _, _| hb(maximum(h(a), h(b)));
    "rdna4: s_fmac_f32 d, a, b" / 32 => |a, b, _, d| fb(f(a).mul_add(f(b), f(d)));
    "rdna4: s_fmaak_f32 d, a, b, 0x40490fdb" / 32 => |a, b, _, _| fb(f(a).mul_add(f(b), f32::from_bits(0x40490fdb)));
    "rdna4: s_fmamk_f32 d, a, 0x40490fdb, b" / 32 => |a, b, _, _| fb(f(a).mul_add(f32::from_bits(0x40490fdb), f(b)));
    "rdna4: s_and_b32 d, d, 0x33ff\n s_and_b32 a, a, 0x33ff\n s_and_b32 b, b, 0x33ff\n s_cmp_lg_u32 0, 0\n s_fmac_f16 d, a, b" / 32 => |a, b, _, d| hb(h(a & 0x33ff).mul_add(h(b & 0x33ff), h(d & 0x33ff)));
    "rdna4: s_add_nc_u64 D, A, B" / 64 => |a, b, _, _| a.wrapping_add(b);
    "rdna4: s_sub_nc_u64 D, A, B" / 64 => |a, b, _, _| a.wrapping_sub(b);
    "rdna4: s_mul_u64 D, A, B" / 64 => |a, b, _, _| a.wrapping_mul(b);
    "rdna4: s_ceil_f32 d, a" / 32 => |a, _, _, _| fb(f(a).ceil());
    "rdna4: s_ceil_f16 d, a" / 32 => |a, _, _, _| hb(h(a).ceil());
    "rdna4: s_floor_f32 d, a" / 32 => |a, _, _, _| fb(f(a).floor());
    "rdna4: s_floor_f16 d, a" / 32 => |a, _, _, _| hb(h(a).floor());
    "rdna4: s_trunc_f32 d, a" / 32 => |a, _, _, _| fb(f(a).trunc());
    "rdna4: s_trunc_f16 d, a" / 32 => |a, _, _, _| hb(h(a).trunc());
    "rdna4: s_rndne_f32 d, a" / 32 => |a, _, _, _| fb(f(a).round_ties_even());
    "rdna4: s_rndne_f16 d, a" / 32 => |a, _, _, _| hb(h(a).round_ties_even());
    "rdna4: s_cvt_f32_i32 d, a" / 32 => |a, _, _, _| fb(i(a) as f32);
    "rdna4: s_cvt_f32_u32 d, a" / 32 => |a, _, _, _| fb(u(a) as f32);
    "rdna4: s_cvt_i32_f32 d, a" / 32 => |a, _, _, _| f(a) as i32 as u32 as u64;
    "rdna4: s_cvt_u32_f32 d, a" / 32 => |a, _, _, _| f(a) as u32 as u64;
    "rdna4: s_cvt_f16_f32 d, a" / 32 => |a, _, _, _| hb(f(a) as f64);
    "rdna4: s_cvt_f32_f16 d, a" / 32 => |a, _, _, _| fb(h(a) as f32);
    "rdna4: s_cvt_hi_f32_f16 d, a" / 32 => |a, _, _, _| fb(h(up(a)) as f32);
    "rdna4: s_cvt_pk_rtz_f16_f32 d, a, b" / 32 => |a, b, _, _| two(hb_to_zero(f(a) as f64), hb_to_zero(f(b) as f64));
    "rdna4: s_cmp_lt_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x < y) as u64 };
    "rdna4: s_cmp_eq_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x == y) as u64 };
    "rdna4: s_cmp_le_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x <= y) as u64 };
    "rdna4: s_cmp_gt_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x > y) as u64 };
    "rdna4: s_cmp_lg_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x < y || x > y) as u64 };
    "rdna4: s_cmp_ge_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x >= y) as u64 };
    "rdna4: s_cmp_o_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (!x.is_nan() && !y.is_nan()) as u64 };
    "rdna4: s_cmp_u_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); (x.is_nan() || y.is_nan()) as u64 };
    "rdna4: s_cmp_nge_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x >= y) as u64 };
    "rdna4: s_cmp_nlg_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x < y || x > y) as u64 };
    "rdna4: s_cmp_ngt_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x > y) as u64 };
    "rdna4: s_cmp_nle_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x <= y) as u64 };
    "rdna4: s_cmp_neq_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x == y) as u64 };
    "rdna4: s_cmp_nlt_f32 a, b" / 1 => |a, b, _, _| { let (x, y) = (f(a), f(b)); !(x < y) as u64 };
    "rdna4: s_cmp_lt_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x < y) as u64 };
    "rdna4: s_cmp_eq_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x == y) as u64 };
    "rdna4: s_cmp_le_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x <= y) as u64 };
    "rdna4: s_cmp_gt_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x > y) as u64 };
    "rdna4: s_cmp_lg_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x < y || x > y) as u64 };
    "rdna4: s_cmp_ge_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x >= y) as u64 };
    "rdna4: s_cmp_o_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (!x.is_nan() && !y.is_nan()) as u64 };
    "rdna4: s_cmp_u_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); (x.is_nan() || y.is_nan()) as u64 };
    "rdna4: s_cmp_nge_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x >= y) as u64 };
    "rdna4: s_cmp_nlg_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x < y || x > y) as u64 };
    "rdna4: s_cmp_ngt_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x > y) as u64 };
    "rdna4: s_cmp_nle_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x <= y) as u64 };
    "rdna4: s_cmp_neq_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x == y) as u64 };
    "rdna4: s_cmp_nlt_f16 a, b" / 1 => |a, b, _, _| { let (x, y) = (h(a), h(b)); !(x < y) as u64 };
};

fn registers(word: &str) -> Option<&'static str> {
    Some(match word {
        "d" => "s20",
        "a" => "s16",
        "b" => "s18",
        "D" => "s[20:21]",
        "A" => "s[16:17]",
        "B" => "s[18:19]",
        _ => return None,
    })
}

/// Scalar operands come from lane 0's vector registers; the condition bit starts clear.
fn kernels(target: &Target) -> (Vec<usize>, String) {
    let read: String = [(16, 2), (17, 3), (18, 4), (19, 5), (20, 8), (21, 9)]
        .iter()
        .map(|(s, v)| format!("  v_readfirstlane_b32 s{s}, v{v}\n"))
        .collect();
    let kernel = |(n, case): (usize, &Case)| {
        let body = target.spell(case.asm, &registers)?;
        let result = match case.bits {
            1 => "  s_cselect_b32 s20, 1, 0\n",
            32 => "  s_cselect_b32 s21, 0x80000000, 0\n",
            _ => "",
        };
        let store = "  v_mov_b32_e32 v8, s20\n  v_mov_b32_e32 v9, s21\n";
        Some((n, target.lane_kernel(&format!("case{n}"), &format!("{read}  s_cmp_lg_u32 0, 0\n{body}{result}{store}"))))
    };
    let (known, texts): (Vec<_>, Vec<_>) = CASES.iter().enumerate().filter_map(kernel).unzip();
    (known, texts.concat())
}

pub fn source(target: &Target) -> String {
    kernels(target).1
}

#[test]
fn scalars_follow_the_pseudocode() {
    let mut wrong = Vec::new();
    for target in TARGETS {
        let (known, source) = kernels(&target);
        let Some((device, module)) = target.load(&source) else { return };
        for k in known {
            let case = &CASES[k];
            for round in 0..60 {
                let mut x: Vec<u64> = (0..4).map(|s| operands(k as u64 * 999 + round * 8 + s, 1)[0]).collect();
                // Equal ones now and then; small ones for comparisons with a constant.
                if round % 7 == 0 {
                    x[1] = x[0];
                }
                if round % 5 == 0 {
                    x[3] = [0, 1, 2, 0xffff, 0x1_0000, 0xffff_ffff, 0xffff_fffe][round as usize / 5 % 7];
                }
                let b: Vec<_> = x.iter().map(|v| upload(&device, &[*v])).collect();
                let args: Vec<_> = b.iter().map(Arg::Buffer).collect();
                device
                    .launch(&module, &format!("case{k}"), [1, 1, 1], [1, 1, 1], &args)
                    .unwrap_or_else(|e| panic!("{}: {e}", case.asm));
                let mask = if case.bits == 1 { 1 } else { !0 };
                let (got, want) = (words64(&b[3])[0] & mask, (case.want)(x[0], x[1], x[2], x[3]) & mask);
                // A float that is no number may be any such.
                let is_float = case.asm.starts_with("rdna4: s_") && case.bits == 32;
                let are_nan = is_float && {
                    let n_bits = if case.asm.contains("_f16 d") && !case.asm.contains("f32_f16") { 16 } else { 32 };
                    is_same(n_bits, got & 0xffff_ffff, want & 0xffff_ffff) && got >> 63 == want >> 63
                };
                if got != want && !are_nan {
                    wrong.push(format!("`{}` on {} of {x:#x?}: {got:#x}, not {want:#x}", case.asm, target.chip));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
