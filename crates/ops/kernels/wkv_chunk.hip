// wkv_chunk: RWKV 7's recurrence (wkv_scan.hip) for spans of many rows, some rows at once (chunk.h). A row changes the state in
// two places: at its key with its value, and where what the state knows of the key is taken out, with what it knows. The
// latter follows from the rows before; all else is products of matrices. Decays go into the rows, exp(g) into what asks the
// state and exp(-g) into what changes it: at most 0.61 a row, so neither comes near the ends of f32 in a chunk.
#include "chunk.h"

#define WAVES (THREADS / GPU_WAVE)
#define MOST 0.60653066f  // exp(-1/2)
#define SHORTEST 1e-12f

// As wkv_scan, of the spans with at least chunk_rows rows.
KERNEL(THREADS)
wkv_chunk(const float *ARRIVING r, const float *ARRIVING k, const float *ARRIVING v, const float *ARRIVING decay,
          const float *ARRIVING rate, const float *ARRIVING first_values, const float *ARRIVING share,
          const float *__restrict__ removal, const float *__restrict__ rate_of_key, const float *__restrict__ bonus_weight,
          float *state, const u32 *__restrict__ spans, float *__restrict__ out, float *__restrict__ bonus, u32 n_heads, u32 dim,
          u32 chunk_rows) {
    __shared__ Staged reads[ROWS], asked[ROWS], taken[ROWS], keys[ROWS];
    __shared__ Four left[SLOTS];
    __shared__ Square known_by_known, known_by_value, read_by_known, read_by_value;
    __shared__ float values[ROWS][COLUMNS], past[ROWS];
    let_next_start();
    wait_for_inputs();
    const Span span = load_span(spans, block_y());
    if (span.n_rows < chunk_rows) return;
    const u32 n_tiles = (dim + COLUMNS - 1) / COLUMNS, head = block_x() / n_tiles, c0 = block_x() % n_tiles * COLUMNS;
    const u32 own = own_column(), part = own_part(), column = c0 + own, of_head = head * dim;
    const bool is_inside = column < dim;
    float *const slots = hidden(state + (u64)head * dim * dim + c0 + first_column());
    const auto place = [&](u32 slot) { return slots + (u64)slot * n_heads * dim * dim; };
    const u32 n_there = c0 + first_column() < dim ? dim - c0 - first_column() : 0;
    const bool has_state = span.from != NO_SLOT;
    Columns s = load_columns(has_state ? place(span.from) : slots, dim, dim, has_state ? n_there : 0);
    for (u32 r0 = 0; r0 < span.n_rows; r0 += ROWS) {
        const u32 n = span.n_rows - r0 < ROWS ? span.n_rows - r0 : ROWS;
        const u64 first = span.first_row + r0;
        barrier();
        for (u32 row = thread_x() / GPU_WAVE; row < ROWS; row += WAVES) {
            const u64 at = ((first + row) * n_heads + head) * dim;
            const u32 n_there = row < n ? dim : 0;
            float squares = 0.0f;
            for (u32 i = lane(); i < n_there; i += GPU_WAVE) {
                const float x = k[at + i] * removal[of_head + i];
                squares = fma_f32(x, x, squares);
            }
            const float scale = 1.0f / max_f32(sqrt_f32(wave_sum(squares)), SHORTEST);
            float sum = 0.0f;
            for (u32 i = lane(); i < DEPTH; i += GPU_WAVE) {
                const bool is_there = i < n_there;
                const float key = is_there ? k[at + i] : 0.0f, speed = is_there ? sigmoid(rate[at + i]) : 0.0f;
                const float unit = is_there ? key * removal[of_head + i] * scale : 0.0f, read = is_there ? r[at + i] : 0.0f;
                const float put = is_there ? key * (1.0f + (speed - 1.0f) * rate_of_key[of_head + i]) : 0.0f;
                if (is_there) sum = fma_f32(read * put, bonus_weight[of_head + i], sum);
                reads[row][i / 4].at[i % 4] = read;
                asked[row][i / 4].at[i % 4] = unit;
                taken[row][i / 4].at[i % 4] = -speed * unit;
                keys[row][i / 4].at[i % 4] = put;
            }
            sum = wave_sum(sum);
            if (lane() == 0) past[row] = sum;
        }
        for (u32 i = thread_x(); i < ROWS * COLUMNS; i += THREADS) {
            const u32 row = i / COLUMNS, c = c0 + i % COLUMNS;
            const bool is_there = row < n && c < dim;
            const u64 at = ((first + row) * n_heads + head) * dim + c;
            float value = is_there ? v[at] : 0.0f;
            if (share && is_there) value = fma_f32(first_values[at] - value, sigmoid(share[at]), value);
            values[row][i % COLUMNS] = value;
        }
        barrier();
        // The state is asked before a row's own decay, and read after it.
        for (u32 d = thread_x(); d < DEPTH; d += THREADS) {
            const u32 four = d / 4, at = d % 4;
            float log = 0.0f, kept = 1.0f;
            for (u32 row = 0; row < n; ++row) {
                asked[row][four].at[at] *= kept;
                if (d < dim) log -= MOST * sigmoid(decay[((first + row) * n_heads + head) * dim + d]);
                kept = fast_exp(log);
                const float undone = fast_exp(-log);
                reads[row][four].at[at] *= kept;
                taken[row][four].at[at] *= undone;
                keys[row][four].at[at] *= undone;
            }
            left[four].at[at] = kept;
        }
        barrier();
        const u32 i = thread_x() / ROW_THREADS;
        for (u32 j = thread_x() % ROW_THREADS; j < ROWS; j += ROW_THREADS) {
            float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
            if (j <= i) {
                const Four *const asking[2] = {asked[i], reads[i]}, *const changed[2] = {taken[j], keys[j]};
                dot_rows(asking, changed, sums);
            }
            set_square(known_by_known, i, j, j < i ? sums[0][0] : 0.0f);
            set_square(known_by_value, i, j, j < i ? sums[0][1] : 0.0f);
            set_square(read_by_known, i, j, sums[1][0]);
            set_square(read_by_value, i, j, sums[1][1]);
        }
        barrier();
        u32 slice = own_slice(), zero = hidden(0u);
        float known[ROWS], read[ROWS], value[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            const Four *const rows[2] = {asked[row], reads[row]};
            float sums[2];
            read_columns(s, rows, slice, sums);
            known[row] = sums[0], read[row] = sums[1], value[row] = values[row][own];
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            const float of_values = add_changes(known[row], known_by_value, row, value, row, zero);
            known[row] = add_changes(of_values, known_by_known, row, known, row, zero);
        }
        // Each lane of a column gives every fourth row.
#pragma unroll
        for (u32 row = 0; row < ROWS; row += PARTS) {
            const float of_values = add_changes(of_part(read, row), read_by_value, row + part, value, row + PARTS, zero);
            const float sum = add_changes(of_values, read_by_known, row + part, known, row + PARTS, zero);
            if (is_inside && row + part < n) {
                const u64 at = ((first + row + part) * n_heads + head) * dim + column;
                out[at] = sum;
                bonus[at] = past[row + part] * values[row + part][own];
            }
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            add_to_columns(s, taken[row], slice, known[row]);
            add_to_columns(s, keys[row], slice, value[row]);
        }
        scale_columns(s, left);
    }
#pragma unroll 1
    for (u32 i = 0; i < (span.copy != NO_SLOT ? 2u : 1u); ++i) {
        store_columns(s, place(i ? span.copy : span.to), dim, dim, n_there);
    }
}
