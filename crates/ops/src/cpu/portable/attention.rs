//! The portable walk over a context, a block of keys at a time.

use half::f16;
use weights::Dtype;

use crate::cpu::attention::{AttentionInput, Buffers, SoftmaxState, WorkUnit};
use crate::kv_store::KV_BLOCK;

pub(crate) fn attend(input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    let head_dim = input.heads.head_dim;
    let n_rows = unit.n * input.group;
    let number = |bytes: &[u8], i: usize| match input.dtype {
        Dtype::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
    };
    buffers.scores.resize(KV_BLOCK, 0.0);
    for start in (unit.from..unit.to).step_by(KV_BLOCK) {
        let block = input.pool_row(unit.kv_head, unit.span.blocks[start / KV_BLOCK]);
        let first = block * KV_BLOCK * head_dim;
        for row in 0..n_rows {
            let n_keys = (unit.to - start).min(KV_BLOCK);
            let scores = &mut buffers.scores[..input.n_scores(n_keys)];
            let q = &buffers.q[row * head_dim..][..head_dim];
            for (token, score) in scores[..n_keys].iter_mut().enumerate() {
                *score = (0..head_dim).map(|i| q[i] * number(input.k, first + i * KV_BLOCK + token)).sum();
            }
            input.shape_scores(unit, row, start, scores);
            state.weigh(row, scores);
            let acc = &mut state.acc[row * head_dim..][..head_dim];
            for (token, weight) in scores[..n_keys].iter().enumerate() {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc += weight * number(input.v, first + token * head_dim + i);
                }
            }
        }
    }
}
