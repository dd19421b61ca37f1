// kv_store: new keys and values into the pool, [block, head, 16 tokens, head_dim] for both. One block a row.
#include "kv.h"

#define THREADS 256

#if KV_IS_QUANTIZED
// 32 numbers of one token as ggml's Q8_0 and Q4_0 have them: a quant is the number divided by the scale before that is
// rounded to a half. Nothing is fused: a quant is then the host's.
DEVICE void store_group(const float *from, u8 *row, u32 token, u32 group, u32 head_dim) {
    float x[KV_GROUP], most = 0.0f, extreme = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KV_GROUP / 4; ++i) {
        const Pack<float, 4> four = load<4>(from + 4 * i);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            x[4 * i + k] = four.at[k];
            const float size = abs_f32(four.at[k]);
            extreme = size > most ? four.at[k] : extreme;
            most = max_f32(most, size);
        }
    }
    const float scale = KV == KV_Q8_0 ? most / 127.0f : extreme / -8.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    kv_scales(row, token, head_dim)[group] = to_f16(scale);
    u32 *to = (u32 *)(row + kv_bytes(token * head_dim + group * KV_GROUP));
#pragma unroll
    for (u32 w = 0; w < KV_GROUP * (KV == KV_Q8_0 ? 8 : 4) / 32; ++w) {
        u32 word = 0;
#if KV == KV_Q8_0
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const float q = mul_exact(x[4 * w + k], inverse);
            word |= ((u32)(i32)add_exact(q, q < 0.0f ? -0.5f : 0.5f) & 255u) << (8 * k);
        }
#else
#pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const i32 q = (i32)add_exact(mul_exact(x[8 * w + k], inverse), 8.5f);
            word |= (u32)(q < 0 ? 0 : q > 15 ? 15 : q) << (4 * k);
        }
#endif
        to[w] = word;
    }
}
#endif

KERNEL(THREADS)
kv_store(const float *__restrict__ k, const float *__restrict__ v, const u32 *__restrict__ slots, u8 *__restrict__ k_pool,
         u8 *__restrict__ v_pool, u32 n_heads, u32 head_dim) {
    const u32 row = block_x(), slot = slots[row], n_cols = n_heads * head_dim;
#if KV_IS_QUANTIZED
    // A thread a group.
    const u32 n_groups = n_cols / KV_GROUP, of_head = head_dim / KV_GROUP;
    for (u32 i = thread_x(); i < 2 * n_groups; i += THREADS) {
        const u32 g = i % n_groups;
        const u64 at = ((u64)(slot / KV_BLOCK) * n_heads + g / of_head) * kv_row_bytes(head_dim);
        const float *from = (i < n_groups ? k : v) + (u64)row * n_cols + g * KV_GROUP;
        store_group(from, (i < n_groups ? k_pool : v_pool) + at, slot % KV_BLOCK, g % of_head, head_dim);
    }
#else
    for (u32 c = thread_x(); c < n_cols; c += THREADS) {
        const u32 head = c / head_dim, d = c % head_dim;
        const u64 to = (((u64)(slot / KV_BLOCK) * n_heads + head) * KV_BLOCK + slot % KV_BLOCK) * head_dim + d;
        set(((Kept *)k_pool)[to], k[(u64)row * n_cols + c]);
        set(((Kept *)v_pool)[to], v[(u64)row * n_cols + c]);
    }
#endif
}
