// ssm_chunk: the recurrence of Mamba 2 (ssm_scan.hip) for spans of many rows, some rows at once (chunk.h). Nothing is corrected,
// so no row waits for another within a chunk.
#include "chunk.h"

// As ssm_scan, of the spans with at least chunk_rows rows.
KERNEL(THREADS)
ssm_chunk(const float *ARRIVING xbc, const float *ARRIVING dt, const float *__restrict__ a, const float *__restrict__ d,
          const float *__restrict__ dt_bias, float *state, const u32 *__restrict__ spans, float *__restrict__ out, u32 n_heads,
          u32 head_dim, u32 state_dim, u32 n_groups, u32 chunk_rows) {
    __shared__ Staged taken[ROWS], read[ROWS];
    __shared__ Square by_read;
    __shared__ Decays decays;
    __shared__ float xs[ROWS][COLUMNS], steps[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows < chunk_rows) return;
    const u32 n_tiles = (head_dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own, group = head / (n_heads / n_groups);
    const u32 inner = n_heads * head_dim, width = inner + 2 * n_groups * state_dim;
    const bool is_inside = column < head_dim;
    float *const slots = hidden(state + (u64)head * state_dim * head_dim + c0 + first_column());
    const auto place = [&](u32 slot) { return slots + (u64)slot * n_heads * state_dim * head_dim; };
    const u32 n_there = c0 + first_column() < head_dim ? head_dim - c0 - first_column() : 0;
    const bool has_state = span.from != NO_SLOT;
    Columns h = load_columns(has_state ? place(span.from) : slots, state_dim, head_dim, has_state ? n_there : 0);
    const float past = d[head];
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first_row = span.first_row + r0;
        const float *first = xbc + first_row * width;
        barrier();
        for (u32 i = thread_x(); i < ROWS * DEPTH; i += THREADS) {
            const u32 r = i / DEPTH, k = i % DEPTH;
            const float *row = first + (u64)r * width + inner + group * state_dim;
            const bool is_there = r < n && k < state_dim;
            taken[r][k / 4].at[k % 4] = is_there ? row[k] : 0.0f;
            read[r][k / 4].at[k % 4] = is_there ? row[n_groups * state_dim + k] : 0.0f;
        }
        for (u32 i = thread_x(); i < ROWS * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = c0 + i % COLUMNS;
            xs[r][i % COLUMNS] = r < n && c < head_dim ? first[(u64)r * width + head * head_dim + c] : 0.0f;
        }
        if (thread_x() < GPU_WAVE) {
            const bool is_row = thread_x() < n;
            const float step = is_row ? softplus(dt[(first_row + thread_x()) * n_heads + head] + dt_bias[head]) : 0.0f;
            if (thread_x() < ROWS) steps[thread_x()] = step;
            set_decays(decays, step * a[head]);
        }
        barrier();
        const u32 i = thread_x() / ROW_THREADS;
        for (u32 j = thread_x() % ROW_THREADS; j < ROWS; j += ROW_THREADS) {
            float sums[1][1] = {{0.0f}};
            if (j <= i) {
                const Four *const reading[1] = {read[i]}, *const before[1] = {taken[j]};
                dot_rows(reading, before, sums);
                sums[0][0] *= fast_exp(decays.logs[i] - decays.logs[j]);
            }
            set_square(by_read, i, j, sums[0][0]);
        }
        barrier();
        u32 slice = own_slice(), zero = hidden(0u);
        float inputs[ROWS], reads[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r += 2) {
            const Four *const rows[2] = {read[r], read[r + 1]};
            float sums[2];
            read_columns(h, rows, slice, sums);
            reads[r] = sums[0] * decays.before[r], reads[r + 1] = sums[1] * decays.before[r + 1];
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) inputs[r] = steps[r] * xs[r][own];
        // Each lane of a column gives every fourth row.
#pragma unroll
        for (u32 r = 0; r < ROWS; r += PARTS) {
            const float sum = add_changes(of_part(reads, r), by_read, r + part, inputs, r + PARTS, zero);
            if (is_inside && r + part < n) {
                out[(first_row + r + part) * inner + head * head_dim + column] = fma_f32(past, xs[r + part][own], sum);
            }
        }
        const float left = decays.before[ROWS - 1];
        scale_columns(h, left);
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) add_to_columns(h, taken[r], slice, inputs[r] * decays.after[r]);
    }
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_columns(h, place(i ? span.copy : span.to), state_dim, head_dim, n_there);
    }
}
