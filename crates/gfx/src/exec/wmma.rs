//! RDNA's matrix products: D = A * B + C on 16 x 16 tiles, one tile per wave.
//!
//! RDNA3: lane r of A holds row r (lanes 16 and up repeat it), lane c of B column c. Accumulators: register j of lane l is
//! row (N / 16) j + l / 16, column l % 16; results of 16 bits take one half of a register.
//! RDNA4: the groups of 16 lanes share k, in order: with 32 lanes the first has k 0 to 7, the second 8 to 15. Element j
//! of lane l is row j + (256 / N) (l / 16), column l % 16; results of 16 bits lie two in a register.
//! The order of additions is ours: AMD does not state silicon's, so the last bits may differ from a card's.

use super::inst::{Inst, row};
use super::value::{bf16_to_f32, f32_to_bf16, f32_to_half, half_to_f32};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::isa::Family;

const TILE: usize = 16;

pub fn find<const N: usize>(op: &str, family: Family) -> Option<CodeEntry<N>> {
    if family == Family::Rdna4 {
        return find4(op);
    }
    let run: super::Handler<N> = match op {
        "v_wmma_f32_16x16x16_f16" => float32::<N, false>,
        "v_wmma_f32_16x16x16_bf16" => float32::<N, true>,
        "v_wmma_f16_16x16x16_f16" => half::<N, false>,
        "v_wmma_bf16_16x16x16_bf16" => half::<N, true>,
        "v_wmma_i32_16x16x16_iu8" => integer::<N, 8>,
        "v_wmma_i32_16x16x16_iu4" => integer::<N, 4>,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

fn find4<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let run: super::Handler<N> = match op {
        "v_wmma_f32_16x16x16_f16" => float32::<N, false>,
        "v_wmma_f32_16x16x16_bf16" => float32::<N, true>,
        "v_wmma_f16_16x16x16_f16" => half4::<N, false>,
        "v_wmma_bf16_16x16x16_bf16" => half4::<N, true>,
        "v_wmma_i32_16x16x16_iu8" => integer::<N, 8>,
        "v_wmma_i32_16x16x16_iu4" => integer::<N, 4>,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

/// How many k a lane holds, one after the other: all of them on RDNA3, its group's share on RDNA4.
#[inline(always)]
fn share<const N: usize>(i: &Inst<N>) -> usize {
    if i.detail.family == Family::Rdna4 { TILE * TILE / N } else { TILE }
}

/// The row of the result that lies in register `j` (or element, where two share a register) of a group of lanes.
#[inline(always)]
fn place<const N: usize>(i: &Inst<N>, j: usize, group: usize) -> usize {
    if i.detail.family == Family::Rdna4 { j + TILE * TILE / N * group } else { N / TILE * j + group }
}

/// An operand as floats: element k of all rows of A (or columns of B), for each k. A lane's register holds two of its k.
#[inline(always)]
fn tile<const N: usize, const BF: bool>(w: &Wave<N>, i: &Inst<N>, operand: usize) -> [[f32; TILE]; TILE] {
    let mut out = [[0.0; TILE]; TILE];
    let Some(first) = row(i.code[operand]) else { return out };
    // neg flips the even elements' signs, neg_hi the odd ones'.
    let flips = [i.detail.neg, i.detail.neg_hi].map(|field| (field as u32 >> operand & 1) << 31);
    let share = share(i);
    for (p, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (group, register) = (2 * p / share, 2 * p % share / 2);
        let words = &w.v[first as usize + register][TILE * group..][..TILE];
        for l in 0..TILE {
            for (half, to) in pair.iter_mut().enumerate() {
                let bits = (words[l] >> (16 * half)) as u16;
                let x = if BF { bf16_to_f32(bits) } else { half_to_f32(bits) };
                to[l] = f32::from_bits(x.to_bits() ^ flips[half]);
            }
        }
    }
    out
}

/// A row of the result: the sums it starts from, plus row `r` of A times B. Each sum adds its products in order of k.
#[inline(always)]
fn product(a: &[[f32; TILE]; TILE], b: &[[f32; TILE]; TILE], r: usize, sums: &mut [f32; TILE]) {
    for k in 0..TILE {
        for col in 0..TILE {
            sums[col] = a[k][r].mul_add(b[k][col], sums[col]);
        }
    }
}

/// Register `j` of the accumulator operand, or a constant in every lane.
fn accumulator<const N: usize>(w: &Wave<N>, i: &Inst<N>, j: usize) -> [u32; N] {
    match row(i.code[2]) {
        Some(r) => w.v[r as usize + j],
        None => [w.scalar(i.code[2], i.literal); N],
    }
}

/// `TILE * TILE / N` accumulator registers; a lane's row steps by the number of lane groups.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn float32<const N: usize, const BF: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (tile::<N, BF>(w, i, 0), tile::<N, BF>(w, i, 1));
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    let clear = if i.detail.neg_hi >> 2 & 1 == 1 { !(1 << 31) } else { !0u32 };
    let flip = (i.detail.neg as u32 >> 2 & 1) << 31;
    w.counters.matrix += 1;
    let mut out = [[0u32; N]; 8];
    for (j, to) in out.iter_mut().enumerate().take(n_rows) {
        let c = accumulator(w, i, j);
        for g in 0..groups {
            let mut sums = std::array::from_fn(|col| f32::from_bits(c[TILE * g + col] & clear ^ flip));
            product(&a, &b, place(i, j, g), &mut sums);
            to[TILE * g..TILE * (g + 1)].copy_from_slice(&sums.map(f32::to_bits));
        }
    }
    w.v[i.dst as usize..i.dst as usize + n_rows].copy_from_slice(&out[..n_rows]);
    Flow::Next
}

/// Half results fill one half of each accumulator register, picked by op_sel.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn half<const N: usize, const BF: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (tile::<N, BF>(w, i, 0), tile::<N, BF>(w, i, 1));
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    let shift = if i.detail.op_sel >> 2 & 1 == 1 { 16 } else { 0 };
    w.counters.matrix += 1;
    for j in 0..n_rows {
        let c = accumulator(w, i, j);
        for g in 0..groups {
            let mut sums = std::array::from_fn(|col| {
                let start = (c[TILE * g + col] >> shift) as u16;
                if BF { bf16_to_f32(start) } else { half_to_f32(start) }
            });
            product(&a, &b, groups * j + g, &mut sums);
            for (to, sum) in w.v[i.dst as usize + j][TILE * g..].iter_mut().zip(sums) {
                let bits = if BF { f32_to_bf16(sum) } else { f32_to_half(sum) } as u32;
                *to = *to & !(0xffff << shift) | bits << shift;
            }
        }
    }
    Flow::Next
}

/// Half results of RDNA4: two rows in a register.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn half4<const N: usize, const BF: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (tile::<N, BF>(w, i, 0), tile::<N, BF>(w, i, 1));
    let clear = if i.detail.neg_hi >> 2 & 1 == 1 { 0x7fff } else { 0xffff };
    let flip = if i.detail.neg >> 2 & 1 == 1 { 0x8000 } else { 0 };
    w.counters.matrix += 1;
    for j in 0..TILE * TILE / N {
        let c = accumulator(w, i, j / 2);
        let shift = 16 * (j % 2);
        for g in 0..N / TILE {
            let mut sums = std::array::from_fn(|col| {
                let start = (c[TILE * g + col] >> shift) as u16 & clear ^ flip;
                if BF { bf16_to_f32(start) } else { half_to_f32(start) }
            });
            product(&a, &b, place(i, j, g), &mut sums);
            for (to, sum) in w.v[i.dst as usize + j / 2][TILE * g..].iter_mut().zip(sums) {
                let bits = if BF { f32_to_bf16(sum) } else { f32_to_half(sum) } as u32;
                *to = *to & !(0xffff << shift) | bits << shift;
            }
        }
    }
    Flow::Next
}

/// An operand of integers of `BITS` bits, as `tile` gives floats.
#[inline(always)]
fn integers<const N: usize, const BITS: u32>(w: &Wave<N>, i: &Inst<N>, operand: usize) -> [[i32; TILE]; TILE] {
    let mut out = [[0; TILE]; TILE];
    let Some(first) = row(i.code[operand]) else { return out };
    let is_signed = i.detail.neg >> operand & 1 != 0;
    let per_word = (32 / BITS) as usize;
    let share = share(i);
    for (k, to) in out.iter_mut().enumerate() {
        let (group, k) = (k / share, k % share);
        let words = &w.v[first as usize + k / per_word][TILE * group..][..TILE];
        let shift = 32 - BITS * (k % per_word + 1) as u32;
        for l in 0..TILE {
            let top = words[l] << shift;
            to[l] = if is_signed { (top as i32) >> (32 - BITS) } else { (top >> (32 - BITS)) as i32 };
        }
    }
    out
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn integer<const N: usize, const BITS: u32>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = (integers::<N, BITS>(w, i, 0), integers::<N, BITS>(w, i, 1));
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    w.counters.matrix += 1;
    let mut out = [[0u32; N]; 8];
    for (j, to) in out.iter_mut().enumerate().take(n_rows) {
        let c = accumulator(w, i, j);
        for g in 0..groups {
            // Sixteen products of eight bits are far from the end of 32.
            let mut sums = [0i32; TILE];
            for k in 0..TILE {
                for col in 0..TILE {
                    sums[col] += a[k][place(i, j, g)] * b[k][col];
                }
            }
            for col in 0..TILE {
                let start = c[TILE * g + col] as i32;
                let sum =
                    if i.detail.is_clamped { start.saturating_add(sums[col]) } else { start.wrapping_add(sums[col]) };
                to[TILE * g + col] = sum as u32;
            }
        }
    }
    w.v[i.dst as usize..i.dst as usize + n_rows].copy_from_slice(&out[..n_rows]);
    Flow::Next
}
