// Matrix products for machines without a BLAS library: column-major, as BLAS has them.
// C [m, n] = alpha op(A) op(B) + beta C. A block of 256 threads makes a tile of 32 by 32, a thread four rows of it.
#include "prelude.h"
typedef float f32;
typedef double f64;

template <class T>
struct Sum {
    typedef float type;
};
template <>
struct Sum<double> {
    typedef double type;
};
DEVICE double widen(double x) { return x; }
DEVICE float widen(float x) { return x; }
DEVICE float widen(f16 x) { return to_f32(x); }
DEVICE float widen(bf16 x) { return to_f32(x); }
DEVICE void narrow(double &to, double x) { to = x; }
DEVICE void narrow(float &to, float x) { to = x; }
DEVICE void narrow(f16 &to, float x) { to = to_f16(x); }
DEVICE void narrow(bf16 &to, float x) { to = to_bf16(x); }

#define TILE 32

// The tile is read along whichever side is contiguous; `step` is the distance along the summed side.
template <class T, class S>
DEVICE void fill(S (&to)[TILE][TILE + 1], const T *from, u64 step_row, u64 step_k, u32 row0, u32 k0, u32 rows, u32 k) {
    for (u32 i = thread_x(); i < TILE * TILE; i += 256) {
        const u32 fast = i % TILE, slow = i / TILE;
        const u32 row = step_row == 1 ? fast : slow, column = step_row == 1 ? slow : fast;
        const bool is_in = row0 + row < rows && k0 + column < k;
        to[column][row] = is_in ? (S)widen(from[(row0 + row) * step_row + (k0 + column) * step_k]) : (S)0;
    }
}

#define GEMM(T)                                                                                                        \
    KERNEL(256)                                                                                                        \
    gemm_##T(const T *a, const T *b, T *c, u32 m, u32 n, u32 k, u64 a_row, u64 a_k, u64 b_column, u64 b_k, u64 ld_c,   \
             i64 stride_a, i64 stride_b, i64 stride_c, double alpha, double beta) {                                    \
        typedef Sum<T>::type S;                                                                                        \
        __shared__ S left[TILE][TILE + 1];                                                                             \
        __shared__ S right[TILE][TILE + 1];                                                                            \
        a += stride_a * (i64)block_z();                                                                                \
        b += stride_b * (i64)block_z();                                                                                \
        c += stride_c * (i64)block_z();                                                                                \
        const u32 row0 = block_x() * TILE, column0 = block_y() * TILE;                                                 \
        const u32 row = thread_x() % TILE, column = thread_x() / TILE * 4;                                             \
        S sum[4] = {0, 0, 0, 0};                                                                                       \
        for (u32 k0 = 0; k0 < k; k0 += TILE) {                                                                         \
            fill<T, S>(left, a, a_row, a_k, row0, k0, m, k);                                                           \
            fill<T, S>(right, b, b_column, b_k, column0, k0, n, k);                                                    \
            barrier();                                                                                                 \
            for (u32 i = 0; i < TILE; ++i) {                                                                           \
                const S x = left[i][row];                                                                              \
                for (u32 j = 0; j < 4; ++j) sum[j] += x * right[i][column + j];                                        \
            }                                                                                                          \
            barrier();                                                                                                 \
        }                                                                                                              \
        for (u32 j = 0; j < 4; ++j) {                                                                                  \
            if (row0 + row >= m || column0 + column + j >= n) continue;                                                \
            T &to = c[row0 + row + (column0 + column + j) * ld_c];                                                     \
            const S kept = beta == 0 ? (S)0 : (S)beta * (S)widen(to);                                                  \
            narrow(to, (S)alpha * sum[j] + kept);                                                                      \
        }                                                                                                              \
    }

// The same for up to COLUMNS columns: 32 threads make one row of C, side by side along k.
#define GEMV(T, COLUMNS)                                                                                               \
    KERNEL(256)                                                                                                        \
    gemv##COLUMNS##_##T(const T *a, const T *b, T *c, u32 m, u32 n, u32 k, u64 a_row, u64 a_k, u64 b_column, u64 b_k,  \
                        u64 ld_c, i64 stride_a, i64 stride_b, i64 stride_c, double alpha, double beta) {               \
        a += stride_a * (i64)block_z();                                                                                \
        b += stride_b * (i64)block_z();                                                                                \
        c += stride_c * (i64)block_z();                                                                                \
        const u32 row = block_x() * 8 + thread_x() / 32;                                                               \
        if (row >= m) return;                                                                                          \
        a += (u64)row * a_row;                                                                                         \
        float sum[COLUMNS];                                                                                            \
        _Pragma("unroll") for (u32 j = 0; j < COLUMNS; ++j) sum[j] = 0.0f;                                             \
        for (u32 i = thread_x() % 32; i < k; i += 32) {                                                                \
            const float x = widen(a[i * a_k]);                                                                         \
            _Pragma("unroll") for (u32 j = 0; j < COLUMNS; ++j) {                                                      \
                if (j < n) sum[j] += x * widen(b[j * b_column + i * b_k]);                                             \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("unroll") for (u32 j = 0; j < COLUMNS; ++j) {                                                          \
            const float all = wave_sum<32>(sum[j]);                                                                    \
            if (j >= n || thread_x() % 32 != 0) continue;                                                              \
            T &to = c[row + j * ld_c];                                                                                 \
            narrow(to, (float)alpha * all + (beta == 0 ? 0.0f : (float)beta * widen(to)));                             \
        }                                                                                                              \
    }

//@ gemm_$T = GEMM($T) ; T: f16 bf16 f32 f64
//@ gemv$N_$T = GEMV($T, $N) ; T: f16 bf16 f32 ; N: 1 8
