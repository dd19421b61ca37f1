// Kernels of quantised weights (quantized.h): unpacking, rows by index, and products with activations that are f32 or rounded
// to 8 bits (q8_1).
//
// A row of weights is made by 32 threads, each taking every 32nd group, so that a result does not depend on how many columns
// are made with it, nor on the width of a wave.

DEVICE f32 sum_of_32(f32 x) { return wave_sum<32>(x); }

// One row of weights by up to N columns, by 32 threads: the sums in every one of them. A column is `column_bytes` long.
// Halves may be summed apart and added last: a little closer, and twice the exchanges at the end.
template <class Q, u32 N, bool apart>
DEVICE void row_by_columns(const u8 *row, const u8 *columns, usize column_bytes, u32 n_columns, u32 n_weights,
                           f32 (&sum)[N]) {
    f32 halves[N][2];
#pragma unroll
    for (u32 c = 0; c < N; ++c) halves[c][0] = halves[c][1] = 0.0f;
    for (u32 at = thread_x(); at < n_weights / 32; at += 32) {
        Group g;
        Q::group(row + (usize)(at / (Q::size / 32)) * Q::bytes, at % (Q::size / 32), g);
#pragma unroll
        for (u32 c = 0; c < N; ++c) {
            if (c >= n_columns) break;
            const Column y = column_at(columns + c * column_bytes + (usize)at * Q8_1_BYTES);
            if (apart) {
                f32 more[2];
                dot_halves<Q>(g, y, more);
                halves[c][0] += more[0], halves[c][1] += more[1];
            } else {
                halves[c][0] += dot<Q>(g, y);
            }
        }
    }
#pragma unroll
    for (u32 c = 0; c < N; ++c) sum[c] = apart ? sum_of_32(halves[c][0]) + sum_of_32(halves[c][1]) : sum_of_32(halves[c][0]);
}

// Rows of up to eight columns: 32 by 4 threads make four rows. `step_y` counts blocks from column to column.
#define MMVQ(Q, T, N)                                                                                                  \
    KERNEL(128)                                                                                                        \
    mmvq_##Q##_##T##_##N(const u8 *x, const u8 *y, T *dst, i32 n_weights, i32 n_rows, i32 step_y, i32 step_dst) {      \
        const u32 row = block_x() * 4 + thread_y();                                                                    \
        if (row >= (u32)n_rows) return;                                                                                \
        f32 sum[N];                                                                                                    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        row_by_columns<Q, N, false>(x + row * row_bytes, y, (usize)step_y * Q8_1_BYTES, N, (u32)n_weights, sum);       \
        if (thread_x() == 0) {                                                                                         \
            for (u32 c = 0; c < N; ++c) dst[(usize)c * step_dst + row] = down<T>(sum[c]);                              \
        }                                                                                                              \
    }

// Some columns more, eight at a time.
#define MMQ_FEW(Q)                                                                                                     \
    KERNEL(128)                                                                                                        \
    mmq_few_##Q(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_columns, i32 step_x, i32 step_y,      \
            i32 step_dst) {                                                                                            \
        const u32 row = block_x() * 4 + thread_y(), column = block_y() * 8;                                            \
        if (row >= (u32)n_rows) return;                                                                                \
        f32 sum[8];                                                                                                    \
        const u32 n = (u32)n_columns - column < 8 ? (u32)n_columns - column : 8;                                       \
        const usize column_bytes = (usize)step_y * Q8_1_BYTES, row_bytes = (usize)step_x * Q::bytes;                   \
        row_by_columns<Q, 8, true>(x + row * row_bytes, y + column * column_bytes, column_bytes, n, (u32)n_weights,    \
                                   sum);                                                                               \
        if (thread_x() != 0) return;                                                                                   \
        _Pragma("unroll") for (u32 c = 0; c < 8; ++c) {                                                                \
            if (c < n) dst[(usize)(column + c) * step_dst + row] = sum[c];                                             \
        }                                                                                                              \
    }

// The same by the names and shapes of Candle's older path: `n_y` is a column's padded length, a block makes one row of one
// column or two rows of several, or a tile of ROWS by COLUMNS, of which a thread makes whole sums.
#define MUL_MAT_VEC(Q, N, ROWS)                                                                                        \
    KERNEL(128)                                                                                                        \
    mul_mat_vec_##Q##_q8_1_cuda##N(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_y, i32 n_dst) { \
        const u32 row = block_x() * ROWS + thread_y();                                                                 \
        if (thread_y() >= ROWS || row >= (u32)n_rows) return;                                                          \
        f32 sum[N];                                                                                                    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        row_by_columns<Q, N, true>(x + row * row_bytes, y, (usize)(n_y / 32) * Q8_1_BYTES, N, (u32)n_weights, sum);    \
        if (thread_x() == 0) {                                                                                         \
            for (u32 c = 0; c < N; ++c) dst[(usize)c * n_dst + row] = sum[c];                                          \
        }                                                                                                              \
    }
#define MUL_MAT(Q, COLUMNS, ROWS)                                                                                      \
    KERNEL(128)                                                                                                        \
    mul_mat_##Q(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_columns, i32 n_y, i32 n_dst) {    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        for (u32 i = thread_y() * 32 + thread_x(); i < ROWS * COLUMNS; i += 128) {                                     \
            const u32 row = block_x() * ROWS + i % ROWS, column = block_y() * COLUMNS + i / ROWS;                      \
            if (row >= (u32)n_rows || column >= (u32)n_columns) continue;                                              \
            f32 sum = 0.0f;                                                                                            \
            for (u32 at = 0; at < (u32)n_weights / Q::size * (Q::size / 32); ++at) {                                   \
                Group g;                                                                                               \
                Q::group(x + row * row_bytes + at / (Q::size / 32) * Q::bytes, at % (Q::size / 32), g);                \
                sum = dot_onto<Q>(sum, g, column_at(y + ((usize)column * ((u32)n_y / 32) + at) * Q8_1_BYTES));        \
            }                                                                                                          \
            dst[(usize)column * n_dst + row] = sum;                                                                    \
        }                                                                                                              \
    }

// A mixture's rows: the expert of (token, place) is read from `ids`.
#define INDEXED_MOE(name, Q)                                                                                           \
    KERNEL(128)                                                                                                        \
    indexed_moe_forward_##name##_q8_1(const u8 *x, const u8 *y, const u32 *ids, f32 *dst, i32 n, i32 k, i32 n_tokens,  \
                                      i32 n_places, i32 k_padded, i32 y_places) {                                      \
        if (thread_y() != 0) return;                                                                                   \
        const u32 row = block_x(), token = block_y(), place = block_z(), pair = token * (u32)n_places + place;         \
        const usize row_bytes = (usize)((u32)k / Q::size) * Q::bytes, y_bytes = (usize)(k_padded / 32) * Q8_1_BYTES;   \
        const u32 column = token * (u32)y_places + (y_places == 1 ? 0 : place);                                        \
        f32 sum[1];                                                                                                    \
        row_by_columns<Q, 1, false>(x + ((usize)ids[pair] * n + row) * row_bytes,                                      \
                                    y + column * y_bytes, 0, 1, (u32)k, sum);                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = sum[0];                                                      \
    }

// A mixture's rows, sorted by expert: position p is pair ids[p] with expert experts[p]; with weights, the input has a row
// for each pair, else a row for each token.
#define MOE_QUANTIZED(Q)                                                                                               \
    KERNEL(128)                                                                                                        \
    moe_gguf_##Q(const u8 *x, const u8 *y, const i32 *ids, const i32 *experts, const f32 *weights, f32 *dst,           \
                 i32 n_experts, i32 n_places, i32 n_pairs, i32 n, i32 k, i32 k_padded) {                               \
        const u32 row = block_x() * 4 + thread_y(), pair = (u32)ids[block_y()];                                        \
        const i32 expert = experts[block_y()];                                                                         \
        if (row >= (u32)n || pair >= (u32)n_pairs || expert < 0 || expert >= n_experts) return;                        \
        const usize row_bytes = (usize)((u32)k / Q::size) * Q::bytes, y_bytes = (usize)(k_padded / 32) * Q8_1_BYTES;   \
        const u32 column = weights != nullptr ? pair : pair / (u32)n_places;                                           \
        f32 sum[1];                                                                                                    \
        row_by_columns<Q, 1, false>(x + ((usize)expert * n + row) * row_bytes,                                         \
                                    y + column * y_bytes, 0, 1, (u32)k, sum);                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = weights != nullptr ? sum[0] * weights[pair] : sum[0];        \
    }
#define MOE_HALVES(T)                                                                                                  \
    KERNEL(128)                                                                                                        \
    moe_##T(const T *x, const T *y, const i32 *ids, const i32 *experts, const f32 *weights, T *dst, i32 n_experts,     \
            i32 n_places, i32 n_pairs, i32 n, i32 k) {                                                                 \
        const u32 row = block_x() * 4 + thread_y(), pair = (u32)ids[block_y()];                                        \
        const i32 expert = experts[block_y()];                                                                         \
        if (row >= (u32)n || pair >= (u32)n_pairs || expert < 0 || expert >= n_experts) return;                        \
        const T *left = x + ((usize)expert * n + row) * k;                                                             \
        const T *right = y + (usize)(weights != nullptr ? pair : pair / (u32)n_places) * k;                            \
        f32 sum = 0.0f;                                                                                                \
        for (u32 i = thread_x(); i < (u32)k; i += 32) sum += up(left[i]) * up(right[i]);                               \
        sum = sum_of_32(sum);                                                                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = down<T>(weights != nullptr ? sum * weights[pair] : sum);     \
    }

// Activations rounded to q8_1, 256 a block, rows along y. Past the end of a row they are zero.
#define QUANTIZE(name, T)                                                                                              \
    KERNEL(256) name(const T *x, u8 *y, i32 n, i32 n_padded) {                                                         \
        const u32 at = block_x() * 256 + thread_x(), row = block_y();                                                  \
        if (at >= (u32)n_padded) return;                                                                               \
        const f32 value = at < (u32)n ? up(x[(usize)row * (u32)n + at]) : 0.0f;                                        \
        f32 most = fabs_of(value), sum = value;                                                                        \
        for (u32 mask = 16; mask > 0; mask /= 2) {                                                                     \
            most = max_f32(most, across(most, mask));                                                                  \
            sum += across(sum, mask);                                                                                  \
        }                                                                                                              \
        const f32 d = most / 127.0f;                                                                                   \
        u8 *block = y + ((usize)row * ((u32)n_padded / 32) + at / 32) * Q8_1_BYTES;                                    \
        block[4 + at % 32] = (u8)(i8)(most == 0.0f ? 0.0f : round_of(value / d));                                      \
        if (at % 32 == 0) *(u32 *)block = pack_halves(d, sum);                                                         \
    }

// 256 weights a block, 512 in the formats whose count is in weights.
#define DEQUANTIZE(Q, T)                                                                                               \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y, i32 n_blocks) {                                          \
        for (u32 i = block_x() * 256 + thread_x(); i < (block_x() + 1) * 256; i += block_size()) {                     \
            if (i < (u32)n_blocks * 32) y[i] = down<T>(value<Q>(x, i));                                                \
        }                                                                                                              \
    }
#define DEQUANTIZE_COUNTED(Q, T)                                                                                       \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y, i32 n) {                                                 \
        for (u32 i = block_x() * 512 + thread_x(); i < (block_x() + 1) * 512; i += block_size()) {                     \
            if (i < (u32)n) y[i] = down<T>(value<Q>(x, i));                                                            \
        }                                                                                                              \
    }
#define DEQUANTIZE_K(Q, T)                                                                                             \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y) {                                                        \
        for (u32 i = thread_x(); i < 256; i += block_size()) {                                                         \
            y[(usize)block_x() * 256 + i] = down<T>(value<Q>(x, block_x() * 256 + i));                                 \
        }                                                                                                              \
    }

// Rows by index, as f32. The grid is (ids, any).
#define EACH_OF_ROW(i, n) for (u32 i = block_y() * block_size() + thread_x(); i < (u32)(n); i += block_size() * grid_blocks_y())
#define GET_ROWS(Q)                                                                                                    \
    KERNEL(256) get_rows_##Q(const u8 *x, const u32 *ids, f32 *dst, i64 n, usize row_bytes) {                          \
        const u8 *row = x + (usize)ids[block_x()] * row_bytes;                                                         \
        EACH_OF_ROW(i, n) dst[(usize)block_x() * n + i] = value<Q>(row, i);                                            \
    }
#define GET_ROWS_PLAIN(T)                                                                                              \
    KERNEL(256) get_rows_##T(const T *x, const u32 *ids, f32 *dst, i64 n, usize row_bytes) {                           \
        const T *row = x + (usize)ids[block_x()] * n;                                                                  \
        EACH_OF_ROW(i, n) dst[(usize)block_x() * n + i] = up(row[i]);                                                  \
    }

// A row of weights times f32 activations, by 32 threads.
#define DMMV(name, Q)                                                                                                  \
    KERNEL(128) dequantize_mul_mat_vec_##name(const u8 *x, const f32 *y, f32 *dst, i32 n_weights, i32 n_rows) {        \
        const u32 row = block_x();                                                                                     \
        if (row >= (u32)n_rows || thread_y() != 0) return;                                                             \
        const u8 *from = x + (usize)row * ((u32)n_weights / Q::size) * Q::bytes;                                       \
        f32 sum = 0.0f;                                                                                                \
        for (u32 i = thread_x(); i < (u32)n_weights; i += 32) sum += value<Q>(from, i) * y[i];                         \
        sum = sum_of_32(sum);                                                                                          \
        if (thread_x() == 0) dst[row] = sum;                                                                           \
    }

//@ quantize_q8_1 = QUANTIZE(quantize_q8_1, f32)
//@ quantize_q8_1_$T = QUANTIZE(quantize_q8_1_$T, $T) ; T: bf16 f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE($Q, $T) ; Q: q4_0 q4_1 q8_0 ; T: f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE_COUNTED($Q, $T) ; Q: q5_0 q5_1 ; T: f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE_K($Q, $T) ; Q: q2_K q3_K q4_K q5_K q6_K q8_K ; T: f16 f32
//@ get_rows_$Q = GET_ROWS($Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ get_rows_$T = GET_ROWS_PLAIN($T) ; T: f32 f16 bf16
//@ dequantize_mul_mat_vec_$Q_cuda = DMMV($Q_cuda, $Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0
//@ dequantize_mul_mat_vec_$N_k = DMMV($N_k, $N_K) ; N: q2 q3 q4 q5 q6
//@ mul_mat_vec_$Q_q8_1_cuda1 = MUL_MAT_VEC($Q, 1, 1) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ mul_mat_vec_$Q_q8_1_cuda$N = MUL_MAT_VEC($Q, $N, 2) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K ; N: 2 3 4 5 6 7 8
//@ mul_mat_$Q = MUL_MAT($Q, 64, 128) ; Q: q4_0 q4_1 q2_K q4_K q5_K
//@ mul_mat_$Q = MUL_MAT($Q, 128, 64) ; Q: q5_0 q5_1 q8_0
//@ mul_mat_q3_K = MUL_MAT(q3_K, 128, 128)
//@ mul_mat_q6_K = MUL_MAT(q6_K, 64, 64)
//@ mmvq_$Q_$T_$N = MMVQ($Q, $T, $N) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K ; T: bf16 f16 f32 ; N: 1 2 3 4 5 6 7 8
//@ mmq_few_$Q = MMQ_FEW($Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ indexed_moe_forward_$Nk_q8_1 = INDEXED_MOE($Nk, $N_K) ; N: q2 q3 q4 q5 q6
//@ indexed_moe_forward_q8_0_q8_1 = INDEXED_MOE(q8_0, q8_0)
//@ moe_gguf_$Q = MOE_QUANTIZED($Q) ; Q: q8_0 q2_K q3_K q4_K q5_K q6_K
//@ moe_$T = MOE_HALVES($T) ; T: f16 bf16
