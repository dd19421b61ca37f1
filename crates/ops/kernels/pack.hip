// pack: from a file's blocks, row after row, to the planes of quant.h. One thread a group of 32 weights.
#include "quant.h"

#define THREADS 256

#if FORMAT == FORMAT_Q4_0
#define BLOCK_BYTES 18
#elif FORMAT == FORMAT_Q4_1
#define BLOCK_BYTES 20
#elif FORMAT == FORMAT_Q8_0
#define BLOCK_BYTES 34
#elif FORMAT == FORMAT_Q4_K
#define BLOCK_BYTES 144
#else
#define BLOCK_BYTES 210
#endif

// `src` holds rows first_row.. of the matrix, n_src_groups groups of 32 in all.
KERNEL(THREADS)
pack(const u8 *__restrict__ src, u8 *__restrict__ dst, u32 n_rows, u32 n_groups, u32 first_row, u32 n_src_groups) {
    const u32 i = block_x() * THREADS + thread_x();
    if (i >= n_src_groups) return;
    const u64 at = (u64)first_row * n_groups + i, all = (u64)n_rows * n_groups;
#if FORMAT == FORMAT_Q4_0 || FORMAT == FORMAT_Q4_1 || FORMAT == FORMAT_Q8_0
    const u8 *block = src + (u64)i * BLOCK_BYTES;
    const u32 n_head = FORMAT == FORMAT_Q4_1 ? 4 : 2, n_q = BLOCK_BYTES - n_head;
    for (u32 b = 0; b < n_q; ++b) dst[at * n_q + b] = block[n_head + b];
    for (u32 b = 0; b < n_head; ++b) dst[all * n_q + at * n_head + b] = block[b];
#else
    const u8 *block = src + (u64)(i / 8) * BLOCK_BYTES;
    const u32 j = i % 8;
#if FORMAT == FORMAT_Q4_K
    // Groups 2k and 2k + 1 share 32 bytes: low nibbles the first, high nibbles the second.
    const u8 *nibbles = block + 16 + j / 2 * 32;
    const u32 shift = 4 * (j % 2);
    for (u32 b = 0; b < 16; ++b)
        dst[at * 16 + b] = (u8)(((nibbles[b] >> shift) & 15) | (((nibbles[16 + b] >> shift) & 15) << 4));
    if (j == 0)
        for (u32 b = 0; b < 16; ++b) dst[all * 16 + at / 8 * 16 + b] = block[b];
#else
    // Each half of 128: 64 bytes of low nibbles, 32 bytes of bit pairs; a group is a quarter of a half.
    const u32 half = j / 4, part = j % 4;
    const u8 *low = block + half * 64 + 32 * (part % 2), *high = block + 128 + half * 32;
    const u32 shift = 4 * (part / 2);
    for (u32 b = 0; b < 16; ++b)
        dst[at * 16 + b] = (u8)(((low[b] >> shift) & 15) | (((low[16 + b] >> shift) & 15) << 4));
    for (u32 b = 0; b < 8; ++b) {
        u32 pairs = 0;
        for (u32 k = 0; k < 4; ++k) pairs |= (u32)((high[b / 4 * 16 + 4 * k + b % 4] >> (2 * part)) & 3) << (2 * k);
        dst[all * 16 + at * 8 + b] = (u8)pairs;
    }
    for (u32 b = 0; b < 2; ++b) dst[all * 24 + at * 2 + b] = block[192 + 2 * j + b];
    if (j == 0)
        for (u32 b = 0; b < 2; ++b) dst[all * 26 + at / 8 * 2 + b] = block[208 + b];
#endif
#endif
}
