//! The portable walk over a context, a block of keys at a time.

use half::f16;

use crate::cpu::attention::{AttentionInput, Buffers, SoftmaxState, WorkUnit};
use crate::kv_format::KvFormat;
use crate::kv_store::KV_BLOCK;
use crate::tiles::GROUP;

pub(crate) fn attend(input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    let head_dim = input.heads.head_dim;
    let n_rows = unit.n * input.group;
    let format = input.format;
    let number = |bytes: &[u8], i: usize| match format {
        KvFormat::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
    };
    let key = |row: &[u8], token: usize, i: usize| match format.is_quantized() {
        true => format.quant(row, i, token) * format.scale(row, head_dim, token, i / GROUP),
        false => number(row, i * KV_BLOCK + token),
    };
    let value = |row: &[u8], token: usize, i: usize| match format.is_quantized() {
        true => format.quant(row, (token * head_dim + i) / 16, i % 16) * format.scale(row, head_dim, token, i / GROUP),
        false => number(row, token * head_dim + i),
    };
    let row_bytes = format.row_bytes(head_dim);
    buffers.scores.resize(KV_BLOCK, 0.0);
    for start in (unit.from..unit.to).step_by(KV_BLOCK) {
        let block = input.pool_row(unit.kv_head, unit.span.blocks[start / KV_BLOCK]);
        let (keys, values) = (&input.k[block * row_bytes..][..row_bytes], &input.v[block * row_bytes..][..row_bytes]);
        for row in 0..n_rows {
            let n_keys = (unit.to - start).min(KV_BLOCK);
            let scores = &mut buffers.scores[..input.n_scores(n_keys)];
            let q = &buffers.q[row * head_dim..][..head_dim];
            for (token, score) in scores[..n_keys].iter_mut().enumerate() {
                *score = (0..head_dim).map(|i| q[i] * key(keys, token, i)).sum();
            }
            input.shape_scores(unit, row, start, scores);
            state.weigh(row, scores);
            let acc = &mut state.acc[row * head_dim..][..head_dim];
            for (token, weight) in scores[..n_keys].iter().enumerate() {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc += weight * value(values, token, i);
                }
            }
        }
    }
}
