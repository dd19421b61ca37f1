// cluster_logits: logits of the tokens in a row's best clusters. choose_clusters lists these tokens; their rows of the
// table are decoded by embed.hip, multiplied with the row by cluster_products, and spread_logits puts the results where
// they belong, once fill_logits has written what all other tokens get.
#include "prelude.h"

#define THREADS 256
#define WAVES (THREADS / GPU_WAVE)
#define MAX_CLUSTERS 8192

// Ascending with the float, as the host's total_cmp orders numbers.
DEVICE u32 order_key(float x) {
    const u32 bits = bits_as<u32>(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// One block a row. A cluster's rank is the number of those before it: a better score, or an equal one and a smaller index.
KERNEL(THREADS)
choose_clusters(const float *ARRIVING scores, const float *__restrict__ ordering, u32 *__restrict__ tokens,
                u32 n_clusters, u32 n_used, u32 n_each) {
    __shared__ u32 own[MAX_CLUSTERS];
    let_next_start();
    wait_for_inputs();
    const float *row = scores + (u64)block_x() * n_clusters;
    u32 *out = tokens + (u64)block_x() * n_used * n_each;
    for (u32 c = thread_x(); c < n_clusters; c += THREADS) own[c] = order_key(row[c]);
    barrier();
    for (u32 c = thread_x(); c < n_clusters; c += THREADS) {
        const u32 score = own[c];
        u32 rank = 0;
        for (u32 other = 0; other < n_clusters; ++other)
            rank += own[other] > score || (own[other] == score && other < c) ? 1 : 0;
        if (rank >= n_used) continue;
        for (u32 i = 0; i < n_each; ++i) out[rank * n_each + i] = (u32)ordering[(u64)c * n_each + i];
    }
}

// products[i] = row . rows[i], one wave each.
KERNEL(THREADS)
cluster_products(const float *ARRIVING row, const float *ARRIVING rows, float *__restrict__ products, u32 n_rows,
                 u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * WAVES + thread_x() / GPU_WAVE;
    if (i >= n_rows) return;
    const float *from = rows + (u64)i * n_cols;
    float sum = 0.0f;
    for (u32 c = lane(); c < n_cols; c += GPU_WAVE) sum = fma_f32(row[c], from[c], sum);
    sum = wave_sum(sum);
    if (lane() == 0) products[i] = sum;
}

// Every token gets one less than the smallest product.
KERNEL(THREADS)
fill_logits(const float *ARRIVING products, float *__restrict__ logits, u32 n_products, u32 n_vocab,
            u32 n_blocks) {
    __shared__ float scratch[WAVES];
    let_next_start();
    wait_for_inputs();
    float most = -products[0];
    for (u32 i = thread_x(); i < n_products; i += THREADS) most = max_f32(most, -products[i]);
    const float least = -block_max<THREADS>(most, scratch) - 1.0f;
    for (u32 t = block_x() * THREADS + thread_x(); t < n_vocab; t += n_blocks * THREADS) logits[t] = least;
}

KERNEL(THREADS)
spread_logits(const float *ARRIVING products, const u32 *ARRIVING tokens, float *__restrict__ logits, u32 n_products) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * THREADS + thread_x();
    if (i < n_products) logits[tokens[i]] = products[i];
}
