//! Registers picked by m0: relative moves, and CDNA's indexed mode.

use super::{Case, cases, check_vector};

/// `a`, `b`, `c` and `d` are v2, v4, v6 and v8.
pub const CASES: &[Case] = cases! {
    "s_mov_b32 m0, 2\n v_movrels_b32 d, a" / 32 => |_, b, _, _| b;
    "s_mov_b32 m0, 1\n v_movreld_b32 d, a" / 64 => |a, _, _, d| d & 0xffff_ffff | a << 32;
    "s_mov_b32 m0, 1\n s_mov_b32 s20, 0x1234567\n v_movreld_b32 d, s20" / 64 => |_, _, _, d| d & 0xffff_ffff | 0x1234567 << 32;
    "s_mov_b32 m0, 2\n v_movrelsd_b32 c, a" / 32 => |_, b, _, _| b;
    "s_mov_b32 m0, 0x10003\n v_movrelsd_2_b32 v7, v1" / 32 => |_, b, _, _| b;
    "s_mov_b32 m0, 0x10003\n v_swaprel_b32 v7, v1\n v_mov_b32 d1, b" / 64 => |_, b, _, d| b & 0xffff_ffff | d << 32;
    "s_mov_b32 s22, 0x456\n s_mov_b32 m0, 2\n s_movrels_b32 s24, s20\n v_mov_b32 d, s24" / 32 => |_, _, _, _| 0x456;
    "s_mov_b32 s22, 1\n s_mov_b32 m0, 2\n s_movreld_b32 s20, 0x789\n v_mov_b32 d, s22" / 32 => |_, _, _, _| 0x789;
    "s_mov_b32 s22, 3\n s_mov_b32 s23, 4\n s_mov_b32 m0, 2\n s_movrels_b64 s[24:25], s[20:21]\n v_mov_b32 d, s24\n v_mov_b32 d1, s25" / 64 => |_, _, _, _| 3 | 4 << 32;
    "s_mov_b32 s20, 5\n s_mov_b32 s21, 6\n s_mov_b32 m0, 4\n s_movreld_b64 s[20:21], s[20:21]\n v_mov_b32 d, s24\n v_mov_b32 d1, s25" / 64 => |_, _, _, _| 5 | 6 << 32;
    "s_mov_b32 s22, 7\n s_mov_b32 m0, 0x40002\n s_movrelsd_2_b32 s20, s20\n v_mov_b32 d, s24" / 32 => |_, _, _, _| 7;
    "s_mov_b32 s20, 2\n s_set_gpr_idx_on s20, gpr_idx(SRC0)\n v_mov_b32 d, a\n s_set_gpr_idx_off\n v_mov_b32 d1, a" / 64 => |a, b, _, _| b & 0xffff_ffff | a << 32;
    "s_mov_b32 s20, 1\n s_set_gpr_idx_on s20, gpr_idx(DST)\n v_mov_b32 d, a\n s_set_gpr_idx_off" / 64 => |a, _, _, d| d & 0xffff_ffff | a << 32;
    "s_mov_b32 s20, 2\n s_set_gpr_idx_on s20, gpr_idx(SRC0,SRC1)\n v_sub_u32 d, a, b\n s_set_gpr_idx_off" / 32 => |_, b, c, _| b.wrapping_sub(c);
    "s_mov_b32 s20, 2\n s_set_gpr_idx_on s20, gpr_idx(SRC1)\n v_sub_u32 d, a, b\n s_set_gpr_idx_off" / 32 => |a, _, c, _| a.wrapping_sub(c);
    "s_mov_b32 s20, 3\n s_mov_b32 s21, 4\n s_set_gpr_idx_on s20, gpr_idx(SRC0)\n s_set_gpr_idx_idx s21\n v_mov_b32 d, a\n s_set_gpr_idx_off" / 32 => |_, _, c, _| c;
    "s_mov_b32 s20, 1\n s_set_gpr_idx_on s20, gpr_idx(SRC0)\n s_set_gpr_idx_mode gpr_idx(DST)\n v_mov_b32 d, a\n s_set_gpr_idx_off" / 64 => |a, _, _, d| d & 0xffff_ffff | a << 32;
    "s_mov_b32 s20, 2\n s_set_gpr_idx_on s20, gpr_idx(SRC0)\n v_add_f32_e64 d, -a, 1.0\n s_set_gpr_idx_off" / 32 => |_, b, _, _| super::numbers::fb(1.0 - super::numbers::f(b));
};

#[test]
fn relative_registers_follow_the_pseudocode() {
    check_vector(CASES, |case, got, want| super::numbers::is_same(case.bits, got, want));
}
