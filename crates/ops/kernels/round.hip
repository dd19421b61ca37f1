// round: activations for the integer products. Each group of 32 numbers becomes 16-bit integers q with one scale,
// x = d * q, split into two signed bytes: q = 256 * high + low. |q| stays under 127 * 256, so that both fit.
//
// A row of n_groups groups lies as four planes of 16 bytes a group: high bytes 0-15, high 16-31, low 0-15, low 16-31;
// the scales lie behind all rows, (d, d * sum of q) a group.
#include "prelude.h"

#define THREADS 256
#define LARGEST 32512.0f

KERNEL(THREADS)
round_rows(const float *__restrict__ x, u8 *__restrict__ q, float *__restrict__ scales, u32 n_groups, u32 n_all) {
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    const float value = i < n_all ? x[(u64)i * 32 + k] : 0.0f;
    const float most = wave_max<32>(abs_f32(value));
    const float d = most / LARGEST, inverse = most > 0.0f ? LARGEST / most : 0.0f;
    const i32 n = (i32)round_f32(value * inverse);
    const i32 sum = wave_sum<32>(n);
    if (i >= n_all) return;
    const i32 low = ((n + 128) & 255) - 128, high = (n - low) / 256;
    const u32 row = i / n_groups, g = i % n_groups;
    u8 *to = q + (u64)row * n_groups * 64 + (u64)(k / 16) * n_groups * 16 + g * 16 + k % 16;
    to[0] = (u8)high;
    to[(u64)n_groups * 32] = (u8)low;
    if (k == 0) {
        scales[(u64)i * 2] = d;
        scales[(u64)i * 2 + 1] = d * (float)sum;
    }
}
