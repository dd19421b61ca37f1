// rope: turns the first n_rot numbers of every head in place; one thread a pair.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
rope(float *__restrict__ x, const float *__restrict__ angles, u32 n_all, u32 n_heads, u32 head_dim, u32 n_rot,
     u32 is_halves) {
    const u32 i = block_x() * THREADS + thread_x(), n_pairs = n_rot / 2;
    if (i >= n_all) return;
    const u32 pair = i % n_pairs, head = i / n_pairs % n_heads, row = i / n_pairs / n_heads;
    const float c = angles[(u64)row * n_rot + 2 * pair], s = angles[(u64)row * n_rot + 2 * pair + 1];
    float *at = x + ((u64)row * n_heads + head) * head_dim;
    const u32 p = is_halves ? pair : 2 * pair, q = is_halves ? pair + n_pairs : 2 * pair + 1;
    const float a = at[p], b = at[q];
    at[p] = a * c - b * s;
    at[q] = a * s + b * c;
}
