// kv_store: new keys and values into the pool, [block, head, 16 tokens, head_dim] for both. One block a row.
#include "prelude.h"

#define THREADS 256
#define KV_BLOCK 16

#if defined(KV_F16)
typedef f16 Kept;
#else
typedef float Kept;
#endif

KERNEL(THREADS)
kv_store(const float *__restrict__ k, const float *__restrict__ v, const u32 *__restrict__ slots, u8 *__restrict__ k_pool,
         u8 *__restrict__ v_pool, u32 n_heads, u32 head_dim) {
    const u32 row = block_x(), slot = slots[row], n_cols = n_heads * head_dim;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) {
        const u32 head = c / head_dim, d = c % head_dim;
        const u64 to = (((u64)(slot / KV_BLOCK) * n_heads + head) * KV_BLOCK + slot % KV_BLOCK) * head_dim + d;
        set(((Kept *)k_pool)[to], k[(u64)row * n_cols + c]);
        set(((Kept *)v_pool)[to], v[(u64)row * n_cols + c]);
    }
}
