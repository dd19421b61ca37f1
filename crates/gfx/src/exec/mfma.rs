//! CDNA's matrix products on 64 lanes: D = A * B + C, for the one-block shapes that compilers emit.
//!
//! With M rows the lanes split into 64 / M groups; lane l holds row (of A) or column (of B) l % M and its group's share
//! of k, in order. Results: 16 x 16 keeps row 4 * (l / 16) + r in register r, 32 x 32 row 8 * (r / 4) + 4 * (l / 32) +
//! r % 4, doubles row 4 * r + l / 16. The order of additions is ours; silicon's last bits may differ.

use super::inst::{Inst, row};
use super::value::{bf16_to_f32, half_to_f32};
use super::wave::{Group, Wave};
use super::{Entry, Flow};
use crate::error::Cause;

/// What one element is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Element {
    F32,
    /// f32 cut to 19 bits.
    Xf32,
    F16,
    Bf16,
    I8,
    Fp8,
    Bf8,
    F64,
}

impl Element {
    fn n_bytes(self) -> usize {
        match self {
            Element::F64 => 8,
            Element::F32 | Element::Xf32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::I8 | Element::Fp8 | Element::Bf8 => 1,
        }
    }

    fn value(self, bits: u64) -> f64 {
        match self {
            Element::F64 => f64::from_bits(bits),
            Element::F32 => f32::from_bits(bits as u32) as f64,
            Element::Xf32 => f32::from_bits(bits as u32 & !0x1fff) as f64,
            Element::F16 => half_to_f32(bits as u16) as f64,
            Element::Bf16 => bf16_to_f32(bits as u16) as f64,
            Element::I8 => bits as u8 as i8 as f64,
            Element::Fp8 => small_float(bits as u8, 4, 8),
            Element::Bf8 => small_float(bits as u8, 5, 16),
        }
    }
}

/// CDNA3's 8-bit floats (the FNUZ kinds): no infinities, one NaN at 0x80, bias one above IEEE's.
fn small_float(bits: u8, n_exponent: u32, bias: i32) -> f64 {
    if bits == 0x80 {
        return f64::NAN;
    }
    let n_mantissa = 7 - n_exponent;
    let exponent = (bits >> n_mantissa & ((1 << n_exponent) - 1)) as i32;
    let mantissa = (bits & ((1 << n_mantissa) - 1)) as f64 / (1 << n_mantissa) as f64;
    let magnitude =
        if exponent == 0 { mantissa * 2f64.powi(1 - bias) } else { (1.0 + mantissa) * 2f64.powi(exponent - bias) };
    if bits & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Rows, depth and the elements of A and B.
fn shape(op: &str) -> Option<(usize, usize, Element, Element)> {
    use Element::*;
    Some(match op {
        "v_mfma_f32_16x16x4_f32" => (16, 4, F32, F32),
        "v_mfma_f32_32x32x2_f32" => (32, 2, F32, F32),
        "v_mfma_f32_16x16x8_xf32" => (16, 8, Xf32, Xf32),
        "v_mfma_f32_32x32x4_xf32" => (32, 4, Xf32, Xf32),
        "v_mfma_f32_16x16x16_f16" => (16, 16, F16, F16),
        "v_mfma_f32_32x32x8_f16" => (32, 8, F16, F16),
        "v_mfma_f32_16x16x16_bf16" => (16, 16, Bf16, Bf16),
        "v_mfma_f32_32x32x8_bf16" => (32, 8, Bf16, Bf16),
        "v_mfma_i32_16x16x32_i8" => (16, 32, I8, I8),
        "v_mfma_i32_32x32x16_i8" => (32, 16, I8, I8),
        "v_mfma_f32_16x16x32_fp8_fp8" => (16, 32, Fp8, Fp8),
        "v_mfma_f32_16x16x32_fp8_bf8" => (16, 32, Fp8, Bf8),
        "v_mfma_f32_16x16x32_bf8_fp8" => (16, 32, Bf8, Fp8),
        "v_mfma_f32_16x16x32_bf8_bf8" => (16, 32, Bf8, Bf8),
        "v_mfma_f32_32x32x16_fp8_fp8" => (32, 16, Fp8, Fp8),
        "v_mfma_f32_32x32x16_fp8_bf8" => (32, 16, Fp8, Bf8),
        "v_mfma_f32_32x32x16_bf8_fp8" => (32, 16, Bf8, Fp8),
        "v_mfma_f32_32x32x16_bf8_bf8" => (32, 16, Bf8, Bf8),
        "v_mfma_f64_16x16x4_f64" => (16, 4, F64, F64),
        _ => return None,
    })
}

pub fn find<const N: usize>(op: &str) -> Option<Entry<N>> {
    shape(op).filter(|_| N == 64).map(|_| Entry::raw(run::<N>))
}

/// Element `j` of a lane's packed registers.
fn element<const N: usize>(w: &Wave<N>, first: usize, lane: usize, j: usize, kind: Element) -> f64 {
    let at = j * kind.n_bytes();
    let word = w.v[first + at / 4][lane];
    let bits = match kind.n_bytes() {
        8 => word as u64 | (w.v[first + at / 4 + 1][lane] as u64) << 32,
        _ => (word >> (8 * (at % 4))) as u64,
    };
    kind.value(bits)
}

fn run<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let Some((m, k, kind_a, kind_b)) = shape(i.op) else { return w.stop(Cause::Unsupported(i.op.to_string())) };
    // On doubles the last field negates; on the rest it permutes, like the broadcast controls.
    if i.detail.cbsz != 0 || i.detail.abid != 0 || i.detail.blgp != 0 {
        return w.stop(Cause::Unsupported(format!("{} with lane controls", i.op)));
    }
    let (Some(a), Some(b)) = (row(i.code[0]), row(i.code[1])) else {
        return w.stop(Cause::Unsupported(format!("{} with a constant operand", i.op)));
    };
    w.counters.matrix += 1;
    let per_lane = k * m / 64;
    let read = |first: u16, kind: Element| -> Vec<f64> {
        // [m, k]
        (0..m * k)
            .map(|n| {
                let (r, kk) = (n / k, n % k);
                element(w, first as usize, kk / per_lane * m + r, kk % per_lane, kind)
            })
            .collect()
    };
    let (a, b) = (read(a, kind_a), read(b, kind_b));
    let is_double = kind_a == Element::F64;
    let is_integer = kind_a == Element::I8;
    let n_results = m * m / 64;
    let width = if is_double { 2 } else { 1 };
    let mut out = vec![[0u32; N]; n_results * width];
    for r in 0..n_results {
        for l in 0..N {
            let (line, col) = match (is_double, m) {
                (true, _) => (4 * r + l / 16, l % 16),
                (false, 16) => (4 * (l / 16) + r, l % 16),
                _ => (8 * (r / 4) + 4 * (l / 32) + r % 4, l % 32),
            };
            let start = accumulator(w, i, r * width, l, is_double);
            let products = (0..k).map(|kk| a[line * k + kk] * b[col * k + kk]);
            if is_integer {
                let sum = products.fold(start as u32 as i32 as i64, |s, p| s.wrapping_add(p as i64));
                out[r][l] = sum as u32;
            } else if is_double {
                let sum = products.fold(f64::from_bits(start), |s, p| s + p);
                out[2 * r][l] = sum.to_bits() as u32;
                out[2 * r + 1][l] = (sum.to_bits() >> 32) as u32;
            } else {
                let sum = products.fold(f32::from_bits(start as u32), |s, p| (s as f64 + p) as f32);
                out[r][l] = sum.to_bits();
            }
        }
    }
    let dst = i.dst as usize;
    w.v[dst..dst + out.len()].copy_from_slice(&out);
    Flow::Next
}

fn accumulator<const N: usize>(w: &Wave<N>, i: &Inst<N>, register: usize, lane: usize, is_double: bool) -> u64 {
    match row(i.code[2]) {
        Some(r) => {
            let at = r as usize + register;
            w.v[at][lane] as u64 | if is_double { (w.v[at + 1][lane] as u64) << 32 } else { 0 }
        }
        None if is_double => w.scalar64(i.code[2], i.literal),
        None => w.scalar(i.code[2], i.literal) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the OCP/FNUZ tables: largest, one, smallest subnormal.
    #[test]
    fn eight_bit_floats() {
        assert_eq!(Element::Fp8.value(0x7f), 240.0);
        assert_eq!(Element::Fp8.value(0x40), 1.0);
        assert_eq!(Element::Fp8.value(0x01), 2f64.powi(-10));
        assert_eq!(Element::Bf8.value(0x7f), 57344.0);
        assert_eq!(Element::Bf8.value(0x40), 1.0);
        assert_eq!(Element::Bf8.value(0x81), -2f64.powi(-17));
        assert!(Element::Fp8.value(0x80).is_nan());
    }
}
