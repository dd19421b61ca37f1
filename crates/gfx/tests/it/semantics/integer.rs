//! Integer and bit instructions, carries and selections.

use super::numbers::*;
use super::{Case, HALF, cases, check_vector};

pub const CASES: &[Case] = cases! {
    "v_mov_b32 d, a" / 32 => |a, _, _, _| a;
    "v_mov_b16 d.l, a.l" / HALF => |a, _, _, _| a;
    "v_mov_b16 d.h, a.l" / 32 => |a, _, _, d| two(d, a);
    "v_mov_b64 D, A" / 64 => |a, _, _, _| a;
    "v_accvgpr_write_b32 a7, b\n v_accvgpr_mov_b32 a9, a7\n v_accvgpr_read_b32 d, a9" / 32 => |_, b, _, _| b;
    "v_not_b32 d, a" / 32 => |a, _, _, _| !a;
    "v_not_b16 d, a" / HALF => |a, _, _, _| !a;
    "v_bfrev_b32 d, a" / 32 => |a, _, _, _| (0..32).fold(0, |r, n| r | (a >> n & 1) << (31 - n));
    "v_clz_i32_u32|v_ffbh_u32 d, a" / 32 => |a, _, _, _| (0..32).find(|n| a >> (31 - n) & 1 == 1).unwrap_or(!0);
    "v_ctz_i32_b32|v_ffbl_b32 d, a" / 32 => |a, _, _, _| (0..32).find(|n| a >> n & 1 == 1).unwrap_or(!0);
    "v_cls_i32|v_ffbh_i32 d, a" / 32 => |a, _, _, _| (1..32).find(|n| a >> (31 - n) & 1 != a >> 31 & 1).unwrap_or(!0);
    "v_add_nc_u32|v_add_u32 d, a, b" / 32 => |a, b, _, _| a.wrapping_add(b);
    "v_add_nc_i32|v_add_i32 d, a, b" / 32 => |a, b, _, _| a.wrapping_add(b);
    "v_sub_nc_u32|v_sub_u32 d, a, b" / 32 => |a, b, _, _| a.wrapping_sub(b);
    "v_sub_nc_i32|v_sub_i32 d, a, b" / 32 => |a, b, _, _| a.wrapping_sub(b);
    "v_subrev_nc_u32|v_subrev_u32 d, a, b" / 32 => |a, b, _, _| b.wrapping_sub(a);
    "v_mul_lo_u32 d, a, b" / 32 => |a, b, _, _| (a & 0xffff_ffff).wrapping_mul(b & 0xffff_ffff);
    "v_mul_hi_u32 d, a, b" / 32 => |a, b, _, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32;
    "v_mul_hi_i32 d, a, b" / 32 => |a, b, _, _| ((i(a) as i64 * i(b) as i64) >> 32) as u64;
    "v_mul_i32_i24 d, a, b" / 32 => |a, b, _, _| (s24(a) * s24(b)) as u64;
    "v_mul_hi_i32_i24 d, a, b" / 32 => |a, b, _, _| ((s24(a) * s24(b)) >> 32) as u64;
    "v_mul_u32_u24 d, a, b" / 32 => |a, b, _, _| u24(a) * u24(b);
    "v_mul_hi_u32_u24 d, a, b" / 32 => |a, b, _, _| (u24(a) * u24(b)) >> 32;
    "v_mad_u32_u24 d, a, b, c" / 32 => |a, b, c, _| (u24(a) * u24(b)).wrapping_add(c);
    "v_mad_i32_i24 d, a, b, c" / 32 => |a, b, c, _| ((s24(a) * s24(b)) as u64).wrapping_add(c);
    "v_mad_u32_u16 d, a, b, c" / 32 => |a, b, c, _| (u16_(a) * u16_(b)).wrapping_add(c);
    "v_mad_i32_i16 d, a, b, c" / 32 => |a, b, c, _| ((s16(a) * s16(b)) as u64).wrapping_add(c);
    "v_mad_i32_i16 d, a, b, c op_sel:[1,0,0,0]" / 32 => |a, b, c, _| ((s16(up(a)) * s16(b)) as u64).wrapping_add(c);
    "v_add3_u32 d, a, b, c" / 32 => |a, b, c, _| a.wrapping_add(b).wrapping_add(c);
    "v_lshl_add_u32 d, a, b, c" / 32 => |a, b, c, _| ((u(a) << (b & 31)) as u64).wrapping_add(c);
    "v_add_lshl_u32 d, a, b, c" / 32 => |a, b, c, _| (u(a.wrapping_add(b)) << (c & 31)) as u64;
    "v_lshl_or_b32 d, a, b, c" / 32 => |a, b, c, _| (u(a) << (b & 31)) as u64 | c;
    "v_and_or_b32 d, a, b, c" / 32 => |a, b, c, _| a & b | c;
    "v_or3_b32 d, a, b, c" / 32 => |a, b, c, _| a | b | c;
    "v_xor3_b32 d, a, b, c" / 32 => |a, b, c, _| a ^ b ^ c;
    "v_xad_u32 d, a, b, c" / 32 => |a, b, c, _| (a ^ b).wrapping_add(c);
    "v_and_b32 d, a, b" / 32 => |a, b, _, _| a & b;
    "v_or_b32 d, a, b" / 32 => |a, b, _, _| a | b;
    "v_xor_b32 d, a, b" / 32 => |a, b, _, _| a ^ b;
    "v_xnor_b32 d, a, b" / 32 => |a, b, _, _| !(a ^ b);
    "v_and_b16 d, a, b" / HALF => |a, b, _, _| a & b;
    "v_or_b16 d, a, b" / HALF => |a, b, _, _| a | b;
    "v_xor_b16 d, a, b" / HALF => |a, b, _, _| a ^ b;
    "v_lshlrev_b32 d, a, b" / 32 => |a, b, _, _| (u(b) << (a & 31)) as u64;
    "v_lshrrev_b32 d, a, b" / 32 => |a, b, _, _| (u(b) >> (a & 31)) as u64;
    "v_ashrrev_i32 d, a, b" / 32 => |a, b, _, _| (i(b) >> (a & 31)) as u64;
    "v_lshlrev_b16 d, a, b" / HALF => |a, b, _, _| u16_(b) << (a & 15);
    "v_lshrrev_b16 d, a, b" / HALF => |a, b, _, _| u16_(b) >> (a & 15);
    "v_ashrrev_i16 d, a, b" / HALF => |a, b, _, _| (s16(b) >> (a & 15)) as u64;
    "v_lshlrev_b64 D, a, B" / 64 => |a, b, _, _| b << (a & 63);
    "v_lshrrev_b64 D, a, B" / 64 => |a, b, _, _| b >> (a & 63);
    "v_ashrrev_i64 D, a, B" / 64 => |a, b, _, _| ((b as i64) >> (a & 63)) as u64;
    "v_lshl_add_u64 D, A, 3, C" / 64 => |a, _, c, _| (a << 3).wrapping_add(c);
    "v_max_i32 d, a, b" / 32 => |a, b, _, _| i(a).max(i(b)) as u64;
    "v_min_i32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u64;
    "v_max_u32 d, a, b" / 32 => |a, b, _, _| u(a).max(u(b)) as u64;
    "v_min_u32 d, a, b" / 32 => |a, b, _, _| u(a).min(u(b)) as u64;
    "v_max3_i32 d, a, b, c" / 32 => |a, b, c, _| i(a).max(i(b)).max(i(c)) as u64;
    "v_min3_i32 d, a, b, c" / 32 => |a, b, c, _| i(a).min(i(b)).min(i(c)) as u64;
    "v_med3_i32 d, a, b, c" / 32 => |a, b, c, _| middle([i(a), i(b), i(c)]) as u64;
    "v_max3_u32 d, a, b, c" / 32 => |a, b, c, _| u(a).max(u(b)).max(u(c)) as u64;
    "v_min3_u32 d, a, b, c" / 32 => |a, b, c, _| u(a).min(u(b)).min(u(c)) as u64;
    "v_med3_u32 d, a, b, c" / 32 => |a, b, c, _| middle([u(a), u(b), u(c)]) as u64;
    "v_maxmin_i32 d, a, b, c" / 32 => |a, b, c, _| i(a).max(i(b)).min(i(c)) as u64;
    "v_minmax_i32 d, a, b, c" / 32 => |a, b, c, _| i(a).min(i(b)).max(i(c)) as u64;
    "v_maxmin_u32 d, a, b, c" / 32 => |a, b, c, _| u(a).max(u(b)).min(u(c)) as u64;
    "v_minmax_u32 d, a, b, c" / 32 => |a, b, c, _| u(a).min(u(b)).max(u(c)) as u64;
    "v_bfe_u32 d, a, b, c" / 32 => |a, b, c, _| (a & 0xffff_ffff) >> (b & 31) & ((1 << (c & 31)) - 1);
    "v_bfe_i32 d, a, 5, 7" / 32 => |a, _, _, _| ((i(a) << 20) >> 25) as u64;
    "v_bfe_i32 d, a, b, c" / 32 => |a, b, c, _| {
        let n = c & 31;
        let field = (i(a) as i64) >> (b & 31);
        if n == 0 { 0 } else { (field << (64 - n) >> (64 - n)) as u64 }
    };
    "v_bfi_b32 d, a, b, c" / 32 => |a, b, c, _| a & b | !a & c;
    "v_bfm_b32 d, a, b" / 32 => |a, b, _, _| ((1 << (a & 31)) - 1) << (b & 31);
    "v_bcnt_u32_b32 d, a, b" / 32 => |a, b, _, _| (0..32).fold(b, |s, n| s.wrapping_add(a >> n & 1));
    "v_alignbit_b32 d, a, b, c" / 32 => |a, b, c, _| (a << 32 | b & 0xffff_ffff) >> (c & 31);
    "v_alignbyte_b32 d, a, b, c" / 32 => |a, b, c, _| (a << 32 | b & 0xffff_ffff) >> (8 * (c & 3));
    "v_perm_b32 d, a, b, c" / 32 => |a, b, c, _| {
        let all = a << 32 | b & 0xffff_ffff;
        (0..4).fold(0, |r, n| r | match byte(c, n) {
            k @ 0..=7 => byte(all, k),
            k @ 8..=11 => if byte(all, 2 * k - 15) & 0x80 != 0 { 0xff } else { 0 },
            12 => 0,
            _ => 0xff,
        } << (8 * n))
    };
    "v_sad_u8 d, a, b, c" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add(byte(a, n).abs_diff(byte(b, n))));
    "v_sad_hi_u8 d, a, b, c" / 32 => |a, b, c, _| c.wrapping_add((0..4).map(|n| byte(a, n).abs_diff(byte(b, n))).sum::<u64>() << 16);
    "v_sad_u16 d, a, b, c" / 32 => |a, b, c, _| c.wrapping_add(u16_(a).abs_diff(u16_(b)) + up(a).abs_diff(up(b)));
    "v_sad_u32 d, a, b, c" / 32 => |a, b, c, _| c.wrapping_add(u(a).abs_diff(u(b)) as u64);
    "v_cvt_i32_i16 d, a" / 32 => |a, _, _, _| s16(a) as u64;
    "v_cvt_u32_u16 d, a" / 32 => |a, _, _, _| u16_(a);
    "v_cvt_pk_u16_u32 d, a, b" / 32 => |a, b, _, _| two((u(a) as u64).min(65535), (u(b) as u64).min(65535));
    "v_cvt_pk_i16_i32 d, a, b" / 32 => |a, b, _, _| two(i(a).clamp(-32768, 32767) as u64, i(b).clamp(-32768, 32767) as u64);

    "v_add_nc_u16|v_add_u16 d, a, b" / HALF => |a, b, _, _| a.wrapping_add(b);
    "v_add_nc_i16|v_add_i16 d, a, b" / 16 => |a, b, _, _| a.wrapping_add(b);
    "v_sub_nc_u16|v_sub_u16 d, a, b" / HALF => |a, b, _, _| a.wrapping_sub(b);
    "v_sub_nc_i16|v_sub_i16 d, a, b" / 16 => |a, b, _, _| a.wrapping_sub(b);
    "v_subrev_u16 d, a, b" / HALF => |a, b, _, _| b.wrapping_sub(a);
    "v_mul_lo_u16 d, a, b" / HALF => |a, b, _, _| u16_(a) * u16_(b);
    "v_mad_u16 d, a, b, c" / 16 => |a, b, c, _| (u16_(a) * u16_(b)).wrapping_add(c);
    "v_mad_i16 d, a, b, c" / 16 => |a, b, c, _| (u16_(a) * u16_(b)).wrapping_add(c);
    "v_mad_legacy_u16 d, a, b, c" / 16 => |a, b, c, _| (u16_(a) * u16_(b)).wrapping_add(c);
    "v_max_u16 d, a, b" / HALF => |a, b, _, _| u16_(a).max(u16_(b));
    "v_min_u16 d, a, b" / HALF => |a, b, _, _| u16_(a).min(u16_(b));
    "v_max_i16 d, a, b" / HALF => |a, b, _, _| s16(a).max(s16(b)) as u64;
    "v_min_i16 d, a, b" / HALF => |a, b, _, _| s16(a).min(s16(b)) as u64;
    "v_max3_i16 d, a, b, c" / 16 => |a, b, c, _| s16(a).max(s16(b)).max(s16(c)) as u64;
    "v_min3_i16 d, a, b, c" / 16 => |a, b, c, _| s16(a).min(s16(b)).min(s16(c)) as u64;
    "v_med3_i16 d, a, b, c" / 16 => |a, b, c, _| middle([s16(a), s16(b), s16(c)]) as u64;
    "v_max3_u16 d, a, b, c" / 16 => |a, b, c, _| u16_(a).max(u16_(b)).max(u16_(c));
    "v_min3_u16 d, a, b, c" / 16 => |a, b, c, _| u16_(a).min(u16_(b)).min(u16_(c));
    "v_med3_u16 d, a, b, c" / 16 => |a, b, c, _| middle([u16_(a), u16_(b), u16_(c)]);

    "v_mad_u64_u32 D, null, a, b, C" / 64 => |a, b, c, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)).wrapping_add(c);
    "v_mad_i64_i32 D, null, a, b, C" / 64 => |a, b, c, _| ((i(a) as i64 * i(b) as i64) as u64).wrapping_add(c);
    "v_mad_u64_u32 D, vcc, a, b, C\n v_cndmask_b32 d, 0, 1, vcc" / 32 => |a, b, c, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)).checked_add(c).is_none() as u64;
    "v_add_co_u32 d, vcc, a, b\n v_add_co_ci_u32|v_addc_co_u32 d1, vcc, a1, b1, vcc" / 64 => |a, b, _, _| a.wrapping_add(b);
    "v_sub_co_u32 d, vcc, a, b\n v_sub_co_ci_u32|v_subb_co_u32 d1, vcc, a1, b1, vcc" / 64 => |a, b, _, _| a.wrapping_sub(b);
    "v_subrev_co_u32 d, vcc, a, b\n v_subrev_co_ci_u32|v_subbrev_co_u32 d1, vcc, a1, b1, vcc" / 64 => |a, b, _, _| b.wrapping_sub(a);
    "v_add_co_u32 d, vcc, a, b\n v_add_co_ci_u32|v_addc_co_u32 d1, vcc, a1, b1, vcc\n v_cndmask_b32 d, 0, 1, vcc" / 32 => |a, b, _, _| a.checked_add(b).is_none() as u64;
    "v_sub_co_u32 d, vcc, a, b\n v_sub_co_ci_u32|v_subb_co_u32 d1, vcc, a1, b1, vcc\n v_cndmask_b32 d, 0, 1, vcc" / 32 => |a, b, _, _| (a < b) as u64;
    "v_cmp_gt_i32 vcc, a, b\n v_cndmask_b32 d, a, b, vcc" / 32 => |a, b, _, _| i(a).min(i(b)) as u64;
    "v_cmp_nlt_f32_e64 M, a, b\n v_cndmask_b32_e64 d, a, -b, M" / 32 => |a, b, _, _| if f(a) < f(b) { a } else { b ^ 0x8000_0000 };
    "v_cmp_gt_i32_e64 M, a, b\n v_cndmask_b16 d, a, b, M" / HALF => |a, b, _, _| if i(a) > i(b) { b } else { a };
    "v_mov_b32 v12, a\n v_mov_b32 d, b\n v_swap_b32 v12, d\n v_mov_b32 d1, v12" / 64 => |a, b, _, _| a & 0xffff_ffff | b << 32;
    // Debian's assembler does not know it yet: v_swap_b16 v12.l, v8.l.
    "v_mov_b32 v12, a\n v_mov_b32 d, b\n v_mov_b16 d.l, d.l\n .long 0x7e18cd08\n v_mov_b32 d1, v12" / 64 => |a, b, _, _| two(a, up(b)) | two(b, up(a)) << 32;
    // Byte and half selection of CDNA.
    "v_add_u32_sdwa d, a, b dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1" / 32 => |a, b, _, _| byte(a, 1) + up(b);
    "v_add_u32_sdwa d, sext(a), b dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:DWORD" / 32 => |a, b, _, _| (s8(a, 3) as u64).wrapping_add(b);
    "v_add_u32_sdwa d, a, sext(b) dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:WORD_1" / 32 => |a, b, _, d| two(d, u16_(a).wrapping_add(s16(up(b)) as u64));
    // A result of 16 bits fills the register with zeros.
    "v_add_u32_sdwa v12, a, b dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD\n v_cvt_f16_i16_sdwa d, sext(a) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0" / 32 => |a, _, _, _| hb(s8(a, 0) as f64);
    "v_sub_u32_sdwa d, a, b dst_sel:BYTE_2 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_2" / 32 => |a, b, _, _| (byte(a, 0).wrapping_sub(byte(b, 2)) & 255) << 16;
    "v_sub_u32_sdwa d, a, b dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_0 src1_sel:BYTE_2" / 32 => |a, b, _, _| (byte(a, 0).wrapping_sub(byte(b, 2)) as i8 as i64 as u64) << 8;
};

#[test]
fn integers_follow_the_pseudocode() {
    check_vector(CASES, |_, got, want| got == want);
}
