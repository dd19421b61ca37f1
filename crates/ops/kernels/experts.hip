// experts: which experts each row goes to, and what they made brought back to the rows. Row r's j-th expert is pair
// r * n_used + j everywhere. The products between are matvec.hip's.
#include "prelude.h"

#define THREADS 256
#define MAX_EXPERTS 1024

// As crates/ops/src/gpu/experts.rs numbers them.
#define SOFTMAX 0
#define SIGMOID 1
#define SOFTMAX_OF_BEST 2

// One wave a row. scores: [n_rows, n_experts]; bias, for the choice alone, may be null.
KERNEL(GPU_WAVE)
choose_experts(const float *ARRIVING scores, const float *__restrict__ bias, u32 *__restrict__ chosen,
               float *__restrict__ weights, u32 n_experts, u32 n_used, u32 gating, u32 is_normalized, float scale) {
    __shared__ float kept[MAX_EXPERTS], keys[MAX_EXPERTS];
    let_next_start();
    wait_for_inputs();
    const float *row = scores + (u64)block_x() * n_experts;
    float most = -3.4e38f, sum = 0.0f;
    for (u32 e = lane(); e < n_experts; e += GPU_WAVE) most = max_f32(most, row[e]);
    most = wave_max(most);
    for (u32 e = lane(); e < n_experts; e += GPU_WAVE) sum += fast_exp(row[e] - most);
    sum = wave_sum(sum);
    for (u32 e = lane(); e < n_experts; e += GPU_WAVE) {
        const float s = row[e];
        kept[e] = gating == SOFTMAX ? fast_exp(s - most) / sum : gating == SIGMOID ? 1.0f / (1.0f + fast_exp(-s)) : s;
        keys[e] = kept[e] + (bias ? bias[e] : 0.0f);
    }
    barrier();
    u32 *mine = chosen + (u64)block_x() * n_used;
    float *out = weights + (u64)block_x() * n_used;
    float first = 0.0f, total = 0.0f;
    for (u32 j = 0; j < n_used; ++j) {
        float best = -3.4e38f;
        u32 at = 0xffffffffu;
        for (u32 e = lane(); e < n_experts; e += GPU_WAVE) {
            if (keys[e] > best || at == 0xffffffffu) best = keys[e], at = e;
        }
        // Ties go to the first: the same choice on every machine.
#pragma unroll
        for (u32 mask = 1; mask < GPU_WAVE; mask <<= 1) {
            const float other = across(best, mask);
            const u32 place = (u32)across((i32)at, mask);
            const bool is_better = place != 0xffffffffu && (at == 0xffffffffu || other > best || (other == best && place < at));
            best = is_better ? other : best;
            at = is_better ? place : at;
        }
        float weight = kept[at];
        if (j == 0) first = weight;
        if (gating == SOFTMAX_OF_BEST) weight = fast_exp(weight - first);
        total += weight;
        if (lane() == 0) mine[j] = at, out[j] = weight;
        barrier();
        if (lane() == 0) keys[at] = -3.4e38f;
        barrier();
    }
    // A softmax over the best sums up to one already; whoever norms it once more changes nothing.
    const bool divides = is_normalized || gating == SOFTMAX_OF_BEST;
    const float factor = divides ? scale / max_f32(total, 1e-20f) : scale;
    for (u32 j = lane(); j < n_used; j += GPU_WAVE) out[j] *= factor;
}

// out[pair, c] += bias of pair's expert; biases lie step numbers apart.
KERNEL(THREADS)
add_expert_bias(float *__restrict__ out, const float *__restrict__ bias, const u32 *ARRIVING chosen, u64 step, u32 n_cols,
                u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i < n) out[i] += bias[chosen[i / n_cols] * step + i % n_cols];
}

// out[r, c] = the sum over r's pairs of weight * y[pair, c].
KERNEL(THREADS)
sum_experts(const float *ARRIVING y, const float *ARRIVING weights, float *__restrict__ out, u32 n_cols, u32 n_used, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i >= n) return;
    const u64 row = i / n_cols, c = i % n_cols;
    float sum = 0.0f;
    for (u32 j = 0; j < n_used; ++j) sum = fma_f32(weights[row * n_used + j], y[(row * n_used + j) * n_cols + c], sum);
    out[i] = sum;
}

// out[r, c] += sigmoid(scores[r]) * y[r, c]
KERNEL(THREADS)
add_gated(const float *ARRIVING y, const float *ARRIVING scores, float *__restrict__ out, u32 n_cols, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i < n) out[i] = fma_f32(1.0f / (1.0f + fast_exp(-scores[i / n_cols])), y[i], out[i]);
}
