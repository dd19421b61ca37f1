// experts_group: the rows of a batch grouped by the expert they go to, on the device: nothing is read back, and the order
// is the same in every run. And the activations as halves, divided by X_DIVISOR so that outliers stay finite.
#include "experts.h"

#define THREADS 256
#define GROUP_THREADS 512
#define MAX_EXPERTS 1024

// The sum over the block in every thread, and in `before` that of the threads before this one. `scratch` holds a number a
// wave and may be used again after the call.
DEVICE u32 block_scan(u32 value, u32 &before, u32 *scratch) {
    constexpr u32 n_waves = GROUP_THREADS / GPU_WAVE;
    const u32 wave = thread_x() / GPU_WAVE;
    u32 all = value;
#pragma unroll
    for (u32 step = 1; step < GPU_WAVE; step <<= 1) {
        const u32 other = (u32)from_lane((i32)all, lane() >= step ? lane() - step : lane());
        all += lane() >= step ? other : 0;
    }
    if (lane() == GPU_WAVE - 1) scratch[wave] = all;
    barrier();
    u32 earlier = 0, total = 0;
#pragma unroll
    for (u32 i = 0; i < n_waves; ++i) {
        earlier += i < wave ? scratch[i] : 0;
        total += scratch[i];
    }
    barrier();
    before = earlier + all - value;
    return total;
}

// A block an expert: it counts the pairs of the experts before it, lists its own, and cuts them into tiles.
KERNEL(GROUP_THREADS)
group_experts(const u32 *ARRIVING chosen, u32 *__restrict__ order, u32 *__restrict__ tiles, u32 n_pairs, u32 n_experts,
              u32 tile_rows) {
    __shared__ u32 counts[MAX_EXPERTS], scratch[GROUP_THREADS / GPU_WAVE];
    let_next_start();
    wait_for_inputs();
    const u32 t = thread_x(), expert = block_x();
    for (u32 e = t; e < n_experts; e += GROUP_THREADS) counts[e] = 0;
    barrier();
    for (u32 i = t; i < n_pairs; i += GROUP_THREADS) shared_add(counts + chosen[i], 1u);
    barrier();
    u32 pairs = 0, cut = 0, ignored;
    for (u32 e = t; e < expert; e += GROUP_THREADS) pairs += counts[e], cut += (counts[e] + tile_rows - 1) / tile_rows;
    const u32 first = block_scan(pairs, ignored, scratch), first_tile = block_scan(cut, ignored, scratch);
    // Neighbouring pairs belong to one thread, so that the order is that of the pairs.
    const u32 share = (n_pairs + GROUP_THREADS - 1) / GROUP_THREADS, begin = t * share;
    const u32 end = begin + share < n_pairs ? begin + share : n_pairs;
    u32 mine = 0, at;
    for (u32 i = begin; i < end; ++i) mine += chosen[i] == expert;
    const u32 n = block_scan(mine, at, scratch), n_tiles = (n + tile_rows - 1) / tile_rows;
    at += first;
    for (u32 i = begin; i < end; ++i) {
        if (chosen[i] == expert) order[at++] = i;
    }
    for (u32 i = t; i < n_tiles; i += GROUP_THREADS) {
        const u32 left = n - i * tile_rows;
        const Pack<u32, 4> words = {{expert, first + i * tile_rows, left < tile_rows ? left : tile_rows, 0}};
        store<4>(tiles + 4 + 4 * (first_tile + i), words);
    }
    if (expert == n_experts - 1 && t == 0) tiles[0] = first_tile + n_tiles;
}

// A thread eight halves; block_y is the row.
KERNEL(THREADS)
expert_rows(const float *ARRIVING x, u32 *__restrict__ out, u32 n_cols, u32 n_eights, u32 layout) {
    let_next_start();
    wait_for_inputs();
    const u32 eight = block_x() * THREADS + thread_x();
    if (eight >= n_eights) return;
    const float *row = x + (u64)block_y() * n_cols;
    float v[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 c = column_of(layout, eight, i);
        v[i] = c < n_cols ? row[c] * (1.0f / X_DIVISOR) : 0.0f;
    }
    Pack<u32, 4> words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words.at[i] = pack_halves(v[2 * i], v[2 * i + 1]);
    store<4>(out + ((u64)block_y() * n_eights + eight) * 4, words);
}
