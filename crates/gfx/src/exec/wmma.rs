//! RDNA3's matrix product: D = A * B + C on 16 x 16 tiles, one tile per wave.
//!
//! Lane r of A holds row r (lanes 16 and up repeat it), lane c of B column c. Accumulators: with 32 lanes register j,
//! lane l is row 2j + l/16, column l%16; with 64 lanes row 4j + l/16. The order of additions is ours: AMD does not
//! state silicon's, so the last bits may differ from a card's.

use super::inst::{Inst, row};
use super::value::{bf16_to_f32, f32_to_bf16, f32_to_half, half_to_f32};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};

const TILE: usize = 16;

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
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

/// One 16-element row of A (or column of B) in floats.
fn floats<const N: usize, const BF: bool>(w: &Wave<N>, at: u16, lane: usize) -> [f32; TILE] {
    std::array::from_fn(|k| {
        let word = row(at).map_or(0, |r| w.v[r as usize + k / 2][lane]);
        let h = (word >> (16 * (k & 1))) as u16;
        if BF { bf16_to_f32(h) } else { half_to_f32(h) }
    })
}

fn tile<const N: usize, const BF: bool>(w: &Wave<N>, i: &Inst<N>) -> ([[f32; TILE]; TILE], [[f32; TILE]; TILE]) {
    let flip = |m: &mut [[f32; TILE]; TILE], k: u8| {
        // neg flips the even elements' signs, neg_hi the odd ones'.
        let signs = [i.detail.neg >> k & 1 == 1, i.detail.neg_hi >> k & 1 == 1];
        for r in m.iter_mut() {
            for (n, x) in r.iter_mut().enumerate() {
                if signs[n & 1] {
                    *x = -*x;
                }
            }
        }
    };
    let mut a = std::array::from_fn(|r| floats::<N, BF>(w, i.code[0], r));
    let mut b = std::array::from_fn(|c| floats::<N, BF>(w, i.code[1], c));
    flip(&mut a, 0);
    flip(&mut b, 1);
    (a, b)
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
    let (a, b) = tile::<N, BF>(w, i);
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    w.counters.matrix += 1;
    let mut out = [[0u32; N]; 8];
    for (j, to) in out.iter_mut().enumerate().take(n_rows) {
        let c = accumulator(w, i, j);
        for l in 0..N {
            let (r, col) = (groups * j + l / TILE, l % TILE);
            let mut acc = f32::from_bits(c[l]);
            if i.detail.neg_hi >> 2 & 1 == 1 {
                acc = acc.abs();
            }
            if i.detail.neg >> 2 & 1 == 1 {
                acc = -acc;
            }
            for k in 0..TILE {
                acc = a[r][k].mul_add(b[col][k], acc);
            }
            to[l] = acc.to_bits();
        }
    }
    w.v[i.dst as usize..i.dst as usize + n_rows].copy_from_slice(&out[..n_rows]);
    Flow::Next
}

/// Half results fill one half of each accumulator register, picked by op_sel.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn half<const N: usize, const BF: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (a, b) = tile::<N, BF>(w, i);
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    let shift = if i.detail.op_sel >> 2 & 1 == 1 { 16 } else { 0 };
    w.counters.matrix += 1;
    for j in 0..n_rows {
        let c = accumulator(w, i, j);
        for l in 0..N {
            let (r, col) = (groups * j + l / TILE, l % TILE);
            let start = (c[l] >> shift) as u16;
            let mut acc = if BF { bf16_to_f32(start) } else { half_to_f32(start) };
            for k in 0..TILE {
                acc = a[r][k].mul_add(b[col][k], acc);
            }
            let bits = if BF { f32_to_bf16(acc) } else { f32_to_half(acc) } as u32;
            let to = &mut w.v[i.dst as usize + j][l];
            *to = *to & !(0xffff << shift) | bits << shift;
        }
    }
    Flow::Next
}

fn integer<const N: usize, const BITS: u32>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let element = |w: &Wave<N>, at: u16, lane: usize, k: usize, is_signed: bool| -> i64 {
        let per_word = (32 / BITS) as usize;
        let word = row(at).map_or(0, |r| w.v[r as usize + k / per_word][lane]);
        let top = word << (32 - BITS * (k % per_word + 1) as u32);
        if is_signed { ((top as i32) >> (32 - BITS)) as i64 } else { (top >> (32 - BITS)) as i64 }
    };
    let n_rows = TILE * TILE / N;
    let groups = N / TILE;
    w.counters.matrix += 1;
    let mut out = [[0u32; N]; 8];
    for (j, to) in out.iter_mut().enumerate().take(n_rows) {
        let c = accumulator(w, i, j);
        for l in 0..N {
            let (r, col) = (groups * j + l / TILE, l % TILE);
            let mut acc = c[l] as i32 as i64;
            for k in 0..TILE {
                acc += element(w, i.code[0], r, k, i.detail.neg & 1 != 0)
                    * element(w, i.code[1], col, k, i.detail.neg & 2 != 0);
            }
            to[l] = if i.detail.is_clamped { acc.clamp(i32::MIN as i64, i32::MAX as i64) } else { acc } as u32;
        }
    }
    w.v[i.dst as usize..i.dst as usize + n_rows].copy_from_slice(&out[..n_rows]);
    Flow::Next
}
