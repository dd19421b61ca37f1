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
