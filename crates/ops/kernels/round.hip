// round: activations for the integer products (round.h says what they become). A lane a number.
#include "round.h"

#define THREADS 256

KERNEL(THREADS)
round_rows(const float *ARRIVING x, u8 *__restrict__ q, float *__restrict__ scales, u32 n_groups, u32 n_all) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    const float value = i < n_all ? x[(u64)i * 32 + k] : 0.0f;
    round_number(value, i, k, n_groups, i < n_all, q, scales);
}

// gate = silu(gate) * up, rounded; nothing else reads it.
KERNEL(THREADS)
swiglu_round(const float *ARRIVING gate, const float *ARRIVING up, u8 *__restrict__ q,
             float *__restrict__ scales, u32 n_groups, u32 n_all) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    float value = 0.0f;
    if (i < n_all) {
        const float g = gate[(u64)i * 32 + k];
        value = g / (1.0f + fast_exp(-g)) * up[(u64)i * 32 + k];
    }
    round_number(value, i, k, n_groups, i < n_all, q, scales);
}

#define NORM_THREADS 1024
#define NORM_KEPT 4

// rmsnorm of a row, rounded: one block a row, n_cols a multiple of 32.
KERNEL(NORM_THREADS)
rmsnorm_round(const float *ARRIVING x, const float *__restrict__ w, u8 *__restrict__ q, float *__restrict__ scales,
              u32 n_cols, float eps) {
    __shared__ float scratch[NORM_THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x(), t = thread_x(), n_groups = n_cols / 32;
    const float *from = x + (u64)row * n_cols;
    // The first numbers of a thread stay in registers: most rows have no more.
    float kept[NORM_KEPT];
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < NORM_KEPT; ++i) {
        const u32 c = i * NORM_THREADS + t;
        kept[i] = c < n_cols ? from[c] : 0.0f;
        sum = fma_f32(kept[i], kept[i], sum);
    }
    for (u32 c = NORM_KEPT * NORM_THREADS + t; c < n_cols; c += NORM_THREADS) sum = fma_f32(from[c], from[c], sum);
    sum = block_sum<NORM_THREADS>(sum, scratch);
    const float scale = 1.0f / sqrt_f32(sum / (float)n_cols + eps);
    // Whole groups go round together: n_cols is a multiple of 32, and so is the stride.
#pragma unroll
    for (u32 i = 0; i < NORM_KEPT; ++i) {
        const u32 c = i * NORM_THREADS + t;
        if (c < n_cols) round_number(kept[i] * scale * w[c], row * n_groups + c / 32, c % 32, n_groups, true, q, scales);
    }
    for (u32 c = NORM_KEPT * NORM_THREADS + t; c < n_cols; c += NORM_THREADS)
        round_number(from[c] * scale * w[c], row * n_groups + c / 32, c % 32, n_groups, true, q, scales);
}
