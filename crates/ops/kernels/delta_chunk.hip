// delta_chunk: the gated delta rule of delta_scan.hip for spans of many rows, some rows at once (chunk.h). What a row corrects
// of the state, its error, follows from those before it with the products of their keys; all else is products of matrices.
// With BY_CHANNEL the decay is a number for each of the key's (KDA). Then products take the difference of two sums of
// logarithms number by number, which is never above zero: however much is forgotten, nothing overflows.
#include "chunk.h"

#define EPS 1e-6f
#define WAVES (THREADS / GPU_WAVE)

// x brought to this length, by one wave; zeros past the last number.
DEVICE void load_unit(const float *x, u32 dim, float length, Four *to) {
    float squares = 0.0f;
    for (u32 k = lane(); k < dim; k += GPU_WAVE) squares = fma_f32(x[k], x[k], squares);
    const float scale = length / sqrt_f32(wave_sum(squares) + EPS);
    for (u32 k = lane(); k < DEPTH; k += GPU_WAVE) to[k / 4].at[k % 4] = k < dim ? x[k] * scale : 0.0f;
}

#if defined(BY_CHANNEL)
// Of a key and a query, each with an earlier key that has decayed since.
DEVICE void decayed_products(const Four *key, const Four *query, const Four *gate, const Four *key_before,
                             const Four *gate_before, float &of_key, float &of_query) {
#pragma unroll 2
    for (u32 k = 0; k < SLOTS; ++k) {
        const Four left = key[k], read = query[k], now = gate[k], right = key_before[k], then = gate_before[k];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float decayed = right.at[i] * fast_exp2(now.at[i] - then.at[i]);
            of_key = fma_f32(left.at[i], decayed, of_key);
            of_query = fma_f32(read.at[i], decayed, of_query);
        }
    }
}
#endif

// As delta_scan, of the spans with at least chunk_rows rows.
KERNEL(THREADS)
delta_chunk(const float *ARRIVING q, const float *ARRIVING k, const float *ARRIVING v, const float *ARRIVING forget,
            const float *ARRIVING beta, const float *__restrict__ forget_bias, const float *__restrict__ a, float *state,
            const u32 *__restrict__ spans, float *__restrict__ out, u32 n_key_heads, u32 n_heads, u32 key_dim, u32 value_dim,
            u32 is_tiled, u32 chunk_rows) {
    __shared__ Staged queries[ROWS], keys[ROWS];
#if defined(BY_CHANNEL)
    __shared__ Staged gates[ROWS];
    __shared__ Four left[SLOTS];
#else
    __shared__ Decays decays;
#endif
    __shared__ Square by_key, by_query;
    __shared__ float values[ROWS][COLUMNS], shares[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows < chunk_rows) return;
    const u32 n_tiles = (value_dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own;
    const u32 key_head = is_tiled ? head % n_key_heads : head / (n_heads / n_key_heads);
    const bool is_inside = column < value_dim;
    float *const slots = hidden(state + (u64)head * key_dim * value_dim + c0 + first_column());
    const auto place = [&](u32 slot) { return slots + (u64)slot * n_heads * key_dim * value_dim; };
    const u32 n_there = c0 + first_column() < value_dim ? value_dim - c0 - first_column() : 0;
    const bool has_state = span.from != NO_SLOT;
    Columns s = load_columns(has_state ? place(span.from) : slots, key_dim, value_dim, has_state ? n_there : 0);
    const float rate = a[head], length = 1.0f / sqrt_f32((float)key_dim);
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first = span.first_row + r0;
        barrier();
        for (u32 r = thread_x() / GPU_WAVE; r < ROWS; r += WAVES) {
            const u64 at = ((first + r) * n_key_heads + key_head) * key_dim;
            load_unit(q + at, r < n ? key_dim : 0, length, queries[r]);
            load_unit(k + at, r < n ? key_dim : 0, 1.0f, keys[r]);
        }
#if defined(BY_CHANNEL)
        for (u32 d = thread_x(); d < DEPTH; d += THREADS) {
            const float bias = d < key_dim ? forget_bias[head * key_dim + d] : 0.0f;
            const float *at = forget + (first * n_heads + head) * key_dim + d;
            float log = 0.0f;
#pragma unroll 1
            for (u32 r = 0; r < ROWS; ++r, at += n_heads * key_dim) {
                if (d < key_dim && r < n) log += LOG2_E * rate * softplus(*at + bias);
                gates[r][d / 4].at[d % 4] = log;
            }
        }
#else
        if (thread_x() < GPU_WAVE) {
            const float raw = thread_x() < n ? forget[(first + thread_x()) * n_heads + head] + forget_bias[head] : 0.0f;
            set_decays(decays, thread_x() < n ? rate * softplus(raw) : 0.0f);
        }
#endif
        if (thread_x() < ROWS) {
            shares[thread_x()] = thread_x() < n ? sigmoid(beta[(first + thread_x()) * n_heads + head]) : 0.0f;
        }
        for (u32 i = thread_x(); i < ROWS * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = c0 + i % COLUMNS;
            values[r][i % COLUMNS] = r < n && c < value_dim ? v[((first + r) * n_heads + head) * value_dim + c] : 0.0f;
        }
        barrier();
        const u32 i = thread_x() / ROW_THREADS;
        for (u32 j = thread_x() % ROW_THREADS; j < ROWS; j += ROW_THREADS) {
            float of_key = 0.0f, of_query = 0.0f;
            if (j <= i) {
#if defined(BY_CHANNEL)
                decayed_products(keys[i], queries[i], gates[i], keys[j], gates[j], of_key, of_query);
#else
                const Four *const rows[2] = {keys[i], queries[i]}, *const before[1] = {keys[j]};
                float sums[2][1];
                dot_rows(rows, before, sums);
                const float decay = fast_exp(decays.logs[i] - decays.logs[j]);
                of_key = sums[0][0] * decay, of_query = sums[1][0] * decay;
#endif
            }
            set_square(by_key, i, j, j < i ? -shares[i] * of_key : 0.0f);
            set_square(by_query, i, j, of_query);
        }
        barrier();
#if defined(BY_CHANNEL)
        // What asks the state has decayed to its row, what changes it decays to the chunk's end.
        for (u32 d = thread_x(); d < DEPTH; d += THREADS) {
            const u32 four = d / 4, at = d % 4;
            const float all = gates[ROWS - 1][four].at[at];
            left[four].at[at] = fast_exp2(all);
            for (u32 r = 0; r < ROWS; ++r) {
                const float log = gates[r][four].at[at], key = keys[r][four].at[at], decay = fast_exp2(log);
                gates[r][four].at[at] = key * fast_exp2(all - log);
                keys[r][four].at[at] = key * decay;
                queries[r][four].at[at] *= decay;
            }
        }
        barrier();
#endif
        u32 slice = own_slice(), zero = hidden(0u);
        float errors[ROWS], reads[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const Four *const rows[2] = {keys[r], queries[r]};
            float sums[2];
            read_columns(s, rows, slice, sums);
            errors[r] = sums[0], reads[r] = sums[1];
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
#if !defined(BY_CHANNEL)
            errors[r] *= decays.before[r], reads[r] *= decays.before[r];
#endif
            errors[r] = add_changes(shares[r] * (values[r][own] - errors[r]), by_key, r, errors, r, zero);
        }
        // Each lane of a column gives every fourth row.
#pragma unroll
        for (u32 r = 0; r < ROWS; r += PARTS) {
            const float sum = add_changes(of_part(reads, r), by_query, r + part, errors, r + PARTS, zero);
            if (is_inside && r + part < n) out[((first + r + part) * n_heads + head) * value_dim + column] = sum;
        }
#if defined(BY_CHANNEL)
        scale_columns(s, left);
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) add_to_columns(s, gates[r], slice, errors[r]);
#else
        const float left = decays.before[ROWS - 1];
        scale_columns(s, left);
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) add_to_columns(s, keys[r], slice, errors[r] * decays.after[r]);
#endif
    }
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_columns(s, place(i ? span.copy : span.to), key_dim, value_dim, n_there);
    }
}
