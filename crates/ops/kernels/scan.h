// What the recurrent scans share: whose rows and slots a block works on, how the numbers of a state lie over its lanes, and
// functions that must be exact for small arguments.
//
// A column of a state is up to 4 * SLOTS numbers. Four lanes of a wave share one, SLOTS numbers each, in registers from the
// first row of the launch to the last; a block has COLUMNS columns of one sequence. Rows are walked one after the other, a
// few of them staged in shared memory at a time. Nothing here is on the matrix units.
#pragma once
#include "prelude.h"

#define PARTS 4
#define COLUMNS 32
#define THREADS (COLUMNS * PARTS)
#define WAVE_COLUMNS (GPU_WAVE / PARTS)
#ifndef SLOTS  // the host always says; a compiler run by hand may not
#define SLOTS 32
#endif
// Numbers of a column, as many as fit, and rows that are staged together.
#define DEPTH (SLOTS * PARTS)
#define ROWS (SLOTS <= 32 ? 16 : 512 / SLOTS)
#define NO_SLOT 0xffffffffu

typedef Pack<float, 4> Four;

// The rows of one sequence, and where its state comes from and goes.
struct Span {
    u32 first_row, n_rows, from, to, copy;
};
DEVICE Span load_span(const u32 *spans, u32 i) {
    const u32 *at = spans + i * 5;
    return {at[0], at[1], at[2], at[3], at[4]};
}

// Of a thread: its column among the block's, and which part of it.
DEVICE u32 own_column() { return thread_x() / GPU_WAVE * WAVE_COLUMNS + lane() % WAVE_COLUMNS; }
DEVICE u32 own_part() { return lane() / WAVE_COLUMNS; }
// Which number of the column slot j of a part is: four in a row, so that they are one load from shared memory.
DEVICE u32 number_of(u32 j, u32 part) { return j / 4 * (4 * PARTS) + part * 4 + j % 4; }

// The sum over the lanes of a column.
DEVICE float column_sum(float value) {
    value += across(value, WAVE_COLUMNS);
    return value + across(value, 2 * WAVE_COLUMNS);
}

struct Column {
    float at[SLOTS];
};
// depth numbers, stride apart; zeros without a column. Past the end the last number once more: it meets zeros.
DEVICE Column load_column(const float *first, u32 depth, u32 stride, bool is_there) {
    Column column;
    const u32 part = own_part();
#pragma unroll
    for (u32 j = 0; j < SLOTS; ++j) column.at[j] = 0.0f;
    if (!is_there) return column;
#pragma unroll
    for (u32 j = 0; j < SLOTS; ++j) {
        const u32 n = number_of(j, part);
        column.at[j] = first[(u64)(n < depth ? n : depth - 1) * stride];
    }
    return column;
}
DEVICE void store_column(const Column &column, float *first, u32 depth, u32 stride) {
    // Offsets are made anew: kept from the load on, they would take two registers for each number.
    const u32 part = hidden(own_part());
#pragma unroll
    for (u32 j = 0; j < SLOTS; ++j) {
        const u32 n = number_of(j, part);
        if (n < depth) first[(u64)n * stride] = column.at[j];
    }
}

// ln(1 + e^x). What rounding took from 1 + e is made good: small steps are the rule, and their last bits count.
DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    const float e = fast_exp(x), u = add_exact(1.0f, e);
    return u == 1.0f ? e : fast_log(u) * (e / (u - 1.0f));
}
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
