// flash: attention of many query rows on the matrix units, f16 keys and values, f32 sums. Causal or full, paged.
//
// A block takes 64 query rows of one sequence and one head, 16 a wave, and walks over the context 64 keys at a time: keys
// and values go through shared memory, scores stay in registers, with a running softmax. HEAD_DIM is a multiple of 16.
// With SHAPED also windows, caps and sinks.
#include "functions.h"

#define THREADS 128
#define ROWS 64
#define KEYS 64
#define KV_BLOCK 16
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
#define STRIDE (HEAD_DIM + 8)
#define MASKED (-1e30f)

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

#if defined(GPU_HAS_MMA)

// 64 tokens from `first` on, past the end as zeros.
DEVICE void load_tokens(f16 *to, const f16 *pool, const u32 *table, u32 n_kv_heads, u32 kv_head, u32 first, u32 n_keys) {
    constexpr u32 per_token = HEAD_DIM / 8;
    for (u32 i = thread_x(); i < KEYS * per_token; i += THREADS) {
        const u32 t = i / per_token, d = i % per_token * 8, token = first + t;
        Pack<u32, 4> eight = {};
        if (token < n_keys) {
            const u64 at = (((u64)table[token / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK + token % KV_BLOCK) * HEAD_DIM;
            eight = load<4>((const u32 *)(pool + at + d));
        }
        store<4>((u32 *)(to + t * STRIDE + d), eight);
    }
}

// tiles: (span, first row in it) each; spans as in attention.hip.
KERNEL(THREADS)
flash(const float *ARRIVING q, const u8 *ARRIVING k_bytes, const u8 *ARRIVING v_bytes,
      const u32 *__restrict__ tiles, const u32 *__restrict__ spans, const u32 *__restrict__ tables,
      float *__restrict__ out, u32 n_heads, u32 n_kv_heads, float scale, u32 window, float cap,
      const float *__restrict__ sinks) {
    __shared__ f16 keys[KEYS * STRIDE], values[KEYS * STRIDE];
    let_next_start();
    wait_for_inputs();
    const u32 *span = spans + tiles[block_x() * 2] * 8;
    const u32 first = tiles[block_x() * 2 + 1], first_row = span[0], n_rows = span[1], position = span[2];
    const u32 *table = tables + span[3];
    const bool is_causal = span[4] != 0;
    const u32 head = block_y(), kv_head = head / (n_heads / n_kv_heads);
    const u32 wave = thread_x() / 32, l = lane(), quad = l / 4, within = l % 4;
    // The two rows of the wave's sixteen that this lane holds.
    const u32 rows[2] = {first + wave * 16 + quad, first + wave * 16 + quad + 8};
    const u32 last_row = first + ROWS < n_rows ? first + ROWS : n_rows;
    const SeenKeys seen = {is_causal, IS_SHAPED ? window : 0, position + n_rows};
    const u32 n_keys = seen.end(position + last_row - 1);
    u32 query[HEAD_DIM / 16][4];
#pragma unroll
    for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 row = rows[i % 2], c = d * 16 + i / 2 * 8 + within * 2;
            const float *at = q + ((u64)(first_row + row) * n_heads + head) * HEAD_DIM + c;
            const bool is_there = row < n_rows;
            query[d][i] = pack_halves(is_there ? at[0] * scale : 0.0f, is_there ? at[1] * scale : 0.0f);
        }
    }
    float sum[HEAD_DIM / 8][4] = {};
    float most[2] = {MASKED, MASKED}, total[2] = {0.0f, 0.0f};
    u32 n_visible[2], n_hidden[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        n_visible[i] = min_u32(seen.end(position + rows[i]), n_keys);
        n_hidden[i] = seen.start(position + rows[i]);
    }
    // What lies before the window of the block's first row is not read.
    const u32 begin = seen.start(position + first) / KEYS * KEYS;
    for (u32 t0 = begin; t0 < n_keys; t0 += KEYS) {
        barrier();
        load_tokens(keys, (const f16 *)k_bytes, table, n_kv_heads, kv_head, t0, n_keys);
        load_tokens(values, (const f16 *)v_bytes, table, n_kv_heads, kv_head, t0, n_keys);
        barrier();
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
            const f16 *key = keys + (n * 8 + quad) * STRIDE + within * 2;
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
                const u32 b0 = *(const u32 *)(key + d * 16), b1 = *(const u32 *)(key + d * 16 + 8);
                mma_16x8x16(score[n], query[d], b0, b1);
            }
        }
        float largest[2] = {most[0], most[1]};
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 t = t0 + n * 8 + within * 2 + i % 2;
                if (IS_SHAPED && cap > 0.0f) score[n][i] = cap * tanh_f32(score[n][i] / cap);
                if (t >= n_visible[i / 2] || (IS_SHAPED && t < n_hidden[i / 2])) score[n][i] = MASKED;
                largest[i / 2] = max_f32(largest[i / 2], score[n][i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            // The four lanes of a quad share a row.
            largest[i] = max_f32(largest[i], across(largest[i], 1));
            largest[i] = max_f32(largest[i], across(largest[i], 2));
            const float keep = fast_exp(most[i] - largest[i]);
            most[i] = largest[i];
            total[i] *= keep;
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 8; ++d) {
                sum[d][2 * i] *= keep;
                sum[d][2 * i + 1] *= keep;
            }
        }
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                score[n][i] = score[n][i] <= MASKED ? 0.0f : fast_exp(score[n][i] - most[i / 2]);
                total[i / 2] += score[n][i];
            }
        }
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; ++k) {
            const u32 weight[4] = {pack_halves(score[2 * k][0], score[2 * k][1]), pack_halves(score[2 * k][2], score[2 * k][3]),
                                   pack_halves(score[2 * k + 1][0], score[2 * k + 1][1]),
                                   pack_halves(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
                // Four 8x8 parts, turned: tokens k*16.. by numbers d*16.. .
                u32 b[4];
                load_turned(b, values + (k * 16 + l % 16) * STRIDE + d * 16 + l / 16 * 8);
                mma_16x8x16(sum[2 * d], weight, b[0], b[1]);
                mma_16x8x16(sum[2 * d + 1], weight, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        total[i] += across(total[i], 1);
        total[i] += across(total[i], 2);
        if (rows[i] >= n_rows) continue;
        float *to = out + ((u64)(first_row + rows[i]) * n_heads + head) * HEAD_DIM;
        float inverse = 1.0f / total[i];
        if (IS_SHAPED && sinks) {
            const float sink = sinks[head], larger = max_f32(most[i], sink), mine = fast_exp(most[i] - larger);
            inverse = mine / (total[i] * mine + fast_exp(sink - larger));
        }
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; ++d) {
            to[d * 8 + within * 2] = sum[d][2 * i] * inverse;
            to[d * 8 + within * 2 + 1] = sum[d][2 * i + 1] * inverse;
        }
    }
}

#endif
