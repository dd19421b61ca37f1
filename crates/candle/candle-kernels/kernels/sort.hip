// The order of each row's elements, by a bitonic network in shared memory. Equal elements keep their order, as in the
// host's stable sort; a NaN counts as the largest number.
template <class T>
DEVICE bool is_less(T a, T b) {
    const auto x = up(a), y = up(b);
    return x < y || (x == x && y != y);
}

// Whether element `a` comes after element `b`; indices past the row come last.
template <bool ascending, class T>
DEVICE bool is_after(const T *row, u32 a, u32 b, u32 n) {
    if (a >= n || b >= n) return a > b;
    const T x = row[a], y = row[b];
    if (ascending ? is_less(y, x) : is_less(x, y)) return true;
    if (ascending ? is_less(x, y) : is_less(y, x)) return false;
    return a > b;
}

#define ARGSORT(name, ascending, T)                                                                                    \
    KERNEL(THREADS) name##_##T(const T *x, u32 *out, i32 n_columns, i32 n_padded) {                                    \
        extern __shared__ u32 order[];                                                                                 \
        const u32 n = (u32)n_columns, padded = (u32)n_padded;                                                          \
        const T *row = x + (usize)block_x() * n;                                                                       \
        for (u32 i = thread_x(); i < padded; i += block_size()) order[i] = i;                                          \
        barrier();                                                                                                     \
        for (u32 run = 2; run <= padded; run *= 2) {                                                                   \
            for (u32 step = run / 2; step > 0; step /= 2) {                                                            \
                for (u32 i = thread_x(); i < padded; i += block_size()) {                                              \
                    const u32 j = i ^ step;                                                                            \
                    if (j < i) continue;                                                                               \
                    const u32 a = order[i], b = order[j];                                                              \
                    const bool swap = (i & run) == 0 ? is_after<ascending>(row, a, b, n)                               \
                                                     : is_after<ascending>(row, b, a, n);                              \
                    if (swap) order[i] = b, order[j] = a;                                                              \
                }                                                                                                      \
                barrier();                                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        for (u32 i = thread_x(); i < n; i += block_size()) out[(usize)block_x() * n + i] = order[i];                   \
    }

//@ asort_asc_$T = ARGSORT(asort_asc, true, $T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ asort_desc_$T = ARGSORT(asort_desc, false, $T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
