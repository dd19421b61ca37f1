// What matmul_mma.hip, matmul_few.hip and matmul_wide.hip share: up to three products of one left side in a launch,
// BLOCK_OUTS weight rows a block, and the sum of the parts into which their columns were cut.
#pragma once
#include "prelude.h"

// A file with larger blocks says so before.
#ifndef BLOCK_OUTS
#define BLOCK_OUTS 128
#endif

struct Job {
    const u8 *w;
    float *out;
    u32 n_out, first;
    // Weight rows of the products before this one.
    u32 before;
};

DEVICE Job find_job(const u8 *w0, const u8 *w1, const u8 *w2, float *o0, float *o1, float *o2, u32 n0, u32 n1, u32 n2) {
    const u32 tile = block_z();
    const u32 t0 = (n0 + BLOCK_OUTS - 1) / BLOCK_OUTS, t1 = (n1 + BLOCK_OUTS - 1) / BLOCK_OUTS;
    if (tile < t0) return {w0, o0, n0, tile * BLOCK_OUTS, 0};
    if (tile < t0 + t1) return {w1, o1, n1, (tile - t0) * BLOCK_OUTS, n0};
    return {w2, o2, n2, (tile - t0 - t1) * BLOCK_OUTS, n0 + n1};
}

#define SUM_THREADS 256

// out[r, o] (+)= the parts' sum. block_y is the row.
#define MATMUL_PARTS_SUM(NAME)                                                                                        \
    KERNEL(SUM_THREADS)                                                                                               \
    NAME(const float *ARRIVING parts, float *o0, float *o1, float *o2, u32 n0, u32 n1, u32 n2, u32 n_rows,            \
         u32 n_parts, u32 adds) {                                                                                     \
        let_next_start();                                                                                             \
        wait_for_inputs();                                                                                            \
        add_parts(parts, o0, o1, o2, n0, n1, n2, n_rows, n_parts, adds);                                              \
    }

DEVICE void add_parts(const float *ARRIVING parts, float *o0, float *o1, float *o2, u32 n0, u32 n1, u32 n2, u32 n_rows,
                      u32 n_parts, u32 adds) {
    const u32 n_all = n0 + n1 + n2, i = block_x() * SUM_THREADS + thread_x(), row = block_y();
    if (i >= n_all) return;
    float total = 0.0f;
#pragma unroll 4
    for (u32 p = 0; p < n_parts; ++p) total += parts[((u64)p * n_rows + row) * n_all + i];
    float *at = i < n0 ? o0 + (u64)row * n0 + i
                       : i < n0 + n1 ? o1 + (u64)row * n1 + i - n0 : o2 + (u64)row * n2 + i - n0 - n1;
    *at = adds ? *at + total : total;
}
