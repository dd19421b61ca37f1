// conv1d: a causal convolution of a few taps over the rows of each sequence, column by column. A thread takes a column, a
// block some rows of one sequence; the last inputs are the state.
#include "prelude.h"

#define THREADS 256
#define NO_SLOT 0xffffffffu

// x, out: [n_rows, n_cols]; weight: [n_taps, n_cols]; bias may be null; state: [n_slots, n_taps - 1, n_cols], the oldest input
// first. block_x: columns; block_y: span; block_z: `chunk` rows of it, which must not be fewer than the state's.
KERNEL(THREADS)
conv1d(const float *ARRIVING x, const float *__restrict__ weight, const float *__restrict__ bias, float *state,
       const u32 *__restrict__ spans, float *__restrict__ out, u32 n_cols, u32 n_taps, u32 chunk, u32 is_silu) {
    let_next_start();
    wait_for_inputs();
    const u32 *span = spans + block_y() * 5;
    const u32 first_row = span[0], n_rows = span[1], from = span[2], n_before = n_taps - 1;
    const u32 column = block_x() * THREADS + thread_x(), first = block_z() * chunk;
    if (column >= n_cols || first >= n_rows) return;
    // The input i rows after the oldest one of the state.
    const auto input = [&](u32 i) {
        if (i >= n_before) return x[(u64)(first_row + i - n_before) * n_cols + column];
        return from == NO_SLOT ? 0.0f : state[((u64)from * n_before + i) * n_cols + column];
    };
    const u32 end = n_rows - first < chunk ? n_rows : first + chunk;
    for (u32 row = first; row < end; ++row) {
        float sum = bias ? bias[column] : 0.0f;
        for (u32 tap = 0; tap < n_taps; ++tap) sum = fma_f32(weight[(u64)tap * n_cols + column], input(row + tap), sum);
        out[(u64)(first_row + row) * n_cols + column] = is_silu ? sum / (1.0f + fast_exp(-sum)) : sum;
    }
    // Only the first rows' block reads the old state, so it may be the one that writes the new: the copy first, and the oldest
    // input first, for a state that moves onto itself.
    if (first > 0) return;
    for (u32 which = 0; which < 2; ++which) {
        const u32 slot = span[4 - which];
        if (slot == NO_SLOT) continue;
        for (u32 i = 0; i < n_before; ++i) {
            const float value = input(n_rows + i);
            state[((u64)slot * n_before + i) * n_cols + column] = value;
        }
    }
}
