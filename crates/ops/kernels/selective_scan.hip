// selective_scan: the recurrence of the first Mamba, h[n] = exp(dt * a[n]) h[n] + dt b[n] x, out = sum over n of c[n] h[n] +
// d x, column by column. A block takes some columns and all rows of one sequence.
#include "scan.h"

// x, dt, out: [n_rows, n_cols]; b, c: [n_rows, state_dim]; a: [state_dim, n_cols]; state: [n_slots, state_dim, n_cols].
// block_x: columns; block_y: span.
KERNEL(THREADS)
selective_scan(const float *ARRIVING x, const float *ARRIVING dt, const float *ARRIVING b, const float *ARRIVING c,
               const float *__restrict__ a, const float *__restrict__ d, float *state, const u32 *__restrict__ spans,
               float *__restrict__ out, u32 n_cols, u32 state_dim) {
    __shared__ Four taken[ROWS][SLOTS], read[ROWS][SLOTS];
    __shared__ float xs[ROWS][COLUMNS], steps[ROWS][COLUMNS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    const u32 c0 = block_x() * COLUMNS, own = own_column(), part = own_part(), column = c0 + own;
    const bool is_inside = column < n_cols;
    const auto place = [&](u32 slot) { return state + (u64)slot * state_dim * n_cols + column; };
    const bool has_state = is_inside && span.from != NO_SLOT;
    Column h = load_column(has_state ? place(span.from) : state, state_dim, n_cols, has_state);
    const Column rate = load_column(a + column, state_dim, n_cols, is_inside);
    const float past = is_inside ? d[column] : 0.0f;
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first = span.first_row + r0;
        barrier();
        for (u32 i = thread_x(); i < n * DEPTH; i += THREADS) {
            const u32 r = i / DEPTH, k = i % DEPTH;
            taken[r][k / 4].at[k % 4] = k < state_dim ? b[(first + r) * state_dim + k] : 0.0f;
            read[r][k / 4].at[k % 4] = k < state_dim ? c[(first + r) * state_dim + k] : 0.0f;
        }
        for (u32 i = thread_x(); i < n * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, k = c0 + i % COLUMNS;
            xs[r][i % COLUMNS] = k < n_cols ? x[(first + r) * n_cols + k] : 0.0f;
            steps[r][i % COLUMNS] = k < n_cols ? softplus(dt[(first + r) * n_cols + k]) : 0.0f;
        }
        barrier();
        for (u32 r = 0; r < n; ++r) {
            const float own_x = xs[r][own], step = steps[r][own], input = step * own_x;
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const Four in = taken[r][j * PARTS + part], to = read[r][j * PARTS + part];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float &at = h.at[4 * j + i];
                    at = fma_f32(at, fast_exp(step * rate.at[4 * j + i]), in.at[i] * input);
                    sum = fma_f32(to.at[i], at, sum);
                }
            }
            sum = column_sum(sum);
            if (part == 0 && is_inside) out[(first + r) * n_cols + column] = fma_f32(past, own_x, sum);
        }
    }
    if (!is_inside) return;
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_column(h, place(i ? span.copy : span.to), state_dim, n_cols);
    }
}
