//! Integer and bit arithmetic, lane by lane, by AMD's pseudocode. Shift counts are masked as the hardware does.

use super::lane::lane_ops;

#[inline(always)]
fn sext24(x: u32) -> i64 {
    (((x << 8) as i32) >> 8) as i64
}

/// One selected byte of eight, for `v_perm_b32`.
#[inline(always)]
fn pick_byte(bytes: u64, sel: u32) -> u32 {
    let at = |n: u32| (bytes >> (8 * n) & 0xff) as u32;
    match sel & 0xff {
        n @ 0..=7 => at(n),
        n @ 8..=11 => (at(2 * (n - 8) + 1) >> 7) * 0xff,
        12 => 0,
        _ => 0xff,
    }
}

#[inline(always)]
fn bfe_i32(a: u32, at: u32, n: u32) -> u32 {
    let (at, n) = (at & 31, n & 31);
    if n == 0 {
        return 0;
    }
    let field = ((a as i32) >> at) as u32;
    (((field << (32 - n)) as i32) >> (32 - n)) as u32
}

#[inline(always)]
fn sad_u8(a: u32, b: u32) -> u32 {
    let mut sum = 0;
    let mut n = 0;
    while n < 4 {
        sum += (a >> (8 * n) & 255).abs_diff(b >> (8 * n) & 255);
        n += 1;
    }
    sum
}

#[inline(always)]
fn med3_u(a: u32, b: u32, c: u32) -> u32 {
    a.min(b).max(a.max(b).min(c))
}

#[inline(always)]
fn med3_i(a: i32, b: i32, c: i32) -> i32 {
    a.min(b).max(a.max(b).min(c))
}

fn cls(a: u32) -> u32 {
    let n = (a ^ ((a as i32) >> 31) as u32).leading_zeros();
    if n == 32 { !0 } else { n }
}

lane_ops! {
    /// 16-, 32- and 64-bit integer operations.
    fn find;
    "v_mov_b32" => (a: u32) -> u32 { a }
    "v_mov_b16" => (a: u16) -> u16 { a }
    "v_mov_b64" => (a: u64) -> u64 { a }
    "v_accvgpr_read_b32" | "v_accvgpr_write_b32" | "v_accvgpr_mov_b32" => (a: u32) -> u32 { a }
    "v_not_b32" => (a: u32) -> u32 { !a }
    "v_not_b16" => (a: u16) -> u16 { !a }
    "v_bfrev_b32" => (a: u32) -> u32 { a.reverse_bits() }
    "v_clz_i32_u32" => (a: u32) -> u32 { if a == 0 { !0 } else { a.leading_zeros() } }
    "v_ctz_i32_b32" => (a: u32) -> u32 { if a == 0 { !0 } else { a.trailing_zeros() } }
    "v_cls_i32" => (a: u32) -> u32 { cls(a) }
    "v_add_nc_u32" | "v_add_nc_i32" => (a: u32, b: u32) -> u32 { a.wrapping_add(b) }
    "v_sub_nc_u32" | "v_sub_nc_i32" => (a: u32, b: u32) -> u32 { a.wrapping_sub(b) }
    "v_subrev_nc_u32" => (a: u32, b: u32) -> u32 { b.wrapping_sub(a) }
    "v_mul_lo_u32" => (a: u32, b: u32) -> u32 { a.wrapping_mul(b) }
    "v_mul_hi_u32" => (a: u32, b: u32) -> u32 { ((a as u64 * b as u64) >> 32) as u32 }
    "v_mul_hi_i32" => (a: i32, b: i32) -> u32 { ((a as i64 * b as i64) >> 32) as u32 }
    "v_mul_u32_u24" => (a: u32, b: u32) -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) }
    "v_mul_hi_u32_u24" => (a: u32, b: u32) -> u32 { (((a & 0xff_ffff) as u64 * (b & 0xff_ffff) as u64) >> 32) as u32 }
    "v_mul_i32_i24" => (a: u32, b: u32) -> u32 { (sext24(a) * sext24(b)) as u32 }
    "v_mul_hi_i32_i24" => (a: u32, b: u32) -> u32 { ((sext24(a) * sext24(b)) >> 32) as u32 }
    "v_mad_u32_u24" => (a: u32, b: u32, c: u32) -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c) }
    "v_mad_i32_i24" => (a: u32, b: u32, c: u32) -> u32 { ((sext24(a) * sext24(b)) as u32).wrapping_add(c) }
    "v_mad_u32_u16" => (a: u16, b: u16, c: u32) -> u32 { (a as u32 * b as u32).wrapping_add(c) }
    "v_mad_i32_i16" => (a: i16, b: i16, c: u32) -> u32 { ((a as i32 * b as i32) as u32).wrapping_add(c) }
    "v_add3_u32" => (a: u32, b: u32, c: u32) -> u32 { a.wrapping_add(b).wrapping_add(c) }
    "v_lshl_add_u32" => (a: u32, b: u32, c: u32) -> u32 { (a << (b & 31)).wrapping_add(c) }
    "v_add_lshl_u32" => (a: u32, b: u32, c: u32) -> u32 { a.wrapping_add(b) << (c & 31) }
    "v_lshl_or_b32" => (a: u32, b: u32, c: u32) -> u32 { (a << (b & 31)) | c }
    "v_and_or_b32" => (a: u32, b: u32, c: u32) -> u32 { (a & b) | c }
    "v_or3_b32" => (a: u32, b: u32, c: u32) -> u32 { a | b | c }
    "v_xor3_b32" => (a: u32, b: u32, c: u32) -> u32 { a ^ b ^ c }
    "v_xad_u32" => (a: u32, b: u32, c: u32) -> u32 { (a ^ b).wrapping_add(c) }
    "v_and_b32" => (a: u32, b: u32) -> u32 { a & b }
    "v_or_b32" => (a: u32, b: u32) -> u32 { a | b }
    "v_xor_b32" => (a: u32, b: u32) -> u32 { a ^ b }
    "v_xnor_b32" => (a: u32, b: u32) -> u32 { !(a ^ b) }
    "v_and_b16" => (a: u16, b: u16) -> u16 { a & b }
    "v_or_b16" => (a: u16, b: u16) -> u16 { a | b }
    "v_xor_b16" => (a: u16, b: u16) -> u16 { a ^ b }
    "v_lshlrev_b32" => (a: u32, b: u32) -> u32 { b << (a & 31) }
    "v_lshrrev_b32" => (a: u32, b: u32) -> u32 { b >> (a & 31) }
    "v_ashrrev_i32" => (a: u32, b: i32) -> i32 { b >> (a & 31) }
    "v_lshlrev_b16" => (a: u16, b: u16) -> u16 { b << (a & 15) }
    "v_lshrrev_b16" => (a: u16, b: u16) -> u16 { b >> (a & 15) }
    "v_ashrrev_i16" => (a: u16, b: i16) -> i16 { b >> (a & 15) }
    "v_lshlrev_b64" => (a: u32, b: u64) -> u64 { b << (a & 63) }
    "v_lshrrev_b64" => (a: u32, b: u64) -> u64 { b >> (a & 63) }
    "v_ashrrev_i64" => (a: u32, b: i64) -> i64 { b >> (a & 63) }
    "v_lshl_add_u64" => (a: u64, b: u32, c: u64) -> u64 { (a << (b & 7)).wrapping_add(c) }
    "v_max_i32" => (a: i32, b: i32) -> i32 { a.max(b) }
    "v_min_i32" => (a: i32, b: i32) -> i32 { a.min(b) }
    "v_max_u32" => (a: u32, b: u32) -> u32 { a.max(b) }
    "v_min_u32" => (a: u32, b: u32) -> u32 { a.min(b) }
    "v_max3_i32" => (a: i32, b: i32, c: i32) -> i32 { a.max(b).max(c) }
    "v_min3_i32" => (a: i32, b: i32, c: i32) -> i32 { a.min(b).min(c) }
    "v_med3_i32" => (a: i32, b: i32, c: i32) -> i32 { med3_i(a, b, c) }
    "v_max3_u32" => (a: u32, b: u32, c: u32) -> u32 { a.max(b).max(c) }
    "v_min3_u32" => (a: u32, b: u32, c: u32) -> u32 { a.min(b).min(c) }
    "v_med3_u32" => (a: u32, b: u32, c: u32) -> u32 { med3_u(a, b, c) }
    "v_maxmin_i32" => (a: i32, b: i32, c: i32) -> i32 { a.max(b).min(c) }
    "v_minmax_i32" => (a: i32, b: i32, c: i32) -> i32 { a.min(b).max(c) }
    "v_maxmin_u32" => (a: u32, b: u32, c: u32) -> u32 { a.max(b).min(c) }
    "v_minmax_u32" => (a: u32, b: u32, c: u32) -> u32 { a.min(b).max(c) }
    "v_bfe_u32" => (a: u32, b: u32, c: u32) -> u32 { (a >> (b & 31)) & ((1u32 << (c & 31)) - 1) }
    "v_bfe_i32" => (a: u32, b: u32, c: u32) -> u32 { bfe_i32(a, b, c) }
    "v_bfi_b32" => (a: u32, b: u32, c: u32) -> u32 { (a & b) | (!a & c) }
    "v_bfm_b32" => (a: u32, b: u32) -> u32 { ((1u32 << (a & 31)) - 1) << (b & 31) }
    "v_bcnt_u32_b32" => (a: u32, b: u32) -> u32 { a.count_ones().wrapping_add(b) }
    "v_alignbit_b32" => (a: u32, b: u32, c: u32) -> u32 { (((a as u64) << 32 | b as u64) >> (c & 31)) as u32 }
    "v_alignbyte_b32" => (a: u32, b: u32, c: u32) -> u32 { (((a as u64) << 32 | b as u64) >> (8 * (c & 3))) as u32 }
    "v_perm_b32" => (a: u32, b: u32, c: u32) -> u32 {
        let bytes = (a as u64) << 32 | b as u64;
        pick_byte(bytes, c) | pick_byte(bytes, c >> 8) << 8 | pick_byte(bytes, c >> 16) << 16 | pick_byte(bytes, c >> 24) << 24
    }
    "v_sad_u8" => (a: u32, b: u32, c: u32) -> u32 { sad_u8(a, b).wrapping_add(c) }
    "v_sad_hi_u8" => (a: u32, b: u32, c: u32) -> u32 { (sad_u8(a, b) << 16).wrapping_add(c) }
    "v_sad_u16" => (a: u32, b: u32, c: u32) -> u32 {
        (a & 0xffff).abs_diff(b & 0xffff).wrapping_add((a >> 16).abs_diff(b >> 16)).wrapping_add(c)
    }
    "v_sad_u32" => (a: u32, b: u32, c: u32) -> u32 { a.abs_diff(b).wrapping_add(c) }

    "v_add_nc_u16" | "v_add_nc_i16" => (a: u16, b: u16) -> u16 { a.wrapping_add(b) }
    "v_sub_nc_u16" | "v_sub_nc_i16" => (a: u16, b: u16) -> u16 { a.wrapping_sub(b) }
    "v_subrev_nc_u16" => (a: u16, b: u16) -> u16 { b.wrapping_sub(a) }
    "v_mul_lo_u16" => (a: u16, b: u16) -> u16 { a.wrapping_mul(b) }
    "v_mad_u16" | "v_mad_i16" | "v_mad_legacy_u16" => (a: u16, b: u16, c: u16) -> u16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_max_u16" => (a: u16, b: u16) -> u16 { a.max(b) }
    "v_min_u16" => (a: u16, b: u16) -> u16 { a.min(b) }
    "v_max_i16" => (a: i16, b: i16) -> i16 { a.max(b) }
    "v_min_i16" => (a: i16, b: i16) -> i16 { a.min(b) }
    "v_max3_i16" => (a: i16, b: i16, c: i16) -> i16 { a.max(b).max(c) }
    "v_min3_i16" => (a: i16, b: i16, c: i16) -> i16 { a.min(b).min(c) }
    "v_max3_u16" => (a: u16, b: u16, c: u16) -> u16 { a.max(b).max(c) }
    "v_min3_u16" => (a: u16, b: u16, c: u16) -> u16 { a.min(b).min(c) }
    "v_med3_i16" => (a: i16, b: i16, c: i16) -> i16 { a.min(b).max(a.max(b).min(c)) }
    "v_med3_u16" => (a: u16, b: u16, c: u16) -> u16 { a.min(b).max(a.max(b).min(c)) }
}

lane_ops! {
    /// The same with the clamp bit.
    fn find_saturating;
    "v_add_nc_u32" => (a: u32, b: u32) -> u32 { a.saturating_add(b) }
    "v_sub_nc_u32" => (a: u32, b: u32) -> u32 { a.saturating_sub(b) }
    "v_subrev_nc_u32" => (a: u32, b: u32) -> u32 { b.saturating_sub(a) }
    "v_add_nc_i32" => (a: i32, b: i32) -> i32 { a.saturating_add(b) }
    "v_sub_nc_i32" => (a: i32, b: i32) -> i32 { a.saturating_sub(b) }
    "v_add_nc_u16" => (a: u16, b: u16) -> u16 { a.saturating_add(b) }
    "v_sub_nc_u16" => (a: u16, b: u16) -> u16 { a.saturating_sub(b) }
    "v_subrev_nc_u16" => (a: u16, b: u16) -> u16 { b.saturating_sub(a) }
    "v_add_nc_i16" => (a: i16, b: i16) -> i16 { a.saturating_add(b) }
    "v_sub_nc_i16" => (a: i16, b: i16) -> i16 { a.saturating_sub(b) }
    "v_mad_u16" => (a: u16, b: u16, c: u16) -> u16 { (a as u64 * b as u64 + c as u64).min(u16::MAX as u64) as u16 }
    "v_mad_i16" => (a: i16, b: i16, c: i16) -> i16 {
        (a as i64 * b as i64 + c as i64).clamp(i16::MIN as i64, i16::MAX as i64) as i16
    }
    "v_mad_u32_u24" => (a: u32, b: u32, c: u32) -> u32 {
        ((a & 0xff_ffff) as u64 * (b & 0xff_ffff) as u64 + c as u64).min(u32::MAX as u64) as u32
    }
    "v_mad_i32_i24" => (a: u32, b: u32, c: i32) -> i32 {
        (sext24(a) * sext24(b) + c as i64).clamp(i32::MIN as i64, i32::MAX as i64) as i32
    }
    "v_mad_u32_u16" => (a: u16, b: u16, c: u32) -> u32 { (a as u32 * b as u32).saturating_add(c) }
    "v_mad_i32_i16" => (a: i16, b: i16, c: i32) -> i32 { (a as i32 * b as i32).saturating_add(c) }
    "v_sad_u8" => (a: u32, b: u32, c: u32) -> u32 { sad_u8(a, b).saturating_add(c) }
    "v_sad_u32" => (a: u32, b: u32, c: u32) -> u32 { a.abs_diff(b).saturating_add(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values follow AMD's pseudocode for v_perm_b32, v_bfe_i32 and v_cls_i32.
    #[test]
    fn byte_and_bit_fields() {
        let bytes = 0x8877_6655_4433_2211;
        assert_eq!(pick_byte(bytes, 0), 0x11);
        assert_eq!(pick_byte(bytes, 7), 0x88);
        assert_eq!(pick_byte(bytes, 8), 0, "sign of byte 1 (0x22)");
        assert_eq!(pick_byte(bytes, 11), 0xff, "sign of byte 7 (0x88)");
        assert_eq!((pick_byte(bytes, 12), pick_byte(bytes, 13)), (0, 0xff));
        assert_eq!(bfe_i32(0x0000_00f0, 4, 4), 0xffff_ffff);
        assert_eq!(bfe_i32(0x0000_0070, 4, 4), 7);
        assert_eq!(bfe_i32(0xdead, 4, 0), 0);
        assert_eq!((cls(0), cls(!0), cls(0x7fff_ffff), cls(1)), (!0, !0, 1, 31));
    }
}
