// rmsnorm: y[r, c] = x[r, c] * w[c] / sqrt(mean(x[r, :]^2) + eps), one block a row; or y is added to another matrix.
#include "rmsnorm.h"

KERNEL(NORM_THREADS)
rmsnorm_f32(const float *ARRIVING x, const float *__restrict__ w, float *__restrict__ y, u32 n_cols, float eps) {
    let_next_start();
    const float *row = x + (u64)block_x() * n_cols;  // [n_cols]
    float *out = y + (u64)block_x() * n_cols;        // [n_cols]
    norm_row(row, w, n_cols, eps, 1.0f, [&](u32 c, const Pack<float, 4> &v) { store<4>(out + c, v); },
             [&](u32 c, float v) { out[c] = v; });
}

// x += factor * rmsnorm(y). What is added to is on its way while the sum is made.
KERNEL(NORM_THREADS)
rmsnorm_add(const float *ARRIVING y, const float *__restrict__ w, float *__restrict__ x, u32 n_cols, float eps, float factor) {
    let_next_start();
    const float *row = y + (u64)block_x() * n_cols;  // [n_cols]
    float *out = x + (u64)block_x() * n_cols;        // [n_cols]
    wait_for_inputs();
    Pack<float, 4> old[KEPT] = {};
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        const u32 c = (i * NORM_THREADS + thread_x()) * 4;
        if (n_cols % 4 == 0 && c < n_cols) old[i] = load<4>(out + c);
    }
    static_assert(KEPT == 2, "as many are told apart below");
    constexpr u32 NEXT = NORM_THREADS * 4;
    norm_row(row, w, n_cols, eps, factor,
             [&](u32 c, Pack<float, 4> v) {
                 const Pack<float, 4> to = c < NEXT ? old[0] : c < 2 * NEXT ? old[1] : load<4>(out + c);
#pragma unroll
                 for (u32 i = 0; i < 4; ++i) v.at[i] += to.at[i];
                 store<4>(out + c, v);
             },
             [&](u32 c, float v) { out[c] += v; });
}
