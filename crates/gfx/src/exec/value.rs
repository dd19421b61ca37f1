//! What one lane of a vector register holds: the typed views that instruction bodies are written in.
//!
//! Conversions are branch-free, so that loops over lanes vectorise. Halves are computed in f32: for add, multiply,
//! divide and square root the double rounding is exact (24 >= 2 * 11 + 2 bits); fused products are rounded to odd first.

/// Operand class: decides inline constants, sign bits, half selection and how many rows are read.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ValueKind {
    None,
    B16,
    F16,
    B32,
    F32,
    B64,
    F64,
}

impl ValueKind {
    pub fn is_16(self) -> bool {
        matches!(self, ValueKind::B16 | ValueKind::F16)
    }

    pub fn is_64(self) -> bool {
        matches!(self, ValueKind::B64 | ValueKind::F64)
    }

    pub fn n_rows(self) -> usize {
        match self {
            ValueKind::None => 0,
            ValueKind::B64 | ValueKind::F64 => 2,
            _ => 1,
        }
    }
}

/// A lane value made from one or two 32-bit rows.
pub trait Value: Copy {
    const KIND: ValueKind;
    fn load(lo: u32, hi: u32) -> Self;
    fn store(self) -> (u32, u32);
}

/// An unused operand.
impl Value for () {
    const KIND: ValueKind = ValueKind::None;
    #[inline(always)]
    fn load(_: u32, _: u32) -> Self {}
    #[inline(always)]
    fn store(self) -> (u32, u32) {
        (0, 0)
    }
}

macro_rules! plain {
    ($($ty:ty, $kind:ident, $lo:ident => $load:expr, $v:ident => $store:expr;)*) => {$(
        impl Value for $ty {
            const KIND: ValueKind = ValueKind::$kind;
            #[inline(always)]
            fn load($lo: u32, _: u32) -> Self { $load }
            #[inline(always)]
            fn store(self) -> (u32, u32) { let $v = self; ($store, 0) }
        }
    )*};
}

plain! {
    u32, B32, lo => lo, v => v;
    i32, B32, lo => lo as i32, v => v as u32;
    f32, F32, lo => f32::from_bits(lo), v => v.to_bits();
    u16, B16, lo => lo as u16, v => v as u32;
    i16, B16, lo => lo as i16, v => v as u16 as u32;
    H16, F16, lo => H16(lo as u16), v => v.0 as u32;
    F16, F16, lo => F16(half_to_f32(lo as u16)), v => f32_to_half(v.0) as u32;
}

macro_rules! wide {
    ($($ty:ty, $kind:ident, $bits:ident => $load:expr, $v:ident => $store:expr;)*) => {$(
        impl Value for $ty {
            const KIND: ValueKind = ValueKind::$kind;
            #[inline(always)]
            fn load(lo: u32, hi: u32) -> Self { let $bits = lo as u64 | (hi as u64) << 32; $load }
            #[inline(always)]
            fn store(self) -> (u32, u32) { let $v = self; let b: u64 = $store; (b as u32, (b >> 32) as u32) }
        }
    )*};
}

wide! {
    u64, B64, b => b, v => v;
    i64, B64, b => b as i64, v => v as u64;
    f64, F64, b => f64::from_bits(b), v => v.to_bits();
}

/// An IEEE half, held in f32; rounds to nearest even when stored.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct F16(pub f32);

/// The bits of a half: moved, never computed with.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct H16(pub u16);

#[inline(always)]
pub fn half_to_f32(h: u16) -> f32 {
    let sign = (h as u32 & 0x8000) << 16;
    let body = (h as u32 & 0x7fff) << 13;
    // Scaling by 2^112 rebiases the exponent and normalises subnormals in one multiplication.
    let finite = (f32::from_bits(body) * f32::from_bits(0x7780_0000)).to_bits();
    let special = body | 0x7f80_0000;
    f32::from_bits(sign | if h & 0x7c00 == 0x7c00 { special } else { finite })
}

#[inline(always)]
pub fn f32_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let abs = bits & 0x7fff_ffff;
    // Normal results: rebias, then round to nearest even with the carry running into the exponent.
    let odd = (abs >> 13) & 1;
    let normal = abs.wrapping_sub(0x3800_0000).wrapping_add(0xfff).wrapping_add(odd) >> 13;
    // Subnormal results: adding 0.5 lines the half's last bit up with the float's, and the adder rounds.
    let subnormal = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if abs > 0x7f80_0000 { 0x7e00 | ((abs >> 13) & 0x3ff) } else { 0x7c00 };
    let finite = if abs < 0x3880_0000 { subnormal } else { normal };
    (sign | if abs >= 0x477f_f000 { special } else { finite }) as u16
}

/// Round toward zero, as `v_cvt_pk_rtz_f16_f32` does.
pub fn f32_to_half_rtz(value: f32) -> u16 {
    let nearest = f32_to_half(value);
    let back = half_to_f32(nearest);
    if back.abs() > value.abs() && value.is_finite() { nearest - 1 } else { nearest }
}

/// Straight from f64: going through f32 could round twice. What tests compare fused products with.
#[cfg(test)]
pub fn f64_to_half(value: f64) -> u16 {
    let single = value as f32;
    let exact = single as f64;
    if exact == value || !single.is_finite() {
        return f32_to_half(single);
    }
    // Make the last bit sticky: the f32 then rounds to the same half as the f64 would.
    let bits = single.to_bits();
    let truncated = if exact.abs() > value.abs() { bits - 1 } else { bits };
    f32_to_half(f32::from_bits(truncated | 1))
}

#[inline(always)]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook definition, in f64.
    fn reference(h: u16) -> f64 {
        let (sign, exp, man) = (if h >> 15 == 1 { -1.0 } else { 1.0 }, (h >> 10) & 31, (h & 0x3ff) as f64);
        match exp {
            0 => sign * man * 2f64.powi(-24),
            31 if man == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            e => sign * (1.0 + man / 1024.0) * 2f64.powi(e as i32 - 15),
        }
    }

    #[test]
    fn every_half_widens_and_returns() {
        for h in 0..=u16::MAX {
            let want = reference(h);
            let got = half_to_f32(h) as f64;
            assert!(got == want || (got.is_nan() && want.is_nan()), "{h:#06x}");
            if !want.is_nan() {
                assert_eq!(f32_to_half(want as f32), h);
                assert_eq!(f64_to_half(want), h);
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for h in 0..0x7bffu16 {
            let (lo, hi) = (reference(h), reference(h + 1));
            let mid = (lo + hi) / 2.0;
            assert_eq!(f32_to_half(mid as f32), h + (h & 1), "tie above {h:#06x}");
            assert_eq!(f64_to_half(mid + (hi - lo) * 1e-9), h + 1);
            assert_eq!(f64_to_half(mid - (hi - lo) * 1e-9), h);
            assert_eq!(f32_to_half_rtz(mid as f32), h);
        }
        assert_eq!(f32_to_half(65520.0), 0x7c00);
        assert_eq!(f32_to_half(65519.0), 0x7bff);
        assert_eq!(f32_to_half(f32::NAN) & 0x7e00, 0x7e00);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
    }
}
