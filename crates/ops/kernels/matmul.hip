// matmul: out[r, o] (+)= sum_k x[r, k] * w[o, k] for many rows, in f32 from tiles in shared memory. Right on every
// chip and for every shape; the matrix units are other kernels.
#include "quant.h"

#define THREADS 256
#define TILE 64
#define DEPTH 32
#define PAD 4

KERNEL(THREADS)
matmul_tile(const float *__restrict__ x, const u8 *__restrict__ w, float *__restrict__ out, u32 n_rows, u32 n_in,
            u32 n_out, u32 adds) {
    __shared__ float xs[DEPTH][TILE + PAD], ws[DEPTH][TILE + PAD];
    const u32 t = thread_x(), row0 = block_y() * TILE, out0 = block_x() * TILE;
    const u32 tr = t / 16 * 4, to = t % 16 * 4;
    float sum[4][4] = {};
    for (u32 k0 = 0; k0 < n_in; k0 += DEPTH) {
        for (u32 i = t; i < TILE * DEPTH; i += THREADS) {
            const u32 r = i / DEPTH, k = i % DEPTH;
            xs[k][r] = row0 + r < n_rows && k0 + k < n_in ? x[(u64)(row0 + r) * n_in + k0 + k] : 0.0f;
        }
#if IS_PLAIN
        for (u32 i = t; i < TILE * DEPTH; i += THREADS) {
            const u32 o = i / DEPTH, k = i % DEPTH;
            const bool is_inside = out0 + o < n_out && k0 + k < n_in;
            ws[k][o] = is_inside ? to_f32(((const Number *)w)[(u64)(out0 + o) * n_in + k0 + k]) : 0.0f;
        }
#else
        {
            // A group of 32 a tile row: four threads share it.
            const u32 o = t / 4, part = t % 4 * 8;
            if (out0 + o < n_out) {
                const u32 g = k0 / GROUP;
                const Group group = unpack(load_group(w, n_out, n_in / GROUP, out0 + o, g), g);
#pragma unroll
                for (u32 i = 0; i < 32; ++i)
                    if (i / 8 == t % 4) ws[i][o] = weight_of(group, i);
            } else {
                for (u32 i = 0; i < 8; ++i) ws[part + i][o] = 0.0f;
            }
        }
#endif
        barrier();
#pragma unroll 8
        for (u32 k = 0; k < DEPTH; ++k) {
            const Pack<float, 4> a = load<4>(&xs[k][tr]), b = load<4>(&ws[k][to]);
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) sum[i][j] = fma_f32(a.at[i], b.at[j], sum[i][j]);
        }
        barrier();
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 r = row0 + tr + i, o = out0 + to + j;
            if (r < n_rows && o < n_out) {
                float *at = out + (u64)r * n_out + o;
                *at = adds ? *at + sum[i][j] : sum[i][j];
            }
        }
    }
}
