// halves: activations as halves for matmul_mma, divided by X_DIVISOR so that outliers stay finite; straight from f32, from
// silu(gate) * up, or from a norm. One group of 32 columns goes with another three into a step; a step lies as
// [quarter, n_x_rows, lane of a quad, 8 halves], the eight in the order in which the weights of a quarter fall out of
// their words: IS_PLAIN 1 for f16 weights, in order, else 4i, 4i + 2, 4i + 1, 4i + 3 and the same behind 16.
// Groups that fill the last step are zeros; rows past n_rows are left as they are, and their sums are never written.
#include "prelude.h"

#define THREADS 256
#define X_DIVISOR 16.0f

// Which of a group's 32 columns is number `i` of a quarter.
DEVICE u32 column(u32 is_plain, u32 quarter, u32 i) {
    const u32 packed = 4 * quarter + (i & 4) * 4 + ((i & 1) << 1) + ((i >> 1) & 1);
    return is_plain ? 8 * quarter + i : packed;
}

DEVICE void store_eight(u32 *out, const float (&eight)[8], u32 row, u32 g, u32 quarter, u32 n_x_rows) {
    Pack<u32, 4> words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        words.at[i] = pack_halves(eight[2 * i] * (1.0f / X_DIVISOR), eight[2 * i + 1] * (1.0f / X_DIVISOR));
    store<4>(out + ((((u64)(g / 4) * 4 + quarter) * n_x_rows + row) * 4 + g % 4) * 4, words);
}

// A thread a quarter of a group; block_y is the row. n_cols is a multiple of 32.
KERNEL(THREADS)
halves_rows(const float *ARRIVING x, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows, u32 is_plain) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x(), g = i / 4, quarter = i % 4, n_groups = n_cols / 32, row = block_y();
    if (g >= (n_groups + 3) / 4 * 4) return;
    float eight[8] = {};
    if (g < n_groups) {
        const float *from = x + (u64)row * n_cols + g * 32;
#pragma unroll
        for (u32 k = 0; k < 8; ++k) eight[k] = from[column(is_plain, quarter, k)];
    }
    store_eight(out, eight, row, g, quarter, n_x_rows);
}

KERNEL(THREADS)
halves_swiglu(const float *ARRIVING gate, const float *ARRIVING up, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows,
              u32 is_plain) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x(), g = i / 4, quarter = i % 4, n_groups = n_cols / 32, row = block_y();
    if (g >= (n_groups + 3) / 4 * 4) return;
    float eight[8] = {};
    if (g < n_groups) {
        const u64 at = (u64)row * n_cols + g * 32;
#pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const u32 c = column(is_plain, quarter, k);
            const float a = gate[at + c];
            eight[k] = a / (1.0f + fast_exp(-a)) * up[at + c];
        }
    }
    store_eight(out, eight, row, g, quarter, n_x_rows);
}

// A block a row.
KERNEL(THREADS)
halves_rmsnorm(const float *ARRIVING x, const float *__restrict__ w, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows,
               u32 is_plain, float eps) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x(), t = thread_x(), n_groups = n_cols / 32;
    const float *from = x + (u64)row * n_cols;
    float sum = 0.0f;
    for (u32 c = t * 4; c < n_cols; c += THREADS * 4) {
        const Pack<float, 4> v = load<4>(from + c);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum = fma_f32(v.at[i], v.at[i], sum);
    }
    sum = block_sum<THREADS>(sum, scratch);
    const float scale = 1.0f / sqrt_f32(sum / (float)n_cols + eps);
    for (u32 i = t; i < (n_groups + 3) / 4 * 16; i += THREADS) {
        const u32 g = i / 4, quarter = i % 4;
        float eight[8] = {};
        if (g < n_groups) {
#pragma unroll
            for (u32 k = 0; k < 8; ++k) {
                const u32 c = g * 32 + column(is_plain, quarter, k);
                eight[k] = from[c] * scale * w[c];
            }
        }
        store_eight(out, eight, row, g, quarter, n_x_rows);
    }
}
