// Functions that few kernels need, where no compiler brings them.
#pragma once
#include "prelude.h"

// Keys that a window hides of the first n_visible; 0 is no window. With the first bit set it does not slide: a row sees its
// own stretch of that many keys.
DEVICE u32 hidden_keys(u32 window, u32 n_visible) {
    const u32 n = window & 0x7fffffffu;
    if (n == 0 || n_visible == 0) return 0;
    if (window != n) return (n_visible - 1) / n * n;
    return n_visible > n ? n_visible - n : 0;
}

// Never beyond 1; near zero the quotient would lose its digits.
DEVICE float tanh_f32(float x) {
    const float square = x * x;
    const float near = x * (1.0f + square * (-1.0f / 3.0f + square * (2.0f / 15.0f)));
    const float e = fast_exp(-2.0f * abs_f32(x));
    const float far = (1.0f - e) / (1.0f + e);
    return abs_f32(x) < 0.04f ? near : x < 0.0f ? -far : far;
}

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
DEVICE float erf_f32(float x) {
    const float size = abs_f32(x);
    const float t = 1.0f / (1.0f + 0.3275911f * size);
    const float rest = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float value = 1.0f - rest * fast_exp(-size * size);
    return x < 0.0f ? -value : value;
}

DEVICE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }

// The keys [start, end) that a query sees. A window that slides counts the query itself and the keys before it; where
// queries see what follows them, it reaches as far to that side.
struct SeenKeys {
    bool is_causal;
    u32 window, n_context;
    DEVICE_MEMBER u32 start(u32 position) const { return hidden_keys(window, position + 1); }
    DEVICE_MEMBER u32 end(u32 position) const {
        return is_causal ? position + 1 : window ? min_u32(position + window, n_context) : n_context;
    }
};
