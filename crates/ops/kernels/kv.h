// Keys and values in the KV pool (crates/ops/src/kv_format.rs): a row of the pool is sixteen tokens of one head,
// [16, head_dim], and KV says as what. Quantized numbers come in groups of 32 of one token; behind a row's numbers lie its
// scales, [16, head_dim / 32].
#pragma once
#include "prelude.h"

#define KV_F32 0
#define KV_F16 1
#define KV_Q8_0 2
#define KV_Q4_0 3
#ifndef KV  // the host always says; a compiler run by hand may not
#define KV KV_F16
#endif
#define KV_IS_QUANTIZED (KV == KV_Q8_0 || KV == KV_Q4_0)
#define KV_BLOCK 16
#define KV_GROUP 32

#if KV == KV_F32
typedef float Kept;
#elif KV == KV_F16
typedef f16 Kept;
#endif

// Bytes of so many numbers, without their scales.
DEVICE u32 kv_bytes(u32 n) { return KV == KV_F32 ? 4 * n : KV == KV_F16 ? 2 * n : KV == KV_Q8_0 ? n : n / 2; }
DEVICE u64 kv_row_bytes(u32 head_dim) {
    return KV_BLOCK * (kv_bytes(head_dim) + (KV_IS_QUANTIZED ? head_dim / KV_GROUP * 2 : 0));
}
DEVICE f16 *kv_scales(u8 *row, u32 token, u32 head_dim) {
    return (f16 *)(row + kv_bytes(KV_BLOCK * head_dim)) + token * (head_dim / KV_GROUP);
}

#if defined(GPU_HAS_TILES) && KV != KV_F32

// Runs of numbers as halves in registers, for the matrix units. Nibbles come out of a word two by two, and it is cheaper to
// take those that lie 16 bits apart than neighbours: of every `span` numbers, number j is half kv_place(span, j), and word k
// has the numbers kv_pair(span, k, 0) and kv_pair(span, k, 1).
#define KV_SPAN 8
DEVICE u32 kv_pair(u32 span, u32 k, u32 half) { return KV == KV_Q4_0 ? k + half * (span / 2) : 2 * k + half; }
DEVICE u32 kv_place(u32 run, u32 j) {
    const u32 span = run < KV_SPAN ? run : KV_SPAN, i = j % span;
    return KV == KV_Q4_0 ? j / span * span + i % (span / 2) * 2 + i / (span / 2) : j;
}

// A run as it lies in memory, on as many bytes as it has (up to 16).
template <u32 N_BYTES>
DEVICE void kv_words(u32 (&to)[(N_BYTES + 3) / 4], const u8 *from) {
    if constexpr (N_BYTES == 1) {
        to[0] = *from;
    } else if constexpr (N_BYTES == 2) {
        to[0] = *(const u16 *)from;
    } else {
        constexpr u32 N = N_BYTES < 16 ? N_BYTES / 4 : 4;
#pragma unroll
        for (u32 i = 0; i < N_BYTES / 4; i += N) {
            const Pack<u32, N> some = load<N>((const u32 *)from + i);
#pragma unroll
            for (u32 k = 0; k < N; ++k) to[i + k] = some.at[k];
        }
    }
}

// N numbers of a token as they lie in memory, N a power of two and at most a group: loaded long before they are used.
template <u32 N>
struct KvRun {
    static constexpr u32 N_BYTES = KV == KV_F16 ? 2 * N : KV == KV_Q8_0 ? N : N / 2;
    u32 words[(N_BYTES + 3) / 4];
    u32 scale;  // as a half, of quantized numbers
};

// From number d on, a multiple of N.
template <u32 N, u32 DIM>
DEVICE void kv_load(KvRun<N> &to, const u8 *row, u32 token, u32 d) {
    kv_words<KvRun<N>::N_BYTES>(to.words, row + kv_bytes(token * DIM + d));
    if (KV_IS_QUANTIZED) to.scale = f16_to_bits(kv_scales((u8 *)row, token, DIM)[d / KV_GROUP]);
}

template <u32 N>
DEVICE void kv_halves(u32 (&to)[N / 2], const KvRun<N> &run) {
#if KV == KV_F16
#pragma unroll
    for (u32 k = 0; k < N / 2; ++k) to[k] = run.words[k];
#else
    const u32 scale = run.scale | run.scale << 16;
#if KV == KV_Q8_0
    // A half of 1024 and more has the steps of the integers.
#pragma unroll
    for (u32 k = 0; k < N / 2; ++k) {
        const u32 word = run.words[k / 2] ^ 0x80808080u;
        const u32 pair = pick_bytes(word, 0x64646464u, k % 2 ? 0x04030402u : 0x04010400u);
        to[k] = mul_halves(sub_halves(pair, 0x64806480u), scale);
    }
#else
    constexpr u32 SPAN = N < KV_SPAN ? N : KV_SPAN;
#pragma unroll
    for (u32 k = 0; k < N / 2; ++k) {
        u32 word = run.words[k / (SPAN / 2)];
        if (SPAN < KV_SPAN) word |= word << (16 - 2 * SPAN);
        const u32 pair = ((word >> (4 * (k % (SPAN / 2)))) & 0x000f000fu) | 0x64006400u;
        to[k] = mul_halves(sub_halves(pair, 0x64086408u), scale);
    }
#endif
#endif
}

// Both at once.
template <u32 N, u32 DIM>
DEVICE void kv_run(u32 (&to)[N / 2], const u8 *row, u32 token, u32 d) {
    KvRun<N> run;
    kv_load<N, DIM>(run, row, token, d);
    kv_halves<N>(to, run);
}

// Eight numbers in their order, from a multiple of eight on.
template <u32 DIM>
DEVICE Pack<u32, 4> kv_eight(const u8 *row, u32 token, u32 d) {
    u32 words[4];
    kv_run<8, DIM>(words, row, token, d);
#if KV == KV_Q4_0
    return {{low_halves(words[0], words[1]), low_halves(words[2], words[3]), high_halves(words[0], words[1]),
             high_halves(words[2], words[3])}};
#else
    return {{words[0], words[1], words[2], words[3]}};
#endif
}
#endif
