// What the chunked forms of the recurrent scans share. A block has columns of one sequence's state in registers, and ROWS rows
// pass it at once. With g the sum of the decays' logarithms since the chunk's start, the state after row i is
//   exp(g_i) S + sum over j <= i of exp(g_i - g_j) k_j e_j,
// so what rows read of the state before the chunk does not wait for one another, nor does what they change of it. What is
// left of the chain from row to row is a triangle of ROWS by ROWS numbers (`Square`), the same for all columns.
//
// Products are f32 on plain multiply-adds: halves would lose what a recurrence adds up over thousands of rows, and three
// products of split halves are no fewer cycles on RDNA.
#pragma once
#include "scan.h"

static_assert(SLOTS >= 16, "a lane has whole packs of four columns");

#define ROW_THREADS (THREADS / ROWS)
#define LOG2_E 1.4426950408889634f

// Rows of DEPTH numbers in shared memory. One more pack than there are: so rows begin in different banks.
typedef Four Staged[SLOTS + 1];
// Row i, column j: what of row j's change row i sees.
struct Square {
    Four at[ROWS][ROWS / 4];
};
DEVICE void set_square(Square &square, u32 i, u32 j, float value) { square.at[i][j / 4].at[j % 4] = value; }

// Dot products of N staged rows with M others.
template <u32 N, u32 M>
DEVICE void dot_rows(const Four *const (&left)[N], const Four *const (&right)[M], float (&sums)[N][M]) {
#pragma unroll
    for (u32 n = 0; n < N * M; ++n) sums[n / M][n % M] = 0.0f;
#pragma unroll 4
    for (u32 k = 0; k < SLOTS; ++k) {
        Four a[N], b[M];
#pragma unroll
        for (u32 n = 0; n < N; ++n) a[n] = left[n][k];
#pragma unroll
        for (u32 m = 0; m < M; ++m) b[m] = right[m][k];
#pragma unroll
        for (u32 n = 0; n < N * M; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sums[n / M][n % M] = fma_f32(a[n / M].at[i], b[n % M].at[i], sums[n / M][n % M]);
        }
    }
}

// Where the walk's lanes have a quarter of one column, these have a sixteenth of four neighbouring ones: a row that is loaded
// from shared memory meets four columns. Sixteen lanes share four columns; sums and changes are those of the lane's own
// column (own_column), which is one of the four.
struct Columns {
    float at[4][SLOTS / 4];
};
#define SLICES 16
// Of a thread: which numbers of the columns it has, and the first of its columns among the block's.
DEVICE u32 own_slice() { return own_part() * 4 + lane() % 4; }
DEVICE u32 first_column() { return own_column() - lane() % 4; }
DEVICE u32 number_in(u32 j, u32 slice) { return j / 4 * (4 * SLICES) + slice * 4 + j % 4; }

// depth numbers of each of n columns, stride apart; zeros without a column. Past the end the last number once more, which
// meets zeros, and the last column, which nobody stores.
DEVICE Columns load_columns(const float *first, u32 depth, u32 stride, u32 n) {
    Columns columns;
    const u32 slice = own_slice();
#pragma unroll
    for (u32 i = 0; i < SLOTS; ++i) columns.at[i % 4][i / 4] = 0.0f;
    if (n == 0) return columns;
#pragma unroll
    for (u32 j = 0; j < SLOTS / 4; ++j) {
        const u32 number = number_in(j, slice);
        const float *row = first + (u64)(number < depth ? number : depth - 1) * stride;
#pragma unroll
        for (u32 c = 0; c < 4; ++c) columns.at[c][j] = row[c < n ? c : n - 1];
    }
    return columns;
}
DEVICE void store_columns(const Columns &columns, float *first, u32 depth, u32 stride, u32 n) {
    const u32 slice = hidden(own_slice());
#pragma unroll
    for (u32 j = 0; j < SLOTS / 4; ++j) {
        const u32 number = number_in(j, slice);
        if (number >= depth) continue;
#pragma unroll
        for (u32 c = 0; c < 4; ++c) {
            if (c < n) first[(u64)number * stride + c] = columns.at[c][j];
        }
    }
}

// What N staged rows read of the lane's own column, in every lane of it. `slice` is own_slice().
template <u32 N>
DEVICE void read_columns(const Columns &columns, const Four *const (&rows)[N], u32 &slice, float (&sums)[N]) {
    float all[N][4];
#pragma unroll
    for (u32 n = 0; n < 4 * N; ++n) all[n / 4][n % 4] = 0.0f;
#pragma unroll
    for (u32 j = 0; j < SLOTS / 16; ++j) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            const Four x = rows[n][j * SLICES + slice];
#pragma unroll
            for (u32 i = 0; i < 16; ++i) {
                all[n][i % 4] = fma_f32(x.at[i / 4], columns.at[i % 4][4 * j + i / 4], all[n][i % 4]);
            }
        }
    }
    const bool is_upper = lane() & 2, is_odd = lane() & 1;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        // Lanes that differ in a bit give each other what they have of the other's columns.
        const float even = (is_upper ? all[n][2] : all[n][0]) + across_four<2>(is_upper ? all[n][0] : all[n][2]);
        const float odd = (is_upper ? all[n][3] : all[n][1]) + across_four<2>(is_upper ? all[n][1] : all[n][3]);
        sums[n] = (is_odd ? odd : even) + across_four<1>(is_odd ? even : odd);
        slice = hidden_until(slice, sums[n]);
        sums[n] = column_sum(sums[n]);
    }
}

// Own column += a staged row times value.
DEVICE void add_to_columns(Columns &columns, const Four *row, u32 &slice, float value) {
    const float values[4] = {of_four<0>(value), of_four<1>(value), of_four<2>(value), of_four<3>(value)};
#pragma unroll
    for (u32 j = 0; j < SLOTS / 16; ++j) {
        const Four x = row[j * SLICES + slice];
#pragma unroll
        for (u32 i = 0; i < 16; ++i) {
            float &at = columns.at[i % 4][4 * j + i / 4];
            at = fma_f32(x.at[i / 4], values[i % 4], at);
        }
    }
    slice = hidden_until(slice, columns.at[3][SLOTS / 4 - 1]);
}
DEVICE void scale_columns(Columns &columns, const Four *by) {
    const u32 slice = own_slice();
#pragma unroll
    for (u32 j = 0; j < SLOTS / 16; ++j) {
        const Four x = by[j * SLICES + slice];
#pragma unroll
        for (u32 i = 0; i < 16; ++i) columns.at[i % 4][4 * j + i / 4] *= x.at[i / 4];
    }
}
DEVICE void scale_columns(Columns &columns, float by) {
#pragma unroll
    for (u32 i = 0; i < SLOTS; ++i) columns.at[i % 4][i / 4] *= by;
}

// sum + row i of the square times the first n changes; n is known to the compiler. `zero` is 0.
DEVICE float add_changes(float sum, const Square &square, u32 i, const float (&changes)[ROWS], u32 n, u32 &zero) {
#pragma unroll
    for (u32 j = 0; j < ROWS; j += 4) {
        if (j >= n) continue;
        const Four by = square.at[i][j / 4 + zero];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            if (j + k < n) sum = fma_f32(by.at[k], changes[j + k], sum);
        }
    }
    zero = hidden_until(zero, sum);
    return sum;
}

// One of four neighbouring numbers: that of this lane's part.
DEVICE float of_part(const float (&numbers)[ROWS], u32 first) {
    const u32 part = own_part();
    const float at[4] = {numbers[first], numbers[first + 1], numbers[first + 2], numbers[first + 3]};
    const float low = part % 2 ? at[1] : at[0], high = part % 2 ? at[3] : at[2];
    return part < 2 ? low : high;
}

// The sum of this lane's value and those of the lanes before it, for the first ROWS lanes of a wave.
DEVICE float sum_before(float value) {
#pragma unroll
    for (u32 step = 1; step < ROWS; step *= 2) {
        const float before = from_lane(value, lane() >= step ? lane() - step : 0);
        if (lane() >= step) value += before;
    }
    return value;
}

// Decays of a chunk that are one number a row: their logarithms summed up, what is left at a row of what was there before the
// chunk, and at the chunk's end of what a row changed.
struct Decays {
    float logs[ROWS], before[ROWS], after[ROWS];
};
// By one whole wave; `log` is the row's of this lane, 0 past the last.
DEVICE void set_decays(Decays &decays, float log) {
    const float sum = sum_before(lane() < ROWS ? log : 0.0f), all = from_lane(sum, ROWS - 1);
    if (lane() >= ROWS) return;
    decays.logs[lane()] = sum;
    decays.before[lane()] = fast_exp(sum);
    decays.after[lane()] = fast_exp(all - sum);
}
