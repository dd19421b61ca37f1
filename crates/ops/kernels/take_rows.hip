// take_rows: out[i] = x[rows[i]], one block a row; and to_f16, the activations of the vendor's products.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
take_rows(const float *ARRIVING x, const u32 *ARRIVING rows, float *__restrict__ out, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const float *from = x + (u64)rows[block_x()] * n_cols;
    float *to = out + (u64)block_x() * n_cols;
    for (u32 c = thread_x(); c < n_cols; c += THREADS) to[c] = from[c];
}

KERNEL(THREADS)
to_f16_scaled(const float *ARRIVING x, f16 *__restrict__ out, u64 n, float scale) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i < n) out[i] = to_f16(x[i] * scale);
}
