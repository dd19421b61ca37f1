// experts_units: the products of a mixture on the matrix units of any chip that has them (prelude.h's tile: WMMA, MFMA, mma),
// every expert of a layer in one launch. The same kernels as experts_mma.hip, for chips whose units take whole tiles;
// activations lie in order.
//
// A block takes a tile of up to ROWS positions of one expert and 128 weight rows, 32 columns at a time; the next ones are
// loaded while the units work. experts_gated: 64 rows of the gate and the same 64 of its partner, and a wave has both of a
// tile, so that what comes out is gated at once. n_in is a multiple of 32.
#include "experts.h"
#include "gate.h"
#include "unit_weights.h"

// Positions of a tile, in eights, and the activation: the host always says; a compiler run by hand may not.
#ifndef TILES
#define TILES 8
#endif
#ifndef ACT
#define ACT SILU
#endif
#define ROWS (TILES * 8)
#define THREADS 256
#define SET_OUTS 64
#define DEPTH 32
// 16 bytes of padding: rows start in different banks and stay aligned.
#define STRIDE (DEPTH + 8)

#if defined(HAS_UNIT_WEIGHTS)

#define N_WAVES (THREADS / GPU_WAVE)
// Four waves side by side cover the 64 weight rows of a set; the rest take other rows of x.
#define ROW_WAVES (N_WAVES / 4)
#define ROW_TILES (ROWS / 16 / ROW_WAVES)

// 64 weight rows of one matrix, twice.
struct Factor {
    const u8 *w[2];
    u32 row[2];
    u32 n_out;
};

// sum[s][r]: set s of weight rows, tile r of the wave's rows of x.
DEVICE void multiply(MmaSum (&sum)[2][ROW_TILES], const u32 *x_from, const Factor &factor, u32 n_groups, f16 *xs, f16 *ws) {
    const u32 t = thread_x(), wave = t / GPU_WAVE, set = t / 128, half = t % 2;
    const u32 wanted = (set ? factor.row[1] : factor.row[0]) + t % 128 / 2, w_row = wanted < factor.n_out ? wanted : factor.n_out - 1;
    const u8 *w = set ? factor.w[1] : factor.w[0];
    const bool copies = t < ROWS * 4;
    const u32 row0 = wave / 4 * ROW_TILES * 16, column0 = wave % 4 * 16;
#pragma unroll
    for (u32 s = 0; s < 2; ++s)
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; ++r) mma_clear(sum[s][r]);
    Pack<u32, 4> x_next = {};
    if (copies) x_next = load<4>(x_from);
    Part w_next = load_part(w, factor.n_out, n_groups, w_row, 0, half);
    for (u32 g = 0; g < n_groups; ++g) {
        barrier();
        if (copies) store<4>((u32 *)(xs + t / 4 * STRIDE + t % 4 * 8), x_next);
        store_part(ws + t / 2 * STRIDE + half * 16, w_next, g, half);
        barrier();
        if (g + 1 < n_groups) {
            if (copies) x_next = load<4>(x_from + (u64)(g + 1) * (DEPTH / 2));
            w_next = load_part(w, factor.n_out, n_groups, w_row, g + 1, half);
        }
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            MmaFactor rows[ROW_TILES];
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; ++r) rows[r] = mma_load(xs + (row0 + r * 16) * STRIDE + k, STRIDE);
#pragma unroll
            for (u32 s = 0; s < 2; ++s) {
                const MmaFactor weights = mma_load(ws + (s * SET_OUTS + column0) * STRIDE + k, STRIDE);
#pragma unroll
                for (u32 r = 0; r < ROW_TILES; ++r) mma(sum[s][r], rows[r], weights);
            }
        }
    }
}

// What this thread copies of x: eight halves of the row at its position; past the end any row serves.
DEVICE u32 position_of(const ExpertTile &tile) {
    const u32 row = thread_x() / 4;
    return tile.first + (row < tile.n ? row : tile.n - 1);
}

// out: rows of halves by position, `out_words` each. Biases may be null and lie bias_step numbers apart.
KERNEL(THREADS)
experts_gated(const u32 *__restrict__ x, const u8 *__restrict__ w0, const u8 *__restrict__ w1, const float *__restrict__ b0,
              const float *__restrict__ b1, const u32 *__restrict__ order, const u32 *__restrict__ tiles,
              f16 *__restrict__ out, u64 step0, u64 step1, u64 bias_step0, u64 bias_step1, u32 n_out, u32 n_groups,
              u32 row_words, u32 out_words, u32 share, u32, float alpha, float limit) {
    __shared__ Pack<u32, 4> x_words[ROWS * STRIDE / 8], w_words[2 * SET_OUTS * STRIDE / 8];
    if (block_x() >= tiles[0]) return;
    const ExpertTile tile = tile_at(tiles, block_x());
    const u32 out0 = block_y() * SET_OUTS, wave = thread_x() / GPU_WAVE;
    const u32 *from = x + (u64)(order[position_of(tile)] / share) * row_words + thread_x() % 4 * 4;
    const Factor factor = {{w0 + tile.expert * step0, w1 + tile.expert * step1}, {out0, out0}, n_out};
    MmaSum sum[2][ROW_TILES];
    multiply(sum, from, factor, n_groups, (f16 *)x_words, (f16 *)w_words);
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; ++r) {
#pragma unroll
        for (u32 i = 0; i < MMA_SUMS; ++i) {
            const u32 row = (wave / 4 * ROW_TILES + r) * 16 + mma_row(i), o = out0 + wave % 4 * 16 + mma_column(i);
            if (row >= tile.n || o >= out_words * 2) continue;
            float value = 0.0f;
            if (o < n_out) {
                const float gate_bias = b0 ? b0[tile.expert * bias_step0 + o] : 0.0f;
                const float up_bias = b1 ? b1[tile.expert * bias_step1 + o] : 0.0f;
                const float gate = mma_sum(sum[0][r], i) * X_DIVISOR + gate_bias;
                const float up = mma_sum(sum[1][r], i) * X_DIVISOR + up_bias;
                value = soon_rounded({ACT, alpha, limit}, gate, up) * (1.0f / X_DIVISOR);
            }
            out[(u64)(tile.first + row) * out_words * 2 + o] = to_f16(value);
        }
    }
}

// out: [pair, n_out] f32.
KERNEL(THREADS)
experts_down(const u32 *__restrict__ x, const u8 *__restrict__ w, const float *__restrict__ bias,
             const u32 *__restrict__ order, const u32 *__restrict__ tiles, float *__restrict__ out, u64 step, u64 bias_step,
             u32 n_out, u32 n_groups, u32 row_words) {
    __shared__ Pack<u32, 4> x_words[ROWS * STRIDE / 8], w_words[2 * SET_OUTS * STRIDE / 8];
    if (block_x() >= tiles[0]) return;
    const ExpertTile tile = tile_at(tiles, block_x());
    const u32 out0 = block_y() * 2 * SET_OUTS, wave = thread_x() / GPU_WAVE;
    const u32 *from = x + (u64)position_of(tile) * row_words + thread_x() % 4 * 4;
    const u8 *mine = w + tile.expert * step;
    const Factor factor = {{mine, mine}, {out0, out0 + SET_OUTS}, n_out};
    MmaSum sum[2][ROW_TILES];
    multiply(sum, from, factor, n_groups, (f16 *)x_words, (f16 *)w_words);
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; ++r) {
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                const u32 row = (wave / 4 * ROW_TILES + r) * 16 + mma_row(i);
                const u32 o = out0 + s * SET_OUTS + wave % 4 * 16 + mma_column(i);
                if (row >= tile.n || o >= n_out) continue;
                const float add = bias ? bias[tile.expert * bias_step + o] : 0.0f;
                out[(u64)order[tile.first + row] * n_out + o] = mma_sum(sum[s][r], i) * X_DIVISOR + add;
            }
        }
    }
}

#endif
