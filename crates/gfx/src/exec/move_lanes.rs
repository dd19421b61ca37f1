//! Movement between lanes and between the scalar and vector files, and the two steps of exact division that read or
//! write the condition mask.

use super::float::{exponent, ldexp};
use super::inst::{Inst, row};
use super::value::ValueKind;
use super::wave::{Group, Wave, gather, spread};
use super::{CodeEntry, Flow, Role};
use crate::isa::code;

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let lanes = |run, kinds, dst| Some(CodeEntry { run, role: Role::Lanes, kinds, dst, reads_dst: false });
    let (b32, f32x3, f64x3) =
        ([ValueKind::B32, ValueKind::B32, ValueKind::None], [ValueKind::F32; 3], [ValueKind::F64; 3]);
    match op {
        "v_readfirstlane_b32" => Some(CodeEntry::raw(read_first)),
        "v_readlane_b32" => Some(CodeEntry::raw(read_lane)),
        "v_writelane_b32" => Some(CodeEntry::raw(write_lane)),
        "v_mbcnt_lo_u32_b32" => lanes(mbcnt::<N, false>, b32, ValueKind::B32),
        "v_mbcnt_hi_u32_b32" => lanes(mbcnt::<N, true>, b32, ValueKind::B32),
        "v_permlane16_b32" => Some(CodeEntry::raw(permlane::<N, 0>)),
        "v_permlanex16_b32" => Some(CodeEntry::raw(permlane::<N, 16>)),
        "v_permlane16_var_b32" => Some(CodeEntry::raw(permlane_var::<N, 0>)),
        "v_permlanex16_var_b32" => Some(CodeEntry::raw(permlane_var::<N, 16>)),
        "v_permlane64_b32" => Some(CodeEntry::raw(permlane64)),
        "v_swap_b32" => Some(CodeEntry::raw(swap)),
        "v_swap_b16" => Some(CodeEntry::raw(swap_halves)),
        "v_div_scale_f32" => lanes(div_scale, f32x3, ValueKind::F32),
        "v_div_scale_f64" => lanes(div_scale64, f64x3, ValueKind::F64),
        "v_div_fmas_f32" => lanes(div_fmas, f32x3, ValueKind::F32),
        "v_div_fmas_f64" => lanes(div_fmas64, f64x3, ValueKind::F64),
        "v_mad_u64_u32" => lanes(mad64::<N, false>, [ValueKind::B32, ValueKind::B32, ValueKind::B64], ValueKind::B64),
        "v_mad_i64_i32" => lanes(mad64::<N, true>, [ValueKind::B32, ValueKind::B32, ValueKind::B64], ValueKind::B64),
        _ => None,
    }
}

fn vector<const N: usize>(w: &Wave<N>, i: &Inst<N>, k: usize) -> [u32; N] {
    match row(i.code[k]) {
        Some(r) => w.v[r as usize],
        None => [w.scalar(i.code[k], i.literal); N],
    }
}

#[inline(always)]
fn put<const N: usize>(w: &mut Wave<N>, dst: u16, value: &[u32; N]) {
    w.put(dst, value);
}

fn read_first<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let exec = w.exec();
    let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
    let value = vector(w, i, 0)[lane];
    w.set_scalar(i.sdst, value);
    Flow::Next
}

fn read_lane<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let lane = w.scalar(i.code[1], i.literal) as usize % N;
    let value = vector(w, i, 0)[lane];
    w.set_scalar(i.sdst, value);
    Flow::Next
}

/// Writes one lane whatever exec says.
fn write_lane<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let lane = w.scalar(i.code[1], i.literal) as usize % N;
    w.v[i.dst as usize][lane] = w.scalar(i.code[0], i.literal);
    Flow::Next
}

/// Counts the mask bits below the lane, in the low or the high half of the wave.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn mbcnt<const N: usize, const HIGH: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let mut out = [0u32; N];
    for l in 0..N {
        let below = ((1u128 << l) - 1) as u64;
        let below = if HIGH { (below >> 32) as u32 } else { below as u32 };
        out[l] = b[l].wrapping_add((a[l] & below).count_ones());
    }
    put(w, i.dst, &out);
    Flow::Next
}

/// Any swizzle within a row of sixteen, or from its neighbour row.
fn permlane<const N: usize, const ACROSS: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let from = vector(w, i, 0);
    let select = w.scalar(i.code[1], i.literal) as u64 | (w.scalar(i.code[2], i.literal) as u64) << 32;
    let (fetch_inactive, bound_ctrl) = (i.detail.op_sel & 1 != 0, i.detail.op_sel & 2 != 0);
    let exec = w.exec();
    let mut out = w.v[i.dst as usize];
    for (l, to) in out.iter_mut().enumerate() {
        let s = (l & !15 ^ ACROSS) + (select >> (4 * (l & 15)) & 15) as usize;
        if fetch_inactive || exec >> s & 1 == 1 {
            *to = from[s];
        } else if bound_ctrl {
            *to = 0;
        }
    }
    put(w, i.dst, &out);
    Flow::Next
}

/// The same with each lane's own choice, from a vector register (RDNA4).
fn permlane_var<const N: usize, const ACROSS: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (from, select) = (vector(w, i, 0), vector(w, i, 1));
    let (fetch_inactive, bound_ctrl) = (i.detail.op_sel & 1 != 0, i.detail.op_sel & 2 != 0);
    let exec = w.exec();
    let mut out = w.v[i.dst as usize];
    for (l, to) in out.iter_mut().enumerate() {
        let s = (l & !15 ^ ACROSS) + (select[l] & 15) as usize;
        if fetch_inactive || exec >> s & 1 == 1 {
            *to = from[s];
        } else if bound_ctrl {
            *to = 0;
        }
    }
    put(w, i.dst, &out);
    Flow::Next
}

fn permlane64<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    if N == 64 {
        let from = vector(w, i, 0);
        let mut out = [0u32; N];
        for (l, to) in out.iter_mut().enumerate() {
            *to = from[l ^ 32];
        }
        put(w, i.dst, &out);
    }
    Flow::Next
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn swap<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.dst as usize]);
    put(w, i.dst, &a);
    put(w, i.src[0], &b);
    Flow::Next
}

/// Swaps two halves; register bit 7 picks the upper one.
fn swap_halves<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let place = |register: u16| (register as usize & 127, if register & 128 != 0 { 16 } else { 0 });
    let ((ra, sa), (rb, sb)) = (place(i.src[0]), place(i.dst));
    for l in 0..N {
        if w.live[l] != 0 {
            let (a, b) = (w.v[ra][l] >> sa & 0xffff, w.v[rb][l] >> sb & 0xffff);
            w.v[ra][l] = w.v[ra][l] & !(0xffff << sa) | b << sa;
            w.v[rb][l] = w.v[rb][l] & !(0xffff << sb) | a << sb;
        }
    }
    Flow::Next
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn mad64<const N: usize, const SIGNED: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let (c0, c1) = (w.v[i.src[2] as usize], w.v[i.src[2] as usize + 1]);
    let (mut lo, mut hi, mut over) = ([0u32; N], [0u32; N], [0u32; N]);
    for l in 0..N {
        let product = if SIGNED {
            (a[l] as i32 as i64).wrapping_mul(b[l] as i32 as i64) as u64
        } else {
            a[l] as u64 * b[l] as u64
        };
        let c = c0[l] as u64 | (c1[l] as u64) << 32;
        let sum = product.wrapping_add(c);
        lo[l] = sum as u32;
        hi[l] = (sum >> 32) as u32;
        // Out of the top bit, or of the signed range, in bit operations that vectorise.
        let carry = if SIGNED { (product ^ sum) & (c ^ sum) } else { product & c | (product | c) & !sum };
        over[l] = ((carry as i64 >> 63) as u32) & w.live[l];
    }
    put(w, i.dst, &lo);
    put(w, i.dst + 1, &hi);
    w.set_mask(i.sdst, gather(&over));
    Flow::Next
}

/// Scales a numerator or denominator so that the division's steps neither over- nor underflow.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn div_scale<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let [a, b, c] = [0, 1, 2].map(|k| w.v[i.src[k] as usize]);
    let (mut out, mut flags) = ([0u32; N], [0u32; N]);
    for l in 0..N {
        let (x, den, num) = (f32::from_bits(a[l]), f32::from_bits(b[l]), f32::from_bits(c[l]));
        let inverse_is_tiny = (1.0 / den as f64).abs() < f32::MIN_POSITIVE as f64;
        let quotient = num / den;
        let (value, flag) = if num == 0.0 || den == 0.0 {
            (f32::NAN, false)
        } else if exponent(num) - exponent(den) >= 96 {
            (if a[l] == b[l] { ldexp(x, 64) } else { x }, true)
        } else if den.is_subnormal() {
            (ldexp(x, 64), false)
        } else if inverse_is_tiny && quotient.is_subnormal() {
            (if a[l] == b[l] { ldexp(x, 64) } else { x }, true)
        } else if inverse_is_tiny {
            (ldexp(x, -64), false)
        } else if quotient.is_subnormal() {
            (if a[l] == c[l] { ldexp(x, 64) } else { x }, true)
        } else if exponent(num) <= 23 {
            (ldexp(x, 64), false)
        } else {
            (x, false)
        };
        out[l] = value.to_bits();
        flags[l] = if flag { w.live[l] } else { 0 };
    }
    put(w, i.dst, &out);
    w.set_mask(i.sdst, gather(&flags));
    Flow::Next
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn div_scale64<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let read = |k: usize, l: usize| {
        let r = i.src[k] as usize;
        f64::from_bits(w.v[r][l] as u64 | (w.v[r + 1][l] as u64) << 32)
    };
    let exp = |x: f64| (x.to_bits() >> 52 & 0x7ff) as i32;
    let up = |x: f64, e: i32| x * 2f64.powi(e);
    let (mut lo, mut hi, mut flags) = ([0u32; N], [0u32; N], [0u32; N]);
    for l in 0..N {
        let (x, den, num) = (read(0, l), read(1, l), read(2, l));
        let (is_den, is_num) = (x.to_bits() == den.to_bits(), x.to_bits() == num.to_bits());
        let inverse_is_tiny = (1.0 / den).is_subnormal();
        let quotient = num / den;
        let (value, flag) = if num == 0.0 || den == 0.0 {
            (f64::NAN, false)
        } else if exp(num) - exp(den) >= 768 {
            (if is_den { up(x, 128) } else { x }, true)
        } else if den.is_subnormal() {
            (up(x, 128), false)
        } else if inverse_is_tiny && quotient.is_subnormal() {
            (if is_den { up(x, 128) } else { x }, true)
        } else if inverse_is_tiny {
            (up(x, -128), false)
        } else if quotient.is_subnormal() {
            (if is_num { up(x, 128) } else { x }, true)
        } else if exp(num) <= 53 {
            (up(x, 128), false)
        } else {
            (x, false)
        };
        lo[l] = value.to_bits() as u32;
        hi[l] = (value.to_bits() >> 32) as u32;
        flags[l] = if flag { w.live[l] } else { 0 };
    }
    put(w, i.dst, &lo);
    put(w, i.dst + 1, &hi);
    w.set_mask(i.sdst, gather(&flags));
    Flow::Next
}

/// The division's last fused step, with the scaling that `div_scale` asked for through vcc: up where the denominator was
/// scaled (a large quotient), down where the numerator was. (AMD's text has one factor of 2^32, which undoes neither.)
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn div_fmas<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let scaled: [u32; N] = spread(w.mask(code::VCC));
    let [a, b, c] = [w.v[i.src[0] as usize], w.v[i.src[1] as usize], w.v[i.src[2] as usize]];
    let mut out = [0u32; N];
    for l in 0..N {
        let r = f32::from_bits(a[l]).mul_add(f32::from_bits(b[l]), f32::from_bits(c[l]));
        let factor = if exponent(f32::from_bits(c[l])) > 127 { 2f32.powi(64) } else { 2f32.powi(-64) };
        out[l] = if scaled[l] != 0 { r * factor } else { r }.to_bits();
    }
    put(w, i.dst, &out);
    Flow::Next
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn div_fmas64<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let scaled: [u32; N] = spread(w.mask(code::VCC));
    let (mut lo, mut hi) = ([0u32; N], [0u32; N]);
    for l in 0..N {
        let mut x = [0f64; 3];
        for k in 0..3 {
            let r = i.src[k] as usize;
            x[k] = f64::from_bits(w.v[r][l] as u64 | (w.v[r + 1][l] as u64) << 32);
        }
        let r = x[0].mul_add(x[1], x[2]);
        let factor = if x[2].to_bits() >> 52 & 0x7ff > 1023 { 2f64.powi(128) } else { 2f64.powi(-128) };
        let r = if scaled[l] != 0 { r * factor } else { r };
        lo[l] = r.to_bits() as u32;
        hi[l] = (r.to_bits() >> 32) as u32;
    }
    put(w, i.dst, &lo);
    put(w, i.dst + 1, &hi);
    Flow::Next
}
