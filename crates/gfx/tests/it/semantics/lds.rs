//! LDS beyond a workgroup's size: reads give zero, writes are dropped. (Under the sanitizer it is a fault; see there.)

use super::{Case, cases, check_vector};

/// The kernel has 0x800 bytes.
pub const CASES: &[Case] = cases! {
    "v_mov_b32 v12, 0x800\n ds_load_b32|ds_read_b32 d, v12" / 32 => |_, _, _, _| 0;
    "v_mov_b32 v12, -4\n ds_load_b32|ds_read_b32 d, v12" / 32 => |_, _, _, _| 0;
    "v_mov_b32 v12, 0xf00000\n ds_load_b64|ds_read_b64 D, v12" / 64 => |_, _, _, _| 0;
    "v_lshlrev_b32 v12, 2, v0\n ds_store_b32|ds_write_b32 v12, a\n v_or_b32 v13, 0x1000, v12\n ds_store_b32|ds_write_b32 v13, b\n ds_load_b32|ds_read_b32 d, v12" / 32 => |a, _, _, _| a;
    // Some lanes inside, some outside: each for itself.
    "v_lshlrev_b32 v12, 2, v0\n ds_store_b32|ds_write_b32 v12, a\n v_and_b32 v14, 1, v0\n v_lshlrev_b32 v14, 12, v14\n v_or_b32 v13, v14, v12\n ds_load_b32|ds_read_b32 d, v13\n v_mov_b32 d1, v14" / 64 => |a, _, _, _| a & 0xffff_ffff;
    "v_mov_b32 v12, 0x800\n ds_add_rtn_u32 d, v12, a" / 32 => |_, _, _, _| 0;
};

/// Odd lanes of the mixed case read outside: the second word says which they are.
#[test]
fn outside_lds_reads_are_zero_and_writes_are_dropped() {
    check_vector(CASES, |_, got, want| match got >> 32 {
        0 => got == want,
        _ => got as u32 == 0,
    });
}
