// hadamard: every `width` neighbouring numbers of a row times the Walsh-Hadamard matrix of that size, divided by its root: a
// rotation that is its own inverse. Up to three matrices a launch; block_x is the row, block_y a stretch of 1024 columns,
// block_z the matrix. Additions come in the host's order, so the numbers are the host's.
#include "prelude.h"

#define THREADS 256
#define COLUMNS 1024

KERNEL(THREADS)
hadamard(float *a, float *b, float *c, u32 n_a, u32 n_b, u32 n_c, u32 width, float factor) {
    __shared__ float x[COLUMNS];
    let_next_start();
    wait_for_inputs();
    float *matrix = block_z() == 0 ? a : block_z() == 1 ? b : c;
    const u32 n_cols = block_z() == 0 ? n_a : block_z() == 1 ? n_b : n_c, first = block_y() * COLUMNS;
    if (first >= n_cols) return;
    const u32 n = n_cols - first < COLUMNS ? n_cols - first : COLUMNS;
    float *row = matrix + (u64)block_x() * n_cols + first;
    for (u32 i = thread_x(); i < n; i += THREADS) x[i] = row[i];
    for (u32 step = 1; step < width; step *= 2) {
        barrier();
        for (u32 p = thread_x(); p < n / 2; p += THREADS) {
            const u32 i = p / step * 2 * step + p % step;
            const float low = x[i], high = x[i + step];
            x[i] = add_exact(low, high);
            x[i + step] = add_exact(low, -high);
        }
    }
    barrier();
    for (u32 i = thread_x(); i < n; i += THREADS) row[i] = mul_exact(x[i], factor);
}
