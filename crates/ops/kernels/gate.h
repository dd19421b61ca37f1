// The activations of a gated feed-forward block: what one number becomes, and what a gate and its partner become together.
#pragma once
#include "functions.h"

// As crates/ops/src/glu.rs numbers them.
#define SILU 0
#define GELU_TANH 1
#define GELU 2
#define CLAMPED_SWIGLU 3
#define RELU_SQUARED 4
#define XIELU 5
#define SIGMOID 6
#define IDENTITY 7
#define TANH 8

DEVICE float act(u32 kind, float x) {
    switch (kind) {
        case GELU_TANH: return x / (1.0f + fast_exp(-1.5957692f * (x + 0.044715f * x * x * x)));
        case GELU: return 0.5f * x * (1.0f + erf_f32(x * 0.70710678f));
        case RELU_SQUARED: return x > 0.0f ? x * x : 0.0f;
        case SIGMOID: return 1.0f / (1.0f + fast_exp(-x));
        case IDENTITY: return x;
        case TANH: return 2.0f / (1.0f + fast_exp(-2.0f * x)) - 1.0f;
        default: return x / (1.0f + fast_exp(-x));
    }
}

// As crates/ops/src/glu.rs has it.
struct Xielu {
    float alpha_p, alpha_n, beta, eps;
};

DEVICE float xielu(const Xielu &by, float x) {
    if (x > 0.0f) return by.alpha_p * x * x + by.beta * x;
    const float y = min_f32(x, by.eps);
    // Near zero the difference would lose its digits.
    const float grown = y > -0.03f ? y * (1.0f + y * (0.5f + y * (1.0f / 6.0f + y * (1.0f / 24.0f)))) : fast_exp(y) - 1.0f;
    return by.alpha_n * (grown - x) + by.beta * x;
}

struct Gate {
    u32 kind;
    float alpha, limit;
};

DEVICE float gated(const Gate &by, float gate, float up) {
    if (by.kind != CLAMPED_SWIGLU) return act(by.kind, gate) * up;
    const float g = min_f32(gate, by.limit), u = max_f32(min_f32(up, by.limit), -by.limit);
    return g / (1.0f + fast_exp(-by.alpha * g)) * (u + 1.0f);
}

// The same where the result is rounded to a half next: the commonest by the hardware's approximations.
DEVICE float soon_rounded(const Gate &by, float gate, float up) {
#if defined(GPU_HAS_MMA)
    if (by.kind == SILU) return gate * up * quick_rcp(1.0f + fast_exp2(-1.4426950408889634f * gate));
#endif
    return gated(by, gate, up);
}
