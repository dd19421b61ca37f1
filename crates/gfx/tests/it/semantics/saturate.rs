//! Integers with the clamp bit: the exact result, cut to the range of its type.

use super::numbers::*;
use super::{Case, HALF, cases, check_vector};

fn u32s(x: i128) -> u64 {
    x.clamp(0, u32::MAX as i128) as u64
}

fn i32s(x: i128) -> u64 {
    x.clamp(i32::MIN as i128, i32::MAX as i128) as u64
}

fn u16s(x: i128) -> u64 {
    x.clamp(0, u16::MAX as i128) as u64
}

fn i16s(x: i128) -> u64 {
    x.clamp(i16::MIN as i128, i16::MAX as i128) as u64
}

fn wu(x: u64) -> i128 {
    u(x) as i128
}

fn wi(x: u64) -> i128 {
    i(x) as i128
}

fn hu(x: u64) -> i128 {
    u16_(x) as i128
}

fn hi(x: u64) -> i128 {
    s16(x) as i128
}

fn each(a: u64, b: u64, op: fn(u64, u64) -> u64) -> u64 {
    two(op(u16_(a), u16_(b)), op(up(a), up(b)))
}

fn each3(a: u64, b: u64, c: u64, op: fn(u64, u64, u64) -> u64) -> u64 {
    two(op(u16_(a), u16_(b), u16_(c)), op(up(a), up(b), up(c)))
}

fn unit(x: f64) -> f64 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

pub const CASES: &[Case] = cases! {
    "v_add_nc_u32_e64|v_add_u32_e64 d, a, b clamp" / 32 => |a, b, _, _| u32s(wu(a) + wu(b));
    "v_sub_nc_u32_e64|v_sub_u32_e64 d, a, b clamp" / 32 => |a, b, _, _| u32s(wu(a) - wu(b));
    "v_subrev_nc_u32_e64|v_subrev_u32_e64 d, a, b clamp" / 32 => |a, b, _, _| u32s(wu(b) - wu(a));
    "v_add_nc_i32|v_add_i32 d, a, b clamp" / 32 => |a, b, _, _| i32s(wi(a) + wi(b));
    "v_sub_nc_i32|v_sub_i32 d, a, b clamp" / 32 => |a, b, _, _| i32s(wi(a) - wi(b));
    "v_add_nc_u16|v_add_u16_e64 d, a, b clamp" / HALF => |a, b, _, _| u16s(hu(a) + hu(b));
    "v_sub_nc_u16|v_sub_u16_e64 d, a, b clamp" / HALF => |a, b, _, _| u16s(hu(a) - hu(b));
    "v_subrev_u16_e64 d, a, b clamp" / HALF => |a, b, _, _| u16s(hu(b) - hu(a));
    "v_add_nc_i16|v_add_i16 d, a, b clamp" / HALF => |a, b, _, _| i16s(hi(a) + hi(b));
    "v_sub_nc_i16|v_sub_i16 d, a, b clamp" / HALF => |a, b, _, _| i16s(hi(a) - hi(b));
    "v_mad_u16 d, a, b, c clamp" / 16 => |a, b, c, _| u16s(hu(a) * hu(b) + hu(c));
    "v_mad_i16 d, a, b, c clamp" / 16 => |a, b, c, _| i16s(hi(a) * hi(b) + hi(c));
    "v_mad_u32_u24 d, a, b, c clamp" / 32 => |a, b, c, _| u32s(u24(a) as i128 * u24(b) as i128 + wu(c));
    "v_mad_i32_i24 d, a, b, c clamp" / 32 => |a, b, c, _| i32s(s24(a) as i128 * s24(b) as i128 + wi(c));
    "v_mad_u32_u16 d, a, b, c clamp" / 32 => |a, b, c, _| u32s(hu(a) * hu(b) + wu(c));
    "v_mad_i32_i16 d, a, b, c clamp" / 32 => |a, b, c, _| i32s(hi(a) * hi(b) + wi(c));
    "v_sad_u8 d, a, b, c clamp" / 32 => |a, b, c, _| u32s((0..4).map(|n| byte(a, n).abs_diff(byte(b, n)) as i128).sum::<i128>() + wu(c));
    "v_sad_u32 d, a, b, c clamp" / 32 => |a, b, c, _| u32s((wu(a) - wu(b)).abs() + wu(c));
    "v_pk_add_u16 d, a, b clamp" / 32 => |a, b, _, _| each(a, b, |x, y| u16s(hu(x) + hu(y)));
    "v_pk_add_i16 d, a, b clamp" / 32 => |a, b, _, _| each(a, b, |x, y| i16s(hi(x) + hi(y)));
    "v_pk_sub_u16 d, a, b clamp" / 32 => |a, b, _, _| each(a, b, |x, y| u16s(hu(x) - hu(y)));
    "v_pk_sub_i16 d, a, b clamp" / 32 => |a, b, _, _| each(a, b, |x, y| i16s(hi(x) - hi(y)));
    "v_pk_mad_u16 d, a, b, c clamp" / 32 => |a, b, c, _| each3(a, b, c, |x, y, z| u16s(hu(x) * hu(y) + hu(z)));
    "v_pk_mad_i16 d, a, b, c clamp" / 32 => |a, b, c, _| each3(a, b, c, |x, y, z| i16s(hi(x) * hi(y) + hi(z)));
    "v_pk_add_f16 d, a, b clamp" / 32 => |a, b, _, _| each(a, b, |x, y| hb(unit(h(x) + h(y))));
};

#[test]
fn clamped_results_follow_the_pseudocode() {
    check_vector(CASES, |_, got, want| got == want);
}
