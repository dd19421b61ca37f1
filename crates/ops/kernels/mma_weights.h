// Weights as halves in registers, in the order in which the matrix units take them (matmul_mma.hip, matmul_few.hip,
// experts_mma.hip): a lane loads whole groups of 32 weights, and a quarter of a group gives eight halves for two products
// of the units. halves.hip and experts.h lay the activations out to match.
#pragma once
#include "quant.h"

#if (defined(GPU_HAS_MMA) || defined(MMA_SHARES)) && (FORMAT == FORMAT_F16 || !IS_PLAIN)
#define HAS_MMA_WEIGHTS 1
// Of a group in its first plane, or a little less.
#if FORMAT == FORMAT_F16
#define GROUP_BYTES 64
#elif IS_MORE && (FORMAT == FORMAT_Q1_0 || FORMAT == FORMAT_IQ1_S || FORMAT == FORMAT_IQ1_M || FORMAT == FORMAT_IQ2_S || \
                  FORMAT == FORMAT_TQ1_0)
#define GROUP_BYTES 4
#elif IS_MORE && !HAS_NIBBLES
#define GROUP_BYTES 8
#else
#define GROUP_BYTES (FORMAT == FORMAT_Q8_0 ? 32 : 16)
#endif

#if FORMAT == FORMAT_F16
typedef Pack<u32, 4> Words4;
struct Raw {
    Words4 q[4];
};
DEVICE Raw load_group(const u8 *w, u32, u32 n_groups, u32 row, u32 g) {
    Raw raw;
    const u32 *from = (const u32 *)(w + ((u64)row * n_groups + g) * 64);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) raw.q[i] = load<4>(from + 4 * i);
    return raw;
}
struct Scale {};
DEVICE Scale scale_of(const Raw &, u32) { return {}; }
// Eight weights of a quarter: pairs for two products of the units.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &, u32 quarter) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) out[i] = raw.q[quarter].at[i];
}
#else

DEVICE u32 twice(u32 half) { return half | (half << 16); }
DEVICE u32 half_word(float f) { return twice(f16_to_bits(to_f16(f))); }

#if IS_MORE
// d0 and d1 times 64, each number twice in a word; quants are divided by as much, so that no scale is too small for a half.
#define Q_DIVISOR 64.0f
struct Scale {
    u32 d0, g;
#if HAS_TWO_SCALES
    u32 d1;
#endif
#if HAS_MIN
    u32 m;
#endif
#if HAS_TWO_MINS
    u32 m1;
#endif
};

DEVICE Scale scale_of(const Raw &raw, u32 g) {
    Group group;
    scale_group(group, raw, g);
    Scale scale;
    scale.g = g;
    scale.d0 = half_word(group.d0 * Q_DIVISOR);
#if HAS_TWO_SCALES
    scale.d1 = half_word(group.d1 * Q_DIVISOR);
#endif
#if HAS_MIN
    scale.m = half_word(group.m);
#endif
#if HAS_TWO_MINS
    scale.m1 = half_word(group.m1);
#endif
    return scale;
}

// Two quants that stand in bytes 0 and 2 of a word, 128 more than they are. 0x6400 | q is the half 1024 + q; a 64th of that
// less 18 is exact.
DEVICE u32 weights_of(u32 quants, u32 d, u32 m) {
    const u32 parts = fma_halves((quants & 0x00ff00ffu) | 0x64006400u, 0x24002400u, 0xcc80cc80u);
    return HAS_MIN ? fma_halves(parts, d, m) : mul_halves(parts, d);
}

// Eight weights of a quarter: 4i, 4i + 2 | 4i + 1, 4i + 3 | the same behind 16.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &scale, u32 quarter) {
    const u32 first = quants(raw, scale.g, quarter) ^ 0x80808080u, second = quants(raw, scale.g, 4 + quarter) ^ 0x80808080u;
#if HAS_TWO_SCALES
    const u32 d1 = scale.d1;
#else
    const u32 d1 = scale.d0;
#endif
#if HAS_TWO_MINS
    const u32 m = scale.m, m1 = scale.m1;
#elif HAS_MIN
    const u32 m = scale.m, m1 = scale.m;
#else
    const u32 m = 0, m1 = 0;
#endif
    out[0] = weights_of(first, scale.d0, m);
    out[1] = weights_of(first >> 8, scale.d0, m);
    out[2] = weights_of(second, d1, m1);
    out[3] = weights_of(second >> 8, d1, m1);
}
#else

// What turns the quants of a group into weights, each number twice in a word.
struct Scale {
    u32 d;
#if FORMAT == FORMAT_Q4_1 || FORMAT == FORMAT_Q4_K
    u32 m;
#endif
#if FORMAT == FORMAT_Q4_K
    u32 s, minus_s_1024;
#elif FORMAT == FORMAT_Q6_K
    u32 s0, s1;
#endif
};

DEVICE Scale scale_of(const Raw &raw, u32 g) {
    Scale scale;
#if FORMAT == FORMAT_Q4_0 || FORMAT == FORMAT_Q8_0
    scale.d = twice(raw.d);
#elif FORMAT == FORMAT_Q4_1
    scale.d = twice(raw.d & 0xffffu);
    scale.m = twice(raw.d >> 16);
#elif FORMAT == FORMAT_Q4_K
    // As unpack() in quant.h.
    const u32 j = g % 8, shift = 8 * (j % 4);
    const u32 a = raw.head.at[1] >> shift, b = raw.head.at[2] >> shift, c = raw.head.at[3] >> shift;
    const u32 step = j < 4 ? a & 63u : (c & 15u) | (((a >> 6) & 3u) << 4);
    const u32 min = j < 4 ? b & 63u : ((c >> 4) & 15u) | (((b >> 6) & 3u) << 4);
    scale.d = twice(raw.head.at[0] & 0xffffu);
    scale.m = half_word(-(half_bits(raw.head.at[0] >> 16) * (float)min));
    scale.s = half_word((float)step);
    scale.minus_s_1024 = half_word(-1024.0f * (float)step);
#elif FORMAT == FORMAT_Q6_K
    scale.d = twice(raw.d);
    scale.s0 = half_word((float)(i8)(raw.scales & 0xffu));
    scale.s1 = half_word((float)(i8)(raw.scales >> 8));
#endif
    return scale;
}

// Two quants that stand in bytes 0 and 2 of a word, as weights. 0x6400 | q is the half 1024 + q.
DEVICE u32 weights_of(u32 quants, const Scale &scale, u32 part) {
#if FORMAT == FORMAT_Q4_0
    return mul_halves(sub_halves((quants & 0x000f000fu) | 0x64006400u, 0x64086408u), scale.d);
#elif FORMAT == FORMAT_Q4_1
    return fma_halves(sub_halves((quants & 0x000f000fu) | 0x64006400u, 0x64006400u), scale.d, scale.m);
#elif FORMAT == FORMAT_Q8_0
    // The host's bytes are signed; with the top bit turned they are q + 128.
    return mul_halves(sub_halves((quants & 0x00ff00ffu) | 0x64006400u, 0x64806480u), scale.d);
#elif FORMAT == FORMAT_Q4_K
    // Quant times step stays a whole number under 2048: exact. Only d and m round.
    const u32 steps = fma_halves((quants & 0x000f000fu) | 0x64006400u, scale.s, scale.minus_s_1024);
    return fma_halves(steps, scale.d, scale.m);
#else
    const u32 whole = sub_halves((quants & 0x003f003fu) | 0x64006400u, 0x64206420u);
    return mul_halves(mul_halves(whole, part == 0 ? scale.s0 : scale.s1), scale.d);
#endif
}

// Eight weights of a quarter: 4i, 4i + 2 | 4i + 1, 4i + 3 | the same behind 16.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &scale, u32 quarter) {
    u32 first, second;
#if FORMAT == FORMAT_Q8_0
    first = raw.q.at[quarter] ^ 0x80808080u;
    second = raw.q2.at[quarter] ^ 0x80808080u;
#elif FORMAT == FORMAT_Q6_K
    const u32 nibbles = raw.q.at[quarter];
    first = (nibbles & 0x0f0f0f0fu) | (((raw.high.at[0] >> (2 * quarter)) & 0x03030303u) << 4);
    second = ((nibbles >> 4) & 0x0f0f0f0fu) | (((raw.high.at[1] >> (2 * quarter)) & 0x03030303u) << 4);
#else
    first = raw.q.at[quarter];
    second = first >> 4;
#endif
    out[0] = weights_of(first, scale, 0);
    out[1] = weights_of(first >> 8, scale, 0);
    out[2] = weights_of(second, scale, 1);
    out[3] = weights_of(second >> 8, scale, 1);
}
#endif
#endif

#endif
