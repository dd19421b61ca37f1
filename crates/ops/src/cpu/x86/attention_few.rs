//! The walk over a context for few rows (decode): keys and values are converted in registers and used at once, because
//! reading them is all the work there is. 256-bit vectors on every machine: they already ask for more than memory
//! gives.

use std::arch::x86_64::*;
use std::ops::Range;

use half::f16;

use crate::cpu::attention::{AttentionInput, Buffers, SoftmaxState, WorkUnit};
use crate::kv_format::KvFormat;
use crate::kv_store::KV_BLOCK;
use crate::tiles::GROUP;

/// Rows up to which this walk is faster than panels.
pub(crate) const MAX_ROWS: usize = 8;
/// Keys between two looks at the running softmax.
const CHUNK: usize = 64;
const CHUNK_BLOCKS: usize = CHUNK / KV_BLOCK;
/// Bytes that one prefetch brings.
const LINE: usize = 64;

/// A block of values, and the one after the next few, to be asked for.
#[derive(Copy, Clone)]
struct ValueBlock {
    at: *const u8,
    next: *const u8,
}

pub(crate) fn attend(input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    // SAFETY: the caller chose this walk because the CPU has AVX2, FMA and F16C; `attention` checked shapes, spans and
    // blocks, and `head_dim` is a multiple of 32.
    unsafe {
        match input.format {
            KvFormat::F32 => walk::<F32>(input, unit, state, buffers),
            KvFormat::F16 => walk::<F16>(input, unit, state, buffers),
            KvFormat::Q8_0 => walk::<Q8_0>(input, unit, state, buffers),
            KvFormat::Q4_0 => walk::<Q4_0>(input, unit, state, buffers),
        }
    }
}

/// [`KvFormat`] as a constant.
const F32: u8 = KvFormat::F32 as u8;
const F16: u8 = KvFormat::F16 as u8;
pub(super) const Q8_0: u8 = KvFormat::Q8_0 as u8;
pub(super) const Q4_0: u8 = KvFormat::Q4_0 as u8;

/// Bytes of a run of sixteen numbers.
const fn run_bytes(format: u8) -> usize {
    match format {
        F32 => KvFormat::F32.run_bytes(),
        F16 => KvFormat::F16.run_bytes(),
        Q8_0 => KvFormat::Q8_0.run_bytes(),
        _ => KvFormat::Q4_0.run_bytes(),
    }
}

const fn is_quantized(format: u8) -> bool {
    format == Q8_0 || format == Q4_0
}

/// A run of sixteen numbers of the pool; quantized ones without their scales.
///
/// # Safety
/// The CPU has AVX2 and F16C; sixteen numbers lie at `at`.
#[inline(always)]
pub(super) unsafe fn load16<const FORMAT: u8>(at: *const u8) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match FORMAT {
            F32 => [_mm256_loadu_ps(at.cast()), _mm256_loadu_ps(at.add(32).cast())],
            F16 => [_mm256_cvtph_ps(_mm_loadu_si128(at.cast())), _mm256_cvtph_ps(_mm_loadu_si128(at.add(16).cast()))],
            Q8_0 => [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(8).cast()))),
            ],
            _ => {
                let (nibbles, eight) = (_mm_loadl_epi64(at.cast()), _mm_set1_epi8(8));
                let low = _mm_and_si128(nibbles, _mm_set1_epi8(15));
                let high = _mm_and_si128(_mm_srli_epi16::<4>(nibbles), _mm_set1_epi8(15));
                [low, high].map(|q| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(q, eight))))
            }
        }
    }
}

/// # Safety
/// The CPU has AVX2, FMA and F16C; the pools hold numbers of this format; `head_dim` is a multiple of 32.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn walk<const FORMAT: u8>(
    input: &AttentionInput,
    unit: &WorkUnit,
    state: &mut SoftmaxState,
    buffers: &mut Buffers,
) {
    let head_dim = input.heads.head_dim;
    let n_rows = unit.n * input.group;
    let block_bytes = input.format.row_bytes(head_dim);
    let offset = |block: u32| input.pool_row(unit.kv_head, block) * block_bytes;
    let Buffers { q, scores, .. } = buffers;
    scores.resize(n_rows * CHUNK, 0.0);
    for start in (unit.from..unit.to).step_by(CHUNK) {
        let n_keys = (unit.to - start).min(CHUNK);
        let first_block = start / KV_BLOCK;
        let blocks = &unit.span.blocks[first_block..][..n_keys.div_ceil(KV_BLOCK)];
        // The chunk after this one, or this one again at the end: asked for while this one is computed.
        let ahead = |i: usize| *unit.span.blocks.get(first_block + CHUNK / KV_BLOCK + i).unwrap_or(&blocks[i]);
        for (i, &block) in blocks.iter().enumerate() {
            let keys = input.k[offset(block)..][..block_bytes].as_ptr();
            let next = input.k[offset(ahead(i))..][..block_bytes].as_ptr();
            for first in (0..n_rows).step_by(4) {
                let (q, scores) = (&q[first * head_dim..], &mut scores[first * CHUNK + i * KV_BLOCK..]);
                // SAFETY: a whole block of keys; the rows exist in `q` and `scores`.
                unsafe {
                    match n_rows - first {
                        1 => score::<FORMAT, 1>(head_dim, q, keys, next, scores),
                        2 => score::<FORMAT, 2>(head_dim, q, keys, next, scores),
                        3 => score::<FORMAT, 3>(head_dim, q, keys, next, scores),
                        _ => score::<FORMAT, 4>(head_dim, q, keys, next, scores),
                    }
                }
            }
        }
        for row in 0..n_rows {
            let scores = &mut scores[row * CHUNK..][..input.n_scores(n_keys)];
            input.shape_scores(unit, row, start, scores);
            state.weigh(row, scores);
        }
        let mut values = [ValueBlock { at: std::ptr::null(), next: std::ptr::null() }; CHUNK_BLOCKS];
        for (i, &block) in blocks.iter().enumerate() {
            let at = input.v[offset(block)..][..block_bytes].as_ptr();
            values[i] = ValueBlock { at, next: input.v[offset(ahead(i))..][..block_bytes].as_ptr() };
        }
        // Where rows must not matter, values are added as often as the walk for many rows does it.
        let n_together = if input.is_invariant() { CHUNK_BLOCKS } else { 1 };
        for (i, values) in values[..blocks.len()].chunks(n_together).enumerate() {
            let n = (n_keys - i * n_together * KV_BLOCK).min(n_together * KV_BLOCK);
            for first in (0..n_rows).step_by(4) {
                let weights = &scores[first * CHUNK + i * n_together * KV_BLOCK..];
                let acc = &mut state.acc[first * head_dim..];
                // SAFETY: whole blocks of values; the rows exist in `scores` and `acc`.
                unsafe {
                    match n_rows - first {
                        1 => mix::<FORMAT, 1>(head_dim, n, weights, values, acc),
                        2 => mix::<FORMAT, 2>(head_dim, n, weights, values, acc),
                        3 => mix::<FORMAT, 3>(head_dim, n, weights, values, acc),
                        _ => mix::<FORMAT, 4>(head_dim, n, weights, values, acc),
                    }
                }
            }
        }
    }
}

/// Scores of sixteen keys for `R` rows: `scores[r, t] = sum_d q[r, d] * keys[d, t]`.
///
/// # Safety
/// As [`walk`]; `q` holds `R` rows of `head_dim`, `keys` a block, `scores` `R` rows of 16, `CHUNK` apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn score<const FORMAT: u8, const R: usize>(
    head_dim: usize,
    q: &[f32],
    keys: *const u8,
    next: *const u8,
    scores: &mut [f32],
) {
    let q: [&[f32]; R] = std::array::from_fn(|r| &q[r * head_dim..][..head_dim]);
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    if is_quantized(FORMAT) {
        for group in 0..head_dim / GROUP {
            // SAFETY: a whole group of numbers and its sixteen scales.
            unsafe {
                let mut sums = [[_mm256_setzero_ps(); 2]; R];
                add_scores::<FORMAT, R>(group * GROUP..(group + 1) * GROUP, &q, keys, next, &mut sums);
                let scale = load16::<F16>(keys.add(run_bytes(FORMAT) * head_dim + group * 2 * KV_BLOCK));
                for r in 0..R {
                    acc[r][0] = _mm256_fmadd_ps(sums[r][0], scale[0], acc[r][0]);
                    acc[r][1] = _mm256_fmadd_ps(sums[r][1], scale[1], acc[r][1]);
                }
            }
        }
    } else {
        // SAFETY: all numbers of the block.
        unsafe { add_scores::<FORMAT, R>(0..head_dim, &q, keys, next, &mut acc) };
    }
    for r in 0..R {
        let out = &mut scores[r * CHUNK..][..KV_BLOCK];
        // SAFETY: sixteen numbers.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), acc[r][0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[r][1]);
        }
    }
}

/// Adds `q[r, d] * keys[d, t]` for a range of `d`.
///
/// # Safety
/// As [`score`].
#[inline(always)]
unsafe fn add_scores<const FORMAT: u8, const R: usize>(
    numbers: Range<usize>,
    q: &[&[f32]; R],
    keys: *const u8,
    next: *const u8,
    sums: &mut [[__m256; 2]; R],
) {
    for d in numbers {
        let at = d * run_bytes(FORMAT);
        // SAFETY: d < head_dim; prefetching touches nothing.
        unsafe {
            if at.is_multiple_of(LINE) || run_bytes(FORMAT) > LINE / 4 {
                _mm_prefetch::<_MM_HINT_T0>(next.add(at).cast());
            }
            let k = load16::<FORMAT>(keys.add(at));
            for r in 0..R {
                let q = _mm256_set1_ps(*q[r].get_unchecked(d));
                sums[r][0] = _mm256_fmadd_ps(q, k[0], sums[r][0]);
                sums[r][1] = _mm256_fmadd_ps(q, k[1], sums[r][1]);
            }
        }
    }
}

/// Adds `n` weighted values to `R` rows: `acc[r, d] += sum_t weights[r, t] * values[t, d]`.
///
/// # Safety
/// As [`walk`]; `weights` holds `R` rows of `n`, `CHUNK` apart, `values` as many blocks as `n` tokens fill, `acc` `R` rows of
/// `head_dim`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn mix<const FORMAT: u8, const R: usize>(
    head_dim: usize,
    n: usize,
    weights: &[f32],
    values: &[ValueBlock],
    acc: &mut [f32],
) {
    let weights: [&[f32]; R] = std::array::from_fn(|r| &weights[r * CHUNK..][..n]);
    // The weights times the scales of a group of columns.
    let mut scaled = [[0.0_f32; CHUNK]; R];
    // 16 columns of four rows are eight registers, and leave room to convert the next ones.
    for d in (0..head_dim).step_by(16) {
        if is_quantized(FORMAT) && d.is_multiple_of(GROUP) {
            for (t, weights) in (0..n).zip((0..n).map(|t| weights.map(|row| row[t]))) {
                let scales = run_bytes(FORMAT) * head_dim + d / GROUP * 2 * KV_BLOCK;
                // SAFETY: a scale of a block of values.
                let scale =
                    unsafe { values[t / KV_BLOCK].at.add(scales).cast::<f16>().add(t % KV_BLOCK).read_unaligned() };
                let scale = scale.to_f32();
                (0..R).for_each(|r| scaled[r][t] = weights[r] * scale);
            }
        }
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for (block, values) in values.iter().enumerate() {
            let first = block * KV_BLOCK;
            for t in first..n.min(first + KV_BLOCK) {
                let at = ((t - first) * head_dim + d) / KV_BLOCK * run_bytes(FORMAT);
                // SAFETY: t < n, within this block, and d + 16 <= head_dim; prefetching touches nothing.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(values.next.add(at).cast());
                    let v = load16::<FORMAT>(values.at.add(at));
                    for r in 0..R {
                        let weight = if is_quantized(FORMAT) { &scaled[r] } else { weights[r] };
                        let weight = _mm256_set1_ps(*weight.get_unchecked(t));
                        sums[r][0] = _mm256_fmadd_ps(weight, v[0], sums[r][0]);
                        sums[r][1] = _mm256_fmadd_ps(weight, v[1], sums[r][1]);
                    }
                }
            }
        }
        for r in 0..R {
            let acc = &mut acc[r * head_dim + d..][..16];
            // SAFETY: sixteen numbers.
            unsafe {
                let old = [_mm256_loadu_ps(acc.as_ptr()), _mm256_loadu_ps(acc.as_ptr().add(8))];
                _mm256_storeu_ps(acc.as_mut_ptr(), _mm256_add_ps(old[0], sums[r][0]));
                _mm256_storeu_ps(acc.as_mut_ptr().add(8), _mm256_add_ps(old[1], sums[r][1]));
            }
        }
    }
}
