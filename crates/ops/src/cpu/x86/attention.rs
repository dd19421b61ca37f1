//! The vector walk over a context: 64 keys at a time are decoded to f32 panels, then both products are tiles.

use std::arch::x86_64::*;

use crate::Isa;
use crate::cpu::attention::{AttentionInput, Buffers, SoftmaxState, WorkUnit};
use crate::cpu::x86::{attention_few as few, tile};
use crate::kv_format::KvFormat;
use crate::kv_store::KV_BLOCK;
use crate::tiles::GROUP;

/// Keys of a chunk: four blocks, two panels of the greater width.
const CHUNK: usize = 64;

pub(crate) fn attend(
    isa: Isa,
    input: &AttentionInput,
    unit: &WorkUnit,
    state: &mut SoftmaxState,
    buffers: &mut Buffers,
) {
    // SAFETY: `Isa` says what this CPU has; `attention` checked shapes, spans and blocks.
    unsafe {
        if isa >= Isa::Avx512 {
            attend_512(input, unit, state, buffers);
        } else {
            attend_256(input, unit, state, buffers);
        }
    }
}

/// # Safety
/// The CPU has AVX-512F, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn attend_512(input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    // SAFETY: the caller's promise.
    unsafe { walk::<{ tile::WIDTH_512 }>(input, unit, state, buffers) };
}

/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn attend_256(input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    // SAFETY: the caller's promise.
    unsafe { walk::<{ tile::WIDTH_256 }>(input, unit, state, buffers) };
}

/// # Safety
/// As [`attend_512`] or [`attend_256`], by the width.
// Longer than other functions: the steps of one chunk of keys, in order.
#[inline(always)]
unsafe fn walk<const W: usize>(
    input: &AttentionInput,
    unit: &WorkUnit,
    state: &mut SoftmaxState,
    buffers: &mut Buffers,
) {
    let head_dim = input.heads.head_dim;
    let n_rows = unit.n * input.group;
    let n_value_panels = head_dim.div_ceil(W);
    let (format, row_bytes) = (input.format, input.format.row_bytes(head_dim));
    let Buffers { q, scores, panel, .. } = buffers;
    scores.resize(n_rows * CHUNK, 0.0);
    panel.resize((CHUNK * head_dim).max(n_value_panels * CHUNK * W), 0.0);
    for start in (unit.from..unit.to).step_by(CHUNK) {
        let n_keys = (unit.to - start).min(CHUNK);
        let blocks = &unit.span.blocks[start / KV_BLOCK..][..n_keys.div_ceil(KV_BLOCK)];
        for (i, &block) in blocks.iter().enumerate() {
            // [head_dim, 16] of the pool to columns of [head_dim, W].
            let row_at = input.pool_row(unit.kv_head, block) * row_bytes;
            let row = &input.k[row_at..][..row_bytes];
            let (part, column) = (i * KV_BLOCK / W, i * KV_BLOCK % W);
            let panel = &mut panel[part * head_dim * W..][..head_dim * W];
            for d in 0..head_dim {
                let to = &mut panel[d * W + column..][..KV_BLOCK];
                // SAFETY: sixteen numbers of the block; sixteen columns of the panel.
                unsafe {
                    decode(format, row, d * KV_BLOCK, to);
                    if format.is_quantized() {
                        scale_keys(&row[format.scales_at(head_dim) + d / GROUP * 2 * KV_BLOCK..], to);
                    }
                }
            }
        }
        for first in (0..n_keys).step_by(W) {
            // SAFETY: `q`, `scores` and the panel hold these rows and columns.
            unsafe {
                rows_of_tiles::<W>(
                    n_rows,
                    &tile::PanelProduct {
                        n_rows: 0,
                        n_k: head_dim,
                        x: q.as_ptr(),
                        x_stride: head_dim,
                        panel: panel[first / W * head_dim * W..].as_ptr(),
                        out: scores.as_mut_ptr().add(first),
                        out_stride: CHUNK,
                        n_cols: (n_keys - first).min(W),
                        adds: false,
                    },
                );
            }
        }
        for row in 0..n_rows {
            let scores = &mut scores[row * CHUNK..][..input.n_scores(n_keys)];
            input.shape_scores(unit, row, start, scores);
            state.weigh(row, scores);
        }
        for token in 0..n_keys {
            let block = input.pool_row(unit.kv_head, blocks[token / KV_BLOCK]);
            let (row, token_in) = (&input.v[block * row_bytes..][..row_bytes], token % KV_BLOCK);
            for part in 0..n_value_panels {
                let n = (head_dim - part * W).min(W);
                let panel = &mut panel[part * CHUNK * W + token * W..][..n];
                // SAFETY: n numbers of the block's row.
                unsafe { decode(format, row, token_in * head_dim + part * W, panel) };
                if format.is_quantized() {
                    for (i, numbers) in panel.chunks_mut(GROUP.min(W)).enumerate() {
                        let scale = format.scale(row, head_dim, token_in, (part * W + i * GROUP.min(W)) / GROUP);
                        numbers.iter_mut().for_each(|x| *x *= scale);
                    }
                }
            }
        }
        for part in 0..n_value_panels {
            // SAFETY: the weights of n_keys tokens, their values, and rows of head_dim sums.
            unsafe {
                rows_of_tiles::<W>(
                    n_rows,
                    &tile::PanelProduct {
                        n_rows: 0,
                        n_k: n_keys,
                        x: scores.as_ptr(),
                        x_stride: CHUNK,
                        panel: panel[part * CHUNK * W..].as_ptr(),
                        out: state.acc.as_mut_ptr().add(part * W),
                        out_stride: head_dim,
                        n_cols: (head_dim - part * W).min(W),
                        adds: true,
                    },
                );
            }
        }
    }
}

/// Runs a product over `n_rows` rows, a full tile at a time.
///
/// # Safety
/// As [`tile::product`], for all rows.
#[inline(always)]
unsafe fn rows_of_tiles<const W: usize>(n_rows: usize, product: &tile::PanelProduct) {
    let mut first = 0;
    while first < n_rows {
        let n = (n_rows - first).min(tile::max_rows::<W>());
        // SAFETY: the caller's promise.
        unsafe {
            tile::product::<W>(&tile::PanelProduct {
                n_rows: n,
                x: product.x.add(first * product.x_stride),
                out: product.out.add(first * product.out_stride),
                ..*product
            });
        }
        first += n;
    }
}

/// Sixteen numbers, one of each token, times the tokens' scales.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[inline(always)]
unsafe fn scale_keys(scales: &[u8], numbers: &mut [f32]) {
    // SAFETY: sixteen halves and sixteen numbers.
    unsafe {
        for i in [0, 8] {
            let scale = _mm256_cvtph_ps(_mm_loadu_si128(scales[2 * i..][..16].as_ptr().cast()));
            let at = numbers[i..][..8].as_mut_ptr();
            _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), scale));
        }
    }
}

/// Numbers `first..` of a row of the pool as f32, quantized ones without their scales; those come in whole runs.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[inline(always)]
unsafe fn decode(format: KvFormat, pool: &[u8], first: usize, out: &mut [f32]) {
    if format.is_quantized() {
        let bytes = &pool[first / KV_BLOCK * format.run_bytes()..][..out.len() / KV_BLOCK * format.run_bytes()];
        for (run, out) in bytes.chunks_exact(format.run_bytes()).zip(out.chunks_exact_mut(KV_BLOCK)) {
            // SAFETY: a run of sixteen numbers.
            unsafe {
                let numbers = if format == KvFormat::Q8_0 {
                    few::load16::<{ few::Q8_0 }>(run.as_ptr())
                } else {
                    few::load16::<{ few::Q4_0 }>(run.as_ptr())
                };
                _mm256_storeu_ps(out.as_mut_ptr(), numbers[0]);
                _mm256_storeu_ps(out.as_mut_ptr().add(8), numbers[1]);
            }
        }
        return;
    }
    if format == KvFormat::F32 {
        let bytes = &pool[4 * first..][..4 * out.len()];
        // Unaligned and little-endian: a plain copy on this architecture.
        // SAFETY: as many bytes on both sides.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr().cast(), bytes.len()) };
        return;
    }
    let bytes = &pool[2 * first..][..2 * out.len()];
    let n_whole = out.len() / 8 * 8;
    for i in (0..n_whole).step_by(8) {
        // SAFETY: eight numbers on both sides.
        unsafe {
            let eight = _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(2 * i).cast()));
            _mm256_storeu_ps(out.as_mut_ptr().add(i), eight);
        }
    }
    for i in n_whole..out.len() {
        out[i] = half::f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32_const();
    }
}
