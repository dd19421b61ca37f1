// sparsify: x = max(0, x - mean - k * deviation), one block a row.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
sparsify(float *__restrict__ x, u32 n_cols, float k) {
    __shared__ float scratch[THREADS / GPU_WAVE], more[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    float *row = x + (u64)block_x() * n_cols;
    float mean = 0.0f, squares = 0.0f;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) mean += row[c];
    mean = block_sum<THREADS>(mean, scratch) / (float)n_cols;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) squares = fma_f32(row[c] - mean, row[c] - mean, squares);
    const float cutoff = mean + sqrt_f32(block_sum<THREADS>(squares, more) / (float)n_cols) * k;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) row[c] = max_f32(row[c] - cutoff, 0.0f);
}
