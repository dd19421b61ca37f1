// Activations for the integer products. Each group of 32 numbers becomes 16-bit integers q with one scale, x = d * q,
// split into two signed bytes: q = 256 * high + low. |q| stays under 127 * 256, so that both fit.
//
// A row of n_groups groups lies as four planes of 16 bytes a group: high bytes 0-15, high 16-31, low 0-15, low 16-31;
// the scales lie behind all rows, four numbers a group: d, d * sum of q, the sum of squares of what a norm is made of
// (where there is one), and d * sum of the second sixteen q.
#pragma once
#include "prelude.h"

#define ROUND_LARGEST 32512.0f

// Number `k` of group `i` (counted over all rows); the 32 lanes of a group must come together, also past the end.
DEVICE void round_number(float value, float squares, u32 i, u32 k, u32 n_groups, bool is_inside, u8 *q, float *scales) {
    const float most = wave_max<32>(abs_f32(value));
    const float d = most / ROUND_LARGEST, inverse = most > 0.0f ? ROUND_LARGEST / most : 0.0f;
    const i32 n = (i32)round_f32(value * inverse);
    const i32 half = wave_sum<16>(n), other = across(half, 16);
    if (!is_inside) return;
    const i32 low = ((n + 128) & 255) - 128, high = (n - low) / 256;
    const u32 row = i / n_groups, g = i % n_groups;
    u8 *to = q + (u64)row * n_groups * 64 + (u64)(k / 16) * n_groups * 16 + g * 16 + k % 16;
    to[0] = (u8)high;
    to[(u64)n_groups * 32] = (u8)low;
    if (k == 0) {
        const Pack<float, 4> scale = {{d, d * (float)(half + other), squares, d * (float)other}};
        store<4>(scales + (u64)i * 4, scale);
    }
}
