// delta_scan: the gated delta rule, S *= decay, S += k (beta * (v - S k)), out = S q / sqrt(key_dim); a state is [key_dim,
// value_dim] for each head. A block takes some columns of one head and all rows of one sequence: columns are values, and each
// of them is corrected by itself.
// With BY_CHANNEL the decay is a number for each of the key's (KDA), else one for a head.
#include "scan.h"

#define EPS 1e-6f
#define WAVES (THREADS / GPU_WAVE)
#if defined(BY_CHANNEL)
#define GATES SLOTS
#else
#define GATES 1
#endif

// x brought to this length, by one wave; lanes write what they read.
DEVICE void load_unit(const float *x, u32 dim, float length, Four *to) {
    float squares = 0.0f;
    for (u32 k = lane(); k < dim; k += GPU_WAVE) squares = fma_f32(x[k], x[k], squares);
    const float scale = length / sqrt_f32(wave_sum(squares) + EPS);
    for (u32 k = lane(); k < DEPTH; k += GPU_WAVE) to[k / 4].at[k % 4] = k < dim ? x[k] * scale : 0.0f;
}

// q, k: [n_rows, n_key_heads, key_dim]; v, out: [n_rows, n_heads, value_dim]; forget: [n_rows, n_heads, 1 or key_dim]; beta:
// [n_rows, n_heads]; state: [n_slots, n_heads, key_dim, value_dim]. block_x: head and columns; block_y: span.
KERNEL(THREADS)
delta_scan(const float *ARRIVING q, const float *ARRIVING k, const float *ARRIVING v, const float *ARRIVING forget,
           const float *ARRIVING beta, const float *__restrict__ forget_bias, const float *__restrict__ a, float *state,
           const u32 *__restrict__ spans, float *__restrict__ out, u32 n_key_heads, u32 n_heads, u32 key_dim, u32 value_dim,
           u32 is_tiled, u32 chunk_rows) {
    __shared__ Four queries[ROWS][SLOTS], keys[ROWS][SLOTS], decays[ROWS][GATES];
    __shared__ float values[ROWS][COLUMNS], shares[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows >= chunk_rows) return;
    const u32 n_tiles = (value_dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own;
    const u32 key_head = is_tiled ? head % n_key_heads : head / (n_heads / n_key_heads);
    const bool is_inside = column < value_dim;
    const auto place = [&](u32 slot) { return state + ((u64)slot * n_heads + head) * key_dim * value_dim + column; };
    const bool has_state = is_inside && span.from != NO_SLOT;
    Column s = load_column(has_state ? place(span.from) : state, key_dim, value_dim, has_state);
    const float rate = a[head], length = 1.0f / sqrt_f32((float)key_dim);
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first = span.first_row + r0;
        barrier();
        for (u32 r = thread_x() / GPU_WAVE; r < n; r += WAVES) {
            const u64 at = ((first + r) * n_key_heads + key_head) * key_dim;
            load_unit(q + at, key_dim, length, queries[r]);
            load_unit(k + at, key_dim, 1.0f, keys[r]);
        }
#if defined(BY_CHANNEL)
        for (u32 i = thread_x(); i < n * DEPTH; i += THREADS) {
            const u32 r = i / DEPTH, d = i % DEPTH, gate = head * key_dim + d;
            const bool is_gate = d < key_dim;
            const float raw = is_gate ? forget[(first + r) * n_heads * key_dim + gate] + forget_bias[gate] : 0.0f;
            decays[r][d / 4].at[d % 4] = is_gate ? fast_exp(rate * softplus(raw)) : 0.0f;
        }
#else
        if (thread_x() < n) {
            const float raw = forget[(first + thread_x()) * n_heads + head] + forget_bias[head];
            decays[thread_x()][0].at[0] = fast_exp(rate * softplus(raw));
        }
#endif
        if (thread_x() < n) shares[thread_x()] = sigmoid(beta[(first + thread_x()) * n_heads + head]);
        for (u32 i = thread_x(); i < n * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = c0 + i % COLUMNS;
            values[r][i % COLUMNS] = c < value_dim ? v[((first + r) * n_heads + head) * value_dim + c] : 0.0f;
        }
        barrier();
        for (u32 r = 0; r < n; ++r) {
            // What the decayed state knows of this key.
            float known = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const Four key = keys[r][j * PARTS + part], gate = decays[r][GATES > 1 ? j * PARTS + part : 0];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float &at = s.at[4 * j + i];
                    at *= gate.at[GATES > 1 ? i : 0];
                    known = fma_f32(key.at[i], at, known);
                }
            }
            const float error = shares[r] * (values[r][own] - column_sum(known));
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const Four key = keys[r][j * PARTS + part], query = queries[r][j * PARTS + part];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float &at = s.at[4 * j + i];
                    at = fma_f32(key.at[i], error, at);
                    sum = fma_f32(query.at[i], at, sum);
                }
            }
            sum = column_sum(sum);
            if (part == 0 && is_inside) out[((first + r) * n_heads + head) * value_dim + column] = sum;
        }
    }
    if (!is_inside) return;
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_column(s, place(i ? span.copy : span.to), key_dim, value_dim);
    }
}
