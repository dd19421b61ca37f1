//! Scalar arithmetic, by AMD's pseudocode: values in, a value and the condition bit out.
//!
//! `scalar_ops!` reads typed operands from the scalar file. A body returns `(value, scc)`; an instruction that leaves
//! the condition bit alone hands `scc` back.

use super::float::{max, maximum, min, minimum};
use super::inst::Inst;
use super::inst::constant;
use super::value::{F16, ValueKind, f32_to_half, f32_to_half_rtz, half_to_f32};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::error::Cause;
use crate::isa::{Decoded, Encoding, code};

/// What a scalar operand is read as.
pub trait Scalar: Copy {
    fn get<const N: usize>(w: &Wave<N>, at: u16, literal: u32) -> Self;
    fn put<const N: usize>(self, w: &mut Wave<N>, at: u16);
}

macro_rules! scalar32 {
    ($($ty:ty, $x:ident => $from:expr, $v:ident => $to:expr;)*) => {$(
        impl Scalar for $ty {
            #[inline(always)]
            fn get<const N: usize>(w: &Wave<N>, at: u16, literal: u32) -> Self {
                let $x = w.scalar(at, literal);
                $from
            }
            #[inline(always)]
            fn put<const N: usize>(self, w: &mut Wave<N>, at: u16) {
                let $v = self;
                w.set_scalar(at, $to);
            }
        }
    )*};
}

scalar32! {
    u32, x => x, v => v;
    i32, x => x as i32, v => v as u32;
    f32, x => f32::from_bits(x), v => v.to_bits();
}

impl Scalar for u64 {
    #[inline(always)]
    fn get<const N: usize>(w: &Wave<N>, at: u16, literal: u32) -> Self {
        w.scalar64(at, literal)
    }
    #[inline(always)]
    fn put<const N: usize>(self, w: &mut Wave<N>, at: u16) {
        w.set_scalar64(at, self);
    }
}

/// A half in the lower half of a register; constants are halves too. The upper half of a result is zero.
impl Scalar for F16 {
    #[inline(always)]
    fn get<const N: usize>(w: &Wave<N>, at: u16, literal: u32) -> Self {
        let bits = constant(at, literal, ValueKind::F16).unwrap_or_else(|| w.scalar(at, literal) as u64);
        F16(half_to_f32(bits as u16))
    }
    #[inline(always)]
    fn put<const N: usize>(self, w: &mut Wave<N>, at: u16) {
        w.set_scalar(at, f32_to_half(self.0) as u32);
    }
}

/// No result: comparisons write only the condition bit.
impl Scalar for () {
    fn get<const N: usize>(_: &Wave<N>, _: u16, _: u32) -> Self {}
    fn put<const N: usize>(self, _: &mut Wave<N>, _: u16) {}
}

pub trait ScalarOp {
    type A: Scalar;
    type B: Scalar;
    type Out: Scalar;
    fn run(a: Self::A, b: Self::B, scc: bool) -> (Self::Out, bool);
}

fn op<const N: usize, O: ScalarOp>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let a = O::A::get(w, i.code[0], i.literal);
    let b = O::B::get(w, i.code[1], i.literal);
    let (value, scc) = O::run(a, b, w.scc);
    value.put(w, i.sdst);
    w.scc = scc;
    Flow::Next
}

/// SOPK: the destination is also the first source, the immediate the second.
fn op_k<const N: usize, O: ScalarOp<A = u32, B = u32>>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let a = w.scalar(i.sdst, 0);
    let (value, scc) = O::run(a, i.imm as u32, w.scc);
    value.put(w, i.sdst);
    w.scc = scc;
    Flow::Next
}

macro_rules! scalar_ops {
    ($find:ident, $run:ident; $($($op:literal)|+ => ($a:ident: $ta:ty, $b:ident: $tb:ty, $scc:ident) -> $out:ty $body:block)*) => {
        fn $find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
            match op {
                $($($op)|+ => {
                    struct Op;
                    impl ScalarOp for Op {
                        type A = $ta;
                        type B = $tb;
                        type Out = $out;
                        #[inline(always)]
                        fn run($a: $ta, $b: $tb, $scc: bool) -> ($out, bool) $body
                    }
                    Some(CodeEntry::raw($run::<N, Op>))
                })*
                _ => None,
            }
        }
    };
}

fn with_zero_test(v: u32) -> (u32, bool) {
    (v, v != 0)
}

fn with_zero_test64(v: u64) -> (u64, bool) {
    (v, v != 0)
}

fn bfe_mask(n: u32) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

fn signed_field(value: u64, n: u32) -> u64 {
    if n == 0 {
        return 0;
    }
    let n = n.min(64);
    (((value << (64 - n)) as i64) >> (64 - n)) as u64
}

fn cls32(a: u32) -> u32 {
    let n = (a ^ ((a as i32) >> 31) as u32).leading_zeros();
    if n == 32 { !0 } else { n }
}

fn spread_bits(a: u32) -> u64 {
    (0..32).fold(0, |acc, bit| acc | ((a >> bit & 1) as u64 * 3) << (2 * bit))
}

scalar_ops! { sop2, op;
    "s_add_u32" => (a: u32, b: u32, _s) -> u32 { a.overflowing_add(b) }
    "s_sub_u32" => (a: u32, b: u32, _s) -> u32 { a.overflowing_sub(b) }
    "s_add_i32" => (a: i32, b: i32, _s) -> i32 { a.overflowing_add(b) }
    "s_sub_i32" => (a: i32, b: i32, _s) -> i32 { a.overflowing_sub(b) }
    "s_addc_u32" => (a: u32, b: u32, s) -> u32 { let v = a as u64 + b as u64 + s as u64; (v as u32, v >> 32 != 0) }
    "s_subb_u32" => (a: u32, b: u32, s) -> u32 { let v = a as i64 - b as i64 - s as i64; (v as u32, v < 0) }
    "s_absdiff_i32" => (a: i32, b: i32, _s) -> u32 { with_zero_test(a.wrapping_sub(b).wrapping_abs() as u32) }
    "s_mul_i32" => (a: u32, b: u32, s) -> u32 { (a.wrapping_mul(b), s) }
    "s_mul_hi_u32" => (a: u32, b: u32, s) -> u32 { (((a as u64 * b as u64) >> 32) as u32, s) }
    "s_mul_hi_i32" => (a: i32, b: i32, s) -> u32 { (((a as i64 * b as i64) >> 32) as u32, s) }
    "s_cselect_b32" => (a: u32, b: u32, s) -> u32 { (if s { a } else { b }, s) }
    "s_cselect_b64" => (a: u64, b: u64, s) -> u64 { (if s { a } else { b }, s) }
    "s_min_i32" => (a: i32, b: i32, _s) -> i32 { (a.min(b), a < b) }
    "s_min_u32" => (a: u32, b: u32, _s) -> u32 { (a.min(b), a < b) }
    "s_max_i32" => (a: i32, b: i32, _s) -> i32 { (a.max(b), a >= b) }
    "s_max_u32" => (a: u32, b: u32, _s) -> u32 { (a.max(b), a >= b) }
    "s_and_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a & b) }
    "s_or_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a | b) }
    "s_xor_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a ^ b) }
    "s_nand_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(!(a & b)) }
    "s_nor_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(!(a | b)) }
    "s_xnor_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(!(a ^ b)) }
    "s_and_not1_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a & !b) }
    "s_or_not1_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a | !b) }
    "s_and_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(a & b) }
    "s_or_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(a | b) }
    "s_xor_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(a ^ b) }
    "s_nand_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(!(a & b)) }
    "s_nor_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(!(a | b)) }
    "s_xnor_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(!(a ^ b)) }
    "s_and_not1_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(a & !b) }
    "s_or_not1_b64" => (a: u64, b: u64, _s) -> u64 { with_zero_test64(a | !b) }
    "s_lshl_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a << (b & 31)) }
    "s_lshr_b32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(a >> (b & 31)) }
    "s_ashr_i32" => (a: i32, b: u32, _s) -> u32 { with_zero_test((a >> (b & 31)) as u32) }
    "s_lshl_b64" => (a: u64, b: u32, _s) -> u64 { with_zero_test64(a << (b & 63)) }
    "s_lshr_b64" => (a: u64, b: u32, _s) -> u64 { with_zero_test64(a >> (b & 63)) }
    "s_ashr_i64" => (a: u64, b: u32, _s) -> u64 { with_zero_test64(((a as i64) >> (b & 63)) as u64) }
    "s_lshl1_add_u32" => (a: u32, b: u32, _s) -> u32 { let v = ((a as u64) << 1) + b as u64; (v as u32, v >> 32 != 0) }
    "s_lshl2_add_u32" => (a: u32, b: u32, _s) -> u32 { let v = ((a as u64) << 2) + b as u64; (v as u32, v >> 32 != 0) }
    "s_lshl3_add_u32" => (a: u32, b: u32, _s) -> u32 { let v = ((a as u64) << 3) + b as u64; (v as u32, v >> 32 != 0) }
    "s_lshl4_add_u32" => (a: u32, b: u32, _s) -> u32 { let v = ((a as u64) << 4) + b as u64; (v as u32, v >> 32 != 0) }
    "s_bfe_u32" => (a: u32, b: u32, _s) -> u32 { with_zero_test(((a >> (b & 31)) as u64 & bfe_mask(b >> 16 & 127)) as u32) }
    "s_bfe_i32" => (a: i32, b: u32, _s) -> u32 {
        with_zero_test(signed_field((a >> (b & 31)) as i64 as u64, (b >> 16 & 127).min(32)) as u32)
    }
    "s_bfe_u64" => (a: u64, b: u32, _s) -> u64 { with_zero_test64((a >> (b & 63)) & bfe_mask(b >> 16 & 127)) }
    "s_bfe_i64" => (a: u64, b: u32, _s) -> u64 { with_zero_test64(signed_field(((a as i64) >> (b & 63)) as u64, b >> 16 & 127)) }
    "s_bfm_b32" => (a: u32, b: u32, s) -> u32 { (((1u32 << (a & 31)) - 1) << (b & 31), s) }
    "s_bfm_b64" => (a: u32, b: u32, s) -> u64 { (((1u64 << (a & 63)) - 1) << (b & 63), s) }
    "s_pack_ll_b32_b16" => (a: u32, b: u32, s) -> u32 { (a & 0xffff | b << 16, s) }
    "s_pack_lh_b32_b16" => (a: u32, b: u32, s) -> u32 { (a & 0xffff | b & 0xffff_0000, s) }
    "s_pack_hh_b32_b16" => (a: u32, b: u32, s) -> u32 { (a >> 16 | b & 0xffff_0000, s) }
    "s_pack_hl_b32_b16" => (a: u32, b: u32, s) -> u32 { (a >> 16 | b << 16, s) }
    "s_add_f32" => (a: f32, b: f32, s) -> f32 { (a + b, s) }
    "s_sub_f32" => (a: f32, b: f32, s) -> f32 { (a - b, s) }
    "s_mul_f32" => (a: f32, b: f32, s) -> f32 { (a * b, s) }
    "s_min_f32" => (a: f32, b: f32, s) -> f32 { (min(a, b), s) }
    "s_max_f32" => (a: f32, b: f32, s) -> f32 { (max(a, b), s) }
    "s_minimum_f32" => (a: f32, b: f32, s) -> f32 { (minimum(a, b), s) }
    "s_maximum_f32" => (a: f32, b: f32, s) -> f32 { (maximum(a, b), s) }
    "s_add_f16" => (a: F16, b: F16, s) -> F16 { (F16(a.0 + b.0), s) }
    "s_sub_f16" => (a: F16, b: F16, s) -> F16 { (F16(a.0 - b.0), s) }
    "s_mul_f16" => (a: F16, b: F16, s) -> F16 { (F16(a.0 * b.0), s) }
    "s_min_f16" => (a: F16, b: F16, s) -> F16 { (F16(min(a.0, b.0)), s) }
    "s_max_f16" => (a: F16, b: F16, s) -> F16 { (F16(max(a.0, b.0)), s) }
    "s_minimum_f16" => (a: F16, b: F16, s) -> F16 { (F16(minimum(a.0, b.0)), s) }
    "s_maximum_f16" => (a: F16, b: F16, s) -> F16 { (F16(maximum(a.0, b.0)), s) }
    "s_add_nc_u64" => (a: u64, b: u64, s) -> u64 { (a.wrapping_add(b), s) }
    "s_sub_nc_u64" => (a: u64, b: u64, s) -> u64 { (a.wrapping_sub(b), s) }
    "s_mul_u64" => (a: u64, b: u64, s) -> u64 { (a.wrapping_mul(b), s) }
    "s_cvt_pk_rtz_f16_f32" => (a: f32, b: f32, s) -> u32 { (f32_to_half_rtz(a) as u32 | (f32_to_half_rtz(b) as u32) << 16, s) }
}

scalar_ops! { sop1, op;
    "s_mov_b32" => (a: u32, _b: (), s) -> u32 { (a, s) }
    "s_mov_b64" => (a: u64, _b: (), s) -> u64 { (a, s) }
    "s_not_b32" => (a: u32, _b: (), _s) -> u32 { with_zero_test(!a) }
    "s_not_b64" => (a: u64, _b: (), _s) -> u64 { with_zero_test64(!a) }
    "s_abs_i32" => (a: i32, _b: (), _s) -> u32 { with_zero_test(a.wrapping_abs() as u32) }
    "s_brev_b32" => (a: u32, _b: (), s) -> u32 { (a.reverse_bits(), s) }
    "s_brev_b64" => (a: u64, _b: (), s) -> u64 { (a.reverse_bits(), s) }
    "s_clz_i32_u32" => (a: u32, _b: (), s) -> u32 { (if a == 0 { !0 } else { a.leading_zeros() }, s) }
    "s_clz_i32_u64" => (a: u64, _b: (), s) -> u32 { (if a == 0 { !0 } else { a.leading_zeros() }, s) }
    "s_ctz_i32_b32" => (a: u32, _b: (), s) -> u32 { (if a == 0 { !0 } else { a.trailing_zeros() }, s) }
    "s_ctz_i32_b64" => (a: u64, _b: (), s) -> u32 { (if a == 0 { !0 } else { a.trailing_zeros() }, s) }
    "s_cls_i32" => (a: u32, _b: (), s) -> u32 { (cls32(a), s) }
    "s_bcnt0_i32_b32" => (a: u32, _b: (), _s) -> u32 { with_zero_test(a.count_zeros()) }
    "s_bcnt1_i32_b32" => (a: u32, _b: (), _s) -> u32 { with_zero_test(a.count_ones()) }
    "s_bcnt0_i32_b64" => (a: u64, _b: (), _s) -> u32 { with_zero_test(a.count_zeros()) }
    "s_bcnt1_i32_b64" => (a: u64, _b: (), _s) -> u32 { with_zero_test(a.count_ones()) }
    "s_sext_i32_i8" => (a: u32, _b: (), s) -> u32 { (a as u8 as i8 as i32 as u32, s) }
    "s_sext_i32_i16" => (a: u32, _b: (), s) -> u32 { (a as u16 as i16 as i32 as u32, s) }
    "s_bitreplicate_b64_b32" => (a: u32, _b: (), s) -> u64 { (spread_bits(a), s) }
    "s_ceil_f32" => (a: f32, _b: (), s) -> f32 { (a.ceil(), s) }
    "s_floor_f32" => (a: f32, _b: (), s) -> f32 { (a.floor(), s) }
    "s_trunc_f32" => (a: f32, _b: (), s) -> f32 { (a.trunc(), s) }
    "s_rndne_f32" => (a: f32, _b: (), s) -> f32 { (a.round_ties_even(), s) }
    "s_cvt_f32_i32" => (a: i32, _b: (), s) -> f32 { (a as f32, s) }
    "s_cvt_f32_u32" => (a: u32, _b: (), s) -> f32 { (a as f32, s) }
    "s_cvt_i32_f32" => (a: f32, _b: (), s) -> i32 { (a as i32, s) }
    "s_cvt_u32_f32" => (a: f32, _b: (), s) -> u32 { (a as u32, s) }
    "s_cvt_f16_f32" => (a: f32, _b: (), s) -> u32 { (f32_to_half(a) as u32, s) }
    "s_cvt_f32_f16" => (a: F16, _b: (), s) -> f32 { (a.0, s) }
    "s_cvt_hi_f32_f16" => (a: u32, _b: (), s) -> f32 { (half_to_f32((a >> 16) as u16), s) }
    "s_ceil_f16" => (a: F16, _b: (), s) -> F16 { (F16(a.0.ceil()), s) }
    "s_floor_f16" => (a: F16, _b: (), s) -> F16 { (F16(a.0.floor()), s) }
    "s_trunc_f16" => (a: F16, _b: (), s) -> F16 { (F16(a.0.trunc()), s) }
    "s_rndne_f16" => (a: F16, _b: (), s) -> F16 { (F16(a.0.round_ties_even()), s) }
}

scalar_ops! { sopc, op;
    "s_cmp_eq_i32" | "s_cmp_eq_u32" => (a: u32, b: u32, _s) -> () { ((), a == b) }
    "s_cmp_lg_i32" | "s_cmp_lg_u32" => (a: u32, b: u32, _s) -> () { ((), a != b) }
    "s_cmp_gt_i32" => (a: i32, b: i32, _s) -> () { ((), a > b) }
    "s_cmp_ge_i32" => (a: i32, b: i32, _s) -> () { ((), a >= b) }
    "s_cmp_lt_i32" => (a: i32, b: i32, _s) -> () { ((), a < b) }
    "s_cmp_le_i32" => (a: i32, b: i32, _s) -> () { ((), a <= b) }
    "s_cmp_gt_u32" => (a: u32, b: u32, _s) -> () { ((), a > b) }
    "s_cmp_ge_u32" => (a: u32, b: u32, _s) -> () { ((), a >= b) }
    "s_cmp_lt_u32" => (a: u32, b: u32, _s) -> () { ((), a < b) }
    "s_cmp_le_u32" => (a: u32, b: u32, _s) -> () { ((), a <= b) }
    "s_bitcmp0_b32" => (a: u32, b: u32, _s) -> () { ((), a >> (b & 31) & 1 == 0) }
    "s_bitcmp1_b32" => (a: u32, b: u32, _s) -> () { ((), a >> (b & 31) & 1 == 1) }
    "s_bitcmp0_b64" => (a: u64, b: u32, _s) -> () { ((), a >> (b & 63) & 1 == 0) }
    "s_bitcmp1_b64" => (a: u64, b: u32, _s) -> () { ((), a >> (b & 63) & 1 == 1) }
    "s_cmp_eq_u64" => (a: u64, b: u64, _s) -> () { ((), a == b) }
    "s_cmp_lg_u64" => (a: u64, b: u64, _s) -> () { ((), a != b) }
    "s_cmp_lt_f32" => (a: f32, b: f32, _s) -> () { ((), a < b) }
    "s_cmp_eq_f32" => (a: f32, b: f32, _s) -> () { ((), a == b) }
    "s_cmp_le_f32" => (a: f32, b: f32, _s) -> () { ((), a <= b) }
    "s_cmp_gt_f32" => (a: f32, b: f32, _s) -> () { ((), a > b) }
    "s_cmp_ge_f32" => (a: f32, b: f32, _s) -> () { ((), a >= b) }
    "s_cmp_lg_f32" => (a: f32, b: f32, _s) -> () { ((), !(a == b || a.is_nan() || b.is_nan())) }
    "s_cmp_nge_f32" => (a: f32, b: f32, _s) -> () { ((), a < b || a.is_nan() || b.is_nan()) }
    "s_cmp_ngt_f32" => (a: f32, b: f32, _s) -> () { ((), a <= b || a.is_nan() || b.is_nan()) }
    "s_cmp_nle_f32" => (a: f32, b: f32, _s) -> () { ((), a > b || a.is_nan() || b.is_nan()) }
    "s_cmp_nlt_f32" => (a: f32, b: f32, _s) -> () { ((), a >= b || a.is_nan() || b.is_nan()) }
    "s_cmp_nlg_f32" => (a: f32, b: f32, _s) -> () { ((), a == b || a.is_nan() || b.is_nan()) }
    "s_cmp_neq_f32" => (a: f32, b: f32, _s) -> () { ((), a != b) }
    "s_cmp_u_f32" => (a: f32, b: f32, _s) -> () { ((), a.is_nan() || b.is_nan()) }
    "s_cmp_o_f32" => (a: f32, b: f32, _s) -> () { ((), !a.is_nan() && !b.is_nan()) }
    "s_cmp_lt_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 < b.0) }
    "s_cmp_eq_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 == b.0) }
    "s_cmp_le_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 <= b.0) }
    "s_cmp_gt_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 > b.0) }
    "s_cmp_ge_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 >= b.0) }
    "s_cmp_lg_f16" => (a: F16, b: F16, _s) -> () { ((), !(a.0 == b.0 || a.0.is_nan() || b.0.is_nan())) }
    "s_cmp_nge_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 < b.0 || a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_ngt_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 <= b.0 || a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_nle_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 > b.0 || a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_nlt_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 >= b.0 || a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_nlg_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 == b.0 || a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_neq_f16" => (a: F16, b: F16, _s) -> () { ((), a.0 != b.0) }
    "s_cmp_u_f16" => (a: F16, b: F16, _s) -> () { ((), a.0.is_nan() || b.0.is_nan()) }
    "s_cmp_o_f16" => (a: F16, b: F16, _s) -> () { ((), !a.0.is_nan() && !b.0.is_nan()) }
}

scalar_ops! { sopk, op_k;
    "s_movk_i32" => (_a: u32, k: u32, s) -> u32 { (k, s) }
    "s_cmovk_i32" => (a: u32, k: u32, s) -> u32 { (if s { k } else { a }, s) }
    "s_addk_i32" => (a: u32, k: u32, _s) -> i32 { (a as i32).overflowing_add(k as i32) }
    "s_mulk_i32" => (a: u32, k: u32, s) -> u32 { (a.wrapping_mul(k), s) }
    "s_cmpk_eq_i32" => (a: u32, k: u32, _s) -> () { ((), a == k) }
    "s_cmpk_lg_i32" => (a: u32, k: u32, _s) -> () { ((), a != k) }
    "s_cmpk_gt_i32" => (a: u32, k: u32, _s) -> () { ((), a as i32 > k as i32) }
    "s_cmpk_ge_i32" => (a: u32, k: u32, _s) -> () { ((), a as i32 >= k as i32) }
    "s_cmpk_lt_i32" => (a: u32, k: u32, _s) -> () { ((), (a as i32) < k as i32) }
    "s_cmpk_le_i32" => (a: u32, k: u32, _s) -> () { ((), a as i32 <= k as i32) }
    "s_cmpk_eq_u32" => (a: u32, k: u32, _s) -> () { ((), a == k & 0xffff) }
    "s_cmpk_lg_u32" => (a: u32, k: u32, _s) -> () { ((), a != k & 0xffff) }
    "s_cmpk_gt_u32" => (a: u32, k: u32, _s) -> () { ((), a > k & 0xffff) }
    "s_cmpk_ge_u32" => (a: u32, k: u32, _s) -> () { ((), a >= k & 0xffff) }
    "s_cmpk_lt_u32" => (a: u32, k: u32, _s) -> () { ((), a < k & 0xffff) }
    "s_cmpk_le_u32" => (a: u32, k: u32, _s) -> () { ((), a <= k & 0xffff) }
}

/// How `s_*_saveexec` combines its source with exec.
fn combine(stem: &str) -> Option<fn(u64, u64) -> u64> {
    Some(match stem {
        "s_and" => |a, e| a & e,
        "s_or" => |a, e| a | e,
        "s_xor" => |a, e| a ^ e,
        "s_nand" => |a, e| !(a & e),
        "s_nor" => |a, e| !(a | e),
        "s_xnor" => |a, e| !(a ^ e),
        "s_and_not0" => |a, e| !a & e,
        "s_or_not0" => |a, e| !a | e,
        "s_and_not1" => |a, e| a & !e,
        "s_or_not1" => |a, e| a | !e,
        _ => return None,
    })
}

/// Exec from a source and itself: the old exec goes to the destination (`saveexec`), or the new one (`wrexec`).
fn exec_op<const N: usize, const WIDE: bool, const WRITES_NEW: bool>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    _: &mut Group<'_>,
) -> Flow {
    let stem = i.op.split("_saveexec").next().and_then(|s| s.split("_wrexec").next()).unwrap_or("");
    let stem = match stem {
        "s_andn1" => "s_and_not0",
        "s_andn2" => "s_and_not1",
        "s_orn1" => "s_or_not0",
        "s_orn2" => "s_or_not1",
        other => other,
    };
    let Some(combine) = combine(stem) else { return w.stop(Cause::Unsupported(i.op.to_string())) };
    if WIDE {
        let old = w.scalar64(code::EXEC, 0);
        let new = combine(w.scalar64(i.code[0], i.literal), old);
        w.set_scalar64(i.sdst, if WRITES_NEW { new } else { old });
        w.set_scalar64(code::EXEC, new);
        w.scc = new != 0;
    } else {
        let old = w.s[code::EXEC as usize];
        let new = combine(w.scalar(i.code[0], i.literal) as u64, old as u64) as u32;
        w.set_scalar(i.sdst, if WRITES_NEW { new } else { old });
        w.set_scalar(code::EXEC, new);
        w.scc = new != 0;
    }
    Flow::Next
}

/// Conditional moves and single-bit writes: they keep what they do not write.
fn partial<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let a = w.scalar(i.code[0], i.literal);
    let old = w.scalar64(i.sdst, 0);
    match i.op {
        "s_cmov_b32" if w.scc => w.set_scalar(i.sdst, a),
        "s_cmov_b64" if w.scc => w.set_scalar64(i.sdst, w.scalar64(i.code[0], i.literal)),
        "s_bitset0_b32" => w.set_scalar(i.sdst, old as u32 & !(1 << (a & 31))),
        "s_bitset1_b32" => w.set_scalar(i.sdst, old as u32 | 1 << (a & 31)),
        "s_bitset0_b64" => w.set_scalar64(i.sdst, old & !(1 << (a & 63))),
        "s_bitset1_b64" => w.set_scalar64(i.sdst, old | 1 << (a & 63)),
        _ => {}
    }
    Flow::Next
}

/// Fused products: into the destination, or with a literal as third operand or as second.
fn fused<const N: usize, T: Scalar>(w: &mut Wave<N>, i: &Inst<N>, fma: impl Fn(T, T, T) -> T) -> Flow {
    let (a, b) = (T::get(w, i.code[0], i.literal), T::get(w, i.code[1], i.literal));
    let value = match i.op {
        "s_fmaak_f32" => fma(a, b, T::get(w, code::LITERAL, i.literal)),
        "s_fmamk_f32" => fma(a, T::get(w, code::LITERAL, i.literal), b),
        _ => fma(a, b, T::get(w, i.sdst, 0)),
    };
    value.put(w, i.sdst);
    Flow::Next
}

fn fused32<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    fused::<N, f32>(w, i, f32::mul_add)
}

fn fused16<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    fused::<N, F16>(w, i, |a, b, c| super::float::fma16(a.0, b.0, c.0))
}

/// RDNA4's functions of one scalar (`v_s_*`), in f64 and rounded once, like the vector ones.
fn pseudo_scalar<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let is_half = i.op.ends_with("_f16");
    let d = &*i.detail;
    if d.is_clamped || d.omod != 0 || d.op_sel != 0 {
        return w.stop(Cause::Unsupported(format!("{} with output modifiers", i.op)));
    }
    let x = if is_half { F16::get(w, i.code[0], i.literal).0 } else { f32::get(w, i.code[0], i.literal) } as f64;
    let x = if d.abs & 1 == 1 { x.abs() } else { x };
    let x = if d.neg & 1 == 1 { -x } else { x };
    let value = match i.op.trim_start_matches("v_s_").split('_').next() {
        Some("exp") => x.exp2(),
        Some("log") => x.log2(),
        Some("rcp") => 1.0 / x,
        Some("rsq") => 1.0 / x.sqrt(),
        _ => x.sqrt(),
    } as f32;
    if is_half {
        F16(value).put(w, i.sdst)
    } else {
        value.put(w, i.sdst)
    }
    Flow::Next
}

pub fn find<const N: usize>(op: &str, d: &Decoded) -> Option<CodeEntry<N>> {
    match d.encoding {
        Encoding::Sop1 => sop1(op).or_else(|| match op {
            "s_cmov_b32" | "s_cmov_b64" | "s_bitset0_b32" | "s_bitset1_b32" | "s_bitset0_b64" | "s_bitset1_b64" => {
                Some(CodeEntry::raw(partial))
            }
            _ if op.ends_with("_saveexec_b32") => Some(CodeEntry::raw(exec_op::<N, false, false>)),
            _ if op.ends_with("_saveexec_b64") => Some(CodeEntry::raw(exec_op::<N, true, false>)),
            _ if op.ends_with("_wrexec_b32") => Some(CodeEntry::raw(exec_op::<N, false, true>)),
            _ if op.ends_with("_wrexec_b64") => Some(CodeEntry::raw(exec_op::<N, true, true>)),
            _ => None,
        }),
        Encoding::Sop2 => sop2(op).or_else(|| match op {
            "s_fmac_f32" | "s_fmaak_f32" | "s_fmamk_f32" => Some(CodeEntry::raw(fused32)),
            "s_fmac_f16" => Some(CodeEntry::raw(fused16)),
            _ => None,
        }),
        Encoding::Vop3 if op.starts_with("v_s_") => Some(CodeEntry::raw(pseudo_scalar)),
        Encoding::Sopc => sopc(op),
        Encoding::Sopk => sopk(op),
        _ => None,
    }
}
