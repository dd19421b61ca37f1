//! Comparisons into lane masks, selection by a mask, and the carry chain.
//!
//! `v_cmp_*` writes a scalar mask, `v_cmpx_*` writes exec; lowering put the target in `sdst` for both.

use super::inst::Inst;
use super::lane::LaneTest;
use super::value::{F16, H16, Value, ValueKind};
use super::wave::{Group, Wave, gather, spread};
use super::{CodeEntry, Flow, Role};

macro_rules! tests {
    ($op:ident, $ty:ident, $get:expr; $($($suffix:literal)|+ => $cmp:expr),* $(,)?) => {
        match $op {
            $($($suffix)|+ => {
                struct Op;
                impl LaneTest for Op {
                    type A = $ty;
                    #[inline(always)]
                    #[allow(
                        clippy::neg_cmp_op_on_partial_ord,
                        clippy::nonminimal_bool,
                        clippy::double_comparisons,
                        reason = "NaN makes `a < b || a > b` differ from `a != b`"
                    )]
                    fn lane(a: $ty, b: $ty) -> bool {
                        let get = $get;
                        let test = $cmp;
                        test(get(a), get(b))
                    }
                }
                return Some(CodeEntry::test::<Op>());
            })*
            _ => {}
        }
    };
}

macro_rules! float_tests {
    ($op:ident, $ty:ident, $raw:ident, $get:expr) => {
        tests!($op, $ty, $get;
            "f" => |_: $raw, _: $raw| false,
            "lt" => |a: $raw, b: $raw| a < b,
            "eq" => |a: $raw, b: $raw| a == b,
            "le" => |a: $raw, b: $raw| a <= b,
            "gt" => |a: $raw, b: $raw| a > b,
            "lg" => |a: $raw, b: $raw| a < b || a > b,
            "ge" => |a: $raw, b: $raw| a >= b,
            "o" => |a: $raw, b: $raw| !a.is_nan() && !b.is_nan(),
            "u" => |a: $raw, b: $raw| a.is_nan() || b.is_nan(),
            "nge" => |a: $raw, b: $raw| !(a >= b),
            "nlg" => |a: $raw, b: $raw| !(a < b || a > b),
            "ngt" => |a: $raw, b: $raw| !(a > b),
            "nle" => |a: $raw, b: $raw| !(a <= b),
            "neq" => |a: $raw, b: $raw| a != b,
            "nlt" => |a: $raw, b: $raw| !(a < b),
            "t" | "tru" => |_: $raw, _: $raw| true,
        )
    };
}

macro_rules! integer_tests {
    ($op:ident, $ty:ident) => {
        tests!($op, $ty, |x: $ty| x;
            "f" => |_: $ty, _: $ty| false,
            "lt" => |a: $ty, b: $ty| a < b,
            "eq" => |a: $ty, b: $ty| a == b,
            "le" => |a: $ty, b: $ty| a <= b,
            "gt" => |a: $ty, b: $ty| a > b,
            "ne" | "lg" => |a: $ty, b: $ty| a != b,
            "ge" => |a: $ty, b: $ty| a >= b,
            "t" => |_: $ty, _: $ty| true,
        )
    };
}

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    if let Some(rest) = op.strip_prefix("v_cmp_").or_else(|| op.strip_prefix("v_cmpx_")) {
        let (name, ty) = rest.rsplit_once('_')?;
        if name == "class" {
            return class(ty);
        }
        match ty {
            "f16" => float_tests!(name, F16, f32, |x: F16| x.0),
            "f32" => float_tests!(name, f32, f32, |x: f32| x),
            "f64" => float_tests!(name, f64, f64, |x: f64| x),
            "i16" => integer_tests!(name, i16),
            "u16" => integer_tests!(name, u16),
            "i32" => integer_tests!(name, i32),
            "u32" => integer_tests!(name, u32),
            "i64" => integer_tests!(name, i64),
            "u64" => integer_tests!(name, u64),
            _ => {}
        }
        return None;
    }
    let b32 = [ValueKind::B32, ValueKind::B32, ValueKind::None];
    let entry = |run, kinds, dst| Some(CodeEntry { run, role: Role::Lanes, kinds, dst, reads_dst: false });
    match op {
        "v_cndmask_b32" => entry(select::<N, f32>, [ValueKind::F32, ValueKind::F32, ValueKind::None], ValueKind::B32),
        "v_cndmask_b16" => entry(select::<N, H16>, [ValueKind::F16, ValueKind::F16, ValueKind::None], ValueKind::B16),
        "v_add_co_u32" => entry(carry::<N, false, 0>, b32, ValueKind::B32),
        "v_sub_co_u32" => entry(carry::<N, false, 1>, b32, ValueKind::B32),
        "v_subrev_co_u32" => entry(carry::<N, false, 2>, b32, ValueKind::B32),
        "v_add_co_ci_u32" => entry(carry::<N, true, 0>, b32, ValueKind::B32),
        "v_sub_co_ci_u32" => entry(carry::<N, true, 1>, b32, ValueKind::B32),
        "v_subrev_co_ci_u32" => entry(carry::<N, true, 2>, b32, ValueKind::B32),
        _ => None,
    }
}

/// Source 1 where the mask is set, else source 0.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn select<const N: usize, T: Value>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let pick: [u32; N] = spread(w.mask(i.code[2]));
    let half = if T::KIND.is_16() { 0xffff } else { !0 };
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let live = w.live;
    let to = &mut w.v[i.dst as usize];
    for l in 0..N {
        let m = live[l] & half;
        to[l] = ((b[l] & pick[l] | a[l] & !pick[l]) & m) | (to[l] & !m);
    }
    Flow::Next
}

/// Add or subtract with carry out, and in when `CI`.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn carry<const N: usize, const CI: bool, const KIND: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let carry_in: [u32; N] = if CI { spread(w.mask(i.code[2])) } else { [0; N] };
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let mut out = [0u32; N];
    let mut hit = [0u32; N];
    for l in 0..N {
        let c = carry_in[l] & 1;
        let (x, y) = if KIND == 2 { (b[l], a[l]) } else { (a[l], b[l]) };
        // The carry (or borrow) out of the top bit, in bit operations that vectorise.
        let (value, over) = if KIND == 0 {
            let v = x.wrapping_add(y).wrapping_add(c);
            (v, x & y | (x | y) & !v)
        } else {
            let v = x.wrapping_sub(y).wrapping_sub(c);
            (v, !x & y | (!x | y) & v)
        };
        out[l] = value;
        hit[l] = ((over as i32) >> 31) as u32 & w.live[l];
    }
    w.put(i.dst, &out);
    w.set_mask(i.sdst, gather(&hit));
    Flow::Next
}

fn class<const N: usize>(ty: &str) -> Option<CodeEntry<N>> {
    let entry = |run, kind, with| {
        Some(CodeEntry {
            run,
            role: Role::Compare,
            kinds: [kind, with, ValueKind::None],
            dst: ValueKind::None,
            reads_dst: false,
        })
    };
    match ty {
        "f16" => entry(class_of::<N, 16>, ValueKind::F16, ValueKind::B16),
        "f32" => entry(class_of::<N, 32>, ValueKind::F32, ValueKind::B32),
        "f64" => entry(class_of::<N, 64>, ValueKind::F64, ValueKind::B32),
        _ => None,
    }
}

/// Tests a float against a set of classes: signalling and quiet NaN, then infinite, normal, denormal and zero by sign.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn class_of<const N: usize, const BITS: u32>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let mut hit = [0u32; N];
    for l in 0..N {
        let lo = w.v[i.src[0] as usize][l];
        let (bits, man, exp) = match BITS {
            16 => (((lo & 0xffff) as u64) << 48, 10, 5),
            32 => ((lo as u64) << 32, 23, 8),
            _ => (lo as u64 | (w.v[i.src[0] as usize + 1][l] as u64) << 32, 52, 11),
        };
        let is_negative = bits >> 63 == 1;
        let exponent = bits << 1 >> (64 - exp);
        let mantissa = bits << (1 + exp) >> (64 - man);
        let bit = if exponent == (1 << exp) - 1 {
            match mantissa {
                0 => {
                    if is_negative {
                        2
                    } else {
                        9
                    }
                }
                m if m >> (man - 1) & 1 == 1 => 1,
                _ => 0,
            }
        } else {
            match (exponent != 0, mantissa != 0) {
                (true, _) => {
                    if is_negative {
                        3
                    } else {
                        8
                    }
                }
                (false, true) => {
                    if is_negative {
                        4
                    } else {
                        7
                    }
                }
                (false, false) => {
                    if is_negative {
                        5
                    } else {
                        6
                    }
                }
            }
        };
        hit[l] = if w.v[i.src[1] as usize][l] >> bit & 1 == 1 { w.live[l] } else { 0 };
    }
    let mask = gather(&hit);
    w.set_mask(i.sdst, mask);
    if i.detail.sets_exec {
        w.set_mask(crate::isa::code::EXEC, mask);
    }
    Flow::Next
}
