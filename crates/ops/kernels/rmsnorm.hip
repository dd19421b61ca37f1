// rmsnorm: y[r, c] = x[r, c] * w[c] / sqrt(mean(x[r, :]^2) + eps), one block a row.
#include "rmsnorm.h"

KERNEL(NORM_THREADS)
rmsnorm_f32(const float *ARRIVING x, const float *__restrict__ w, float *__restrict__ y, u32 n_cols, float eps) {
    let_next_start();
    const float *row = x + (u64)block_x() * n_cols;  // [n_cols]
    float *out = y + (u64)block_x() * n_cols;        // [n_cols]
    norm_row(row, w, n_cols, eps, 1.0f, [&](u32 c, const Pack<float, 4> &v) { store<4>(out + c, v); },
             [&](u32 c, float v) { out[c] = v; });
}
