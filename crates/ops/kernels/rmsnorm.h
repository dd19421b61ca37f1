// One row of y[c] = x[c] * w[c] * factor / sqrt(mean(x^2) + eps) by a block; `write(column, numbers)` puts them somewhere.
// Any number of columns. Rows that start on 16 bytes move four numbers at a time, and as many of them as most models have
// stay in registers from the sum to the end: a decode step waits for this twice a layer.
#pragma once
#include "prelude.h"

#define NORM_THREADS 512
// Times four numbers a thread.
#define KEPT 2

DEVICE float add_squares(float sum, const Pack<float, 4> &v) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) sum = fma_f32(v.at[i], v.at[i], sum);
    return sum;
}

DEVICE Pack<float, 4> scaled(Pack<float, 4> v, const Pack<float, 4> &g, float scale) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v.at[i] = v.at[i] * scale * g.at[i];
    return v;
}

template <class Write, class WriteOne>
DEVICE void norm_row(const float *row, const float *w, u32 n_cols, float eps, float factor, Write write, WriteOne write_one) {
    __shared__ float scratch[NORM_THREADS / GPU_WAVE];
    float sum = 0.0f;
    const auto scale_of = [&](float sum) { return factor / sqrt_f32(block_sum<NORM_THREADS>(sum, scratch) / (float)n_cols + eps); };
    if (n_cols % 4 != 0) {
        wait_for_inputs();
        for (u32 c = thread_x(); c < n_cols; c += NORM_THREADS) sum = fma_f32(row[c], row[c], sum);
        const float scale = scale_of(sum);
        for (u32 c = thread_x(); c < n_cols; c += NORM_THREADS) write_one(c, row[c] * scale * w[c]);
        return;
    }
    const auto column = [](u32 i) { return (i * NORM_THREADS + thread_x()) * 4; };
    Pack<float, 4> v[KEPT], g[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i)
        if (column(i) < n_cols) g[i] = load<4>(w + column(i));
    wait_for_inputs();
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i)
        if (column(i) < n_cols) v[i] = load<4>(row + column(i));
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i)
        if (column(i) < n_cols) sum = add_squares(sum, v[i]);
    for (u32 i = KEPT; column(i) < n_cols; ++i) sum = add_squares(sum, load<4>(row + column(i)));
    const float scale = scale_of(sum);
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i)
        if (column(i) < n_cols) write(column(i), scaled(v[i], g[i], scale));
    for (u32 i = KEPT; column(i) < n_cols; ++i)
        write(column(i), scaled(load<4>(row + column(i)), load<4>(w + column(i)), scale));
}
