//! Packed halves (VOP3P), mixed-precision fused products and integer dot products.
//!
//! Here op_sel picks the half each result half reads, and neg means the sign of the low half, or signedness.

use super::float::{fma16, max, maximum, min, minimum};
use super::inst::Inst;
use super::value::{F16, Value, ValueKind, bf16_to_f32, f32_to_half, half_to_f32};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow, Role};
use crate::isa::Decoded;

/// One half of a packed instruction.
trait PackedOp {
    type T: Value;
    fn half(a: Self::T, b: Self::T, c: Self::T) -> Self::T;
}

macro_rules! packed_ops {
    ($find:ident; $($($op:literal)|+ => ($a:ident, $b:ident, $c:ident): $ty:ty $body:block)*) => {
        fn $find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
            match op {
                $($($op)|+ => {
                    struct Op;
                    impl PackedOp for Op {
                        type T = $ty;
                        #[inline(always)]
                        fn half($a: $ty, $b: $ty, $c: $ty) -> $ty $body
                    }
                    let kind = <$ty as Value>::KIND;
                    Some(CodeEntry { run: packed::<N, Op>, role: Role::Lanes, kinds: [kind; 3], dst: ValueKind::B32, reads_dst: false })
                })*
                _ => None,
            }
        }
    };
}

packed_ops! {
    find_packed;
    "v_pk_add_f16" => (a, b, _c): F16 { F16(a.0 + b.0) }
    "v_pk_mul_f16" => (a, b, _c): F16 { F16(a.0 * b.0) }
    "v_pk_fma_f16" => (a, b, c): F16 { fma16(a.0, b.0, c.0) }
    "v_pk_max_f16" => (a, b, _c): F16 { F16(max(a.0, b.0)) }
    "v_pk_min_f16" => (a, b, _c): F16 { F16(min(a.0, b.0)) }
    "v_pk_maximum_f16" => (a, b, _c): F16 { F16(maximum(a.0, b.0)) }
    "v_pk_minimum_f16" => (a, b, _c): F16 { F16(minimum(a.0, b.0)) }
    "v_pk_add_u16" | "v_pk_add_i16" => (a, b, _c): u16 { a.wrapping_add(b) }
    "v_pk_sub_u16" | "v_pk_sub_i16" => (a, b, _c): u16 { a.wrapping_sub(b) }
    "v_pk_mul_lo_u16" => (a, b, _c): u16 { a.wrapping_mul(b) }
    "v_pk_mad_u16" | "v_pk_mad_i16" => (a, b, c): u16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_pk_lshlrev_b16" => (a, b, _c): u16 { b << (a & 15) }
    "v_pk_lshrrev_b16" => (a, b, _c): u16 { b >> (a & 15) }
    "v_pk_ashrrev_i16" => (a, b, _c): i16 { b >> (a & 15) }
    "v_pk_max_u16" => (a, b, _c): u16 { a.max(b) }
    "v_pk_min_u16" => (a, b, _c): u16 { a.min(b) }
    "v_pk_max_i16" => (a, b, _c): i16 { a.max(b) }
    "v_pk_min_i16" => (a, b, _c): i16 { a.min(b) }
}

packed_ops! {
    find_saturating;
    "v_pk_add_u16" => (a, b, _c): u16 { a.saturating_add(b) }
    "v_pk_add_i16" => (a, b, _c): i16 { a.saturating_add(b) }
    "v_pk_sub_u16" => (a, b, _c): u16 { a.saturating_sub(b) }
    "v_pk_sub_i16" => (a, b, _c): i16 { a.saturating_sub(b) }
    "v_pk_mad_u16" => (a, b, c): u16 { (a as u64 * b as u64 + c as u64).min(u16::MAX as u64) as u16 }
    "v_pk_mad_i16" => (a, b, c): i16 {
        (a as i64 * b as i64 + c as i64).clamp(i16::MIN as i64, i16::MAX as i64) as i16
    }
}

/// The clamp bit on a float: into 0 to 1, and no number becomes 0.
#[inline(always)]
fn unit(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

pub fn find<const N: usize>(op: &str, d: &Decoded) -> Option<CodeEntry<N>> {
    let entry =
        |run, kinds, reads_dst| Some(CodeEntry { run, role: Role::Lanes, kinds, dst: ValueKind::B32, reads_dst });
    let b32 = [ValueKind::B32; 3];
    match op {
        // Each source of a mixed product is a float, or a half when op_sel_hi says so.
        "v_fma_mix_f32" | "v_fma_mixlo_f16" | "v_fma_mixhi_f16" => {
            let kind = |k: u8| if d.op_sel_hi >> k & 1 == 1 { ValueKind::F16 } else { ValueKind::F32 };
            let run: super::Handler<N> = match op {
                "v_fma_mix_f32" => mix::<N, 0>,
                "v_fma_mixlo_f16" => mix::<N, 1>,
                _ => mix::<N, 2>,
            };
            entry(run, [kind(0), kind(1), kind(2)], true)
        }
        "v_dot4_i32_iu8" => entry(dot::<N, 8>, b32, false),
        "v_dot8_i32_iu4" => entry(dot::<N, 4>, b32, false),
        "v_dot4_i32_i8" => entry(dot_fixed::<N, 8, true>, b32, false),
        "v_dot4_u32_u8" => entry(dot_fixed::<N, 8, false>, b32, false),
        "v_dot8_i32_i4" => entry(dot_fixed::<N, 4, true>, b32, false),
        "v_dot8_u32_u4" => entry(dot_fixed::<N, 4, false>, b32, false),
        "v_dot2_i32_i16" => entry(dot_fixed::<N, 16, true>, b32, false),
        "v_dot2_u32_u16" => entry(dot_fixed::<N, 16, false>, b32, false),
        "v_dot2_f32_f16" => entry(dot2::<N, 0>, [ValueKind::F16, ValueKind::F16, ValueKind::F32], false),
        "v_dot2_f32_bf16" => entry(dot2::<N, 1>, b32, false),
        "v_pk_fmac_f16" => entry(packed_fmac, [ValueKind::F16, ValueKind::F16, ValueKind::None], true),
        "v_dot2acc_f32_bf16" | "v_dot2c_f32_bf16" => {
            entry(dot2::<N, 3>, [ValueKind::B32, ValueKind::B32, ValueKind::None], true)
        }
        "v_dot2acc_f32_f16" | "v_dot2c_f32_f16" => {
            entry(dot2::<N, 2>, [ValueKind::B32, ValueKind::B32, ValueKind::None], true)
        }
        "v_dot4c_i32_i8" => entry(dot4c, [ValueKind::B32, ValueKind::B32, ValueKind::None], true),
        "v_pk_fma_f32" | "v_pk_mul_f32" | "v_pk_add_f32" | "v_pk_mov_b32" => Some(CodeEntry {
            run: packed32,
            role: Role::Raw,
            kinds: [ValueKind::None; 3],
            dst: ValueKind::None,
            reads_dst: false,
        }),
        // Floats clamp in their handler; integers saturate, where their exact result can leave the range.
        _ => match find_packed(op) {
            Some(entry) if d.is_clamped && entry.kinds[0] != ValueKind::F16 => {
                let stays_inside = ["_min_", "_max_", "_lshrrev_", "_ashrrev_"].iter().any(|s| op.contains(s));
                if stays_inside { Some(entry) } else { find_saturating(op) }
            }
            entry => entry,
        },
    }
}

#[inline(always)]
fn put<const N: usize>(w: &mut Wave<N>, dst: u16, value: &[u32; N]) -> Flow {
    w.put(dst, value);
    Flow::Next
}

/// The half of `x` a result half reads, with its sign flipped when asked.
#[inline(always)]
fn half_of(x: u32, shift: u32, flip: u32) -> u32 {
    (x >> shift & 0xffff) ^ flip
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn packed<const N: usize, O: PackedOp>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let d = &*i.detail;
    let shift = |sel: u8, k: u8| if sel >> k & 1 == 1 { 16 } else { 0 };
    let flip = |neg: u8, k: u8| if neg >> k & 1 == 1 { 0x8000 } else { 0 };
    let mut out = [0u32; N];
    for (sel, neg, to) in [(d.op_sel, d.neg, 0), (d.op_sel_hi, d.neg_hi, 16)] {
        let (s0, s1, s2) = (shift(sel, 0), shift(sel, 1), shift(sel, 2));
        let (n0, n1, n2) = (flip(neg, 0), flip(neg, 1), flip(neg, 2));
        let (a, b, c) = (&w.v[i.src[0] as usize], &w.v[i.src[1] as usize], &w.v[i.src[2] as usize]);
        for l in 0..N {
            let r = O::half(
                O::T::load(half_of(a[l], s0, n0), 0),
                O::T::load(half_of(b[l], s1, n1), 0),
                O::T::load(half_of(c[l], s2, n2), 0),
            );
            out[l] |= (r.store().0 & 0xffff) << to;
        }
    }
    if d.is_clamped && O::T::KIND == ValueKind::F16 {
        let half = |bits: u32| f32_to_half(unit(half_to_f32(bits as u16))) as u32;
        out.iter_mut().for_each(|x| *x = half(*x) | half(*x >> 16) << 16);
    }
    put(w, i.dst, &out)
}

/// fma over floats and halves; `TO` is 0 for a float result, 1 and 2 for the low and high half.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn mix<const N: usize, const TO: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let d = &*i.detail;
    let mut x = [[0f32; N]; 3];
    for (k, to) in x.iter_mut().enumerate() {
        let from = &w.v[i.src[k] as usize];
        let bit = |field: u8| field >> k & 1 == 1;
        let shift = if bit(d.op_sel) { 16 } else { 0 };
        let (clear, flip) = (if bit(d.neg_hi) { !(1u32 << 31) } else { !0 }, (bit(d.neg) as u32) << 31);
        for l in 0..N {
            let v = if bit(d.op_sel_hi) { half_to_f32((from[l] >> shift) as u16) } else { f32::from_bits(from[l]) };
            to[l] = f32::from_bits((v.to_bits() & clear) ^ flip);
        }
    }
    let old = w.v[i.dst as usize];
    let mut out = [0u32; N];
    for l in 0..N {
        let mut r = x[0][l].mul_add(x[1][l], x[2][l]);
        if d.is_clamped {
            r = unit(r);
        }
        out[l] = match TO {
            0 => r.to_bits(),
            1 => old[l] & 0xffff_0000 | f32_to_half(r) as u32,
            _ => old[l] & 0xffff | (f32_to_half(r) as u32) << 16,
        };
    }
    put(w, i.dst, &out)
}

/// A field of `BITS` bits, sign-extended or not.
#[inline(always)]
fn field<const BITS: u32>(x: u32, n: u32, is_signed: bool) -> i32 {
    let top = x << (32 - BITS * (n + 1));
    if is_signed { (top as i32) >> (32 - BITS) } else { (top >> (32 - BITS)) as i32 }
}

#[inline(always)]
fn dot_row<const N: usize, const BITS: u32>(w: &Wave<N>, i: &Inst<N>, a_signed: bool, b_signed: bool) -> [u32; N] {
    let (a, b, c) = (&w.v[i.src[0] as usize], &w.v[i.src[1] as usize], &w.v[i.src[2] as usize]);
    let mut out = *c;
    for n in 0..32 / BITS {
        for l in 0..N {
            let product = field::<BITS>(a[l], n, a_signed).wrapping_mul(field::<BITS>(b[l], n, b_signed));
            out[l] = out[l].wrapping_add(product as u32);
        }
    }
    out
}

/// RDNA3's mixed-sign dot products: neg bit k makes source k signed.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn dot<const N: usize, const BITS: u32>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    if i.detail.is_clamped {
        return w.stop(crate::error::Cause::Unsupported(format!("{} with clamp", i.op)));
    }
    let out = match (i.detail.neg & 1 != 0, i.detail.neg & 2 != 0) {
        (true, true) => dot_row::<N, BITS>(w, i, true, true),
        (true, false) => dot_row::<N, BITS>(w, i, true, false),
        (false, true) => dot_row::<N, BITS>(w, i, false, true),
        (false, false) => dot_row::<N, BITS>(w, i, false, false),
    };
    put(w, i.dst, &out)
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn dot_fixed<const N: usize, const BITS: u32, const SIGNED: bool>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    _: &mut Group<'_>,
) -> Flow {
    if i.detail.is_clamped {
        return w.stop(crate::error::Cause::Unsupported(format!("{} with clamp", i.op)));
    }
    let out = dot_row::<N, BITS>(w, i, SIGNED, SIGNED);
    put(w, i.dst, &out)
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn dot4c<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let mut out = w.v[i.dst as usize];
    for (l, to) in out.iter_mut().enumerate() {
        for n in 0..4 {
            *to = to.wrapping_add((field::<8>(a[l], n, true) * field::<8>(b[l], n, true)) as u32);
        }
    }
    put(w, i.dst, &out)
}

/// Both halves fused into the destination; a short form with no selection.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn packed_fmac<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let mut out = w.v[i.dst as usize];
    for (l, to) in out.iter_mut().enumerate() {
        let half = |shift: u32| {
            let get = |x: u32| half_to_f32((x >> shift) as u16);
            f32_to_half(fma16(get(a[l]), get(b[l]), get(*to)).0) as u32
        };
        *to = half(0) | half(16) << 16;
    }
    put(w, i.dst, &out)
}

/// Two products added to a float: halves (0), bfloats (1); into the destination: halves (2), bfloats (3).
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn dot2<const N: usize, const KIND: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let d = &*i.detail;
    let (a, b) = (&w.v[i.src[0] as usize], &w.v[i.src[1] as usize]);
    let is_packed = KIND < 2;
    let c = &w.v[if is_packed { i.src[2] } else { i.dst } as usize];
    let flip = |neg: u8, k: u8| if is_packed && neg >> k & 1 == 1 { 0x8000 } else { 0u32 };
    let mut out = [0u32; N];
    for l in 0..N {
        let get = |x: u32, shift: u32, flip: u32| {
            let h = ((x >> shift) as u16) ^ flip as u16;
            if KIND % 2 == 1 { bf16_to_f32(h) } else { half_to_f32(h) }
        };
        let lo = get(a[l], 0, flip(d.neg, 0)) * get(b[l], 0, flip(d.neg, 1));
        let hi = get(a[l], 16, flip(d.neg_hi, 0)) * get(b[l], 16, flip(d.neg_hi, 1));
        let start = f32::from_bits(c[l] ^ if is_packed && d.neg >> 2 & 1 == 1 { 1 << 31 } else { 0 });
        let sum = start + lo + hi;
        out[l] = if is_packed && d.is_clamped { unit(sum) } else { sum }.to_bits();
    }
    put(w, i.dst, &out)
}

/// CDNA's pairs of floats: op_sel picks the register of the pair that each result reads.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn packed32<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let d = &*i.detail;
    let mut out = [[0u32; N]; 2];
    for (part, to) in out.iter_mut().enumerate() {
        let (sel, neg) = if part == 0 { (d.op_sel, d.neg) } else { (d.op_sel_hi, d.neg_hi) };
        // The move has one choice per source, not per result.
        let sel = if i.op == "v_pk_mov_b32" { d.op_sel } else { sel };
        let read = |k: usize| -> [u32; N] {
            let second = (sel >> k & 1) as usize;
            let flip = if neg >> k & 1 == 1 { 1u32 << 31 } else { 0 };
            let mut row = match super::inst::row(i.code[k]) {
                Some(r) => w.v[r as usize + second],
                None if i.code[k] < 124 => [w.scalar(i.code[k] + second as u16, i.literal); N],
                None => [w.scalar(i.code[k], i.literal); N],
            };
            row.iter_mut().for_each(|x| *x ^= flip);
            row
        };
        let (a, b, c) = (read(0), read(1), read(2));
        for l in 0..N {
            let (x, y, z) = (f32::from_bits(a[l]), f32::from_bits(b[l]), f32::from_bits(c[l]));
            to[l] = match i.op {
                "v_pk_fma_f32" => x.mul_add(y, z).to_bits(),
                "v_pk_mul_f32" => (x * y).to_bits(),
                "v_pk_add_f32" => (x + y).to_bits(),
                // Moves one register from each source.
                _ => {
                    if part == 0 {
                        a[l]
                    } else {
                        b[l]
                    }
                }
            };
        }
    }
    if d.is_clamped && i.op != "v_pk_mov_b32" {
        out.as_flattened_mut().iter_mut().for_each(|x| *x = unit(f32::from_bits(*x)).to_bits());
    }
    put(w, i.dst, &out[0]);
    put(w, i.dst + 1, &out[1])
}
