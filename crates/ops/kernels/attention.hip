// attention over the paged KV pool: causal or full, ragged, grouped queries, any head size.
//
// A tile is up to N_Q query vectors of one sequence that share a KV head. A block takes one tile, one KV head and one
// part of the context. HEAD_LANES lanes share a token, eight numbers each; every group of lanes keeps a running softmax
// of its own tokens, and the groups are merged at the end. Heads wider than 256, up to
// WIDE_DIM, are shared by a whole wave, two numbers in a row at a time. Where the context is split, parts are merged by
// attention_merge. Masked scores are a large negative number, not infinity: what they add is wiped by the first score
// that counts, and every query sees at least itself.
// With SHAPED, queries see only a window, scores are bent towards a cap, and a sink takes part of each sum; or a query has
// chosen the tokens it attends to, and a group of lanes goes from one that is chosen to the next.
#include "functions.h"
#include "kv.h"

#define THREADS 128
#define WAVES (THREADS / GPU_WAVE)
#if defined(WIDE_DIM)
#define HEAD_LANES GPU_WAVE
#define NUMBERS ((WIDE_DIM + 2 * GPU_WAVE - 1) / (2 * GPU_WAVE) * 2)
#else
#ifndef HEAD_LANES  // the host always says; a compiler run by hand may not
#define HEAD_LANES 16
#endif
#define NUMBERS 8
#endif
#define DIMS (HEAD_LANES * NUMBERS)
#define MASKED (-1e30f)
#define MAX_SPLITS 256

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

// A lane's numbers of a token or query.
struct Some {
    float at[NUMBERS];
};

// Which number of the head a lane's j-th is.
DEVICE u32 number_of(u32 j) {
    const u32 own = lane() % HEAD_LANES;
    return NUMBERS == 8 ? own * 8 + j : j / 2 * (2 * HEAD_LANES) + own * 2 + j % 2;
}

// A lane's numbers of a token as they lie in the pool: loaded long before they are used.
#if KV_IS_QUANTIZED && defined(WIDE_DIM)
struct KeptSome {
    u16 pairs[NUMBERS / 2];
    f16 scales[NUMBERS / 2];
};

// Past the end of the head its last pair once more, as below. A pair lies in one group: groups are of an even number.
DEVICE KeptSome load_some(const u8 *pool, u64 row, u32 token, u32 head_dim) {
    const u8 *at = pool + row * kv_row_bytes(head_dim);
    const f16 *scales = kv_scales((u8 *)at, token, head_dim);
    KeptSome out;
#pragma unroll
    for (u32 j = 0; j < NUMBERS; j += 2) {
        const u32 own = number_of(j), d = own < head_dim ? own : head_dim - 2;
        const u8 *pair = at + kv_bytes(token * head_dim + d);
        out.pairs[j / 2] = KV == KV_Q8_0 ? *(const u16 *)pair : *pair;
        out.scales[j / 2] = scales[d / KV_GROUP];
    }
    return out;
}

DEVICE Some widen(const KeptSome &kept) {
    Some out;
#pragma unroll
    for (u32 j = 0; j < NUMBERS; ++j) {
        const u32 pair = kept.pairs[j / 2];
#if KV == KV_Q8_0
        const float quant = (float)(i8)(pair >> (8 * (j % 2)));
#else
        const float quant = (float)((i32)((pair >> (4 * (j % 2))) & 15u) - 8);
#endif
        out.at[j] = quant * to_f32(kept.scales[j / 2]);
    }
    return out;
}
#elif KV_IS_QUANTIZED
struct KeptSome {
    Pack<u32, KV == KV_Q8_0 ? 2 : 1> words;
    f16 scale;
};

// Past the end of the head, the head's first numbers, which meet zeros.
DEVICE KeptSome load_some(const u8 *pool, u64 row, u32 token, u32 head_dim) {
    const u8 *at = pool + row * kv_row_bytes(head_dim);
    const u32 own = number_of(0), d = own < head_dim ? own : 0;
    return {load<KV == KV_Q8_0 ? 2 : 1>((const u32 *)(at + kv_bytes(token * head_dim + d))),
            kv_scales((u8 *)at, token, head_dim)[d / KV_GROUP]};
}

DEVICE Some widen(const KeptSome &kept) {
    Some out;
    const float scale = to_f32(kept.scale);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
#if KV == KV_Q8_0
        out.at[i] = (float)(i8)(kept.words.at[i / 4] >> (8 * (i % 4))) * scale;
#else
        out.at[i] = (float)((i32)((kept.words.at[0] >> (4 * i)) & 15u) - 8) * scale;
#endif
    }
    return out;
}
#else
struct KeptSome {
    Kept at[NUMBERS];
};

#if defined(WIDE_DIM)
// Past the end the last numbers once more: they meet zeros of the query, and sums that nobody reads. head_dim is even.
DEVICE KeptSome load_some(const u8 *pool, u64 row, u32 token, u32 head_dim) {
    const Kept *from = (const Kept *)pool + (row * KV_BLOCK + token) * head_dim;
    KeptSome out;
#pragma unroll
    for (u32 j = 0; j < NUMBERS; j += 2) {
        const u32 d = number_of(j);
        const Pack<Kept, 2> p = load<2>(from + (d < head_dim ? d : head_dim - 2));
        out.at[j] = p.at[0], out.at[j + 1] = p.at[1];
    }
    return out;
}
#else
DEVICE KeptSome load_some(const u8 *pool, u64 row, u32 token, u32 head_dim) {
    const Kept *from = (const Kept *)pool + (row * KV_BLOCK + token) * head_dim;
    const u32 d0 = number_of(0);
    KeptSome out;
    if (head_dim % 8 == 0 && d0 < head_dim) {
        if constexpr (sizeof(Kept) == 2) {
            const Pack<Kept, 8> p = load<8>(from + d0);
#pragma unroll
            for (u32 i = 0; i < 8; ++i) out.at[i] = p.at[i];
        } else {
            const Pack<Kept, 4> p = load<4>(from + d0), q = load<4>(from + d0 + 4);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) out.at[i] = p.at[i], out.at[4 + i] = q.at[i];
        }
        return out;
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        set(out.at[i], 0.0f);
        if (d0 + i < head_dim) out.at[i] = from[d0 + i];
    }
    return out;
}
#endif

DEVICE Some widen(const KeptSome &kept) {
    Some out;
#pragma unroll
    for (u32 i = 0; i < NUMBERS; ++i) out.at[i] = to_f32(kept.at[i]);
    return out;
}
#endif

// The queries of a tile and what they may see.
struct Tile {
    u32 first_row, n_rows, first_position, table, first_q, is_causal, group;
    DEVICE_MEMBER bool has(u32 i) const { return first_q + i < n_rows * group; }
    DEVICE_MEMBER u32 row(u32 i) const { return (first_q + i) / group; }
    DEVICE_MEMBER u32 head(u32 i) const { return (first_q + i) % group; }
    DEVICE_MEMBER u32 position(u32 i) const { return first_position + row(i); }
};

// tiles: (span, first query) each. spans: first row, rows, first position, start of the block table, is causal, 3 unused.
DEVICE Tile load_tile(const u32 *tiles, const u32 *spans, u32 group) {
    const u32 *tile = tiles + block_x() * 2;
    const u32 *span = spans + tile[0] * 8;
    return {span[0], span[1], span[2], span[3], tile[1], span[4], group};
}

// How scores are shaped; 0 and null where they are not.
struct Shaping {
    u32 window;
    float cap;
    const float *sinks;  // [n_heads]
    const float *slopes;  // [n_heads]: what a score loses with every token between query and key
    const u32 *chosen;    // [n_rows, n_words]: a bit for each token
    u32 n_words;
};

// A sum of weights and a sum of weighted values, both in the scale of `largest`.
DEVICE float finish(const Shaping &shaping, u32 head, float largest, float all, float mixed) {
    if (IS_SHAPED && shaping.sinks) {
        const float sink = shaping.sinks[head], most = max_f32(largest, sink), factor = fast_exp(largest - most);
        return mixed * factor / (all * factor + fast_exp(sink - most));
    }
    return mixed / all;
}

template <u32 N_Q>
DEVICE void attend(const float *q, const u8 *k_bytes, const u8 *v_bytes, const u32 *tiles, const u32 *spans,
                   const u32 *tables, float *out, float *parts, u32 n_heads, u32 n_kv_heads, u32 head_dim, float scale,
                   u32 n_splits, u32 part_blocks, const Shaping &shaping, float *shared) {
    const u32 kv_head = block_y(), split = block_z(), wave = thread_x() / GPU_WAVE;
    const Tile tile = load_tile(tiles, spans, n_heads / n_kv_heads);
    const u32 part = lane() / HEAD_LANES;
    Some query[N_Q], sum[N_Q];
    float most[N_Q], total[N_Q];
    u32 n_visible[N_Q], n_hidden[N_Q], n_keys = 0, begin = 0xffffffffu;
#pragma unroll
    for (u32 i = 0; i < N_Q; ++i) {
        const SeenKeys seen = {tile.is_causal != 0, IS_SHAPED ? shaping.window : 0, tile.first_position + tile.n_rows};
        n_visible[i] = tile.has(i) ? seen.end(tile.position(i)) : 0;
        n_keys = n_visible[i] > n_keys ? n_visible[i] : n_keys;
        n_hidden[i] = seen.start(tile.position(i));
        if (tile.has(i)) begin = n_hidden[i] < begin ? n_hidden[i] : begin;
        const u64 at = ((u64)(tile.first_row + tile.row(i)) * n_heads + kv_head * tile.group + tile.head(i)) * head_dim;
#pragma unroll
        for (u32 j = 0; j < NUMBERS; ++j) {
            const u32 d = number_of(j);
            query[i].at[j] = tile.has(i) && d < head_dim ? q[at + d] * scale : 0.0f;
            sum[i].at[j] = 0.0f;
        }
        most[i] = MASKED;
        total[i] = 0.0f;
    }
    // What lies before every query's window is not read.
    begin = IS_SHAPED ? begin / KV_BLOCK * KV_BLOCK : 0;
    const u32 n_blocks = (n_keys - begin + KV_BLOCK - 1) / KV_BLOCK;
    // Parts of equal length, or of a fixed one from the start of the context: then a part's sums do not depend on what
    // else the tile or the batch holds.
    const u32 per_split = (part_blocks ? part_blocks : (n_blocks + n_splits - 1) / n_splits) * KV_BLOCK;
    const u32 start = (part_blocks ? 0 : begin) + split * per_split, end = start + per_split;
    const u32 from = start > begin ? start : begin, to = end < n_keys ? end : n_keys;
    const auto fetch = [&](KeptSome &key, KeptSome &value, u32 t) {
        const u32 seen = t < to ? t : to - 1;
        const u64 row = (u64)tables[tile.table + seen / KV_BLOCK] * n_kv_heads + kv_head;
        key = load_some(k_bytes, row, seen % KV_BLOCK, head_dim);
        value = load_some(v_bytes, row, seen % KV_BLOCK, head_dim);
    };
    const u32 step = THREADS / HEAD_LANES;
    const auto choices = [&](u32 i, u32 t) {
        return shaping.chosen[(u64)(tile.first_row + tile.row(i)) * shaping.n_words + t / 32] >> (t % 32);
    };
    // From t on, the next that any query of the tile chose a token of, of those that the wave looks at together. These are
    // at most 16 bits of one word, or for short heads up to 64, which may begin in the middle of a word.
    const auto wanted = [&](u32 t) {
        if (!IS_SHAPED || !shaping.chosen) return t;
        constexpr u32 TOKENS = GPU_WAVE / HEAD_LANES, AT_ONCE = TOKENS < KV_BLOCK ? TOKENS : KV_BLOCK;
        for (; t < to; t += step) {
            u32 any = 0;
#pragma unroll
            for (u32 i = 0; i < N_Q; ++i) {
                if (!tile.has(i)) continue;
#pragma unroll
                for (u32 more = 0; more < TOKENS; more += AT_ONCE)
                    if (t + more < to) any |= choices(i, t + more);
            }
            if (any & ((1u << AT_ONCE) - 1)) break;
        }
        return t;
    };
    // Every lane goes round as often as the others: the sums across lanes need them all. The next token's numbers are on
    // their way while this one's are used.
    u32 t0 = wanted(from + wave * (GPU_WAVE / HEAD_LANES));
    KeptSome next_key, next_value;
    if (t0 < to) fetch(next_key, next_value, t0 + part);
    for (u32 after; t0 < to; t0 = after) {
        const u32 t = t0 + part;
        after = wanted(t0 + step);
        const Some key = widen(next_key), value = widen(next_value);
        if (after < to) fetch(next_key, next_value, after + part);
#pragma unroll
        for (u32 i = 0; i < N_Q; ++i) {
            float score = 0.0f;
#pragma unroll
            for (u32 j = 0; j < NUMBERS; ++j) score = fma_f32(query[i].at[j], key.at[j], score);
            score = wave_sum<HEAD_LANES>(score);
            if (IS_SHAPED && shaping.cap > 0.0f) score = shaping.cap * tanh_f32(score / shaping.cap);
            if (IS_SHAPED && shaping.slopes && tile.has(i)) {
                const float distance = (float)(i32)(tile.first_position + tile.row(i) - t);
                score -= shaping.slopes[kv_head * tile.group + tile.head(i)] * abs_f32(distance);
            }
            bool counts = t < to && t < n_visible[i] && (!IS_SHAPED || t >= n_hidden[i]);
            if (IS_SHAPED && shaping.chosen) counts = counts && (choices(i, t) & 1);
            score = counts ? score : MASKED;
            const float larger = max_f32(most[i], score);
            const float keep = fast_exp(most[i] - larger), weight = counts ? fast_exp(score - larger) : 0.0f;
            most[i] = larger;
            total[i] = fma_f32(total[i], keep, weight);
#pragma unroll
            for (u32 j = 0; j < NUMBERS; ++j) sum[i].at[j] = fma_f32(sum[i].at[j], keep, weight * value.at[j]);
        }
    }
#pragma unroll
    for (u32 mask = HEAD_LANES; mask < GPU_WAVE; mask <<= 1) {
#pragma unroll
        for (u32 i = 0; i < N_Q; ++i) {
            const float other = across(most[i], mask), larger = max_f32(most[i], other);
            const float mine = fast_exp(most[i] - larger), theirs = fast_exp(other - larger);
            total[i] = total[i] * mine + across(total[i], mask) * theirs;
#pragma unroll
            for (u32 j = 0; j < NUMBERS; ++j) sum[i].at[j] = sum[i].at[j] * mine + across(sum[i].at[j], mask) * theirs;
            most[i] = larger;
        }
    }
    // [WAVES, N_Q, DIMS + 2]
    if (part == 0) {
#pragma unroll
        for (u32 i = 0; i < N_Q; ++i) {
            float *slot = shared + (wave * N_Q + i) * (DIMS + 2);
#pragma unroll
            for (u32 j = 0; j < NUMBERS; ++j) slot[number_of(j)] = sum[i].at[j];
            if (lane() == 0) slot[DIMS] = most[i], slot[DIMS + 1] = total[i];
        }
    }
    barrier();
    for (u32 n = thread_x(); n < N_Q * head_dim; n += THREADS) {
        const u32 i = n / head_dim, d = n % head_dim;
        if (!tile.has(i)) continue;
        float largest = MASKED, all = 0.0f, mixed = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) largest = max_f32(largest, shared[(w * N_Q + i) * (DIMS + 2) + DIMS]);
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) {
            const float *slot = shared + (w * N_Q + i) * (DIMS + 2);
            const float weight = fast_exp(slot[DIMS] - largest);
            all = fma_f32(slot[DIMS + 1], weight, all);
            mixed = fma_f32(slot[d], weight, mixed);
        }
        if (n_splits == 1) {
            const u64 row = tile.first_row + tile.row(i);
            const u32 head = kv_head * tile.group + tile.head(i);
            out[(row * n_heads + head) * head_dim + d] = finish(shaping, head, largest, all, mixed);
        } else {
            // [tile, kv head, split, N_Q, head_dim + 2]
            float *at = parts + ((((u64)block_x() * n_kv_heads + kv_head) * n_splits + split) * N_Q + i) * (head_dim + 2);
            at[d] = mixed;
            if (d == 0) at[head_dim] = largest, at[head_dim + 1] = all;
        }
    }
}

#define ATTENTION(N_Q)                                                                                                \
    KERNEL(THREADS)                                                                                                   \
    attention_##N_Q(const float *ARRIVING q, const u8 *ARRIVING k_pool, const u8 *ARRIVING v_pool,                    \
                    const u32 *__restrict__ tiles, const u32 *__restrict__ spans, const u32 *__restrict__ tables,     \
                    float *__restrict__ out, float *__restrict__ parts, u32 n_heads, u32 n_kv_heads, u32 head_dim,    \
                    float scale, u32 n_splits, u32 part_blocks, u32 window, float cap,                                \
                    const float *__restrict__ sinks, const float *__restrict__ slopes, const u32 *ARRIVING chosen,   \
                    u32 chosen_words) {                                                                              \
        __shared__ float shared[WAVES * N_Q * (DIMS + 2)];                                                            \
        let_next_start();                                                                                             \
        wait_for_inputs();                                                                                            \
        attend<N_Q>(q, k_pool, v_pool, tiles, spans, tables, out, parts, n_heads, n_kv_heads, head_dim, scale,        \
                    n_splits, part_blocks, Shaping{window, cap, sinks, slopes, chosen, chosen_words}, shared);                              \
    }

ATTENTION(1)
ATTENTION(2)
#if !defined(WIDE_DIM)  // its registers would not do
ATTENTION(4)
#endif

#define MERGE_GROUPS 4
#define MERGE_THREADS (MERGE_GROUPS * 128)
#define PARTS_AT_ONCE 12
#define FEW_PARTS 8

// What the threads of a merge share.
struct Merge {
    const float *first;  // of the query's parts: head_dim numbers, the largest score, the sum
    float *out, *weights, *sums;
    u32 stride, n_splits, head, head_dim;
    const float *sinks;

    DEVICE_MEMBER float part(u32 s, u32 d) const {
        return s < n_splits && d < head_dim ? first[(u64)s * stride + d] : 0.0f;
    }
    DEVICE_MEMBER void put(u32 d, float largest, float all, float mixed) const {
        out[d] = finish(Shaping{0, 0.0f, sinks, nullptr, nullptr, 0}, head, largest, all, mixed);
    }
};

// The largest score of N parts a lane, found by every wave by itself, the sum of all weights, and each part's weight.
template <u32 N>
DEVICE void weigh_parts(const Merge &merge, float &largest, float &all) {
    float most[N], total[N];
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
        const u32 s = k * GPU_WAVE + lane();
        most[k] = s < merge.n_splits ? merge.first[(u64)s * merge.stride + merge.head_dim] : MASKED;
        total[k] = s < merge.n_splits ? merge.first[(u64)s * merge.stride + merge.head_dim + 1] : 0.0f;
        largest = max_f32(largest, most[k]);
    }
    largest = wave_max(largest);
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
        const u32 s = k * GPU_WAVE + lane();
        const float weight = fast_exp(most[k] - largest);
        if (thread_x() < GPU_WAVE && s < merge.n_splits) merge.weights[s] = weight;
        all = fma_f32(total[k], weight, all);
    }
    all = wave_sum(all);
    barrier();
}

// A group of 128 threads takes every fourth part; the first of them are asked for before their weights are known.
DEVICE void merge_parts(const Merge &merge) {
    const u32 group = thread_x() / 128, column = thread_x() % 128, n_splits = merge.n_splits, head_dim = merge.head_dim;
    const auto fetch = [&](float (&to)[PARTS_AT_ONCE], u32 s0, u32 d) {
#pragma unroll
        for (u32 j = 0; j < PARTS_AT_ONCE; ++j) to[j] = merge.part(s0 + j * MERGE_GROUPS + group, d);
    };
    float some[PARTS_AT_ONCE], largest = MASKED, all = 0.0f;
    fetch(some, 0, column);
    weigh_parts<MAX_SPLITS / GPU_WAVE>(merge, largest, all);
    for (u32 d0 = 0; d0 < head_dim; d0 += 128) {
        const u32 d = d0 + column;
        float mixed = 0.0f;
        for (u32 s0 = 0; s0 < n_splits; s0 += PARTS_AT_ONCE * MERGE_GROUPS) {
            if (s0 + d0 > 0) fetch(some, s0, d);
#pragma unroll
            for (u32 j = 0; j < PARTS_AT_ONCE; ++j) {
                const u32 s = s0 + j * MERGE_GROUPS + group;
                if (s < n_splits) mixed = fma_f32(some[j], merge.weights[s], mixed);
            }
        }
        merge.sums[thread_x()] = mixed;
        barrier();
        if (group == 0 && d < head_dim) {
#pragma unroll
            for (u32 k = 1; k < MERGE_GROUPS; ++k) mixed += merge.sums[k * 128 + column];
            merge.put(d, largest, all, mixed);
        }
        barrier();
    }
}

// The few parts of a short context by one group, which adds them in the same order.
DEVICE void merge_few_parts(const Merge &merge) {
    float largest = MASKED, all = 0.0f;
    float some[FEW_PARTS];
    const auto fetch = [&](u32 d) {
#pragma unroll
        for (u32 s = 0; s < FEW_PARTS; ++s) some[s] = merge.part(s, d);
    };
    fetch(thread_x());
    weigh_parts<1>(merge, largest, all);
    for (u32 d = thread_x(); d < merge.head_dim; d += 128) {
        if (d >= 128) fetch(d);
        float mixed[MERGE_GROUPS] = {};
#pragma unroll
        for (u32 s = 0; s < FEW_PARTS; ++s) {
            if (s < merge.n_splits) mixed[s % MERGE_GROUPS] = fma_f32(some[s], merge.weights[s], mixed[s % MERGE_GROUPS]);
        }
#pragma unroll
        for (u32 k = 1; k < MERGE_GROUPS; ++k) mixed[0] += mixed[k];
        merge.put(d, largest, all, mixed[0]);
    }
}

// Adds up the parts of one query, each in the scale of its own largest score. A block a query: block_y is the KV head and
// block_z the query's number in its tile.
KERNEL(MERGE_THREADS)
attention_merge(const u32 *__restrict__ tiles, const u32 *__restrict__ spans, const float *ARRIVING parts,
                float *__restrict__ out, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 n_q, u32 n_splits,
                const float *__restrict__ sinks) {
    __shared__ float weights[MAX_SPLITS], sums[MERGE_THREADS];
    let_next_start();
    const bool is_few = n_splits <= FEW_PARTS;
    if (is_few && thread_x() >= 128) return;
    const Tile tile = load_tile(tiles, spans, n_heads / n_kv_heads);
    const u32 kv_head = block_y(), i = block_z(), stride = n_q * (head_dim + 2);
    wait_for_inputs();
    if (!tile.has(i)) return;
    const float *first = parts + (((u64)block_x() * n_kv_heads + kv_head) * n_splits * n_q + i) * (head_dim + 2);
    const u64 row = tile.first_row + tile.row(i);
    const u32 head = kv_head * tile.group + tile.head(i);
    const Merge merge{first, out + (row * n_heads + head) * head_dim, weights, sums, stride, n_splits, head, head_dim, sinks};
    if (is_few) {
        merge_few_parts(merge);
    } else {
        merge_parts(merge);
    }
}
