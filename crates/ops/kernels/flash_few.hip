// flash_few: attention of a few query vectors on the matrix units: decode, with the queries that share a KV head together.
// Keys and values in f16, Q8_0 or Q4_0 (kv.h), f32 sums. Causal or full, paged; with SHAPED also windows, caps and sinks.
// Bound by reading keys and values.
//
// A tile is up to N_Q query vectors of one sequence that share a KV head. A block takes one tile, one KV head and one part
// of the context; its waves take KV blocks of 16 tokens in turns, straight from memory to registers. The units sum in any
// order, so lane t of a quad takes eight neighbouring numbers of a key at a time, and queries are held to match. Of the
// values a lane holds two tokens side by side. Parts are merged by attention_merge.
#include "functions.h"
#include "kv.h"

#define THREADS 128
#define WAVES 4
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
#define CHUNKS (HEAD_DIM / 32)
#define UNITS (HEAD_DIM / 64)
// Heads of 256 take scores as [tokens, queries], and queries from shared memory: else they would need more registers than
// there are.
#define BY_TOKEN (HEAD_DIM > 128)
#define QUERY_STRIDE (HEAD_DIM / 2 + 16)
#define MASKED (-1e30f)
#define LOG2_E 1.44269504f

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

#if defined(GPU_HAS_MMA) && KV != KV_F32

// tiles and spans as in attention.hip.
struct Tile {
    u32 first_row, n_rows, first_position, table, first_q, is_causal, group;
    DEVICE_MEMBER bool has(u32 i) const { return first_q + i < n_rows * group; }
    DEVICE_MEMBER u32 row(u32 i) const { return (first_q + i) / group; }
    DEVICE_MEMBER u32 head(u32 i) const { return (first_q + i) % group; }
    DEVICE_MEMBER u32 position(u32 i) const { return first_position + row(i); }
};

// How scores are shaped; 0 and null where they are not.
struct Shaping {
    u32 window;
    float cap;
    const float *sinks;  // [n_heads]
};

// Over the lanes of a quad, or over those that have the same place in their quads.
template <bool across_quads, class Combine>
DEVICE float over_lanes(float value, Combine combine) {
#pragma unroll
    for (u32 mask = across_quads ? 4 : 1; mask < (across_quads ? 32 : 4); mask <<= 1) value = combine(value, across(value, mask));
    return value;
}

template <u32 N_Q>
DEVICE void attend(const float *q, const u8 *k_bytes, const u8 *v_bytes, const u32 *tiles, const u32 *spans,
                   const u32 *tables, float *out, float *parts, u32 n_heads, u32 n_kv_heads, float scale, u32 n_splits,
                   u32 part_blocks, const Shaping &shaping, float *shared,
                   u32 *shared_queries) {
    constexpr u32 HALVES = N_Q / 8;  // rows of the units that are used: eight or sixteen
    static_assert(!BY_TOKEN || HALVES == 1, "sums of eight queries");
    // Queries and, of a block, tokens that a lane has scores of.
    constexpr u32 OWN = BY_TOKEN ? 2 : HALVES, TOKENS = BY_TOKEN ? 2 : 4;
    const u32 kv_head = block_y(), split = block_z(), wave = thread_x() / 32, l = lane(), quad = l / 4, within = l % 4;
    const u32 *span = spans + tiles[block_x() * 2] * 8;
    const Tile tile = {span[0], span[1], span[2], span[3], tiles[block_x() * 2 + 1], span[4], n_heads / n_kv_heads};
    const u32 n_q = tile.n_rows * tile.group - tile.first_q < N_Q ? tile.n_rows * tile.group - tile.first_q : N_Q;
    const SeenKeys seen = {tile.is_causal != 0, IS_SHAPED ? shaping.window : 0, tile.first_position + tile.n_rows};
    // The first query begins first, the last one sees the most.
    const u32 n_keys = seen.end(tile.position(n_q - 1)), begin = seen.start(tile.position(0)) / KV_BLOCK;
    const auto own_query = [&](u32 h) { return BY_TOKEN ? within * 2 + h : quad + 8 * h; };
    const auto own_token = [&](u32 i) { return BY_TOKEN ? quad + 8 * i : i / 2 * 8 + within * 2 + i % 2; };
    u32 n_visible[OWN], n_hidden[OWN];
#pragma unroll
    for (u32 h = 0; h < OWN; ++h) {
        const u32 i = own_query(h);
        n_visible[h] = tile.has(i) ? seen.end(tile.position(i)) : 0;
        n_hidden[h] = seen.start(tile.position(i));
    }
    const u32 end = (n_keys + KV_BLOCK - 1) / KV_BLOCK, n_blocks = end - begin;
    // As in attention.hip. Where parts are fixed, so is the wave that takes a block.
    const u32 per_split = part_blocks ? part_blocks : (n_blocks + n_splits - 1) / n_splits;
    const u32 from = (part_blocks ? 0 : begin) + split * per_split, to = min_u32(from + per_split, end);
    const u32 skipped = begin > from ? (begin - from + WAVES - 1 - wave) / WAVES * WAVES : 0;
    const u32 *table = tables + tile.table;
    const auto row_of = [&](const u8 *pool, u32 id) { return pool + ((u64)id * n_kv_heads + kv_head) * kv_row_bytes(HEAD_DIM); };
    // Two blocks at a time where there are registers: the next one is on its way while this one is used.
    constexpr u32 AHEAD = N_Q == 8 && HEAD_DIM <= 128 ? 2 : 1;
    KvRun<8> key[AHEAD][2][CHUNKS], value[AHEAD][UNITS][4];
    // Tokens 2t, 2t + 1, 2t + 8, 2t + 9; eight numbers of each. What was never written may hold anything, and 0 * NaN
    // would count: such tokens are read from the first one of their block instead, which is there.
    const auto load_values = [&](KvRun<8>(&to)[4], u32 b, u32 id, u32 unit) {
        const u8 *row = row_of(v_bytes, id);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 t = within * 2 + i % 2 + i / 2 * 8, there = b * KV_BLOCK + t < n_keys ? t : 0;
            kv_load<8, HEAD_DIM>(to[i], row, there, unit * 64 + quad * 8);
        }
    };
    const auto fetch = [&](u32 at, u32 b, u32 id) {
        const u8 *row = row_of(k_bytes, id);
#pragma unroll
        for (u32 part = 0; part < 2; ++part)
#pragma unroll
            for (u32 c = 0; c < CHUNKS; ++c)
                kv_load<8, HEAD_DIM>(key[at][part][c], row, part * 8 + quad, c * 32 + within * 8);
        if constexpr (HEAD_DIM <= 128) {
#pragma unroll
            for (u32 u = 0; u < UNITS; ++u) load_values(value[at][u], b, id, u);
        }
    };
    // Where the next 32 blocks of this wave lie, one a lane. Blocks of earlier steps are complete: the first of them are on
    // their way before this step's keys are there.
    u32 b = from + wave + skipped, ids = b + l * WAVES < to ? table[b + l * WAVES] : 0;
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
    // Of query i, what this lane needs of a chunk: words as the units take them.
    const auto query_words = [&](u32 i, u32 c) {
        const u64 head = (u64)(tile.first_row + tile.row(i)) * n_heads + kv_head * tile.group + tile.head(i);
        const float *at = q + head * HEAD_DIM + c * 32 + within * 8;
        float eight[8] = {};
        if (tile.has(i)) {
            const Pack<float, 4> a = load<4>(at), b = load<4>(at + 4);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) eight[k] = a.at[k] * scale, eight[4 + k] = b.at[k] * scale;
        }
        Pack<u32, 4> words;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) words.at[k] = pack_halves(eight[kv_pair(8, k, 0)], eight[kv_pair(8, k, 1)]);
        return words;
    };
    u32 query[BY_TOKEN ? 1 : CHUNKS][2][4];
    u32 *own_words = shared_queries + quad * QUERY_STRIDE + within * 4;
    if constexpr (BY_TOKEN) {
        for (u32 c = wave; c < CHUNKS; c += WAVES) store<4>(own_words + c * 16, query_words(quad, c));
        barrier();
    } else {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                const Pack<u32, 4> words = h < HALVES ? query_words(quad + 8 * h, c) : Pack<u32, 4>{};
#pragma unroll
                for (u32 k = 0; k < 2; ++k) query[c][k][h] = words.at[2 * k], query[c][k][2 + h] = words.at[2 * k + 1];
            }
        }
    }
    // Turned: [dims, queries], so that eight queries fill the units. Lane t of a quad holds queries 2t and 2t + 1.
    float sum[HALVES][HEAD_DIM / 16][4] = {};
    float most[2] = {MASKED, MASKED}, total[2] = {0.0f, 0.0f};
    u32 id = (u32)from_lane((i32)ids, 0);
    const auto use = [&](u32 at) {
        float score[2][4] = {};
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            Pack<u32, 4> words = {};
            if constexpr (BY_TOKEN) words = load<4>(own_words + c * 16);
            u32 numbers[2][4];
#pragma unroll
            for (u32 part = 0; part < 2; ++part) kv_halves<8>(numbers[part], key[at][part][c]);
#pragma unroll
            for (u32 k = 0; k < 2; ++k) {
                if constexpr (BY_TOKEN) {
                    const u32 keys[4] = {numbers[0][2 * k], numbers[1][2 * k], numbers[0][2 * k + 1], numbers[1][2 * k + 1]};
                    mma_16x8x16(score[0], keys, words.at[2 * k], words.at[2 * k + 1]);
                } else {
#pragma unroll
                    for (u32 part = 0; part < 2; ++part)
                        mma_16x8x16(score[part], query[BY_TOKEN ? 0 : c][k], numbers[part][2 * k], numbers[part][2 * k + 1]);
                }
            }
        }
        // Of own query h and own token i.
        const auto place = [](u32 h, u32 i) { return BY_TOKEN ? 2 * i + h : i / 2 * 4 + 2 * h + i % 2; };
        float weight[8] = {};
#pragma unroll
        for (u32 h = 0; h < OWN; ++h) {
            float largest = most[h];
#pragma unroll
            for (u32 i = 0; i < TOKENS; ++i) {
                const u32 t = b * KV_BLOCK + own_token(i);
                float &s = score[place(h, i) / 4][place(h, i) % 4];
                if (IS_SHAPED && shaping.cap > 0.0f) s = shaping.cap * tanh_f32(s / shaping.cap);
                s = t < n_visible[h] && (!IS_SHAPED || t >= n_hidden[h]) ? s * LOG2_E : MASKED;
                largest = max_f32(largest, s);
            }
            largest = over_lanes<BY_TOKEN>(largest, [](float a, float b) { return max_f32(a, b); });
            const float keep = fast_exp2(most[h] - largest);
            most[h] = largest;
            total[h] *= keep;
            if constexpr (BY_TOKEN) {
#pragma unroll
                for (u32 d = 0; d < HEAD_DIM / 16; ++d) sum[0][d][h] *= keep, sum[0][d][2 + h] *= keep;
            } else {
                const float keep0 = from_lane(keep, within * 8), keep1 = from_lane(keep, within * 8 + 4);
#pragma unroll
                for (u32 d = 0; d < HEAD_DIM / 16; ++d) {
                    sum[h][d][0] *= keep0;
                    sum[h][d][1] *= keep1;
                    sum[h][d][2] *= keep0;
                    sum[h][d][3] *= keep1;
                }
            }
#pragma unroll
            for (u32 i = 0; i < TOKENS; ++i) {
                const float s = score[place(h, i) / 4][place(h, i) % 4];
                weight[place(h, i)] = s <= MASKED ? 0.0f : fast_exp2(s - largest);
                total[h] += weight[place(h, i)];
            }
        }
        // [tokens, queries] as the units take them.
        u32 weights[HALVES][2];
#pragma unroll
        for (u32 h = 0; h < HALVES; ++h) {
#pragma unroll
            for (u32 part = 0; part < 2; ++part) {
                const u32 at = BY_TOKEN ? part * 2 : part * 4 + 2 * h;
                weights[h][part] = pack_halves(weight[at], weight[at + 1]);
                if constexpr (BY_TOKEN) weights[h][part] = turn_8x8(weights[h][part]);
            }
        }
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u) {
            if constexpr (HEAD_DIM > 128) load_values(value[at][u], b, id, u);
            u32 v[4][4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) kv_halves<8>(v[i], value[at][u][i]);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 a[4] = {low_halves(v[0][j], v[1][j]), high_halves(v[0][j], v[1][j]),
                                  low_halves(v[2][j], v[3][j]), high_halves(v[2][j], v[3][j])};
#pragma unroll
                for (u32 h = 0; h < HALVES; ++h)
                    mma_16x8x16(sum[h][u * 4 + j], a, weights[h][0], weights[h][1]);
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
    float *own_slots = shared + wave * N_Q * (HEAD_DIM + 2);
#pragma unroll
    for (u32 h = 0; h < OWN; ++h) {
        total[h] = over_lanes<BY_TOKEN>(total[h], [](float a, float b) { return a + b; });
        if (BY_TOKEN ? quad == 0 : within == 0) {
            own_slots[own_query(h) * (HEAD_DIM + 2) + HEAD_DIM] = most[h];
            own_slots[own_query(h) * (HEAD_DIM + 2) + HEAD_DIM + 1] = total[h];
        }
    }
#pragma unroll
    for (u32 h = 0; h < HALVES; ++h) {
        float *slots = own_slots + 8 * h * (HEAD_DIM + 2);
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u)
#pragma unroll
            for (u32 j = 0; j < 4; ++j)
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
                    slots[(within * 2 + i % 2) * (HEAD_DIM + 2) + u * 64 + quad * 8 + kv_pair(8, j, i / 2)] =
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
        // The scores of sinks and of the merging kernel are to the base e.
        const float natural = largest <= MASKED ? MASKED : largest / LOG2_E;
        if (n_splits == 1) {
            const u32 head = kv_head * tile.group + tile.head(i);
            float &to_out = out[((u64)(tile.first_row + tile.row(i)) * n_heads + head) * HEAD_DIM + d];
            if (IS_SHAPED && shaping.sinks) {
                const float sink = shaping.sinks[head], larger = max_f32(natural, sink);
                const float share = fast_exp(natural - larger);
                to_out = mixed * share / (all * share + fast_exp(sink - larger));
            } else {
                to_out = mixed / all;
            }
        } else {
            // [tile, kv head, split, N_Q, HEAD_DIM + 2]
            float *at = parts + ((((u64)block_x() * n_kv_heads + kv_head) * n_splits + split) * N_Q + i) * (HEAD_DIM + 2);
            at[d] = mixed;
            if (d == 0) at[HEAD_DIM] = natural, at[HEAD_DIM + 1] = all;
        }
    }
}

#define FLASH_FEW(N_Q)                                                                                                \
    KERNEL_BLOCKS(THREADS, HEAD_DIM > 128 ? 1 : 2)                                                                   \
    flash_few_##N_Q(const float *ARRIVING q, const u8 *k_pool, const u8 *v_pool, const u32 *__restrict__ tiles,       \
                    const u32 *__restrict__ spans, const u32 *__restrict__ tables, float *__restrict__ out,           \
                    float *__restrict__ parts, u32 n_heads, u32 n_kv_heads, float scale, u32 n_splits,                \
                    u32 part_blocks, u32 window, float cap, const float *__restrict__ sinks) {                        \
        __shared__ float shared[WAVES * N_Q * (HEAD_DIM + 2)];                                                        \
        __shared__ Pack<u32, 4> queries[BY_TOKEN ? N_Q * QUERY_STRIDE / 4 : 1];                                        \
        let_next_start();                                                                                             \
        attend<N_Q>(q, k_pool, v_pool, tiles, spans, tables, out, parts, n_heads, n_kv_heads, scale, n_splits,        \
                    part_blocks, {window, cap, sinks}, shared, (u32 *)queries);                                       \
    }

FLASH_FEW(8)
#if HEAD_DIM <= 128
FLASH_FEW(16)
#endif

#endif
