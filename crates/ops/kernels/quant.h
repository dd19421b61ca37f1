// Weights in the planes that pack.hip makes of a file's blocks. One format per translation unit: FORMAT.
//
// A matrix [n_rows, n_cols] of a packed format lies as planes, each row after row, so that every load is aligned and
// neighbouring lanes read neighbouring bytes. The planes hold the file's bits, no more and no fewer. A group is 32 weights,
// a block as many groups as formats.h says (BLOCK_GROUPS):
//   Q4_0     16 bytes of nibbles a group | f16 d a group
//   Q4_1     16 bytes of nibbles a group | f16 d, f16 m a group
//   Q5_0     16 bytes of nibbles a group | 4 bytes of fifth bits a group | f16 d a group
//   Q5_1     16 bytes of nibbles a group | 4 bytes of fifth bits a group | f16 d, f16 m a group
//   Q8_0     32 bytes a group            | f16 d a group
//   Q2_K     8 bytes of bit pairs a group | 16 bytes of scales and minima a block | f16 d, f16 dmin a block
//   Q3_K     8 bytes of bit pairs a group | 4 bytes of third bits a group | 12 bytes of scales a block | f16 d a block
//   Q4_K     16 bytes of nibbles a group | 16 bytes a block: f16 d, f16 dmin, 12 bytes of scales and minima
//   Q5_K     16 bytes of nibbles a group | 4 bytes of fifth bits a group | as Q4_K
//   Q6_K     16 bytes of nibbles a group | 8 bytes of bit pairs a group | 16 scales a block | f16 d a block
//   IQ4_NL   16 bytes of nibbles a group | f16 d a group
//   IQ4_XS   16 bytes of nibbles a group | 8 bytes a block: f16 d, 2 bytes of high and 4 of low scale bits
//   MXFP4    16 bytes of nibbles a group | an exponent a group
//   NVFP4    16 bytes of nibbles a group | two scales a group
//   IQ3_XXS  8 codes a group | 4 bytes of signs and scale a group | f16 d a block
//   IQ3_S    8 codes a group | 4 bytes of signs a group | a byte of ninth bits a group | 4 bytes of scales a block | f16 d
//   IQ2_XXS  8 bytes a group: codes, signs, scale | f16 d a block
//   IQ2_XS   4 words of 16 bits a group: code and signs | a byte of scales a group | f16 d a block
//   IQ2_S    4 codes a group | 4 bytes of signs a group | a byte of high bits a group | a byte of scales a group | f16 d
//   IQ1_S    4 codes a group | 2 bytes of high bits, scale and sign a group | f16 d a block
//   IQ1_M    4 codes a group | 2 bytes of high bits and signs a group | 8 bytes a block: scales, and d in their top bits
//   TQ1_0    52 bytes of base-3 digits a block | f16 d a block
//   TQ2_0    8 bytes of bit pairs a group | f16 d a block
//   Q1_0     4 bytes a group | f16 d a block
//   Q2_0     8 bytes a group, four weights in each | f16 d a block
// In a group's nibbles, byte i holds weight i (low) and weight 16 + i (high). Byte b of word w of bit pairs holds, in pair
// j, weight 16 w + 4 j + b; byte b of single bits holds, in bit j, weight 4 j + b. Plain numbers (F32, F16, BF16) stay as rows.
#pragma once
#include "prelude.h"
#include "formats.h"

#define GROUP 32
#define IS_PLAIN (FORMAT <= FORMAT_BF16)

#if FORMAT == FORMAT_F32
typedef float Number;
#elif FORMAT == FORMAT_F16
typedef f16 Number;
#elif FORMAT == FORMAT_BF16
typedef bf16 Number;
#else

// Whether the two halves of a group have scales of their own, and minima.
#define HAS_TWO_SCALES                                                                                                \
    (FORMAT == FORMAT_Q6_K || FORMAT == FORMAT_Q3_K || FORMAT == FORMAT_Q2_K || FORMAT == FORMAT_NVFP4 ||             \
     FORMAT == FORMAT_IQ2_XS || FORMAT == FORMAT_IQ2_S || FORMAT == FORMAT_IQ1_M)
#define HAS_TWO_MINS (FORMAT == FORMAT_Q2_K)
#define HAS_MIN                                                                                                       \
    (FORMAT == FORMAT_Q4_0 || FORMAT == FORMAT_Q4_1 || FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q5_1 ||              \
     FORMAT == FORMAT_Q5_K || HAS_TWO_MINS)
// Formats that are decoded word by word in more_quants.h.
#define IS_MORE (FORMAT > FORMAT_Q6_K)

typedef Pack<u32, 4> Words4;
typedef Pack<u32, 2> Words2;

// 32 weights: weight = d * q + m, with d0 and m for the first sixteen, d1 and m1 for the rest. Four quants a word, in order.
struct Group {
    i32 q[8];
    float d0, d1, m, m1;
};

DEVICE float half_bits(u32 bits) { return to_f32(f16_from_bits((u16)bits)); }

// How weights are read; a kernel in which other blocks read them too says nothing.
#ifndef LOAD_WEIGHTS
#define LOAD_WEIGHTS load
#endif

#if IS_MORE
#include "more_quants.h"
#else

// A group as it lies in memory: loaded long before it is used.
struct Raw {
    Words4 q;
#if FORMAT == FORMAT_Q8_0
    Words4 q2;
#elif FORMAT == FORMAT_Q6_K
    Words2 high;
#endif
#if FORMAT == FORMAT_Q4_K
    Words4 head;
#elif FORMAT == FORMAT_Q6_K
    u16 scales;
    u16 d;
#elif FORMAT == FORMAT_Q4_1
    u32 d;
#else
    u16 d;
#endif
};

// Group `g` (of `n_groups` a row) of a row.
DEVICE Raw load_group(const u8 *w, u32 n_rows, u32 n_groups, u32 row, u32 g) {
    Raw raw;
    const u64 at = (u64)row * n_groups + g, all = (u64)n_rows * n_groups;
#if FORMAT == FORMAT_Q8_0
    raw.q = load<4>((const u32 *)(w + at * 32));
    raw.q2 = load<4>((const u32 *)(w + at * 32 + 16));
    raw.d = ((const u16 *)(w + all * 32))[at];
#else
    raw.q = LOAD_WEIGHTS<4>((const u32 *)(w + at * 16));
#if FORMAT == FORMAT_Q4_0
    raw.d = ((const u16 *)(w + all * 16))[at];
#elif FORMAT == FORMAT_Q4_1
    raw.d = ((const u32 *)(w + all * 16))[at];
#elif FORMAT == FORMAT_Q4_K
    raw.head = LOAD_WEIGHTS<4>((const u32 *)(w + all * 16 + at / 8 * 16));
#elif FORMAT == FORMAT_Q6_K
    raw.high = LOAD_WEIGHTS<2>((const u32 *)(w + all * 16 + at * 8));
    raw.scales = ((const u16 *)(w + all * 24))[at];
    raw.d = ((const u16 *)(w + all * 26))[at / 8];
#endif
#endif
    return raw;
}

// `g` is the group's number in its row: it chooses the scale inside a block of 256.
DEVICE Group unpack(const Raw &raw, u32 g) {
    Group group;
#if FORMAT == FORMAT_Q8_0
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        group.q[i] = (i32)raw.q.at[i];
        group.q[4 + i] = (i32)raw.q2.at[i];
    }
    group.d0 = group.d1 = half_bits(raw.d);
    group.m = 0.0f;
#else
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        group.q[i] = (i32)(raw.q.at[i] & 0x0f0f0f0fu);
        group.q[4 + i] = (i32)((raw.q.at[i] >> 4) & 0x0f0f0f0fu);
    }
#if FORMAT == FORMAT_Q4_0
    group.d0 = group.d1 = half_bits(raw.d);
    group.m = -8.0f * group.d0;
#elif FORMAT == FORMAT_Q4_1
    group.d0 = group.d1 = half_bits(raw.d & 0xffffu);
    group.m = half_bits(raw.d >> 16);
#elif FORMAT == FORMAT_Q4_K
    // Six bits each: scales 0-3 in bytes 0-3, minima 0-3 in bytes 4-7; of 4-7 the low nibbles are bytes 8-11 and the
    // top two bits are the tops of bytes 0-3 and 4-7.
    const u32 j = g % 8, shift = 8 * (j % 4);
    const u32 a = raw.head.at[1] >> shift, b = raw.head.at[2] >> shift, c = raw.head.at[3] >> shift;
    const u32 scale = j < 4 ? a & 63u : (c & 15u) | (((a >> 6) & 3u) << 4);
    const u32 min = j < 4 ? b & 63u : ((c >> 4) & 15u) | (((b >> 6) & 3u) << 4);
    group.d0 = group.d1 = half_bits(raw.head.at[0]) * (float)scale;
    group.m = -(half_bits(raw.head.at[0] >> 16) * (float)min);
#elif FORMAT == FORMAT_Q6_K
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 high = (raw.high.at[i / 4] >> (2 * (i % 4))) & 0x03030303u;
        const u32 q = (u32)group.q[i] | (high << 4);
        // q - 32 in each byte, with no borrow between them.
        group.q[i] = (i32)(((q | 0x80808080u) - 0x20202020u) ^ 0x80808080u);
    }
    const float d = half_bits(raw.d);
    group.d0 = d * (float)(i8)(raw.scales & 0xffu);
    group.d1 = d * (float)(i8)(raw.scales >> 8);
    group.m = 0.0f;
#endif
#endif
    group.m1 = group.m;
    return group;
}
#endif

// Weight `i` of the group, exactly as the format defines it.
DEVICE float weight_of(const Group &group, u32 i) {
    const float q = (float)(i8)(group.q[i / 4] >> (8 * (i % 4)));
    return fma_f32(i < 16 ? group.d0 : group.d1, q, i < 16 ? group.m : group.m1);
}
#endif
