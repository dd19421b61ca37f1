// matmul_units: out[r, o] (+)= sum_k x[r, k] * w[o, k] for many rows, on the matrix units of any chip that has them
// (prelude.h's tile: WMMA, MFMA, mma). Weights become halves on their way into shared memory, activations halves divided
// by X_DIVISOR so that outliers stay finite; sums are f32.
//
// A block takes 64 rows of x and 128 weight rows, 32 columns at a time; the next ones are loaded while the units work.
// n_in is a multiple of 32.
#include "unit_weights.h"

#define THREADS 256
#define ROWS 64
#define OUTS 128
#define DEPTH 32
// 16 bytes of padding: rows start in different banks and stay aligned.
#define STRIDE (DEPTH + 8)
#define X_DIVISOR 16.0f

#if defined(HAS_UNIT_WEIGHTS)

#define N_WAVES (THREADS / GPU_WAVE)
// 16 weight rows a tile; each wave takes a few of them with all rows of x.
#define WAVE_TILES (OUTS / 16 / N_WAVES)
#define ROW_TILES (ROWS / 16)

KERNEL(THREADS)
matmul_units(const float *__restrict__ x, const u8 *__restrict__ w, float *__restrict__ out, u32 n_rows, u32 n_in,
             u32 n_out, u32 adds) {
    __shared__ Pack<u32, 4> x_words[ROWS * STRIDE / 8], w_words[OUTS * STRIDE / 8];
    f16 *xs = (f16 *)x_words, *ws = (f16 *)w_words;
    const u32 t = thread_x(), wave = t / GPU_WAVE, n_groups = n_in / DEPTH;
    const u32 row0 = block_y() * ROWS, out0 = block_x() * OUTS;
    // What this thread brings: eight numbers of a row of x, half a group of a weight row. Past the end any row serves.
    const u32 x_row = row0 + t / 4 < n_rows ? row0 + t / 4 : n_rows - 1, x_column = t % 4 * 8;
    const u32 w_row = out0 + t / 2 < n_out ? out0 + t / 2 : n_out - 1, half = t % 2;
    const float *x_from = x + (u64)x_row * n_in + x_column;
    MmaSum sum[WAVE_TILES][ROW_TILES];
#pragma unroll
    for (u32 i = 0; i < WAVE_TILES; ++i)
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; ++r) mma_clear(sum[i][r]);
    Pack<float, 4> x_next[2] = {load<4>(x_from), load<4>(x_from + 4)};
    Part w_next = load_part(w, n_out, n_groups, w_row, 0, half);
    for (u32 g = 0; g < n_groups; ++g) {
        Pack<u32, 4> eight;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const Pack<float, 4> &from = x_next[i / 2];
            const float a = from.at[i % 2 * 2], b = from.at[i % 2 * 2 + 1];
            eight.at[i] = pack_halves(a * (1.0f / X_DIVISOR), b * (1.0f / X_DIVISOR));
        }
        barrier();
        store<4>((u32 *)(xs + t / 4 * STRIDE + x_column), eight);
        store_part(ws + t / 2 * STRIDE + half * 16, w_next, g, half);
        barrier();
        if (g + 1 < n_groups) {
            x_next[0] = load<4>(x_from + (u64)(g + 1) * DEPTH);
            x_next[1] = load<4>(x_from + (u64)(g + 1) * DEPTH + 4);
            w_next = load_part(w, n_out, n_groups, w_row, g + 1, half);
        }
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            MmaFactor rows[ROW_TILES];
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; ++r) rows[r] = mma_load(xs + r * 16 * STRIDE + k, STRIDE);
#pragma unroll
            for (u32 i = 0; i < WAVE_TILES; ++i) {
                const MmaFactor weights = mma_load(ws + (wave * WAVE_TILES + i) * 16 * STRIDE + k, STRIDE);
#pragma unroll
                for (u32 r = 0; r < ROW_TILES; ++r) mma(sum[i][r], rows[r], weights);
            }
        }
    }
#pragma unroll
    for (u32 tile = 0; tile < WAVE_TILES; ++tile) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; ++r) {
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                const u32 row = row0 + r * 16 + mma_row(i), o = out0 + (wave * WAVE_TILES + tile) * 16 + mma_column(i);
                if (row >= n_rows || o >= n_out) continue;
                float *at = out + (u64)row * n_out + o;
                const float value = mma_sum(sum[tile][r], i) * X_DIVISOR;
                *at = adds ? *at + value : value;
            }
        }
    }
}

#endif
