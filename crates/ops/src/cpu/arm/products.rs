//! Products on 64-bit ARM, from the file's own rows. The main packed formats multiply 16-bit integers, as on other
//! CPUs; plain numbers and every other format multiply in f32. A weight is unpacked once for up to four activation
//! rows, which is what 32 registers hold.

use std::arch::aarch64::*;
use std::arch::asm;
use std::cell::RefCell;
use std::ops::Range;

use weights::Dtype;

use super::blocks::Unpack;
use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::cpu::portable::products as plain;
use crate::formats::{Bf16, F16, F32, Float, Q4_0, Q4_1, Q4K, Q6K, Q8_0, dequantize};
use crate::tiles::GROUP;

/// Activation rows that one pass over the weights serves.
const MAX_ROWS: usize = 4;

/// Rows of an activation tile for so many rows.
pub(crate) fn tile_rows(n_rows: usize) -> usize {
    n_rows.div_ceil(n_rows.div_ceil(MAX_ROWS).max(1)).max(1)
}

/// Whether products with this type take activations that are rounded to 16 bits.
pub(crate) fn rounds(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q8_0 | Dtype::Q4K | Dtype::Q6K)
}

pub(crate) fn cols(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    match job.dtype {
        Dtype::Q4_0 => integers::<Q4_0>(input, job, cols),
        Dtype::Q4_1 => integers::<Q4_1>(input, job, cols),
        Dtype::Q8_0 => integers::<Q8_0>(input, job, cols),
        Dtype::Q4K => integers::<Q4K>(input, job, cols),
        Dtype::Q6K => integers::<Q6K>(input, job, cols),
        Dtype::F32 => floats::<F32>(input, job, cols),
        Dtype::F16 => floats::<F16>(input, job, cols),
        Dtype::BF16 => floats::<Bf16>(input, job, cols),
        dtype if dtype.block_len() > 1 => decoded(input, job, cols),
        _ => plain::rows(input, job, cols),
    }
}

fn integers<P: Unpack>(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    let step = input.rounded.tile_rows();
    for col in cols {
        let weight = &job.weight[col * job.stride..][..job.stride];
        for (tile_idx, first) in (0..input.n_rows).step_by(step).enumerate() {
            match step {
                1 => integer_rows::<P, 1>(input, job, weight, col, tile_idx, first),
                2 => integer_rows::<P, 2>(input, job, weight, col, tile_idx, first),
                3 => integer_rows::<P, 3>(input, job, weight, col, tile_idx, first),
                _ => integer_rows::<P, 4>(input, job, weight, col, tile_idx, first),
            }
        }
    }
}

fn integer_rows<P: Unpack, const N: usize>(
    input: &ProductInput,
    job: &ProductJob,
    weight: &[u8],
    col: usize,
    tile_idx: usize,
    first: usize,
) {
    let x = input.rounded.tile(tile_idx, 0);
    // SAFETY: `rounded` was made with N rows a tile and as many groups a row as the weights have; all else is register
    // arithmetic. 32-bit sums hold: `largest_activation` bounds a group, and a lane sums an eighth of one.
    let (mut acc, mut mins) = unsafe { ([vdupq_n_f32(0.0); N], [0.0_f32; N]) };
    for (b, block) in weight.chunks_exact(P::BYTES).enumerate() {
        for g in 0..P::LEN / GROUP {
            let w = P::group(block, g);
            let group = b * (P::LEN / GROUP) + g;
            for n in 0..N {
                // SAFETY: as above.
                unsafe {
                    let q = x.q.add((group * N + n) * GROUP);
                    let q = [vld1q_s16(q), vld1q_s16(q.add(8)), vld1q_s16(q.add(16)), vld1q_s16(q.add(24))];
                    let halves = [half_sum(w.q[0], q[0], w.q[1], q[1]), half_sum(w.q[2], q[2], w.q[3], q[3])];
                    let scale = *x.scales.add(group * N + n);
                    if P::HAS_HALVES {
                        acc[n] = vfmaq_n_f32(acc[n], vcvtq_f32_s32(halves[0]), w.d[0] * scale);
                        acc[n] = vfmaq_n_f32(acc[n], vcvtq_f32_s32(halves[1]), w.d[1] * scale);
                    } else {
                        let sum = vaddq_s32(halves[0], halves[1]);
                        acc[n] = vfmaq_n_f32(acc[n], vcvtq_f32_s32(sum), w.d[0] * scale);
                    }
                    if P::HAS_MIN {
                        mins[n] += w.m[0] * *x.sums.add(group * N + n);
                    }
                }
            }
        }
    }
    for n in 0..N.min(input.n_rows - first) {
        // SAFETY: the row exists, and the column is this task's.
        unsafe { job.put(first + n, col, vaddvq_f32(acc[n]) + mins[n]) };
    }
}

/// Sixteen products in four sums.
///
/// # Safety
/// None but NEON, which every 64-bit ARM has.
#[inline(always)]
unsafe fn half_sum(w0: int16x8_t, q0: int16x8_t, w1: int16x8_t, q1: int16x8_t) -> int32x4_t {
    // SAFETY: register arithmetic only.
    unsafe {
        let sum = vmull_s16(vget_low_s16(w0), vget_low_s16(q0));
        let sum = vmlal_high_s16(sum, w0, q0);
        let sum = vmlal_s16(sum, vget_low_s16(w1), vget_low_s16(q1));
        vmlal_high_s16(sum, w1, q1)
    }
}

/// Four plain numbers as f32.
trait LoadFour: Float {
    /// # Safety
    /// `at` points at `4 * BYTES` readable bytes.
    unsafe fn load4(at: *const u8) -> float32x4_t;
}

impl LoadFour for F32 {
    #[inline(always)]
    unsafe fn load4(at: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise; the load takes any address.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(at)) }
    }
}

impl LoadFour for F16 {
    #[inline(always)]
    unsafe fn load4(at: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise. The instruction is part of every NEON; its intrinsic asks for a newer compiler.
        unsafe {
            let (bits, out): (uint8x8_t, float32x4_t);
            bits = vld1_u8(at);
            asm!("fcvtl {out:v}.4s, {bits:v}.4h", out = lateout(vreg) out, bits = in(vreg) bits,
                options(pure, nomem, nostack, preserves_flags));
            out
        }
    }
}

impl LoadFour for Bf16 {
    #[inline(always)]
    unsafe fn load4(at: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(at)))) }
    }
}

fn floats<P: LoadFour>(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    for col in cols {
        dot::<P>(input, job, &job.weight[col * job.stride..][..job.stride], col);
    }
}

/// Any packed format: a row is decoded once for all activation rows.
fn decoded(input: &ProductInput, job: &ProductJob, cols: Range<usize>) {
    thread_local! {
        static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    ROW.with_borrow_mut(|row| {
        row.resize(input.n_in, 0.0);
        for col in cols {
            dequantize(job.dtype, &job.weight[col * job.stride..][..job.stride], row);
            dot::<F32>(input, job, bytemuck::cast_slice(row), col);
        }
    });
}

/// One column of every activation row.
fn dot<P: LoadFour>(input: &ProductInput, job: &ProductJob, weight: &[u8], col: usize) {
    assert!(weight.len() >= input.n_in * P::BYTES && input.x.len() >= input.n_rows * input.n_in);
    for first in (0..input.n_rows).step_by(MAX_ROWS) {
        match input.n_rows - first {
            1 => dot_rows::<P, 1>(input, job, weight, col, first),
            2 => dot_rows::<P, 2>(input, job, weight, col, first),
            3 => dot_rows::<P, 3>(input, job, weight, col, first),
            _ => dot_rows::<P, 4>(input, job, weight, col, first),
        }
    }
}

fn dot_rows<P: LoadFour, const N: usize>(
    input: &ProductInput,
    job: &ProductJob,
    weight: &[u8],
    col: usize,
    first: usize,
) {
    let x = input.x[first * input.n_in..].as_ptr();
    let n_whole = input.n_in / 8 * 8;
    // SAFETY: `dot` checked that weights and rows are whole; k + 8 <= n_in below, and `first + n` is a row.
    unsafe {
        let mut acc = [[vdupq_n_f32(0.0); 2]; N];
        for k in (0..n_whole).step_by(8) {
            for half in 0..2 {
                let at = k + 4 * half;
                let w = P::load4(weight.as_ptr().add(at * P::BYTES));
                for n in 0..N {
                    acc[n][half] = vfmaq_f32(acc[n][half], w, vld1q_f32(x.add(n * input.n_in + at)));
                }
            }
        }
        for n in 0..N {
            let mut sum = vaddvq_f32(vaddq_f32(acc[n][0], acc[n][1]));
            for k in n_whole..input.n_in {
                sum += P::decode(&weight[k * P::BYTES..][..P::BYTES]) * *x.add(n * input.n_in + k);
            }
            job.put(first + n, col, sum);
        }
    }
}
