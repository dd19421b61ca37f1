// choose_tokens: which tokens of its context a row attends to, where an indexer decides that. store_index_keys puts new
// keys into their pool, index_scores asks every key what the heads of a row's query see in it, and choose_best keeps the
// best scores of each row as bits, one a token.
#include "prelude.h"

#define THREADS 128
#define KV_BLOCK 16
#define KEYS 32
#define GROUPS (THREADS / KEYS)
#define HEADS 8
#define SPAN_WORDS 8
#ifndef INDEX_DIM  // the host always says; a compiler run by hand may not
#define INDEX_DIM 128
#endif

#if defined(KV_F16)
typedef f16 Kept;
#else
typedef float Kept;
#endif

// One block a row. A token's key lies as [16 tokens, INDEX_DIM] in its block.
KERNEL(THREADS)
store_index_keys(const float *ARRIVING k, const u32 *__restrict__ slots, u8 *__restrict__ pool) {
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x();
    Kept *to = (Kept *)pool + (u64)slots[row] * INDEX_DIM;
    for (u32 d = thread_x(); d < INDEX_DIM; d += THREADS) set(to[d], k[(u64)row * INDEX_DIM + d]);
}

// The span that a row belongs to: they are in the order of their rows, and the first begins at row 0.
DEVICE const u32 *span_of(const u32 *spans, u32 n_spans, u32 row) {
    u32 low = 0, high = n_spans;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (spans[middle * SPAN_WORDS] <= row) low = middle;
        else high = middle;
    }
    return spans + low * SPAN_WORDS;
}

// The sum over heads of weight * max(0, query * key), for every key up to the row's own. A block takes 32 keys at a time,
// a thread one of them and eight of 32 heads; every n_parts-th 32 keys are a block's. What all scores of a row would be
// multiplied with changes no choice and is left out.
KERNEL(THREADS)
index_scores(const float *ARRIVING q, const float *ARRIVING weights, const u8 *ARRIVING pool,
             const u32 *__restrict__ spans, const u32 *__restrict__ tables, float *__restrict__ scores, u32 n_spans,
             u32 n_heads, u32 first_row, u32 n_parts, u32 stride) {
    __shared__ float keys[KEYS * (INDEX_DIM + 1)], queries[INDEX_DIM * GROUPS * HEADS], sums[THREADS];
    const u32 row = first_row + block_x(), key = thread_x() % KEYS, group = thread_x() / KEYS;
    let_next_start();
    const u32 *span = span_of(spans, n_spans, row);
    const u32 n = span[2] + row - span[0] + 1, *table = tables + span[3];
    wait_for_inputs();
    const float *query = q + (u64)row * n_heads * INDEX_DIM, *weight = weights + (u64)row * n_heads;
    for (u32 k0 = block_y() * KEYS; k0 < n; k0 += n_parts * KEYS) {
        for (u32 i = thread_x(); i < KEYS * INDEX_DIM; i += THREADS) {
            const u32 j = i / INDEX_DIM, d = i % INDEX_DIM, t = k0 + j < n ? k0 + j : n - 1;
            const u64 at = ((u64)table[t / KV_BLOCK] * KV_BLOCK + t % KV_BLOCK) * INDEX_DIM + d;
            keys[j * (INDEX_DIM + 1) + d] = to_f32(((const Kept *)pool)[at]);
        }
        float score = 0.0f;
        for (u32 h0 = 0; h0 < n_heads; h0 += GROUPS * HEADS) {
            barrier();
            for (u32 i = thread_x(); i < GROUPS * HEADS * INDEX_DIM; i += THREADS) {
                const u32 h = i / INDEX_DIM, d = i % INDEX_DIM;
                queries[d * (GROUPS * HEADS) + h] = h0 + h < n_heads ? query[(h0 + h) * INDEX_DIM + d] : 0.0f;
            }
            barrier();
            float dots[HEADS] = {};
            for (u32 d = 0; d < INDEX_DIM; ++d) {
                const float x = keys[key * (INDEX_DIM + 1) + d];
                const float *some = queries + d * (GROUPS * HEADS) + group * HEADS;
#pragma unroll
                for (u32 j = 0; j < HEADS; ++j) dots[j] = fma_f32(x, some[j], dots[j]);
            }
#pragma unroll
            for (u32 j = 0; j < HEADS; ++j) {
                const u32 h = h0 + group * HEADS + j;
                if (h < n_heads) score = fma_f32(weight[h], max_f32(dots[j], 0.0f), score);
            }
        }
        sums[thread_x()] = score;
        barrier();
        if (group == 0 && k0 + key < n) {
#pragma unroll
            for (u32 g = 1; g < GROUPS; ++g) score += sums[g * KEYS + key];
            scores[(u64)block_x() * stride + k0 + key] = score;
        }
        barrier();
    }
}

#define CHOOSE_THREADS 256

// Ascending with the float, as the host's total_cmp orders numbers.
DEVICE u32 order_key(float x) {
    const u32 bits = bits_as<u32>(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The sum over this lane and those before it.
DEVICE u32 sum_so_far(u32 value) {
#pragma unroll
    for (u32 step = 1; step < GPU_WAVE; step *= 2) {
        const u32 other = (u32)from_lane((i32)value, lane() >= step ? lane() - step : lane());
        if (lane() >= step) value += other;
    }
    return value;
}

// By one wave: from bin 255 down, the bin in which the target-th lies; how many of that bin belong, and how many it has.
DEVICE void find_bin(u32 target, const u32 *bins, u32 *found) {
    constexpr u32 EACH = 256 / GPU_WAVE;
    const u32 top = 255 - lane() * EACH;
    u32 own = 0;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) own += bins[top - j];
    const u32 sum = sum_so_far(own);
    u32 left = target - (sum - own), at = top;
    if (sum - own < target && target <= sum) {
        while (bins[at] < left) left -= bins[at--];
        found[0] = at, found[1] = left, found[2] = bins[at];
    }
}

// One block a row: the bits of its n_best best tokens, of those with the same score the first. A row that sees no more
// than that takes all.
KERNEL(CHOOSE_THREADS)
choose_best(const float *ARRIVING scores, const u32 *__restrict__ spans, u32 *__restrict__ chosen, u32 n_spans,
            u32 first_row, u32 stride, u32 n_words, u32 n_best) {
    __shared__ u32 bins[256], found[3];
    let_next_start();
    const u32 row = first_row + block_x(), *span = span_of(spans, n_spans, row);
    const u32 n = span[2] + row - span[0] + 1;
    u32 *out = chosen + (u64)row * n_words;
    wait_for_inputs();
    if (n <= n_best) {
        for (u32 w = thread_x(); w * 32 < n; w += CHOOSE_THREADS) out[w] = 0xffffffffu;
        return;
    }
    const float *score = scores + (u64)block_x() * stride;
    u32 key = 0, left = n_best, n_equal = 0;
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        for (u32 b = thread_x(); b < 256; b += CHOOSE_THREADS) bins[b] = 0;
        barrier();
        for (u32 t = thread_x(); t < n; t += CHOOSE_THREADS) {
            const u32 own = order_key(score[t]);
            if (shift == 24 || own >> (shift + 8) == key >> (shift + 8)) shared_add(&bins[own >> shift & 255], 1u);
        }
        barrier();
        if (thread_x() < GPU_WAVE) find_bin(left, bins, found);
        barrier();
        key |= found[0] << shift;
        left = found[1], n_equal = found[2];
    }
    for (u32 w = thread_x(); w * 32 < n; w += CHOOSE_THREADS) {
        u32 bits = 0;
        for (u32 i = 0; i < 32 && w * 32 + i < n; ++i) {
            const u32 own = order_key(score[w * 32 + i]);
            if (own > key || (own == key && left == n_equal)) bits |= 1u << i;
        }
        out[w] = bits;
    }
    barrier();
    if (left == n_equal || thread_x() >= GPU_WAVE) return;
    // Only some of those with the last score belong.
    for (u32 t0 = 0; t0 < n && left > 0; t0 += GPU_WAVE) {
        const u32 t = t0 + lane();
        const u32 is_equal = t < n && order_key(score[t]) == key ? 1 : 0, so_far = sum_so_far(is_equal);
        u32 bits = is_equal && so_far <= left ? 1u << (t % 32) : 0;
#pragma unroll
        for (u32 mask = 1; mask < 32; mask <<= 1) bits |= (u32)across((i32)bits, mask);
        if (lane() % 32 == 0 && t < n) out[t / 32] |= bits;
        const u32 n_more = (u32)from_lane((i32)so_far, GPU_WAVE - 1);
        left -= n_more < left ? n_more : left;
    }
}
