// norm_heads: norms of groups of numbers, in place (a head, or a whole row); layernorm: of rows, into another matrix.
// One block a group.
#include "prelude.h"

#define THREADS 128
#define LAYER 1  // by mean and variance; 0: by the root of the mean square

struct Norm {
    float mean, scale;
};

DEVICE Norm measure(const float *x, u32 n, u32 kind, float eps, float *scratch) {
    float mean = 0.0f, squares = 0.0f;
    if (kind == LAYER) {
        for (u32 c = thread_x(); c < n; c += THREADS) mean += x[c];
        mean = block_sum<THREADS>(mean, scratch) / (float)n;
    }
    for (u32 c = thread_x(); c < n; c += THREADS) squares = fma_f32(x[c] - mean, x[c] - mean, squares);
    squares = block_sum<THREADS>(squares, scratch) / (float)n;
    return {mean, 1.0f / sqrt_f32(squares + eps)};
}

// x: [n_rows, n_groups, group], w: [n_weights, group], and up to two of these; block_x is the row, block_y the group.
KERNEL(THREADS)
norm_heads(float *__restrict__ x0, float *__restrict__ x1, const float *__restrict__ w0, const float *__restrict__ w1, u32 group,
           u32 n_groups0, u32 n_groups1, u32 n_weights0, u32 n_weights1, u32 kind, float eps) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const bool is_first = block_y() < n_groups0;
    const u32 g = is_first ? block_y() : block_y() - n_groups0;
    float *at = (is_first ? x0 : x1) + ((u64)block_x() * (is_first ? n_groups0 : n_groups1) + g) * group;
    const float *weight = (is_first ? w0 : w1) + (u64)(g % (is_first ? n_weights0 : n_weights1)) * group;
    const Norm norm = measure(at, group, kind, eps, scratch);
    for (u32 c = thread_x(); c < group; c += THREADS) at[c] = (at[c] - norm.mean) * norm.scale * weight[c];
}

// bias may be null.
KERNEL(THREADS)
layernorm(const float *ARRIVING x, const float *__restrict__ w, const float *__restrict__ bias, float *__restrict__ y,
          u32 n_cols, float eps) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const float *row = x + (u64)block_x() * n_cols;
    float *out = y + (u64)block_x() * n_cols;
    const Norm norm = measure(row, n_cols, LAYER, eps, scratch);
    for (u32 c = thread_x(); c < n_cols; c += THREADS) {
        const float normed = (row[c] - norm.mean) * norm.scale * w[c];
        out[c] = bias ? normed + bias[c] : normed;
    }
}
