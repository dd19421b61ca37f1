// streams: four streams that predict and correct each other; rows scaled to the size of others.
#include "prelude.h"

#define THREADS 256
#define N_STREAMS 4

DEVICE float coefficient(const float *w, const float *state) {
    float sum = 0.0f;
#pragma unroll
    for (u32 k = 0; k < N_STREAMS; ++k) sum = fma_f32(w[k], state[k], sum);
    return sum;
}

// x_i += sum_j c_ij x_j with c_ij = w[4 i + j] * states[row]; n numbers a stream.
KERNEL(THREADS)
predict_streams(const float *ARRIVING states, const float *__restrict__ w, float *__restrict__ x0, float *__restrict__ x1,
                float *__restrict__ x2, float *__restrict__ x3, u64 n, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i >= n) return;
    const float *state = states + i / n_cols * N_STREAMS;
    const float x[N_STREAMS] = {x0[i], x1[i], x2[i], x3[i]};
    float made[N_STREAMS];
#pragma unroll
    for (u32 a = 0; a < N_STREAMS; ++a) {
        float sum = 0.0f;
#pragma unroll
        for (u32 b = 0; b < N_STREAMS; ++b) sum = fma_f32(coefficient(w + (a * N_STREAMS + b) * N_STREAMS, state), x[b], sum);
        made[a] = x[a] + sum;
    }
    x0[i] = made[0];
    x1[i] = made[1];
    x2[i] = made[2];
    x3[i] = made[3];
}

// x_i = p_i + (x_0 - p_0) * (1 + c_i); scaled = x_0 * factors.
KERNEL(THREADS)
correct_streams(const float *ARRIVING states, const float *__restrict__ w, const float *ARRIVING predicted,
                const float *__restrict__ factors, float *__restrict__ x0, float *__restrict__ x1, float *__restrict__ x2,
                float *__restrict__ x3, float *__restrict__ scaled, u64 n, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i >= n) return;
    const float *state = states + i / n_cols * N_STREAMS;
    const float first = predicted[i], change = x0[i] - first;
    const float made = fma_f32(change, 1.0f + coefficient(w, state), first);
    x0[i] = made;
    x1[i] = fma_f32(change, 1.0f + coefficient(w + N_STREAMS, state), x1[i]);
    x2[i] = fma_f32(change, 1.0f + coefficient(w + 2 * N_STREAMS, state), x2[i]);
    x3[i] = fma_f32(change, 1.0f + coefficient(w + 3 * N_STREAMS, state), x3[i]);
    scaled[i] = made * factors[i % n_cols];
}

// Each row of y gets the mean square of x's. One block a row.
KERNEL(THREADS)
match_rows(const float *ARRIVING x, float *__restrict__ y, u32 n_cols, float min_square) {
    __shared__ float scratch[THREADS / GPU_WAVE], more[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const float *wanted = x + (u64)block_x() * n_cols;
    float *row = y + (u64)block_x() * n_cols;
    float of_x = 0.0f, of_y = 0.0f;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) {
        of_x = fma_f32(wanted[c], wanted[c], of_x);
        of_y = fma_f32(row[c], row[c], of_y);
    }
    of_x = block_sum<THREADS>(of_x, scratch) / (float)n_cols;
    of_y = max_f32(block_sum<THREADS>(of_y, more) / (float)n_cols, min_square);
    const float factor = sqrt_f32(of_x / of_y);
    for (u32 c = thread_x(); c < n_cols; c += THREADS) row[c] *= factor;
}
