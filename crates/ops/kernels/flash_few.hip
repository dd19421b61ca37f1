// flash_few: attention of a few query vectors on the matrix units: decode, with the queries that share a KV head together.
// f16 keys and values, f32 sums. Causal or full, paged; bound by reading keys and values.
//
// A tile is up to N_Q query vectors of one sequence that share a KV head. A block takes one tile, one KV head and one part
// of the context; its waves take KV blocks of 16 tokens in turns, straight from memory to registers. The units sum in any
// order, so lane t of a quad takes eight neighbouring numbers of a key at a time, and queries are held to match. Of the
// values a lane holds two tokens side by side. Parts are merged by attention_merge.
#include "prelude.h"

#define THREADS 128
#define WAVES 4
#define KV_BLOCK 16
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
#define CHUNKS (HEAD_DIM / 32)
#define UNITS (HEAD_DIM / 64)
#define MASKED (-1e30f)
#define LOG2_E 1.44269504f

#if defined(GPU_HAS_MMA)

typedef Pack<u32, 4> Words4;

// tiles and spans as in attention.hip.
struct Tile {
    u32 first_row, n_rows, first_position, table, first_q, is_causal, group;
    DEVICE_MEMBER bool has(u32 i) const { return first_q + i < n_rows * group; }
    DEVICE_MEMBER u32 row(u32 i) const { return (first_q + i) / group; }
    DEVICE_MEMBER u32 head(u32 i) const { return (first_q + i) % group; }
    DEVICE_MEMBER u32 n_visible(u32 i) const { return first_position + (is_causal ? row(i) + 1 : n_rows); }
};

template <u32 N_Q>
DEVICE void attend(const float *q, const u8 *k_bytes, const u8 *v_bytes, const u32 *tiles, const u32 *spans,
                   const u32 *tables, float *out, float *parts, u32 n_heads, u32 n_kv_heads, float scale, u32 n_splits,
                   u32 part_blocks, float *shared) {
    constexpr u32 HALVES = N_Q / 8;  // rows of the units that are used: eight or sixteen
    const u32 kv_head = block_y(), split = block_z(), wave = thread_x() / 32, l = lane(), quad = l / 4, within = l % 4;
    const u32 *span = spans + tiles[block_x() * 2] * 8;
    const Tile tile = {span[0], span[1], span[2], span[3], tiles[block_x() * 2 + 1], span[4], n_heads / n_kv_heads};
    const u32 n_q = tile.n_rows * tile.group - tile.first_q < N_Q ? tile.n_rows * tile.group - tile.first_q : N_Q;
    const u32 n_keys = tile.n_visible(n_q - 1);  // the last query sees the most
    u32 n_visible[HALVES];
#pragma unroll
    for (u32 h = 0; h < HALVES; ++h) {
        const u32 i = quad + 8 * h;
        n_visible[h] = tile.has(i) ? tile.n_visible(i) : 0;
    }
    const u32 n_blocks = (n_keys + KV_BLOCK - 1) / KV_BLOCK;
    // As in attention.hip.
    const u32 per_split = part_blocks ? part_blocks : (n_blocks + n_splits - 1) / n_splits;
    const u32 from = split * per_split, to = from + per_split < n_blocks ? from + per_split : n_blocks;
    const u32 *table = tables + tile.table;
    const u64 block_numbers = (u64)n_kv_heads * (KV_BLOCK * HEAD_DIM), head_start = (u64)kv_head * (KV_BLOCK * HEAD_DIM);
    // Two blocks at a time where there are registers: the next one is on its way while this one is used.
    constexpr u32 AHEAD = N_Q == 8 && HEAD_DIM <= 128 ? 2 : 1;
    Words4 key[AHEAD][2][CHUNKS], value[AHEAD][UNITS][4];
    // Tokens 2t, 2t + 1, 2t + 8, 2t + 9; eight numbers of each. What was never written may hold anything, and 0 * NaN
    // would count: such tokens are read from the first one of their block instead, which is there.
    const auto load_values = [&](Words4(&to)[4], u32 b, u32 id, u32 unit) {
        const f16 *block = (const f16 *)v_bytes + id * block_numbers + head_start;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 t = within * 2 + i % 2 + i / 2 * 8, there = b * KV_BLOCK + t < n_keys ? t : 0;
            to[i] = load<4>((const u32 *)(block + there * HEAD_DIM + unit * 64 + quad * 8));
        }
    };
    const auto fetch = [&](u32 at, u32 b, u32 id) {
        const f16 *block = (const f16 *)k_bytes + id * block_numbers + head_start;
#pragma unroll
        for (u32 part = 0; part < 2; ++part)
#pragma unroll
            for (u32 c = 0; c < CHUNKS; ++c)
                key[at][part][c] = load<4>((const u32 *)(block + (part * 8 + quad) * HEAD_DIM + c * 32 + within * 8));
        if constexpr (HEAD_DIM <= 128) {
#pragma unroll
            for (u32 u = 0; u < UNITS; ++u) load_values(value[at][u], b, id, u);
        }
    };
    // Where the next 32 blocks of this wave lie, one a lane. Blocks of earlier steps are complete: the first of them are on
    // their way before this step's keys are there.
    u32 b = from + wave, ids = b + l * WAVES < to ? table[b + l * WAVES] : 0;
    const auto fetch_first = [&](bool is_early) {
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            const u32 at = b + n * WAVES, id = (u32)from_lane((i32)ids, n);
            if (at < to && ((at + 1) * KV_BLOCK <= tile.first_position) == is_early) fetch(n, at, id);
        }
    };
    fetch_first(true);
    wait_for_inputs();
    fetch_first(false);
    u32 query[CHUNKS][2][4];
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (u32 h = 0; h < HALVES; ++h) {
            const u32 i = quad + 8 * h;
            const float *at =
                q + ((u64)(tile.first_row + tile.row(i)) * n_heads + kv_head * tile.group + tile.head(i)) * HEAD_DIM;
            float eight[8] = {};
            if (tile.has(i)) {
                const Pack<float, 4> a = load<4>(at + c * 32 + within * 8), b = load<4>(at + c * 32 + within * 8 + 4);
#pragma unroll
                for (u32 k = 0; k < 4; ++k) eight[k] = a.at[k] * scale, eight[4 + k] = b.at[k] * scale;
            }
#pragma unroll
            for (u32 k = 0; k < 2; ++k) {
                query[c][k][h] = pack_halves(eight[4 * k], eight[4 * k + 1]);
                query[c][k][2 + h] = pack_halves(eight[4 * k + 2], eight[4 * k + 3]);
            }
        }
        if constexpr (HALVES == 1) {
#pragma unroll
            for (u32 k = 0; k < 2; ++k) query[c][k][1] = query[c][k][3] = 0;
        }
    }
    // Turned: [dims, queries], so that eight queries fill the units. Lane t of a quad holds queries 2t and 2t + 1.
    float sum[HALVES][HEAD_DIM / 16][4] = {};
    float most[2] = {MASKED, MASKED}, total[2] = {0.0f, 0.0f};
    u32 id = (u32)from_lane((i32)ids, 0);
    const auto use = [&](u32 at) {
        float score[2][4] = {};
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (u32 k = 0; k < 2; ++k)
#pragma unroll
                for (u32 part = 0; part < 2; ++part)
                    mma_16x8x16(score[part], query[c][k], key[at][part][c].at[2 * k], key[at][part][c].at[2 * k + 1]);
        float weight[2][4] = {};
#pragma unroll
        for (u32 h = 0; h < HALVES; ++h) {
            float largest = most[h];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 t = b * KV_BLOCK + i / 2 * 8 + within * 2 + i % 2;
                float &s = score[i / 2][2 * h + i % 2];
                s = t < n_visible[h] ? s * LOG2_E : MASKED;
                largest = max_f32(largest, s);
            }
            largest = max_f32(largest, across(largest, 1));
            largest = max_f32(largest, across(largest, 2));
            const float keep = fast_exp2(most[h] - largest);
            most[h] = largest;
            total[h] *= keep;
            const float keep0 = from_lane(keep, within * 8), keep1 = from_lane(keep, within * 8 + 4);
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
                sum[h][d][0] *= keep0;
                sum[h][d][1] *= keep1;
                sum[h][d][2] *= keep0;
                sum[h][d][3] *= keep1;
            }
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float s = score[i / 2][2 * h + i % 2];
                weight[i / 2][2 * h + i % 2] = s <= MASKED ? 0.0f : fast_exp2(s - largest);
                total[h] += weight[i / 2][2 * h + i % 2];
            }
        }
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u) {
            if constexpr (HEAD_DIM > 128) load_values(value[at][u], b, id, u);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const Words4(&v)[4] = value[at][u];
                const u32 a[4] = {low_halves(v[0].at[j], v[1].at[j]), high_halves(v[0].at[j], v[1].at[j]),
                                  low_halves(v[2].at[j], v[3].at[j]), high_halves(v[2].at[j], v[3].at[j])};
#pragma unroll
                for (u32 h = 0; h < HALVES; ++h)
                    mma_16x8x16(sum[h][u * 4 + j], a, pack_halves(weight[0][2 * h], weight[0][2 * h + 1]),
                                pack_halves(weight[1][2 * h], weight[1][2 * h + 1]));
            }
        }
    };
    // The place of block n of this wave; the numbers of 32 of them are at hand.
    const auto place = [&](u32 n, u32 first) {
        if (n % 32 == 0) ids = first + l * WAVES < to ? table[first + l * WAVES] : 0;
        return (u32)from_lane((i32)ids, n % 32);
    };
    for (u32 n = 0; b < to; n += AHEAD) {
#pragma unroll
        for (u32 at = 0; at < AHEAD; ++at) {
            if (b >= to) break;
            use(at);
            const u32 next = b + AHEAD * WAVES;
            id = place(n + at + AHEAD, next);
            if (next < to) fetch(at, next, id);
            b += WAVES;
        }
    }
    // [WAVES, N_Q, HEAD_DIM + 2]
#pragma unroll
    for (u32 h = 0; h < HALVES; ++h) {
        total[h] += across(total[h], 1);
        total[h] += across(total[h], 2);
        float *slots = shared + (wave * N_Q + 8 * h) * (HEAD_DIM + 2);
        if (within == 0) {
            slots[quad * (HEAD_DIM + 2) + HEAD_DIM] = most[h];
            slots[quad * (HEAD_DIM + 2) + HEAD_DIM + 1] = total[h];
        }
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u)
#pragma unroll
            for (u32 j = 0; j < 4; ++j)
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
                    slots[(within * 2 + i % 2) * (HEAD_DIM + 2) + u * 64 + quad * 8 + 2 * j + i / 2] =
                        sum[h][u * 4 + j][i];
    }
    barrier();
    for (u32 n = thread_x(); n < N_Q * HEAD_DIM; n += THREADS) {
        const u32 i = n / HEAD_DIM, d = n % HEAD_DIM;
        if (!tile.has(i)) break;
        float largest = MASKED, all = 0.0f, mixed = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) largest = max_f32(largest, shared[(w * N_Q + i) * (HEAD_DIM + 2) + HEAD_DIM]);
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) {
            const float *slot = shared + (w * N_Q + i) * (HEAD_DIM + 2);
            const float share = fast_exp2(slot[HEAD_DIM] - largest);
            all = fma_f32(slot[HEAD_DIM + 1], share, all);
            mixed = fma_f32(slot[d], share, mixed);
        }
        if (n_splits == 1) {
            const u64 row = tile.first_row + tile.row(i);
            out[(row * n_heads + kv_head * tile.group + tile.head(i)) * HEAD_DIM + d] = mixed / all;
        } else {
            // [tile, kv head, split, N_Q, HEAD_DIM + 2]; the merging kernel's scores are to the base e.
            float *at = parts + ((((u64)block_x() * n_kv_heads + kv_head) * n_splits + split) * N_Q + i) * (HEAD_DIM + 2);
            at[d] = mixed;
            if (d == 0) at[HEAD_DIM] = largest <= MASKED ? MASKED : largest / LOG2_E, at[HEAD_DIM + 1] = all;
        }
    }
}

#define FLASH_FEW(N_Q)                                                                                                \
    KERNEL_BLOCKS(THREADS, HEAD_DIM > 128 ? 1 : 2)                                                                   \
    flash_few_##N_Q(const float *ARRIVING q, const u8 *k_pool, const u8 *v_pool, const u32 *__restrict__ tiles,       \
                    const u32 *__restrict__ spans, const u32 *__restrict__ tables, float *__restrict__ out,           \
                    float *__restrict__ parts, u32 n_heads, u32 n_kv_heads, float scale, u32 n_splits,                \
                    u32 part_blocks) {                                                                                \
        __shared__ float shared[WAVES * N_Q * (HEAD_DIM + 2)];                                                        \
        let_next_start();                                                                                             \
        attend<N_Q>(q, k_pool, v_pool, tiles, spans, tables, out, parts, n_heads, n_kv_heads, scale, n_splits,        \
                    part_blocks, shared);                                                                             \
    }

FLASH_FEW(8)
#if HEAD_DIM <= 128
FLASH_FEW(16)
#endif

#endif
