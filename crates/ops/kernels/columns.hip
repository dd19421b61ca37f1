// columns: rows put together from parts of others, and rows in another order; compressed attention needs both.
#include "prelude.h"

#define THREADS 256

DEVICE u64 place() { return (u64)block_x() * THREADS + thread_x(); }

// out[r] = [a[r][..n_a], b[r], 0...]; a's rows are a_step numbers apart. b may be null where n_b is 0.
KERNEL(THREADS)
join_columns(const float *ARRIVING a, const float *ARRIVING b, float *__restrict__ out, u32 a_step, u32 n_a, u32 n_b,
             u32 n_out, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i >= n) return;
    const u64 r = i / n_out;
    const u32 c = (u32)(i % n_out);
    out[i] = c < n_a ? a[r * a_step + c] : c < n_a + n_b ? b[r * n_b + (c - n_a)] : 0.0f;
}

// x: [n_outer, n_inner, n_cols]; out: [n_inner, n_outer, n_cols].
KERNEL(THREADS)
turn_rows(const float *ARRIVING x, float *__restrict__ out, u32 n_outer, u32 n_inner, u32 n_cols, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i >= n) return;
    const u64 row = i / n_cols, inner = row / n_outer, outer = row % n_outer;
    out[i] = x[(outer * n_inner + inner) * n_cols + i % n_cols];
}

// out[i] = i % modulus
KERNEL(THREADS)
number_rows(u32 *__restrict__ out, u32 modulus, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) out[i] = (u32)(i % modulus);
}
