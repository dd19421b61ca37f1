// ssm_scan: the recurrence of Mamba 2, h = exp(dt * a) h + dt B x, out = C h + d x; a state is [state_dim, head_dim] for each
// head. A block takes some columns of one head and all rows of one sequence.
#include "scan.h"

// xbc: [n_rows, n_heads * head_dim + 2 * n_groups * state_dim]; dt: [n_rows, n_heads]; state: [n_slots, n_heads, state_dim,
// head_dim]; out: [n_rows, n_heads * head_dim]. block_x: head and columns; block_y: span.
KERNEL(THREADS)
ssm_scan(const float *ARRIVING xbc, const float *ARRIVING dt, const float *__restrict__ a, const float *__restrict__ d,
         const float *__restrict__ dt_bias, float *state, const u32 *__restrict__ spans, float *__restrict__ out, u32 n_heads,
         u32 head_dim, u32 state_dim, u32 n_groups, u32 chunk_rows) {
    __shared__ Four taken[ROWS][SLOTS], read[ROWS][SLOTS];
    __shared__ float xs[ROWS][COLUMNS], steps[ROWS], decays[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows >= chunk_rows) return;
    const u32 n_tiles = (head_dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own, group = head / (n_heads / n_groups);
    const u32 inner = n_heads * head_dim, width = inner + 2 * n_groups * state_dim;
    const bool is_inside = column < head_dim;
    const auto place = [&](u32 slot) { return state + ((u64)slot * n_heads + head) * state_dim * head_dim + column; };
    const bool has_state = is_inside && span.from != NO_SLOT;
    Column h = load_column(has_state ? place(span.from) : state, state_dim, head_dim, has_state);
    const float past = d[head];
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const float *first = xbc + (u64)(span.first_row + r0) * width;
        barrier();
        for (u32 i = thread_x(); i < n * DEPTH; i += THREADS) {
            const u32 r = i / DEPTH, k = i % DEPTH;
            const float *row = first + (u64)r * width + inner + group * state_dim;
            taken[r][k / 4].at[k % 4] = k < state_dim ? row[k] : 0.0f;
            read[r][k / 4].at[k % 4] = k < state_dim ? row[n_groups * state_dim + k] : 0.0f;
        }
        for (u32 i = thread_x(); i < n * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = c0 + i % COLUMNS;
            xs[r][i % COLUMNS] = c < head_dim ? first[(u64)r * width + head * head_dim + c] : 0.0f;
        }
        if (thread_x() < n) {
            const float step = softplus(dt[(u64)(span.first_row + r0 + thread_x()) * n_heads + head] + dt_bias[head]);
            steps[thread_x()] = step;
            decays[thread_x()] = fast_exp(step * a[head]);
        }
        barrier();
        for (u32 r = 0; r < n; ++r) {
            const float x = xs[r][own], input = steps[r] * x, decay = decays[r];
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const Four b = taken[r][j * PARTS + part], c = read[r][j * PARTS + part];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float &at = h.at[4 * j + i];
                    at = fma_f32(at, decay, b.at[i] * input);
                    sum = fma_f32(c.at[i], at, sum);
                }
            }
            sum = column_sum(sum);
            if (part == 0 && is_inside) {
                out[(u64)(span.first_row + r0 + r) * inner + head * head_dim + column] = fma_f32(past, x, sum);
            }
        }
    }
    if (!is_inside) return;
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_column(h, place(i ? span.copy : span.to), state_dim, head_dim);
    }
}
