// wkv_scan: RWKV 7, S = S diag(kept) - (S asked) (rate asked)^T + v key^T, out = S r; a state is [keys, values] for each head,
// both of dim. A block takes some columns of one head and all rows of one sequence: columns are values, and each of them is
// changed by itself. What is computed from a token's key is the same for all columns and is staged in shared memory.
#include "scan.h"

#define WAVES (THREADS / GPU_WAVE)
#define MOST 0.60653066f  // exp(-1/2)
#define SHORTEST 1e-12f

// r, k, v, decay, rate, first, share, out, bonus: [n_rows, n_heads, dim], first and share null in the first layer; removal,
// rate_of_key, bonus_weight: [n_heads, dim]; state: [n_slots, n_heads, dim, dim]. block_x: head and columns; block_y: span.
KERNEL(THREADS)
wkv_scan(const float *ARRIVING r, const float *ARRIVING k, const float *ARRIVING v, const float *ARRIVING decay,
         const float *ARRIVING rate, const float *ARRIVING first_values, const float *ARRIVING share,
         const float *__restrict__ removal, const float *__restrict__ rate_of_key, const float *__restrict__ bonus_weight,
         float *state, const u32 *__restrict__ spans, float *__restrict__ out, float *__restrict__ bonus, u32 n_heads, u32 dim, u32 chunk_rows) {
    __shared__ Four reads[ROWS][SLOTS], asked[ROWS][SLOTS], taken[ROWS][SLOTS], kept[ROWS][SLOTS], keys[ROWS][SLOTS];
    __shared__ float values[ROWS][COLUMNS], past[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows >= chunk_rows) return;
    const u32 n_tiles = (dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own;
    const bool is_inside = column < dim;
    const auto place = [&](u32 slot) { return state + ((u64)slot * n_heads + head) * dim * dim + column; };
    const bool has_state = is_inside && span.from != NO_SLOT;
    Column s = load_column(has_state ? place(span.from) : state, dim, dim, has_state);
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first = span.first_row + r0;
        barrier();
        for (u32 row = thread_x() / GPU_WAVE; row < n; row += WAVES) {
            const u64 at = ((first + row) * n_heads + head) * dim;
            const u32 of_head = head * dim;
            float squares = 0.0f;
            for (u32 i = lane(); i < dim; i += GPU_WAVE) {
                const float x = k[at + i] * removal[of_head + i];
                squares = fma_f32(x, x, squares);
            }
            const float scale = 1.0f / max_f32(sqrt_f32(wave_sum(squares)), SHORTEST);
            float sum = 0.0f;
            for (u32 i = lane(); i < DEPTH; i += GPU_WAVE) {
                const bool is_there = i < dim;
                const float key = is_there ? k[at + i] : 0.0f, speed = is_there ? sigmoid(rate[at + i]) : 0.0f;
                const float unit = is_there ? key * removal[of_head + i] * scale : 0.0f, read = is_there ? r[at + i] : 0.0f;
                const float put = is_there ? key * (1.0f + (speed - 1.0f) * rate_of_key[of_head + i]) : 0.0f;
                if (is_there) sum = fma_f32(read * put, bonus_weight[of_head + i], sum);
                reads[row][i / 4].at[i % 4] = read;
                asked[row][i / 4].at[i % 4] = unit;
                taken[row][i / 4].at[i % 4] = -speed * unit;
                kept[row][i / 4].at[i % 4] = is_there ? fast_exp(-MOST * sigmoid(decay[at + i])) : 0.0f;
                keys[row][i / 4].at[i % 4] = put;
            }
            sum = wave_sum(sum);
            if (lane() == 0) past[row] = sum;
        }
        for (u32 i = thread_x(); i < n * COLUMNS; i += THREADS) {
            const u32 row = i / COLUMNS, c = c0 + i % COLUMNS;
            const u64 at = ((first + row) * n_heads + head) * dim + c;
            float value = c < dim ? v[at] : 0.0f;
            if (share && c < dim) value = fma_f32(first_values[at] - value, sigmoid(share[at]), value);
            values[row][i % COLUMNS] = value;
        }
        barrier();
        for (u32 row = 0; row < n; ++row) {
            float known = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const Four ask = asked[row][j * PARTS + part];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) known = fma_f32(ask.at[i], s.at[4 * j + i], known);
            }
            known = column_sum(known);
            const float value = values[row][own];
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < SLOTS / 4; ++j) {
                const u32 at = j * PARTS + part;
                const Four keep = kept[row][at], take = taken[row][at], key = keys[row][at], read = reads[row][at];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float &cell = s.at[4 * j + i];
                    cell = fma_f32(cell, keep.at[i], fma_f32(known, take.at[i], value * key.at[i]));
                    sum = fma_f32(read.at[i], cell, sum);
                }
            }
            sum = column_sum(sum);
            if (part == 0 && is_inside) {
                const u64 at = ((first + row) * n_heads + head) * dim + column;
                out[at] = sum;
                bonus[at] = past[row] * value;
            }
        }
    }
    if (!is_inside) return;
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_column(s, place(i ? span.copy : span.to), dim, dim);
    }
}
