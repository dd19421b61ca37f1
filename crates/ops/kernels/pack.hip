// pack: from a file's blocks, row after row, to the planes of quant.h. One thread a group of 32 weights.
#include "quant.h"

#define THREADS 256

// A matrix on its way: group `at` of `all` goes behind `dst`, which moves on from plane to plane.
struct Planes {
    u8 *dst;
    u64 at, all;

    // n bytes of a group.
    DEVICE_MEMBER void put(const u8 *from, u32 n) {
        for (u32 b = 0; b < n; ++b) dst[at * n + b] = from[b];
        dst += all * n;
    }

    // n bytes of a block, by the thread of its first group.
    DEVICE_MEMBER void put_block(const u8 *from, u32 n) {
        if (at % BLOCK_GROUPS == 0)
            for (u32 b = 0; b < n; ++b) dst[at / BLOCK_GROUPS * n + b] = from[b];
        dst += all / BLOCK_GROUPS * n;
    }

    // Nibbles: nibble(w) is that of weight w.
    template <class Nibble>
    DEVICE_MEMBER void put_nibbles(Nibble nibble) {
        for (u32 b = 0; b < 16; ++b) dst[at * 16 + b] = (u8)(nibble(b) | (nibble(16 + b) << 4));
        dst += all * 16;
    }

    template <class Bits>
    DEVICE_MEMBER void put_pairs(Bits bits) {
        for (u32 b = 0; b < 8; ++b) {
            u32 byte = 0;
            for (u32 j = 0; j < 4; ++j) byte |= bits(16 * (b / 4) + 4 * j + b % 4) << (2 * j);
            dst[at * 8 + b] = (u8)byte;
        }
        dst += all * 8;
    }

    template <class Bit>
    DEVICE_MEMBER void put_bits(Bit bit) {
        for (u32 b = 0; b < 4; ++b) {
            u32 byte = 0;
            for (u32 j = 0; j < 8; ++j) byte |= bit(4 * j + b) << j;
            dst[at * 4 + b] = (u8)byte;
        }
        dst += all * 4;
    }
};

// `src` holds rows first_row.. of the matrix, n_src_groups groups of 32 in all.
KERNEL(THREADS)
pack(const u8 *__restrict__ src, u8 *__restrict__ dst, u32 n_rows, u32 n_groups, u32 first_row, u32 n_src_groups) {
    const u32 i = block_x() * THREADS + thread_x();
    if (i >= n_src_groups) return;
    Planes to = {dst, (u64)first_row * n_groups + i, (u64)n_rows * n_groups};
    const u8 *block = src + (u64)(i / BLOCK_GROUPS) * BLOCK_BYTES;
    const u32 j = i % BLOCK_GROUPS;
#if FORMAT == FORMAT_Q4_0 || FORMAT == FORMAT_Q4_1 || FORMAT == FORMAT_Q8_0 || FORMAT == FORMAT_IQ4_NL || FORMAT == FORMAT_MXFP4
    const u32 n_head = FORMAT == FORMAT_MXFP4 ? 1 : FORMAT == FORMAT_Q4_1 ? 4 : 2;
    to.put(block + n_head, BLOCK_BYTES - n_head);
    to.put(block, n_head);
#elif FORMAT == FORMAT_Q5_0 || FORMAT == FORMAT_Q5_1
    const u32 n_head = FORMAT == FORMAT_Q5_1 ? 4 : 2;
    to.put(block + n_head + 4, 16);
    to.put_bits([&](u32 w) { return (u32)(block[n_head + w / 8] >> (w % 8)) & 1u; });
    to.put(block, n_head);
#elif FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q5_K
    // Groups 2k and 2k + 1 share 32 bytes: low nibbles the first, high nibbles the second.
    const u8 *nibbles = block + (FORMAT == FORMAT_Q5_K ? 48 : 16) + j / 2 * 32;
    to.put_nibbles([&](u32 w) { return (u32)(nibbles[w] >> (4 * (j % 2))) & 15u; });
#if FORMAT == FORMAT_Q5_K
    to.put_bits([&](u32 w) { return (u32)(block[16 + w] >> j) & 1u; });
#endif
    to.put_block(block, 16);
#elif FORMAT == FORMAT_Q6_K
    // Each half of 128: 64 bytes of low nibbles, 32 bytes of bit pairs; a group is a quarter of a half.
    const u32 half = j / 4, part = j % 4;
    const u8 *low = block + half * 64 + 32 * (part % 2), *high = block + 128 + half * 32;
    to.put_nibbles([&](u32 w) { return (u32)(low[w] >> (4 * (part / 2))) & 15u; });
    to.put_pairs([&](u32 w) { return (u32)(high[w] >> (2 * part)) & 3u; });
    to.put(block + 192 + 2 * j, 2);
    to.put_block(block + 208, 2);
#elif FORMAT == FORMAT_Q2_K || FORMAT == FORMAT_Q3_K || FORMAT == FORMAT_TQ2_0
    // Each half of 128 has 32 bytes: a group is a bit pair of every one.
    const u8 *pairs = block + (FORMAT == FORMAT_Q2_K ? 16 : FORMAT == FORMAT_Q3_K ? 32 : 0) + j / 4 * 32;
    to.put_pairs([&](u32 w) { return (u32)(pairs[w] >> (2 * (j % 4))) & 3u; });
#if FORMAT == FORMAT_Q2_K
    to.put_block(block, 16);
    to.put_block(block + 80, 4);
#elif FORMAT == FORMAT_Q3_K
    to.put_bits([&](u32 w) { return (u32)(block[w] >> j) & 1u; });
    to.put_block(block + 96, 12);
    to.put_block(block + 108, 2);
#else
    to.put_block(block + 64, 2);
#endif
#elif FORMAT == FORMAT_IQ4_XS
    to.put(block + 8 + j * 16, 16);
    to.put_block(block, 8);
#elif FORMAT == FORMAT_NVFP4
    // Sixteen weights in eight bytes each.
    to.put_nibbles([&](u32 w) { return (u32)(block[4 + (2 * j + w / 16) * 8 + w % 8] >> (4 * (w % 16 / 8))) & 15u; });
    to.put(block + 2 * j, 2);
#elif FORMAT == FORMAT_IQ3_XXS
    to.put(block + 2 + 8 * j, 8);
    to.put(block + 66 + 4 * j, 4);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ3_S
    to.put(block + 2 + 8 * j, 8);
    to.put(block + 74 + 4 * j, 4);
    to.put(block + 66 + j, 1);
    to.put_block(block + 106, 4);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ2_XXS
    to.put(block + 2 + 8 * j, 8);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ2_XS
    to.put(block + 2 + 8 * j, 8);
    to.put(block + 66 + j, 1);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ2_S
    to.put(block + 2 + 4 * j, 4);
    to.put(block + 34 + 4 * j, 4);
    to.put(block + 66 + j, 1);
    to.put(block + 74 + j, 1);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ1_S
    to.put(block + 2 + 4 * j, 4);
    to.put(block + 34 + 2 * j, 2);
    to.put_block(block, 2);
#elif FORMAT == FORMAT_IQ1_M
    to.put(block + 4 * j, 4);
    to.put(block + 32 + 2 * j, 2);
    to.put_block(block + 48, 8);
#elif FORMAT == FORMAT_TQ1_0
    to.put_block(block, 52);
    to.put_block(block + 52, 2);
#elif FORMAT == FORMAT_Q1_0 || FORMAT == FORMAT_Q2_0
    const u32 n = FORMAT == FORMAT_Q1_0 ? 4 : 8;
    to.put(block + 2 + n * j, n);
    to.put_block(block, 2);
#else
#error "pack.hip: a packed format without planes"
#endif
}
