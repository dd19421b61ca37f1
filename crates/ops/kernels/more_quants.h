// The formats that are decoded word by word, four quants at a time: quant.h says how they lie. Included by quant.h alone.
//
// `quants(raw, g, i)` gives quants 4i to 4i + 3 of group `g` as signed bytes, `scale_group` what they are worth; a kernel
// that needs a few words at a time takes them one by one.
#pragma once
#include "grids.h"

#define HAS_NIBBLES                                                                                                   \
    (FORMAT == FORMAT_Q5_0 || FORMAT == FORMAT_Q5_1 || FORMAT == FORMAT_Q5_K || FORMAT == FORMAT_IQ4_NL ||            \
     FORMAT == FORMAT_IQ4_XS || FORMAT == FORMAT_MXFP4 || FORMAT == FORMAT_NVFP4)
#define HAS_FIFTH_BITS (FORMAT == FORMAT_Q5_0 || FORMAT == FORMAT_Q5_1 || FORMAT == FORMAT_Q5_K)
#define HAS_LEVELS                                                                                                    \
    (FORMAT == FORMAT_IQ4_NL || FORMAT == FORMAT_IQ4_XS || FORMAT == FORMAT_MXFP4 || FORMAT == FORMAT_NVFP4)
#define HAS_PAIRS (FORMAT == FORMAT_Q2_K || FORMAT == FORMAT_Q3_K || FORMAT == FORMAT_TQ2_0)

// A group as it lies in memory: loaded long before it is used. Words only: smaller fields went to scratch memory on AMD.
struct Raw {
#if HAS_NIBBLES
    Words4 q;
#elif FORMAT == FORMAT_TQ1_0
    u32 q[8];
#elif FORMAT == FORMAT_Q1_0 || FORMAT == FORMAT_IQ1_S || FORMAT == FORMAT_IQ1_M || FORMAT == FORMAT_IQ2_S
    u32 q;
#else
    Words2 q;
#endif
#if HAS_FIFTH_BITS || FORMAT == FORMAT_Q3_K
    u32 high;
#elif FORMAT == FORMAT_IQ3_XXS || FORMAT == FORMAT_IQ3_S || FORMAT == FORMAT_IQ2_S
    u32 signs;
#elif FORMAT == FORMAT_IQ1_S || FORMAT == FORMAT_IQ1_M
    u32 high;
#endif
#if FORMAT == FORMAT_IQ3_S || FORMAT == FORMAT_IQ2_S
    u32 high;
#endif
#if FORMAT == FORMAT_Q5_K
    Words4 head;
#elif FORMAT == FORMAT_IQ4_XS || FORMAT == FORMAT_IQ1_M
    Words2 head;
#else
#if FORMAT == FORMAT_Q3_K
    u32 scales[3];
#elif FORMAT == FORMAT_Q2_K || FORMAT == FORMAT_IQ3_S || FORMAT == FORMAT_IQ2_XS || FORMAT == FORMAT_IQ2_S
    u32 scales;
#endif
    u32 d;
#endif
};

// Group `g` (of `n_groups` a row) of a row.
DEVICE Raw load_group(const u8 *w, u32 n_rows, u32 n_groups, u32 row, u32 g) {
    Raw raw;
    const u64 at = (u64)row * n_groups + g, all = (u64)n_rows * n_groups, block = at / BLOCK_GROUPS;
#if HAS_NIBBLES
    raw.q = LOAD_WEIGHTS<4>((const u32 *)(w + at * 16));
    const u8 *rest = w + all * 16;
#elif FORMAT == FORMAT_TQ1_0
    // Groups 0 to 4 are a digit each of 32 bytes; the others are digits of 16 bytes and, in the last, of 4.
    const u32 *words = (const u32 *)(w + block * 52);
    const u32 first = g % 8 < 5 ? 0 : 8;
#pragma unroll
    for (u32 i = 0; i < 5; ++i) raw.q[i] = words[first + i];
#pragma unroll
    for (u32 i = 5; i < 8; ++i) raw.q[i] = words[i];
    const u8 *rest = w + all / 8 * 52;
#elif FORMAT == FORMAT_Q1_0 || FORMAT == FORMAT_IQ1_S || FORMAT == FORMAT_IQ1_M || FORMAT == FORMAT_IQ2_S
    raw.q = ((const u32 *)w)[at];
    const u8 *rest = w + all * 4;
#else
    raw.q = LOAD_WEIGHTS<2>((const u32 *)(w + at * 8));
    const u8 *rest = w + all * 8;
#endif
#if HAS_FIFTH_BITS || FORMAT == FORMAT_Q3_K
    raw.high = ((const u32 *)rest)[at];
    rest += all * 4;
#elif FORMAT == FORMAT_IQ3_XXS || FORMAT == FORMAT_IQ3_S || FORMAT == FORMAT_IQ2_S
    raw.signs = ((const u32 *)rest)[at];
    rest += all * 4;
#elif FORMAT == FORMAT_IQ1_S || FORMAT == FORMAT_IQ1_M
    raw.high = ((const u16 *)rest)[at];
    rest += all * 2;
#endif
#if FORMAT == FORMAT_IQ3_S || FORMAT == FORMAT_IQ2_S
    raw.high = rest[at];
    rest += all;
#endif
#if FORMAT == FORMAT_Q5_K
    raw.head = LOAD_WEIGHTS<4>((const u32 *)(rest + block * 16));
#elif FORMAT == FORMAT_IQ4_XS || FORMAT == FORMAT_IQ1_M
    raw.head = LOAD_WEIGHTS<2>((const u32 *)(rest + block * 8));
#elif FORMAT == FORMAT_Q5_1
    raw.d = ((const u32 *)rest)[at];
#elif FORMAT == FORMAT_Q2_K
    raw.scales = ((const u16 *)rest)[at];
    raw.d = ((const u32 *)(rest + all * 2))[block];
#elif FORMAT == FORMAT_Q3_K
#pragma unroll
    for (u32 i = 0; i < 3; ++i) raw.scales[i] = ((const u32 *)rest)[block * 3 + i];
    raw.d = ((const u16 *)(rest + all / 8 * 12))[block];
#elif FORMAT == FORMAT_IQ3_S
    raw.scales = ((const u32 *)rest)[block];
    raw.d = ((const u16 *)(rest + all / 8 * 4))[block];
#elif FORMAT == FORMAT_IQ2_XS || FORMAT == FORMAT_IQ2_S
    raw.scales = rest[at];
    raw.d = ((const u16 *)(rest + all))[block];
#elif FORMAT == FORMAT_MXFP4
    raw.d = rest[at];
#else
    // A block of one group, of two scales, or of many groups.
    raw.d = ((const u16 *)rest)[FORMAT == FORMAT_NVFP4 ? at : block];
#endif
    return raw;
}

// `small` off each of four bytes, with no borrow between them.
DEVICE u32 less(u32 bytes, u32 small) { return ((bytes | 0x80808080u) - small) ^ 0x80808080u; }

// The lowest four bits, and the lowest four pairs or triples of bits, in a byte each.
DEVICE u32 spread_1(u32 bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }
DEVICE u32 spread_2(u32 bits) {
    const u32 b = bits & 255u;
    return (b | (b << 6) | (b << 12) | (b << 18)) & 0x03030303u;
}
DEVICE u32 spread_3(u32 bits) {
    const u32 twos = (bits & 0x3fu) | ((bits & 0xfc0u) << 10);
    return (twos | (twos << 5)) & 0x07070707u;
}

// Four numbers, none of them zero, with signs: a bit each.
DEVICE u32 with_signs(u32 bytes, u32 signs) {
    const u32 ones = spread_1(signs);
    return (bytes ^ (ones * 255u)) + ones;
}

// Signs of eight weights from seven bits: the eighth makes their number even.
DEVICE u32 all_signs(u32 seven) {
    u32 odd = seven ^ (seven >> 4);
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | ((odd & 1u) << 7);
}

#if HAS_LEVELS
// What four codes of 4 bits, one in each byte, stand for.
DEVICE u32 levels_of(u32 codes) {
#if FORMAT == FORMAT_IQ4_NL || FORMAT == FORMAT_IQ4_XS
    // -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113
    const u32 low = pick_bytes(0xbfad9881u, 0xf6eaddcfu, codes & 0x07070707u);
    const u32 high = pick_bytes(0x26190d01u, 0x71594535u, codes & 0x07070707u);
#else
    // 0 1 2 3 | 4 6 8 12, and the same below zero
    const u32 low = pick_bytes(0x03020100u, 0x0c080604u, codes & 0x07070707u);
    const u32 high = pick_bytes(0xfdfeff00u, 0xf4f8fafcu, codes & 0x07070707u);
#endif
    const u32 is_high = ((codes >> 3) & 0x01010101u) * 255u;
    return low ^ ((low ^ high) & is_high);
}
#endif

#if FORMAT == FORMAT_TQ1_0
// Digit `n` of four bytes: a byte times 3^n keeps the digits from there on, and three times that is over by the first.
DEVICE u32 digits_of(u32 word, u32 n) {
    const u32 power = n == 0 ? 1u : n == 1 ? 3u : n == 2 ? 9u : n == 3 ? 27u : 81u;
    const u32 even = ((word & 0x00ff00ffu) * power) & 0x00ff00ffu, odd = (((word >> 8) & 0x00ff00ffu) * power) & 0x00ff00ffu;
    return ((even * 3u >> 8) & 0x00ff00ffu) | ((odd * 3u) & 0xff00ff00u);
}
#endif

DEVICE u32 quants(const Raw &raw, u32 g, u32 i) {
#if HAS_NIBBLES
    u32 q = (raw.q.at[i % 4] >> (i < 4 ? 0 : 4)) & 0x0f0f0f0fu;
#if HAS_FIFTH_BITS
    q |= ((raw.high >> i) & 0x01010101u) << 4;
    return FORMAT == FORMAT_Q5_0 ? less(q, 0x10101010u) : q;
#else
    return levels_of(q);
#endif
#elif HAS_PAIRS
    const u32 q = (raw.q.at[i / 4] >> (2 * (i % 4))) & 0x03030303u;
#if FORMAT == FORMAT_Q3_K
    return less(q | (((raw.high >> i) & 0x01010101u) << 2), 0x04040404u);
#elif FORMAT == FORMAT_TQ2_0
    return less(q, 0x01010101u);
#else
    return q;
#endif
#elif FORMAT == FORMAT_Q2_0
    return less(spread_2(raw.q.at[i / 4] >> (8 * (i % 4))), 0x01010101u);
#elif FORMAT == FORMAT_Q1_0
    return less(spread_1(raw.q >> (4 * i)) * 2u, 0x01010101u);
#elif FORMAT == FORMAT_TQ1_0
    const u32 j = g % 8, part = i / 4;
    const u32 word = part == 0 || j < 5 ? raw.q[i] : j == 7 ? raw.q[4] : raw.q[i % 4];
    const u32 n = j < 5 ? j : j < 7 ? 2 * (j - 5) + part : part == 0 ? 4 : i - 4;
    return less(digits_of(word, n), 0x01010101u);
#elif FORMAT == FORMAT_IQ3_XXS || FORMAT == FORMAT_IQ3_S
    const u32 code = (raw.q.at[i / 4] >> (8 * (i % 4))) & 255u;
#if FORMAT == FORMAT_IQ3_S
    const u32 c = spread_3(GRID[code | (((raw.high >> i) & 1u) << 8)]);
    return with_signs(2u * c + 0x01010101u, raw.signs >> (4 * i));
#else
    // 4, 12, 20 and so on, but 62 at the end.
    const u32 c = spread_3(GRID[code]), last = c & (c >> 1) & (c >> 2) & 0x01010101u;
    return with_signs(8u * c + 2u * last + 0x04040404u, all_signs((raw.signs >> (i / 2 * 7)) & 127u) >> (4 * (i % 2)));
#endif
#elif FORMAT == FORMAT_IQ2_XXS || FORMAT == FORMAT_IQ2_XS || FORMAT == FORMAT_IQ2_S
    const u32 k = i / 2;
#if FORMAT == FORMAT_IQ2_XXS
    const u32 code = (raw.q.at[0] >> (8 * k)) & 255u, signs = all_signs((raw.q.at[1] >> (7 * k)) & 127u);
#elif FORMAT == FORMAT_IQ2_XS
    const u32 both = raw.q.at[k / 2] >> (16 * (k % 2)), code = both & 511u, signs = all_signs((both >> 9) & 127u);
#else
    const u32 code = ((raw.q >> (8 * k)) & 255u) | (((raw.high >> (2 * k)) & 3u) << 8), signs = raw.signs >> (8 * k);
#endif
    // 8, 25, 43
    const u32 c = spread_2((u32)GRID[code] >> (8 * (i % 2)));
    return with_signs(17u * c + ((c >> 1) & 0x01010101u) + 0x08080808u, signs >> (4 * (i % 2)));
#else
    // -1, 0 or 1, an eighth more or less: in eighths.
    const u32 k = i / 2;
#if FORMAT == FORMAT_IQ1_S
    const u32 high = (raw.high >> (3 * k)) & 7u;
    const bool is_less = raw.high >> 15;
#else
    const u32 high = (raw.high >> (4 * k)) & 7u;
    const bool is_less = (raw.high >> (4 * k + 3)) & 1;
#endif
    const u32 c = spread_2((u32)GRID[((raw.q >> (8 * k)) & 255u) | (high << 8)] >> (8 * (i % 2)));
    return less(8u * c, is_less ? 0x09090909u : 0x07070707u);
#endif
}

#if FORMAT == FORMAT_Q3_K
// Of sixteen scales of six bits: the low four in nibbles of eight bytes, the high two in pairs of four.
DEVICE float scale_3(const Raw &raw, u32 s) {
    const u32 low = ((s % 8 < 4 ? raw.scales[0] : raw.scales[1]) >> (8 * (s % 4) + 4 * (s / 8))) & 15u;
    const u32 high = (raw.scales[2] >> (8 * (s % 4) + 2 * (s / 4))) & 3u;
    return (float)((i32)(low | (high << 4)) - 32);
}
#elif FORMAT == FORMAT_NVFP4
// Half of an unsigned number with four bits of exponent and three of fraction.
DEVICE float half_scale(u32 bits) {
    const u32 exponent = (bits >> 3) & 15u, fraction = bits & 7u;
    if (bits == 0 || bits == 0x7f) return 0.0f;
    if (exponent == 0) return (float)fraction * (0.5f / 512.0f);
    return bits_as<float>(((exponent + 119u) << 23) | (fraction << 20));
}
#endif

// d and m of the halves of a group.
DEVICE void scale_group(Group &group, const Raw &raw, u32 g) {
    const u32 j = g % 8;
    float d0, d1, m = 0.0f, m1 = 0.0f;
#if FORMAT == FORMAT_Q5_1
    d0 = d1 = half_bits(raw.d & 0xffffu);
    m = m1 = half_bits(raw.d >> 16);
#elif FORMAT == FORMAT_Q5_K
    // As Q4_K.
    const u32 shift = 8 * (j % 4);
    const u32 a = raw.head.at[1] >> shift, b = raw.head.at[2] >> shift, c = raw.head.at[3] >> shift;
    const u32 scale = j < 4 ? a & 63u : (c & 15u) | (((a >> 6) & 3u) << 4);
    const u32 min = j < 4 ? b & 63u : ((c >> 4) & 15u) | (((b >> 6) & 3u) << 4);
    d0 = d1 = half_bits(raw.head.at[0]) * (float)scale;
    m = m1 = -(half_bits(raw.head.at[0] >> 16) * (float)min);
#elif FORMAT == FORMAT_Q2_K
    const float d = half_bits(raw.d & 0xffffu), dmin = half_bits(raw.d >> 16);
    d0 = d * (float)(raw.scales & 15);
    d1 = d * (float)((raw.scales >> 8) & 15);
    m = -(dmin * (float)((raw.scales >> 4) & 15));
    m1 = -(dmin * (float)(raw.scales >> 12));
#elif FORMAT == FORMAT_Q3_K
    d0 = half_bits(raw.d) * scale_3(raw, 2 * j);
    d1 = half_bits(raw.d) * scale_3(raw, 2 * j + 1);
#elif FORMAT == FORMAT_IQ4_XS
    const u32 low = (raw.head.at[1] >> (4 * j)) & 15u, high = (raw.head.at[0] >> (16 + 2 * j)) & 3u;
    d0 = d1 = half_bits(raw.head.at[0]) * (float)((i32)(low | (high << 4)) - 32);
#elif FORMAT == FORMAT_MXFP4
    // Half of a power of two.
    d0 = d1 = bits_as<float>(raw.d < 2 ? 0x00200000u << raw.d : (u32)(raw.d - 1) << 23);
#elif FORMAT == FORMAT_NVFP4
    d0 = half_scale(raw.d & 255u);
    d1 = half_scale(raw.d >> 8);
#elif FORMAT == FORMAT_IQ3_XXS
    d0 = d1 = half_bits(raw.d) * (0.5f + (float)(raw.signs >> 28)) * 0.5f;
#elif FORMAT == FORMAT_IQ3_S
    d0 = d1 = half_bits(raw.d) * (float)(1u + 2u * ((raw.scales >> (4 * j)) & 15u));
#elif FORMAT == FORMAT_IQ2_XXS
    d0 = d1 = half_bits(raw.d) * (0.5f + (float)(raw.q.at[1] >> 28)) * 0.25f;
#elif FORMAT == FORMAT_IQ2_XS || FORMAT == FORMAT_IQ2_S
    d0 = half_bits(raw.d) * (0.5f + (float)(raw.scales & 15)) * 0.25f;
    d1 = half_bits(raw.d) * (0.5f + (float)(raw.scales >> 4)) * 0.25f;
#elif FORMAT == FORMAT_IQ1_S
    d0 = d1 = half_bits(raw.d) * (float)(2u * ((raw.high >> 12) & 7u) + 1u) * 0.125f;
#elif FORMAT == FORMAT_IQ1_M
    const u32 a = raw.head.at[0], b = raw.head.at[1];
    const u32 bits = ((a >> 12) & 0xfu) | ((a >> 24) & 0xf0u) | ((b >> 4) & 0xf00u) | ((b >> 16) & 0xf000u);
    const u32 scales = (j < 4 ? a : b) >> (16 * (j / 2 % 2) + 6 * (j % 2));
    d0 = half_bits(bits) * (float)(2u * (scales & 7u) + 1u) * 0.125f;
    d1 = half_bits(bits) * (float)(2u * ((scales >> 3) & 7u) + 1u) * 0.125f;
#else
    d0 = d1 = half_bits(raw.d);
#endif
    group.d0 = d0;
    group.d1 = d1;
    group.m = m;
    group.m1 = m1;
}

// `g` is the group's number in its row: it chooses the scale inside a block.
DEVICE Group unpack(const Raw &raw, u32 g) {
    Group group;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) group.q[i] = (i32)quants(raw, g, i);
    scale_group(group, raw, g);
    return group;
}
