// experts: which experts each row goes to, and what they made brought back to the rows. Row r's j-th expert is pair
// r * n_used + j everywhere. The products between are matvec.hip's.
#include "prelude.h"

#define THREADS 256
#define MAX_EXPERTS 1024

// As crates/ops/src/gpu/experts.rs numbers them.
#define SOFTMAX 0
#define SIGMOID 1
#define SOFTMAX_OF_BEST 2
#define NEAR_BEST 3
// As crates/ops/src/route.rs has it.
#define NEAR 0.02f

// Experts of a lane.
#define SLOTS (MAX_EXPERTS / GPU_WAVE)
#define NONE 0xffffffffu

// Takes the experts of all but the best groups out of the choice. A group is worth its best expert, or its best two where a
// bias steers the choice; of equal groups the first is the better one. A group is looked at by the whole wave, and lane g keeps
// what group g is worth.
DEVICE void close_groups(float (&keys)[SLOTS], u32 n_experts, u32 n_groups, u32 n_groups_used, bool has_bias) {
    const u32 size = n_experts / n_groups;
    float worth = -3.4e38f;
    for (u32 g = 0; g < n_groups; ++g) {
        float best = -3.4e38f, second = -3.4e38f;
#pragma unroll
        for (u32 k = 0; k < SLOTS; ++k) {
            if (k * GPU_WAVE >= n_experts) break;
            const u32 e = k * GPU_WAVE + lane();
            if (e >= n_experts || e / size != g) continue;
            second = max_f32(second, min_f32(best, keys[k]));
            best = max_f32(best, keys[k]);
        }
#pragma unroll
        for (u32 mask = 1; mask < GPU_WAVE; mask <<= 1) {
            const float other = across(best, mask), other_second = across(second, mask);
            second = max_f32(min_f32(best, other), max_f32(second, other_second));
            best = max_f32(best, other);
        }
        if (lane() == g) worth = has_bias && size > 1 ? best + second : best;
    }
    // Of each group, how many are better.
    u32 n_better = 0;
    for (u32 g = 0; g < n_groups; ++g) {
        const float other = from_lane(worth, g);
        n_better += other > worth || (other == worth && g < lane());
    }
#pragma unroll
    for (u32 k = 0; k < SLOTS; ++k) {
        if (k * GPU_WAVE >= n_experts) break;
        const u32 e = k * GPU_WAVE + lane(), group = e < n_experts ? e / size : 0;
        if ((u32)from_lane((i32)n_better, group) >= n_groups_used) keys[k] = -3.4e38f;
    }
}

// One wave a row. scores: [n_rows, n_experts]; bias, for the choice alone, may be null. A lane keeps every GPU_WAVE-th expert
// in registers: a decode step waits for this in every layer.
KERNEL(GPU_WAVE)
choose_experts(const float *ARRIVING scores, const float *__restrict__ bias, u32 *__restrict__ chosen,
               float *__restrict__ weights, u32 n_experts, u32 n_used, u32 gating, u32 is_normalized, float scale, u32 n_groups,
               u32 n_groups_used) {
    let_next_start();
    wait_for_inputs();
    const float *row = scores + (u64)block_x() * n_experts;
    float kept[SLOTS], keys[SLOTS], most = -3.4e38f, sum = 0.0f;
#pragma unroll
    for (u32 k = 0; k < SLOTS; ++k) {
        if (k * GPU_WAVE >= n_experts) break;
        const u32 e = k * GPU_WAVE + lane();
        kept[k] = e < n_experts ? row[e] : -3.4e38f;
        most = max_f32(most, kept[k]);
    }
    most = wave_max(most);
#pragma unroll
    for (u32 k = 0; k < SLOTS; ++k) {
        if (k * GPU_WAVE >= n_experts) break;
        if (k * GPU_WAVE + lane() < n_experts) sum += fast_exp(kept[k] - most);
    }
    sum = wave_sum(sum);
#pragma unroll
    for (u32 k = 0; k < SLOTS; ++k) {
        if (k * GPU_WAVE >= n_experts) break;
        const u32 e = k * GPU_WAVE + lane();
        const float s = kept[k];
        kept[k] = gating == SOFTMAX ? fast_exp(s - most) / sum : gating == SIGMOID ? 1.0f / (1.0f + fast_exp(-s)) : s;
        keys[k] = kept[k] + (bias && e < n_experts ? bias[e] : 0.0f);
    }
    if (n_groups > 1) close_groups(keys, n_experts, n_groups, n_groups_used, bias != nullptr);
    u32 *mine = chosen + (u64)block_x() * n_used;
    float *out = weights + (u64)block_x() * n_used;
    float first = 0.0f, total = 0.0f;
    // What lane j keeps of the j-th; where there are more than lanes, memory keeps it.
    const bool is_kept = n_used <= GPU_WAVE;
    float own_weight = 0.0f;
    u32 own = 0;
    // Of the slots, those that were chosen.
    u32 taken = 0;
    for (u32 j = 0; j < n_used; ++j) {
        float best = 0.0f, worth = 0.0f;
        u32 at = NONE;
#pragma unroll
        for (u32 k = 0; k < SLOTS; ++k) {
            if (k * GPU_WAVE >= n_experts) break;
            const u32 e = k * GPU_WAVE + lane();
            const bool is_better = e < n_experts && !(taken >> k & 1u) && (at == NONE || keys[k] > best);
            best = is_better ? keys[k] : best;
            worth = is_better ? kept[k] : worth;
            at = is_better ? e : at;
        }
        // Ties go to the first: the same choice on every machine.
#pragma unroll
        for (u32 mask = 1; mask < GPU_WAVE; mask <<= 1) {
            const float other = across(best, mask), other_worth = across(worth, mask);
            const u32 place = (u32)across((i32)at, mask);
            const bool is_better = place != NONE && (at == NONE || other > best || (other == best && place < at));
            best = is_better ? other : best;
            worth = is_better ? other_worth : worth;
            at = is_better ? place : at;
        }
        float share = 1.0f;
        if (gating == NEAR_BEST) {
            // Its share among those that were not chosen before and come near it.
            float near = 0.0f;
#pragma unroll
            for (u32 k = 0; k < SLOTS; ++k) {
                if (k * GPU_WAVE >= n_experts) break;
                const bool is_left = k * GPU_WAVE + lane() < n_experts && !(taken >> k & 1u);
                const float size = max_f32(abs_f32(kept[k]), worth);
                if (is_left && (worth - kept[k]) / size <= NEAR) near += fast_exp(kept[k] - worth);
            }
            share = 1.0f / max_f32(wave_sum(near), 1.0f);
        }
        // Scores that are no numbers are never better than another; one that is left is taken as it is.
        if (at % GPU_WAVE == lane()) taken |= 1u << (at / GPU_WAVE);
        if (j == 0) first = worth;
        const float weight =
            gating == SOFTMAX_OF_BEST ? fast_exp(worth - first) : gating == NEAR_BEST ? share : worth;
        total += weight;
        if (lane() == j) own = at, own_weight = weight;
        if (!is_kept && lane() == 0) mine[j] = at, out[j] = weight;
    }
    // A softmax over the best sums up to one already; whoever norms it once more changes nothing.
    const bool divides = is_normalized || gating == SOFTMAX_OF_BEST;
    const float factor = divides ? scale / max_f32(total, 1e-20f) : scale;
    if (is_kept) {
        if (lane() < n_used) mine[lane()] = own, out[lane()] = own_weight * factor;
        return;
    }
    barrier();
    for (u32 j = lane(); j < n_used; j += GPU_WAVE) out[j] *= factor;
}

// weights[pair] *= the factor of its expert
KERNEL(THREADS)
scale_shares(float *__restrict__ weights, const u32 *ARRIVING chosen, const float *__restrict__ factors, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i < n) weights[i] *= factors[chosen[i]];
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

// out[r, c] (+)= the sum over r's pairs of weight * y[pair, c].
KERNEL(THREADS)
sum_experts(const float *ARRIVING y, const float *ARRIVING weights, float *__restrict__ out, u32 n_cols, u32 n_used, u32 adds,
            u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i >= n) return;
    const u64 row = i / n_cols, c = i % n_cols;
    float sum = adds ? out[i] : 0.0f;
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
