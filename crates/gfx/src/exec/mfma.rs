//! CDNA's matrix products on 64 lanes: D = A * B + C, in one block or in several small ones side by side.
//!
//! With M rows and several blocks, lane l holds row (of A) or column (of B) l % M of block l / M; with one block the
//! lanes split into 64 / M groups, each with its share of k, in order. Results lie in rows of M lanes: row i of a
//! 32 x 32 block in register 4 * (i / 8) + i % 4, of a 16 x 16 block in register i % 4, of a 4 x 4 block in register i;
//! blocks follow each other in registers, but 4 x 4 ones in lanes. The order of additions is ours; silicon's last bits
//! may differ.

use super::fp8::{BF8, FP8};
use super::inst::{Inst, row};
use super::value::{bf16_to_f32, half_to_f32};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::error::Cause;

/// What sums are kept in.
trait Sum: Copy + Default {
    const WORDS: usize;
    fn load(bits: u64) -> Self;
    fn store(self) -> u64;
    fn add_product(self, a: Self, b: Self) -> Self;
}

impl Sum for f32 {
    const WORDS: usize = 1;
    #[inline(always)]
    fn load(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    #[inline(always)]
    fn store(self) -> u64 {
        self.to_bits() as u64
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

impl Sum for f64 {
    const WORDS: usize = 2;
    #[inline(always)]
    fn load(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    #[inline(always)]
    fn store(self) -> u64 {
        self.to_bits()
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

impl Sum for i32 {
    const WORDS: usize = 1;
    #[inline(always)]
    fn load(bits: u64) -> Self {
        bits as i32
    }
    #[inline(always)]
    fn store(self) -> u64 {
        self as u32 as u64
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// What one element of A or B is.
trait Element {
    const BYTES: usize;
    type Sum: Sum;
    fn value(bits: u64) -> Self::Sum;
}

macro_rules! elements {
    ($($name:ident, $bytes:literal, $sum:ty, $b:ident => $value:expr;)*) => {$(
        struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            type Sum = $sum;
            #[inline(always)]
            fn value($b: u64) -> $sum { $value }
        }
    )*};
}

elements! {
    F32, 4, f32, b => f32::from_bits(b as u32);
    // f32 cut to 19 bits.
    Xf32, 4, f32, b => f32::from_bits(b as u32 & !0x1fff);
    F16, 2, f32, b => half_to_f32(b as u16);
    Bf16, 2, f32, b => bf16_to_f32(b as u16);
    Fp8, 1, f32, b => FP8.widen(b as u8);
    Bf8, 1, f32, b => BF8.widen(b as u8);
    I8, 1, i32, b => b as u8 as i8 as i32;
    F64, 8, f64, b => f64::from_bits(b);
}

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    if N != 64 {
        return None;
    }
    // Rows, depth, blocks, and the elements of A and B.
    let run: super::Handler<N> = match op {
        "v_mfma_f32_16x16x4_f32" => run::<N, 16, 4, 1, F32, F32>,
        "v_mfma_f32_32x32x2_f32" => run::<N, 32, 2, 1, F32, F32>,
        "v_mfma_f32_16x16x8_xf32" => run::<N, 16, 8, 1, Xf32, Xf32>,
        "v_mfma_f32_32x32x4_xf32" => run::<N, 32, 4, 1, Xf32, Xf32>,
        "v_mfma_f32_16x16x16_f16" => run::<N, 16, 16, 1, F16, F16>,
        "v_mfma_f32_32x32x8_f16" => run::<N, 32, 8, 1, F16, F16>,
        "v_mfma_f32_16x16x16_bf16" => run::<N, 16, 16, 1, Bf16, Bf16>,
        "v_mfma_f32_32x32x8_bf16" => run::<N, 32, 8, 1, Bf16, Bf16>,
        "v_mfma_i32_16x16x32_i8" => run::<N, 16, 32, 1, I8, I8>,
        "v_mfma_i32_32x32x16_i8" => run::<N, 32, 16, 1, I8, I8>,
        "v_mfma_f32_16x16x32_fp8_fp8" => run::<N, 16, 32, 1, Fp8, Fp8>,
        "v_mfma_f32_16x16x32_fp8_bf8" => run::<N, 16, 32, 1, Fp8, Bf8>,
        "v_mfma_f32_16x16x32_bf8_fp8" => run::<N, 16, 32, 1, Bf8, Fp8>,
        "v_mfma_f32_16x16x32_bf8_bf8" => run::<N, 16, 32, 1, Bf8, Bf8>,
        "v_mfma_f32_32x32x16_fp8_fp8" => run::<N, 32, 16, 1, Fp8, Fp8>,
        "v_mfma_f32_32x32x16_fp8_bf8" => run::<N, 32, 16, 1, Fp8, Bf8>,
        "v_mfma_f32_32x32x16_bf8_fp8" => run::<N, 32, 16, 1, Bf8, Fp8>,
        "v_mfma_f32_32x32x16_bf8_bf8" => run::<N, 32, 16, 1, Bf8, Bf8>,
        "v_mfma_f64_16x16x4_f64" => run::<N, 16, 4, 1, F64, F64>,
        "v_mfma_f32_32x32x1_2b_f32" => run::<N, 32, 1, 2, F32, F32>,
        "v_mfma_f32_16x16x1_4b_f32" => run::<N, 16, 1, 4, F32, F32>,
        "v_mfma_f32_4x4x1_16b_f32" => run::<N, 4, 1, 16, F32, F32>,
        "v_mfma_f32_32x32x4_2b_f16" => run::<N, 32, 4, 2, F16, F16>,
        "v_mfma_f32_16x16x4_4b_f16" => run::<N, 16, 4, 4, F16, F16>,
        "v_mfma_f32_4x4x4_16b_f16" => run::<N, 4, 4, 16, F16, F16>,
        "v_mfma_f32_32x32x4_2b_bf16" => run::<N, 32, 4, 2, Bf16, Bf16>,
        "v_mfma_f32_16x16x4_4b_bf16" => run::<N, 16, 4, 4, Bf16, Bf16>,
        "v_mfma_f32_4x4x4_16b_bf16" => run::<N, 4, 4, 16, Bf16, Bf16>,
        "v_mfma_i32_32x32x4_2b_i8" => run::<N, 32, 4, 2, I8, I8>,
        "v_mfma_i32_16x16x4_4b_i8" => run::<N, 16, 4, 4, I8, I8>,
        "v_mfma_i32_4x4x4_16b_i8" => run::<N, 4, 4, 16, I8, I8>,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

/// Block `block` of an operand: its k-th elements of all rows, for each k.
#[inline(always)]
fn block<const N: usize, const M: usize, const K: usize, const BLOCKS: usize, E: Element>(
    w: &Wave<N>,
    first: usize,
    block: usize,
) -> [[E::Sum; M]; K] {
    let per_lane = K * M * BLOCKS / 64;
    let mut out = [[E::Sum::default(); M]; K];
    for (k, to) in out.iter_mut().enumerate() {
        let lane = M * (block + BLOCKS * (k / per_lane));
        let at = k % per_lane * E::BYTES;
        let row = first + at / 4;
        for (i, to) in to.iter_mut().enumerate() {
            let word = w.v[row][lane + i] as u64;
            *to = E::value(match E::BYTES {
                8 => word | (w.v[row + 1][lane + i] as u64) << 32,
                _ => word >> (8 * (at % 4)),
            });
        }
    }
    out
}

/// The register (in results, not words) and first lane of row `i` of a block.
#[inline(always)]
fn place<const M: usize>(block: usize, i: usize, is_double: bool) -> (usize, usize) {
    match (is_double, M) {
        (true, _) => (i / 4, 16 * (i % 4)),
        (false, 32) => (16 * block + 4 * (i / 8) + i % 4, 32 * (i / 4 % 2)),
        (false, 16) => (4 * block + i % 4, 16 * (i / 4)),
        _ => (i, 4 * block),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn run<const N: usize, const M: usize, const K: usize, const BLOCKS: usize, A: Element, B: Element<Sum = A::Sum>>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    _: &mut Group<'_>,
) -> Flow {
    // On doubles the last field negates; on the rest it permutes, like the broadcast controls.
    if i.detail.cbsz != 0 || i.detail.abid != 0 || i.detail.blgp != 0 {
        return w.stop(Cause::Unsupported(format!("{} with lane controls", i.op)));
    }
    let (Some(a), Some(b)) = (row(i.code[0]), row(i.code[1])) else {
        return w.stop(Cause::Unsupported(format!("{} with a constant operand", i.op)));
    };
    w.counters.matrix += 1;
    let width = A::Sum::WORDS;
    let c = row(i.code[2]).map(|r| r as usize);
    let constant = if width == 2 { w.scalar64(i.code[2], i.literal) } else { w.scalar(i.code[2], i.literal) as u64 };
    // At most 32 registers: the result may overlap the operands, so it is written at the end.
    let mut out = [[0u32; N]; 32];
    for n in 0..BLOCKS {
        let x = block::<N, M, K, BLOCKS, A>(w, a as usize, n);
        let y = block::<N, M, K, BLOCKS, B>(w, b as usize, n);
        for r in 0..M {
            let (register, lane) = place::<M>(n, r, width == 2);
            let at = register * width;
            let mut sum = [A::Sum::default(); M];
            for (j, to) in sum.iter_mut().enumerate() {
                *to = A::Sum::load(match c {
                    Some(c) if width == 2 => w.v[c + at][lane + j] as u64 | (w.v[c + at + 1][lane + j] as u64) << 32,
                    Some(c) => w.v[c + at][lane + j] as u64,
                    None => constant,
                });
            }
            for k in 0..K {
                for j in 0..M {
                    sum[j] = sum[j].add_product(x[k][r], y[k][j]);
                }
            }
            for (j, s) in sum.iter().enumerate() {
                out[at][lane + j] = s.store() as u32;
                if width == 2 {
                    out[at + 1][lane + j] = (s.store() >> 32) as u32;
                }
            }
        }
    }
    let n_rows = M * M * BLOCKS * width / 64;
    let dst = i.dst as usize;
    w.v[dst..dst + n_rows].copy_from_slice(&out[..n_rows]);
    Flow::Next
}
