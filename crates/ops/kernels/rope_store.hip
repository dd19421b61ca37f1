// rope_store: turns queries in place, turns keys into the KV pool, and puts values there: one launch a layer.
// A thread takes a pair of numbers of a query or key head, or two numbers of a value head.
#include "kv.h"

#define THREADS 256

KERNEL(THREADS)
rope_store(float *__restrict__ q, const float *ARRIVING k, const float *ARRIVING v,
           const float *__restrict__ angles, const u32 *__restrict__ slots, u8 *__restrict__ k_pool,
           u8 *__restrict__ v_pool, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 n_rot, u32 is_halves) {
    let_next_start();
    const u32 row = block_x(), i = block_y() * THREADS + thread_x(), half = head_dim / 2, n_pairs = n_rot / 2;
    const u32 head = i / half, pair = i % half;
    if (head >= n_heads + 2 * n_kv_heads) return;
    // The two numbers of the pair, in their head; those past n_rot are not turned.
    const bool is_turned = pair < n_pairs;
    const u32 a = !is_turned ? 2 * pair : is_halves ? pair : 2 * pair;
    const u32 b = !is_turned ? 2 * pair + 1 : is_halves ? pair + n_pairs : 2 * pair + 1;
    const float c = is_turned ? angles[(u64)row * n_rot + 2 * pair] : 1.0f;
    const float s = is_turned ? angles[(u64)row * n_rot + 2 * pair + 1] : 0.0f;
    wait_for_inputs();
    if (head < n_heads) {
        float *at = q + ((u64)row * n_heads + head) * head_dim;
        const float x = at[a], y = at[b];
        at[a] = x * c - y * s;
        at[b] = x * s + y * c;
        return;
    }
    const bool is_key = head < n_heads + n_kv_heads;
    const u32 kv_head = is_key ? head - n_heads : head - n_heads - n_kv_heads, slot = slots[row];
    const u64 from = ((u64)row * n_kv_heads + kv_head) * head_dim;
    const u64 to = (((u64)(slot / KV_BLOCK) * n_kv_heads + kv_head) * KV_BLOCK + slot % KV_BLOCK) * head_dim;
    if (is_key) {
        const float x = k[from + a], y = k[from + b];
        set(((Kept *)k_pool)[to + a], x * c - y * s);
        set(((Kept *)k_pool)[to + b], x * s + y * c);
    } else {
        set(((Kept *)v_pool)[to + 2 * pair], v[from + 2 * pair]);
        set(((Kept *)v_pool)[to + 2 * pair + 1], v[from + 2 * pair + 1]);
    }
}

// The same with the heads of queries and keys normed first, each by itself: by the root of its mean square, and weight row
// head % n_norms. A block a head, a thread a pair: heads of up to 256 numbers.
#define HEAD_THREADS 128

KERNEL(HEAD_THREADS)
norm_rope_store(float *__restrict__ q, const float *ARRIVING k, const float *ARRIVING v, const float *__restrict__ angles,
                const u32 *__restrict__ slots, u8 *__restrict__ k_pool, u8 *__restrict__ v_pool,
                const float *__restrict__ q_norm, const float *__restrict__ k_norm, u32 n_heads, u32 n_kv_heads, u32 head_dim,
                u32 n_rot, u32 is_halves, u32 n_q_norms, u32 n_k_norms, float eps) {
    __shared__ float scratch[HEAD_THREADS / GPU_WAVE];
    let_next_start();
    const u32 row = block_x(), head = block_y(), pair = thread_x(), n_pairs = n_rot / 2;
    const bool is_query = head < n_heads, is_value = head >= n_heads + n_kv_heads, is_inside = pair < head_dim / 2;
    const u32 kv_head = is_query ? 0 : is_value ? head - n_heads - n_kv_heads : head - n_heads;
    const u32 slot = slots[row];
    const u64 from = ((u64)row * n_kv_heads + kv_head) * head_dim;
    const u64 to = (((u64)(slot / KV_BLOCK) * n_kv_heads + kv_head) * KV_BLOCK + slot % KV_BLOCK) * head_dim;
    if (is_value) {
        wait_for_inputs();
        if (!is_inside) return;
        set(((Kept *)v_pool)[to + 2 * pair], v[from + 2 * pair]);
        set(((Kept *)v_pool)[to + 2 * pair + 1], v[from + 2 * pair + 1]);
        return;
    }
    // As above.
    const bool is_turned = pair < n_pairs, is_apart = is_turned && is_halves;
    const u32 a = is_apart ? pair : 2 * pair, b = is_apart ? pair + n_pairs : 2 * pair + 1;
    const float c = is_turned ? angles[(u64)row * n_rot + 2 * pair] : 1.0f;
    const float s = is_turned ? angles[(u64)row * n_rot + 2 * pair + 1] : 0.0f;
    const float *weights = is_query ? q_norm + (u64)(head % n_q_norms) * head_dim : k_norm + (u64)(kv_head % n_k_norms) * head_dim;
    const float weight_a = is_inside ? weights[a] : 0.0f, weight_b = is_inside ? weights[b] : 0.0f;
    wait_for_inputs();
    float *own = q + ((u64)row * n_heads + head) * head_dim;
    const float *at = is_query ? own : k + from;
    float x = is_inside ? at[a] : 0.0f, y = is_inside ? at[b] : 0.0f;
    const float squares = block_sum<HEAD_THREADS>(x * x + y * y, scratch) / (float)head_dim;
    if (!is_inside) return;
    const float scale = 1.0f / sqrt_f32(squares + eps);
    x *= scale * weight_a, y *= scale * weight_b;
    const float turned_a = x * c - y * s, turned_b = x * s + y * c;
    if (is_query) {
        own[a] = turned_a, own[b] = turned_b;
    } else {
        set(((Kept *)k_pool)[to + a], turned_a);
        set(((Kept *)k_pool)[to + b], turned_b);
    }
}
