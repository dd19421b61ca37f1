// halves: activations as halves for matmul_mma and matmul_wide, divided by X_DIVISOR so that outliers stay finite; straight
// from f32, from a gate and its partner, or from a norm. One group of 32 columns goes with another three into a step; a step lies
// as [quarter, n_x_rows, lane of a quad, 8 halves], the eight in the order in which the weights of a quarter fall out of
// their words: AS_PLAIN (f16 weights) in order, AS_PACKED 4i, 4i + 2, 4i + 1, 4i + 3 and the same behind 16.
// AS_SHEETS, for matmul_wide: blocks of n_x_rows rows, each step of a block as two sheets (wgmma.h); a row of a step is
// [quarter, word of a quarter's four, group, 2 halves].
// Groups that fill the last step are zeros; rows past n_rows are left as they are, and their sums are never written.
#include "gate.h"

#define THREADS 256
#define X_DIVISOR 16.0f

// As crates/ops/src/gpu/mma.rs numbers them.
#define AS_PACKED 0
#define AS_PLAIN 1
#define AS_SHEETS 2

// Eights of a row: a quarter of a group each, and as many as whole steps have.
DEVICE u32 n_eights_of(u32 n_cols) { return (n_cols + 127) / 128 * 16; }

// Which column is number `i` of an eight.
DEVICE u32 column(u32 layout, u32 eight, u32 i) {
    const bool is_sheet = layout == AS_SHEETS;
    const u32 group = is_sheet ? eight / 16 * 4 + i / 2 : eight / 4, quarter = is_sheet ? eight / 4 % 4 : eight % 4;
    const u32 k = is_sheet ? eight % 4 * 2 + i % 2 : i;
    const u32 packed = 4 * quarter + (k & 4) * 4 + ((k & 1) << 1) + ((k >> 1) & 1);
    return group * 32 + (layout == AS_PLAIN ? 8 * quarter + k : packed);
}

// Where it goes, in words.
DEVICE u64 place_of(u32 layout, u32 eight, u32 row, u32 n_cols, u32 n_x_rows) {
    if (layout == AS_SHEETS) {
        const u64 step = (u64)(row / n_x_rows) * ((n_cols + 127) / 128) + eight / 16;
        const u32 r = row % n_x_rows, piece = eight % 8;
        return ((step * 2 + eight / 8 % 2) * n_x_rows + r) * 32 + (piece ^ (r % 8)) * 4;
    }
    const u32 g = eight / 4, quarter = eight % 4;
    return ((((u64)(g / 4) * 4 + quarter) * n_x_rows + row) * 4 + g % 4) * 4;
}

DEVICE void store_eight(u32 *out, const float (&eight)[8]) {
    Pack<u32, 4> words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        words.at[i] = pack_halves(eight[2 * i] * (1.0f / X_DIVISOR), eight[2 * i + 1] * (1.0f / X_DIVISOR));
    store<4>(out, words);
}

// A thread an eight; block_y is the row. n_cols is a multiple of 32.
KERNEL(THREADS)
halves_rows(const float *ARRIVING x, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows, u32 layout) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x(), row = block_y();
    if (i >= n_eights_of(n_cols)) return;
    const float *from = x + (u64)row * n_cols;
    float eight[8];
#pragma unroll
    for (u32 k = 0; k < 8; ++k) {
        const u32 c = column(layout, i, k);
        eight[k] = c < n_cols ? from[c] : 0.0f;
    }
    store_eight(out + place_of(layout, i, row, n_cols, n_x_rows), eight);
}

KERNEL(THREADS)
halves_swiglu(const float *ARRIVING gate, const float *ARRIVING up, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows,
              u32 layout) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x(), row = block_y();
    if (i >= n_eights_of(n_cols)) return;
    float eight[8];
#pragma unroll
    for (u32 k = 0; k < 8; ++k) {
        const u32 c = column(layout, i, k);
        const u64 at = (u64)row * n_cols + c;
        const float a = c < n_cols ? gate[at] : 0.0f;
        eight[k] = c < n_cols ? a / (1.0f + fast_exp(-a)) * up[at] : 0.0f;
    }
    store_eight(out + place_of(layout, i, row, n_cols, n_x_rows), eight);
}

// The same with any gate.
KERNEL(THREADS)
halves_gated(const float *ARRIVING gate, const float *ARRIVING up, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows, u32 layout,
             u32 kind, float alpha, float limit) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x(), row = block_y();
    if (i >= n_eights_of(n_cols)) return;
    float eight[8];
#pragma unroll
    for (u32 k = 0; k < 8; ++k) {
        const u32 c = column(layout, i, k);
        const u64 at = (u64)row * n_cols + c;
        eight[k] = c < n_cols ? gated({kind, alpha, limit}, gate[at], up[at]) : 0.0f;
    }
    store_eight(out + place_of(layout, i, row, n_cols, n_x_rows), eight);
}

// A block a row.
KERNEL(THREADS)
halves_rmsnorm(const float *ARRIVING x, const float *__restrict__ w, u32 *__restrict__ out, u32 n_cols, u32 n_x_rows,
               u32 layout, float eps) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x(), t = thread_x();
    const float *from = x + (u64)row * n_cols;
    float sum = 0.0f;
    for (u32 c = t * 4; c < n_cols; c += THREADS * 4) {
        const Pack<float, 4> v = load<4>(from + c);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum = fma_f32(v.at[i], v.at[i], sum);
    }
    sum = block_sum<THREADS>(sum, scratch);
    const float scale = 1.0f / sqrt_f32(sum / (float)n_cols + eps);
    for (u32 i = t; i < n_eights_of(n_cols); i += THREADS) {
        float eight[8];
#pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const u32 c = column(layout, i, k);
            eight[k] = c < n_cols ? from[c] * scale * w[c] : 0.0f;
        }
        store_eight(out + place_of(layout, i, row, n_cols, n_x_rows), eight);
    }
}
