// adjust: what a request asks of its own row of logits before a token is chosen: bias, bans, a mask, penalties. One
// block a row; the host's sampler does the same in the same order.
#include "prelude.h"

#define THREADS 1024
#define NONE 0xffffffffu
#define HEADER 8

// A token that occurs `count` times in the window.
DEVICE void penalize(float *logit, u32 count, float repetition, float presence, float frequency) {
    const float x = *logit;
    // Dividing a negative logit would make the token more likely.
    const float repeated = x > 0.0f ? x / repetition : mul_exact(x, repetition);
    *logit = add_exact(repeated, -add_exact(mul_exact((float)count, frequency), presence));
}

// words: for each row where its list starts, or NONE. A list: entries of bias, 1 if there is a mask, entries of counts,
// repetition, presence and frequency penalty, the row of `tokens` that is counted too (or NONE), 1 if there are
// penalties; (token, bias) pairs; the mask, one bit a token; (token, count) pairs.
KERNEL(THREADS)
adjust(float *logits, const u32 *__restrict__ words, const u32 *__restrict__ tokens, u32 n_vocab) {
    __shared__ u32 is_listed;
    const u32 t = thread_x(), start = words[block_x()];
    if (start == NONE) return;
    float *row = logits + (u64)block_x() * n_vocab;
    const u32 *head = words + start, *bias = head + HEADER, *mask = bias + 2 * head[0];
    const u32 *counts = mask + (head[1] ? (n_vocab + 31) / 32 : 0);
    for (u32 i = t; i < head[0]; i += THREADS)
        row[bias[2 * i]] = add_exact(row[bias[2 * i]], bits_as<float>(bias[2 * i + 1]));
    if (t == 0) is_listed = 0;
    barrier();
    if (head[1]) {
        for (u32 i = t; i < n_vocab; i += THREADS)
            if (!(mask[i / 32] >> i % 32 & 1)) row[i] = bits_as<float>(0xff800000u);
        barrier();
    }
    if (!head[7]) return;
    const float repetition = bits_as<float>(head[3]), presence = bits_as<float>(head[4]);
    const float frequency = bits_as<float>(head[5]);
    const u32 own = head[6] == NONE ? NONE : tokens[head[6]];
    for (u32 i = t; i < head[2]; i += THREADS) {
        const bool is_own = counts[2 * i] == own;
        if (is_own) is_listed = 1;
        penalize(row + counts[2 * i], counts[2 * i + 1] + is_own, repetition, presence, frequency);
    }
    barrier();
    if (t == 0 && own != NONE && !is_listed) penalize(row + own, 1, repetition, presence, frequency);
}
