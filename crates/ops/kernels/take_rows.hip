// take_rows: out[i] = x[rows[i]], one block a row.
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
