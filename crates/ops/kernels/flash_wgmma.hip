// flash_wgmma: attention of many query rows on Hopper's matrix units (wgmma.h), f16 keys and values, f32 sums. Causal or
// full, paged; with SHAPED also windows, caps and sinks.
//
// A block takes 128 query rows of one sequence and one head, 64 for each of its two groups of four waves, and walks over
// the context KEYS keys at a time. While the units add up the values of one tile, the waves make the weights of the next:
// its scores were computed before. Keys lie two tiles ahead in shared memory, values one. Blocks with the longest contexts
// come first. HEAD_DIM is 64, 128 or 256.
#include "functions.h"
#include "wgmma.h"

#define GROUPS 2
#define THREADS (GROUPS * 128)
#define ROWS (GROUPS * 64)
#define KV_BLOCK 16
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
#define KEYS (HEAD_DIM > 128 ? 64 : 128)
#define MASKED (-1e30f)
#define LOG2_E 1.4426950408889634f

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

#if defined(GPU_HAS_WGMMA)

#define QUERY_BYTES (ROWS * HEAD_DIM * 2)
#define TILE_BYTES (KEYS * HEAD_DIM * 2)

// Where the tokens of a sequence lie, which part of a tile this thread loads, and from where.
struct Loader {
    static constexpr u32 n_tokens = KEYS * 8 / THREADS;
    const u32 *table;
    u32 n_kv_heads, kv_head, n_keys;

    // The thread's tokens of the tile that begins at `first`, as numbers before them in a pool; past the end the last one.
    DEVICE_MEMBER void find(u64 (&at)[n_tokens], u32 first) const {
#pragma unroll
        for (u32 i = 0; i < n_tokens; ++i) {
            const u32 wanted = first + key(i), token = wanted < n_keys ? wanted : n_keys - 1;
            const u64 block = (u64)table[token / KV_BLOCK] * n_kv_heads + kv_head;
            at[i] = (block * KV_BLOCK + token % KV_BLOCK) * HEAD_DIM + thread_x() % 8 * 8;
        }
    }
    // Eight threads a token; past the end as zeros.
    DEVICE_MEMBER void load(u8 *to, const f16 *pool, const u64 (&at)[n_tokens], u32 first) const {
        u8 *mine = to + sheet_place(key(0), thread_x() % 8);
#pragma unroll
        for (u32 i = 0; i < n_tokens; ++i) {
            const bool is_there = first + key(i) < n_keys;
#pragma unroll
            for (u32 c = 0; c < HEAD_DIM / 64; ++c)
                copy_16_or_zeros(mine + c * (KEYS * 128) + i * (THREADS / 8 * 128), pool + at[i] + c * 64, is_there);
        }
    }
    DEVICE_MEMBER u32 key(u32 i) const { return i * (THREADS / 8) + thread_x() / 8; }
};

// 128 rows of queries, times `scale`; past the end as zeros.
DEVICE void load_queries(u8 *to, const float *q, u32 first_row, u32 first, u32 n_rows, u32 n_heads, u32 head, float scale) {
    for (u32 i = thread_x(); i < ROWS * HEAD_DIM / 8; i += THREADS) {
        const u32 row = i % ROWS, c = i / ROWS;
        Pack<u32, 4> words = {};
        if (first + row < n_rows) {
            const float *from = q + ((u64)(first_row + first + row) * n_heads + head) * HEAD_DIM + c * 8;
            const Pack<float, 4> a = load<4>(from), b = load<4>(from + 4);
            words = {{pack_halves(a.at[0] * scale, a.at[1] * scale), pack_halves(a.at[2] * scale, a.at[3] * scale),
                      pack_halves(b.at[0] * scale, b.at[1] * scale), pack_halves(b.at[2] * scale, b.at[3] * scale)}};
        }
        store<4>((u32 *)(to + c / 8 * (ROWS * 128) + sheet_place(row, c % 8)), words);
    }
}

// scores = queries * keys^T, begun.
DEVICE void begin_scores(float (&score)[KEYS / 8][4], u64 queries, u64 keys) {
#pragma unroll
    for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
        const u64 a = queries + d % 4 * 2 + d / 4 * (ROWS * 8), b = keys + d % 4 * 2 + d / 4 * (KEYS * 8);
        if (KEYS == 64) units_64(score, a, b, d > 0);
        if (KEYS == 128) units_128(score, a, b, d > 0);
    }
    units_end();
}

// sums += weights * values, begun.
DEVICE void begin_values(float (&sum)[HEAD_DIM / 8][4], const u32 (&weight)[KEYS / 16][4], u64 values) {
#pragma unroll
    for (u32 k = 0; k < KEYS / 16; ++k) {
        const u64 b = values + k * (2048 >> 4);
        if (HEAD_DIM == 64) units_64<1>(sum, weight[k], b);
        if (HEAD_DIM >= 128) units_128<1>(sum, weight[k], b);
        if (HEAD_DIM == 256) units_128<1>(sum + HEAD_DIM / 16, weight[k], b + 2 * (KEYS * 8));
    }
    units_end();
}

// The running softmax of the two rows of a lane.
struct Running {
    float most[2], total[2], keep[2];
};

// Scores become weights. IS_EDGE: where not every row sees every key of the tile.
template <bool IS_EDGE>
DEVICE void soften(float (&score)[KEYS / 8][4], Running &running, u32 t0, const u32 (&n_visible)[2], const u32 (&n_hidden)[2],
                   float cap) {
    float largest[2] = {running.most[0], running.most[1]};
#pragma unroll
    for (u32 i = 0; i < KEYS / 2; ++i) {
        const u32 r = i % 4 / 2;
        float &mine = score[i / 4][i % 4];
        if (IS_SHAPED && cap > 0.0f) mine = cap * tanh_f32(mine / cap);
        if (IS_EDGE) {
            const u32 t = t0 + i / 4 * 8 + lane() % 4 * 2 + i % 2;
            if (t >= n_visible[r] || (IS_SHAPED && t < n_hidden[r])) mine = MASKED;
        }
        largest[r] = max_f32(largest[r], mine);
    }
    float base[2];
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
        // The four lanes of a quad share a row.
        largest[r] = max_f32(largest[r], across(largest[r], 1));
        largest[r] = max_f32(largest[r], across(largest[r], 2));
        running.keep[r] = fast_exp2((running.most[r] - largest[r]) * LOG2_E);
        running.most[r] = largest[r];
        // Where a row has seen nothing yet, weights are zero, not one.
        base[r] = largest[r] <= MASKED ? 0.0f : -largest[r] * LOG2_E;
        running.total[r] *= running.keep[r];
    }
#pragma unroll
    for (u32 i = 0; i < KEYS / 2; ++i) {
        float &weight = score[i / 4][i % 4];
        weight = fast_exp2(fma_f32(weight, LOG2_E, base[i % 4 / 2]));
        running.total[i % 4 / 2] += weight;
    }
}

// tiles: (span, first row in it) each; spans as in attention.hip.
KERNEL_BLOCKS(THREADS, 1)
flash_wgmma(const float *ARRIVING q, const u8 *ARRIVING k_bytes, const u8 *ARRIVING v_bytes, const u32 *__restrict__ tiles,
            const u32 *__restrict__ spans, const u32 *__restrict__ tables, float *__restrict__ out, u32 n_heads,
            u32 n_kv_heads, float scale, u32 window, float cap, const float *__restrict__ sinks) {
    extern __shared__ __align__(1024) u8 shared[];
    let_next_start();
    wait_for_inputs();
    const u32 tile = n_blocks_x() - 1 - block_x();
    const u32 *span = spans + tiles[tile * 2] * 8;
    const u32 first = tiles[tile * 2 + 1], first_row = span[0], n_rows = span[1], position = span[2];
    const bool is_causal = span[4] != 0;
    const u32 head = block_y(), group = thread_x() / 128, quad = lane() / 4, within = lane() % 4;
    const u32 last_row = first + ROWS < n_rows ? first + ROWS : n_rows;
    const SeenKeys seen = {is_causal, IS_SHAPED ? window : 0, position + n_rows};
    const u32 n_keys = seen.end(position + last_row - 1);
    const Loader loader = {tables + span[3], n_kv_heads, head / (n_heads / n_kv_heads), n_keys};
    const f16 *k_pool = (const f16 *)k_bytes, *v_pool = (const f16 *)v_bytes;
    // The two rows of a lane, and of its group the first.
    const u32 group_row = first + group * 64, row0 = group_row + thread_x() % 128 / 32 * 16 + quad;
    u32 n_visible[2], n_hidden[2];
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
        n_visible[r] = min_u32(seen.end(position + row0 + r * 8), n_keys);
        n_hidden[r] = seen.start(position + row0 + r * 8);
    }
    // Tiles that every row of the group sees whole: from inside on, before full.
    const u32 full = min_u32(seen.end(position + group_row), n_keys);
    const u32 inside = seen.start(position + min_u32(group_row + 64, n_rows) - 1);
    // What lies before the window of the block's first row is not read.
    const u32 begin = seen.start(position + first) / KEYS * KEYS;
    const u32 n = (n_keys - begin + KEYS - 1) / KEYS;

    u8 *key_stages = shared + QUERY_BYTES, *value_stages = key_stages + 2 * TILE_BYTES;
    // Where the tokens of the next tiles lie: of the one whose values are loaded next, and of the one behind it.
    u64 near[Loader::n_tokens], far[Loader::n_tokens];
    loader.find(near, begin);
    loader.load(key_stages, k_pool, near, begin);
    end_copies();
    loader.find(far, begin + KEYS);
    loader.load(value_stages, v_pool, near, begin);
    if (n > 1) loader.load(key_stages + TILE_BYTES, k_pool, far, begin + KEYS);
    end_copies();
    load_queries(shared, q, first_row, first, n_rows, n_heads, head, scale);
    const u64 queries = units_factor(shared + group * (64 * 128), 0);
    const u64 key_factor = units_factor(key_stages, 0), value_factor = units_factor(value_stages, KEYS * 128);

    float sum[HEAD_DIM / 8][4] = {}, score[KEYS / 8][4];
    u32 weight[KEYS / 16][4];
    Running running = {{MASKED, MASKED}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    const auto make_weights = [&](u32 t0) {
        if (t0 + KEYS > full || t0 < inside) {
            soften<true>(score, running, t0, n_visible, n_hidden, cap);
        } else {
            soften<false>(score, running, t0, n_visible, n_hidden, cap);
        }
    };
    const auto pack_weights = [&]() {
#pragma unroll
        for (u32 i = 0; i < KEYS / 4; ++i) {
            const float(&four)[4] = score[i / 2];
            weight[i / 4][i % 4] = pack_halves(four[i % 2 * 2], four[i % 2 * 2 + 1]);
        }
    };
    wait_copies<1>();
    show_units();
    barrier();
    hold(score);
    units_begin();
    begin_scores(score, queries, key_factor);
    units_wait<0>();
    hold(score);
    make_weights(begin);
    pack_weights();
    for (u32 j = 0; j + 1 < n; ++j) {
#pragma unroll
        for (u32 i = 0; i < Loader::n_tokens; ++i) near[i] = far[i];
        loader.find(far, begin + (j + 2) * KEYS);
        // Keys of tile j + 1 and values of tile j are there; every wave is done with keys of j and values of j - 1.
        wait_copies<0>();
        show_units();
        barrier();
        hold(score);
        hold(sum);
        hold(weight);
        units_begin();
        begin_scores(score, queries, key_factor + (j + 1) % 2 * (TILE_BYTES >> 4));
        begin_values(sum, weight, value_factor + j % 2 * (TILE_BYTES >> 4));
        const u32 next = begin + (j + 1) * KEYS;
        loader.load(value_stages + (j + 1) % 2 * TILE_BYTES, v_pool, near, next);
        if (j + 2 < n) loader.load(key_stages + j % 2 * TILE_BYTES, k_pool, far, next + KEYS);
        end_copies();
        units_wait<1>();
        hold(score);
        make_weights(next);
        units_wait<0>();
        hold(sum);
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 2; ++i) sum[i / 4][i % 4] *= running.keep[i % 4 / 2];
        pack_weights();
    }
    wait_copies<0>();
    show_units();
    barrier();
    hold(sum);
    hold(weight);
    units_begin();
    begin_values(sum, weight, value_factor + (n - 1) % 2 * (TILE_BYTES >> 4));
    units_wait<0>();
    hold(sum);
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
        float total = running.total[r];
        total += across(total, 1);
        total += across(total, 2);
        const u32 row = row0 + r * 8;
        if (row >= n_rows) continue;
        float factor = 1.0f / total;
        if (IS_SHAPED && sinks) {
            const float sink = sinks[head], larger = max_f32(running.most[r], sink), mine = fast_exp(running.most[r] - larger);
            factor = mine / (total * mine + fast_exp(sink - larger));
        }
        float *to = out + ((u64)(first_row + row) * n_heads + head) * HEAD_DIM + within * 2;
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 8; ++d) {
            const Pack<float, 2> two = {{sum[d][2 * r] * factor, sum[d][2 * r + 1] * factor}};
            store<2>(to + d * 8, two);
        }
    }
}

#endif
