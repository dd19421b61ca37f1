// rmsnorm: y[r, c] = x[r, c] * w[c] / sqrt(mean(x[r, :]^2) + eps), one block a row.
// Any number of columns; rows that start on 16 bytes move four numbers at a time.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
rmsnorm_f32(const float *ARRIVING x, const float *__restrict__ w, float *__restrict__ y, u32 n_cols, float eps) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const float *row = x + (u64)block_x() * n_cols;  // [n_cols]
    float *out = y + (u64)block_x() * n_cols;        // [n_cols]
    const u32 t = thread_x();
    const bool is_wide = n_cols % 4 == 0;

    float sum = 0.0f;
    if (is_wide) {
        for (u32 c = t * 4; c < n_cols; c += THREADS * 4) {
            const Pack<float, 4> v = load<4>(row + c);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sum = fma_f32(v.at[i], v.at[i], sum);
        }
    } else {
        for (u32 c = t; c < n_cols; c += THREADS) sum = fma_f32(row[c], row[c], sum);
    }
    sum = block_sum<THREADS>(sum, scratch);
    const float scale = 1.0f / sqrt_f32(sum / (float)n_cols + eps);

    if (is_wide) {
        for (u32 c = t * 4; c < n_cols; c += THREADS * 4) {
            Pack<float, 4> v = load<4>(row + c);
            const Pack<float, 4> g = load<4>(w + c);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) v.at[i] = v.at[i] * scale * g.at[i];
            store<4>(out + c, v);
        }
    } else {
        for (u32 c = t; c < n_cols; c += THREADS) out[c] = row[c] * scale * w[c];
    }
}
