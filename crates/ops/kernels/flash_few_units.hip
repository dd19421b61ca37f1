// flash_few_units: attention of a few query vectors on AMD's matrix units (prelude.h's tile: WMMA, MFMA): decode, with the
// queries that share a KV head together. Keys and values in f16, Q8_0 or Q4_0 (kv.h), f32 sums. Causal or full, paged; with
// SHAPED also windows, caps and sinks.
//
// A tile is up to 16 query vectors of one sequence that share a KV head. A block takes one tile, one KV head and one part
// of the context; its waves take KV blocks of 16 tokens in turns, straight from memory to registers. As in flash_units.hip
// everything is computed turned: a tile's columns are queries and stay with a lane. Scores are keys x queries. Sums are
// numbers x queries: a lane has runs of neighbouring numbers of some tokens and puts the same number of two tokens
// together, so the numbers of a tile lie apart (number_of). Parts are merged by attention_merge. HEAD_DIM is a multiple
// of 32.
#include "functions.h"
#include "kv.h"

#define THREADS 128
#define WAVES (THREADS / GPU_WAVE)
#define N_QUERIES 16
#ifndef HEAD_DIM  // the host always says; a compiler run by hand may not
#define HEAD_DIM 128
#endif
#define MASKED (-1e30f)
#define LOG2_E 1.44269504f

#if defined(SHAPED)
#define IS_SHAPED true
#else
#define IS_SHAPED false
#endif

#if defined(GPU_AMD) && defined(GPU_HAS_TILES) && KV != KV_F32

#define CHUNKS (HEAD_DIM / KV_GROUP)
#define N_DIMS (HEAD_DIM / 16)
// Numbers and words of a lane's key in a chunk of 32: two factors.
#define KEY_NUMBERS (KV_GROUP / MMA_SHARES)
#define KEY_WORDS (2 * MMA_WORDS)
// Neighbouring numbers of a value that a lane reads together, and how many such runs make up the head.
#define RUN (HEAD_DIM > 128 && MMA_SHARES < 4 ? 4 : HEAD_DIM % 128 == 0 ? 8 : HEAD_DIM % 64 == 0 ? 4 : 2)
#define N_RUNS (N_DIMS / RUN)
// How many of them are in registers at once.
#define RUNS_AT_ONCE (HEAD_DIM > 128 && MMA_SHARES < 4 ? 1 : N_RUNS)
// Tokens of a block whose values a lane has.
#define TOKENS (2 * MMA_WORDS)
#define STRIDE (HEAD_DIM + 2)
// Queries lie in shared memory where they would take more than 32 registers; 16 bytes of padding.
#define QUERIES_ARE_SHARED (HEAD_DIM / 2 / MMA_SHARES > 32)
#define QUERY_STRIDE (HEAD_DIM / 2 + 4)

// Of 32 numbers' share in registers, which two are in a word (kv.h).
DEVICE u32 key_number(u32 word, u32 half) { return word / (KV_SPAN / 2) * KV_SPAN + kv_pair(KV_SPAN, word % (KV_SPAN / 2), half); }

// The number of the head that stands in row `row` of tile j.
DEVICE u32 number_of(u32 row, u32 j) { return j / RUN * (16 * RUN) + row * RUN + j % RUN; }

struct Tile {
    u32 first_row, n_rows, first_position, table, first_q, is_causal, group;
    DEVICE_MEMBER bool has(u32 i) const { return first_q + i < n_rows * group; }
    DEVICE_MEMBER u32 row(u32 i) const { return (first_q + i) / group; }
    DEVICE_MEMBER u32 head(u32 i) const { return (first_q + i) % group; }
};

// This lane's numbers of one value in a few runs, as halves.
struct Value {
    u32 at[RUNS_AT_ONCE * RUN / 2];
    // The word with number j of them, and in which half it is.
    DEVICE_MEMBER u32 word(u32 j) const { return at[j / RUN * (RUN / 2) + kv_place(RUN, j % RUN) / 2]; }
    DEVICE_MEMBER static bool is_high(u32 j) { return kv_place(RUN, j % RUN) % 2; }
};

// The queries as factors.
struct Queries {
#if QUERIES_ARE_SHARED
    const u32 *words;  // [16, QUERY_STRIDE]
#else
    MmaWords own[CHUNKS][2];
#endif
    DEVICE_MEMBER MmaFactor factor(u32 chunk, u32 f) const {
#if QUERIES_ARE_SHARED
        const u32 *from = words + lane() % 16 * QUERY_STRIDE + chunk * 16 + mma_share() * KEY_WORDS + f * MMA_WORDS;
        MmaWords some;
#pragma unroll
        for (u32 i = 0; i < MMA_WORDS; i += 4) {
            const Pack<u32, 4> four = load<4>(from + i);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) some.at[i + k] = four.at[k];
        }
        return mma_factor(some);
#else
        return mma_factor(own[chunk][f]);
#endif
    }
};

// What a wave has of the context: [16 queries] in its lanes' columns.
struct Sums {
    MmaSum at[N_DIMS];
    float most, total;
};

// Word w of a lane's part of a chunk, from the numbers of that part.
DEVICE u32 query_word(const float *part, u32 w, bool is_there, float scale) {
    const float low = is_there ? part[key_number(w, 0)] * scale : 0.0f, high = is_there ? part[key_number(w, 1)] * scale : 0.0f;
    return pack_halves(low, high);
}

// The tokens of a block are [0, n_there): past them the first one once more, since what was never written may be anything.
DEVICE void load_values(Value (&value)[TOKENS], const u8 *row, u32 n_there, u32 first_run) {
#pragma unroll
    for (u32 i = 0; i < TOKENS; ++i) {
        const u32 wanted = mma_turned_row(i), token = wanted < n_there ? wanted : 0;
#pragma unroll
        for (u32 r = 0; r < RUNS_AT_ONCE; ++r) {
            u32 words[RUN / 2];
            kv_run<RUN, HEAD_DIM>(words, row, token, number_of(lane() % 16, (first_run + r) * RUN));
#pragma unroll
            for (u32 k = 0; k < RUN / 2; ++k) value[i].at[r * (RUN / 2) + k] = words[k];
        }
    }
}

// Numbers x queries of the tokens of a block, from some runs on.
DEVICE void add_values(Sums &sums, const Value (&value)[TOKENS], const MmaFactor &weights, u32 first_run) {
#pragma unroll
    for (u32 j = 0; j < RUNS_AT_ONCE * RUN; ++j) {
        MmaWords numbers;
#pragma unroll
        for (u32 w = 0; w < MMA_WORDS; ++w) {
            const u32 a = value[2 * w].word(j), b = value[2 * w + 1].word(j);
            numbers.at[w] = Value::is_high(j) ? high_halves(a, b) : low_halves(a, b);
        }
        mma(sums.at[first_run * RUN + j], mma_factor(numbers), weights);
    }
}

// One block of keys and values, whose first token is t0. Tokens that this lane's query sees: [n_hidden, n_visible).
DEVICE void use_block(Sums &sums, const Queries &queries, const u8 *k_row, const u8 *v_row, u32 t0, u32 n_there,
                      u32 n_hidden, u32 n_visible, float cap) {
    const u32 own = lane() % 16, token = own < n_there ? own : 0;
    MmaSum dots;
    mma_clear(dots);
#if QUERIES_ARE_SHARED
#pragma unroll 2  // what is loaded would fill all registers
#else
#pragma unroll
#endif
    for (u32 c = 0; c < CHUNKS; ++c) {
        u32 words[KEY_WORDS];
        kv_run<KEY_NUMBERS, HEAD_DIM>(words, k_row, token, c * KV_GROUP + mma_share() * KEY_NUMBERS);
#pragma unroll
        for (u32 f = 0; f < 2; ++f) {
            MmaWords key;
#pragma unroll
            for (u32 i = 0; i < MMA_WORDS; ++i) key.at[i] = words[f * MMA_WORDS + i];
            mma(dots, mma_factor(key), queries.factor(c, f));
        }
    }
    Value value[TOKENS];
    load_values(value, v_row, n_there, 0);
    float score[MMA_SUMS], largest = sums.most;
#pragma unroll
    for (u32 i = 0; i < MMA_SUMS; ++i) {
        const u32 t = t0 + mma_row(i);
        float s = mma_sum(dots, i);
        if (IS_SHAPED && cap > 0.0f) s = cap * tanh_f32(s / cap);
        const bool counts = t < n_visible && (!IS_SHAPED || t >= n_hidden);
        score[i] = counts ? s * LOG2_E : MASKED;
        largest = max_f32(largest, score[i]);
    }
#pragma unroll
    for (u32 mask = 16; mask < GPU_WAVE; mask <<= 1) largest = max_f32(largest, across(largest, mask));
    // Seldom after the first blocks.
    if (largest > sums.most) {
        const float keep = fast_exp2(sums.most - largest);
        sums.total *= keep;
#pragma unroll
        for (u32 d = 0; d < N_DIMS; ++d) sums.at[d].at *= keep;
        sums.most = largest;
    }
    float weight[MMA_SUMS];
#pragma unroll
    for (u32 i = 0; i < MMA_SUMS; ++i) {
        weight[i] = score[i] <= MASKED ? 0.0f : fast_exp2(score[i] - largest);
        sums.total += weight[i];
    }
    const MmaFactor weights = mma_turned(weight);
    add_values(sums, value, weights, 0);
#pragma unroll
    for (u32 r = RUNS_AT_ONCE; r < N_RUNS; r += RUNS_AT_ONCE) {
        load_values(value, v_row, hidden_until(n_there, sums.total), r);
        add_values(sums, value, weights, r);
    }
}

// The sums of all waves, in the scale of the largest score, [N_QUERIES, STRIDE]: the score and the sum of weights behind.
DEVICE void merge_waves(Sums &sums, float *most, float *shared) {
    const u32 wave = thread_x() / GPU_WAVE, query = lane() % 16;
    if (lane() < 16) most[wave * N_QUERIES + query] = sums.most;
    barrier();
    float largest = most[query];
#pragma unroll
    for (u32 w = 1; w < WAVES; ++w) largest = max_f32(largest, most[w * N_QUERIES + query]);
    const float share = fast_exp2(sums.most - largest), total = sums.total * share;
    float *slot = shared + query * STRIDE;
#pragma unroll 1
    for (u32 turn = 0; turn < WAVES; ++turn) {
        if (wave == turn) {
#pragma unroll
            for (u32 j = 0; j < N_DIMS; ++j) {
#pragma unroll
                for (u32 i = 0; i < MMA_SUMS; ++i) {
                    float &to = slot[number_of(mma_row(i), j)];
                    to = (turn ? to : 0.0f) + mma_sum(sums.at[j], i) * share;
                }
            }
            if (lane() < 16) {
                slot[HEAD_DIM] = largest;
                slot[HEAD_DIM + 1] = (turn ? slot[HEAD_DIM + 1] : 0.0f) + total;
            }
        }
        barrier();
    }
}

// tiles, spans and parts as in attention.hip.
KERNEL(THREADS)
flash_few_units(const float *__restrict__ q, const u8 *__restrict__ k_pool, const u8 *__restrict__ v_pool,
                const u32 *__restrict__ tiles, const u32 *__restrict__ spans, const u32 *__restrict__ tables,
                float *__restrict__ out, float *__restrict__ parts, u32 n_heads, u32 n_kv_heads, float scale, u32 n_splits,
                u32 part_blocks, u32 window, float cap, const float *__restrict__ sinks) {
    __shared__ float shared[N_QUERIES * STRIDE], most[WAVES * N_QUERIES];
#if QUERIES_ARE_SHARED
    __shared__ Pack<u32, 4> query_words[N_QUERIES * QUERY_STRIDE / 4];
#endif
    const u32 kv_head = block_y(), split = block_z(), wave = thread_x() / GPU_WAVE, own = lane() % 16;
    const u32 *span = spans + tiles[block_x() * 2] * 8;
    const Tile tile = {span[0], span[1], span[2], span[3], tiles[block_x() * 2 + 1], span[4], n_heads / n_kv_heads};
    const u32 n_left = tile.n_rows * tile.group - tile.first_q, n_q = n_left < N_QUERIES ? n_left : N_QUERIES;
    const SeenKeys seen = {tile.is_causal != 0, IS_SHAPED ? window : 0, tile.first_position + tile.n_rows};
    const u32 position = tile.first_position + tile.row(own);
    // The first query begins first, the last one sees the most.
    const u32 n_keys = seen.end(tile.first_position + tile.row(n_q - 1));
    const u32 begin = seen.start(tile.first_position + tile.row(0)) / KV_BLOCK;
    const u32 n_visible = tile.has(own) ? seen.end(position) : 0, n_hidden = seen.start(position);

    const auto query_of = [&](u32 i) {
        return q + ((u64)(tile.first_row + tile.row(i)) * n_heads + kv_head * tile.group + tile.head(i)) * HEAD_DIM;
    };
    Queries queries;
#if QUERIES_ARE_SHARED
    queries.words = (const u32 *)query_words;
    for (u32 n = thread_x(); n < N_QUERIES * HEAD_DIM / 2; n += THREADS) {
        const u32 i = n / (HEAD_DIM / 2), word = n % (HEAD_DIM / 2);
        const float *part = query_of(i) + word / KEY_WORDS * KEY_NUMBERS;
        ((u32 *)query_words)[i * QUERY_STRIDE + word] = query_word(part, word % KEY_WORDS, tile.has(i), scale);
    }
    barrier();
#else
#pragma unroll
    for (u32 w = 0; w < HEAD_DIM / 2 / MMA_SHARES; ++w) {
        const float *part = query_of(own) + w / KEY_WORDS * KV_GROUP + mma_share() * KEY_NUMBERS;
        queries.own[w / KEY_WORDS][w % KEY_WORDS / MMA_WORDS].at[w % MMA_WORDS] =
            query_word(part, w % KEY_WORDS, tile.has(own), scale);
    }
#endif
    Sums sums;
    sums.most = MASKED, sums.total = 0.0f;
#pragma unroll
    for (u32 d = 0; d < N_DIMS; ++d) mma_clear(sums.at[d]);
    const u32 end = (n_keys + KV_BLOCK - 1) / KV_BLOCK, n_blocks = end - begin;
    // As in attention.hip. Where parts are fixed, so is the wave that takes a block.
    const u32 per_split = part_blocks ? part_blocks : (n_blocks + n_splits - 1) / n_splits;
    const u32 from = (part_blocks ? 0 : begin) + split * per_split, to = min_u32(from + per_split, end);
    const u32 skipped = begin > from ? (begin - from + WAVES - 1 - wave) / WAVES * WAVES : 0;
    for (u32 b = from + wave + skipped; b < to; b += WAVES) {
        const u64 row = (u64)tables[tile.table + b] * n_kv_heads + kv_head;
        const u64 at = row * kv_row_bytes(HEAD_DIM);
        if (QUERIES_ARE_SHARED) keep_order();  // or they would be read into registers before the loop
        use_block(sums, queries, k_pool + at, v_pool + at, b * KV_BLOCK, n_keys - b * KV_BLOCK, n_hidden, n_visible, cap);
    }
#pragma unroll
    for (u32 mask = 16; mask < GPU_WAVE; mask <<= 1) sums.total += across(sums.total, mask);
    merge_waves(sums, most, shared);
    for (u32 n = thread_x(); n < n_q * HEAD_DIM; n += THREADS) {
        const u32 i = n / HEAD_DIM, d = n % HEAD_DIM, head = kv_head * tile.group + tile.head(i);
        const float *slot = shared + i * STRIDE;
        // The scores of sinks and of the merging kernel are to the base e.
        const float largest = slot[HEAD_DIM] <= MASKED ? MASKED : slot[HEAD_DIM] / LOG2_E, all = slot[HEAD_DIM + 1];
        if (n_splits == 1) {
            float value = slot[d] / all;
            if (IS_SHAPED && sinks) {
                const float sink = sinks[head], larger = max_f32(largest, sink), factor = fast_exp(largest - larger);
                value = slot[d] * factor / (all * factor + fast_exp(sink - larger));
            }
            out[((u64)(tile.first_row + tile.row(i)) * n_heads + head) * HEAD_DIM + d] = value;
        } else {
            float *to_part = parts + ((((u64)block_x() * n_kv_heads + kv_head) * n_splits + split) * N_QUERIES + i) * STRIDE;
            to_part[d] = slot[d];
            if (d == 0) to_part[HEAD_DIM] = largest, to_part[HEAD_DIM + 1] = all;
        }
    }
}

#endif
