// flash_units: attention of many query rows on AMD's matrix units (prelude.h's tile: WMMA, MFMA), keys and values in f16, Q8_0
// or Q4_0 (kv.h), which become halves on their way into shared memory; f32 sums. Causal or full, paged; with SHAPED also
// windows, caps and sinks.
//
// A block takes 64 query rows of one sequence and one head, 16 a wave, and walks over the context 32 keys at a time.
// Everything is computed turned: a tile's columns are queries and stay with a lane, so that the running softmax of a query
// needs only the lanes that share its column. Scores are keys x queries; the sums are numbers x queries, for which values
// lie turned in shared memory. HEAD_DIM is a multiple of 16.
#include "functions.h"
#include "kv.h"

#define WAVES 4
#define THREADS (WAVES * GPU_WAVE)
#define ROWS (WAVES * 16)
#define KEYS 32
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
// 16 bytes of padding: rows start in different banks and stay aligned.
#define STRIDE (HEAD_DIM + 8)
#define KEY_STRIDE (KEYS + 8)
#define MASKED (-1e30f)

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

#if defined(GPU_AMD) && defined(GPU_HAS_TILES) && KV != KV_F32

#define N_DIMS (HEAD_DIM / 16)
#define N_TILES (KEYS / 16)

// A lane's part of a tile's factor, from a row of f32 numbers.
DEVICE MmaFactor query_factor(const float *row, bool is_there, float scale) {
    constexpr u32 n = sizeof(MmaFactor) / sizeof(f16);
    const u32 first = n == 16 ? 0 : lane() / 16 * n;
    MmaFactor factor;
#pragma unroll
    for (u32 i = 0; i < n; ++i) factor[i] = to_f16(is_there ? row[first + i] * scale : 0.0f);
    return factor;
}

DEVICE Pack<u32, 4> eight_of(const u8 *pool, const u32 *table, u32 n_kv_heads, u32 kv_head, u32 token, u32 d) {
    const u64 row = (u64)table[token / KV_BLOCK] * n_kv_heads + kv_head;
    return kv_eight<HEAD_DIM>(pool + row * kv_row_bytes(HEAD_DIM), token % KV_BLOCK, d);
}

// tiles: (span, first row in it) each; spans as in attention.hip.
KERNEL(THREADS)
flash_units(const float *__restrict__ q, const u8 *__restrict__ k_pool, const u8 *__restrict__ v_pool,
            const u32 *__restrict__ tiles, const u32 *__restrict__ spans, const u32 *__restrict__ tables,
            float *__restrict__ out, u32 n_heads, u32 n_kv_heads, float scale, u32 window, float cap,
            const float *__restrict__ sinks) {
    __shared__ Pack<u32, 4> key_words[KEYS * STRIDE / 8], value_words[HEAD_DIM * KEY_STRIDE / 8];
    __shared__ Pack<u32, 4> weight_words[WAVES * 16 * KEY_STRIDE / 8];
    f16 *keys = (f16 *)key_words, *values = (f16 *)value_words;
    const u32 t = thread_x(), wave = t / GPU_WAVE, column = lane() % 16;
    f16 *weights = (f16 *)weight_words + wave * 16 * KEY_STRIDE;  // [16 queries, KEYS]
    const u32 *span = spans + tiles[block_x() * 2] * 8;
    const u32 first = tiles[block_x() * 2 + 1], first_row = span[0], n_rows = span[1], position = span[2];
    const u32 *table = tables + span[3];
    const bool is_causal = span[4] != 0;
    const u32 head = block_y(), kv_head = head / (n_heads / n_kv_heads);
    const u32 row = first + wave * 16 + column;
    const bool is_there = row < n_rows;
    const u32 last_row = first + ROWS < n_rows ? first + ROWS : n_rows;
    const SeenKeys seen = {is_causal, IS_SHAPED ? window : 0, position + n_rows};
    const u32 n_keys = seen.end(position + last_row - 1);
    const u32 n_visible = min_u32(seen.end(position + row), n_keys), n_hidden = seen.start(position + row);
    // What lies before the window of the block's first row is not read.
    const u32 begin = seen.start(position + first) / KEYS * KEYS;

    const u64 q_at = ((u64)(first_row + (is_there ? row : first)) * n_heads + head) * HEAD_DIM;
    MmaFactor query[N_DIMS];
    MmaSum sum[N_DIMS];
#pragma unroll
    for (u32 d = 0; d < N_DIMS; ++d) {
        query[d] = query_factor(q + q_at + d * 16, is_there, scale);
        mma_clear(sum[d]);
    }
    float most = MASKED, total = 0.0f;
    for (u32 t0 = begin; t0 < n_keys; t0 += KEYS) {
        barrier();
        // Past the end as zeros: a weight of zero must not meet what is not a number.
        for (u32 i = t; i < KEYS * HEAD_DIM / 8; i += THREADS) {
            const u32 token = t0 + i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
            Pack<u32, 4> eight = {};
            if (token < n_keys) eight = eight_of(k_pool, table, n_kv_heads, kv_head, token, d);
            store<4>((u32 *)(keys + i / (HEAD_DIM / 8) * STRIDE + d), eight);
        }
        // Two tokens at a time, so that a word holds neighbours of the turned rows.
        for (u32 i = t; i < KEYS / 2 * HEAD_DIM / 8; i += THREADS) {
            const u32 pair = i / (HEAD_DIM / 8) * 2, d = i % (HEAD_DIM / 8) * 8, token = t0 + pair;
            Pack<u32, 4> a = {}, b = {};
            if (token < n_keys) a = eight_of(v_pool, table, n_kv_heads, kv_head, token, d);
            if (token + 1 < n_keys) b = eight_of(v_pool, table, n_kv_heads, kv_head, token + 1, d);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                u32 *even = (u32 *)(values + (d + 2 * j) * KEY_STRIDE + pair);
                u32 *odd = (u32 *)(values + (d + 2 * j + 1) * KEY_STRIDE + pair);
                *even = (a.at[j] & 0xffffu) | (b.at[j] << 16);
                *odd = (a.at[j] >> 16) | (b.at[j] & 0xffff0000u);
            }
        }
        barrier();
        float score[N_TILES][MMA_SUMS], largest = most;
#pragma unroll
        for (u32 n = 0; n < N_TILES; ++n) {
            MmaSum dots;
            mma_clear(dots);
#pragma unroll
            for (u32 d = 0; d < N_DIMS; ++d) mma(dots, mma_load(keys + n * 16 * STRIDE + d * 16, STRIDE), query[d]);
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                const u32 token = t0 + n * 16 + mma_row(i);
                float s = mma_sum(dots, i);
                if (IS_SHAPED && cap > 0.0f) s = cap * tanh_f32(s / cap);
                if (token >= n_visible || token < n_hidden) s = MASKED;
                score[n][i] = s;
                largest = max_f32(largest, s);
            }
        }
#pragma unroll
        for (u32 mask = 16; mask < GPU_WAVE; mask <<= 1) largest = max_f32(largest, across(largest, mask));
        const float keep = fast_exp(most - largest);
        most = largest;
        total *= keep;
#pragma unroll
        for (u32 n = 0; n < N_TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                const float weight = score[n][i] <= MASKED ? 0.0f : fast_exp(score[n][i] - most);
                total += weight;
                weights[column * KEY_STRIDE + n * 16 + mma_row(i)] = to_f16(weight);
            }
        }
        barrier();  // a wave reads what its own lanes wrote
        MmaFactor of_tokens[N_TILES];
#pragma unroll
        for (u32 n = 0; n < N_TILES; ++n) of_tokens[n] = mma_load(weights + n * 16, KEY_STRIDE);
#pragma unroll
        for (u32 d = 0; d < N_DIMS; ++d) {
            sum[d].at *= keep;
#pragma unroll
            for (u32 n = 0; n < N_TILES; ++n) mma(sum[d], mma_load(values + d * 16 * KEY_STRIDE + n * 16, KEY_STRIDE), of_tokens[n]);
        }
    }
#pragma unroll
    for (u32 mask = 16; mask < GPU_WAVE; mask <<= 1) total += across(total, mask);
    if (!is_there) return;
    float factor = 1.0f / total;
    if (IS_SHAPED && sinks) {
        const float sink = sinks[head], larger = max_f32(most, sink), mine = fast_exp(most - larger);
        factor = mine / (total * mine + fast_exp(sink - larger));
    }
#pragma unroll
    for (u32 d = 0; d < N_DIMS; ++d) {
#pragma unroll
        for (u32 i = 0; i < MMA_SUMS; ++i) out[q_at + d * 16 + mma_row(i)] = mma_sum(sum[d], i) * factor;
    }
}

#endif
