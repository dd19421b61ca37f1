// Sums, extremes, softmax, norms and rotary positions. A reduction gets one block for each result, with the dimensions that
// are reduced last in `info`; its result does not depend on the width of a wave.

DEVICE u32 block_threads() {
#if defined(GPU_AMD)
    return (u32)__builtin_amdgcn_workgroup_size_x() * (u32)__builtin_amdgcn_workgroup_size_y();
#else
    return blockDim.x * blockDim.y;
#endif
}
DEVICE u32 thread_of_block() {
#if defined(GPU_AMD)
    return thread_x() + thread_y() * (u32)__builtin_amdgcn_workgroup_size_x();
#else
    return thread_x() + thread_y() * blockDim.x;
#endif
}

// Every thread's value combined, in every thread. `shared` holds one value a thread.
template <class W, class Combine>
DEVICE W over_block(W value, W *shared, Combine combine) {
    const u32 at = thread_of_block(), n = block_threads();
    shared[at] = value;
    barrier();
    u32 half = 1;
    while (half < n) half *= 2;
    for (half /= 2; half > 0; half /= 2) {
        if (at < half && at + half < n) shared[at] = combine(shared[at], shared[at + half]);
        barrier();
    }
    const W all = shared[0];
    barrier();
    return all;
}
template <class W>
DEVICE W sum_over_block(W value, W *shared) {
    return over_block(value, shared, [](W a, W b) { return (W)(a + b); });
}

#define FAST_SUM(T)                                                                                                    \
    KERNEL(THREADS) fast_sum_##T(usize n, usize each, usize n_dims, const usize *info, const T *src, T *dst) {         \
        typedef WIDE(T) W;                                                                                             \
        __shared__ W shared[THREADS];                                                                                  \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = is_contiguous(n_dims, info, strides);                                                        \
        W sum = 0;                                                                                                     \
        for (u32 i = thread_x(); i < (u32)each; i += block_size()) {                                                   \
            const u32 at = block_x() * (u32)each + i;                                                                  \
            sum += up(src[flat ? at : strided(at, n_dims, info, strides)]);                                            \
        }                                                                                                              \
        sum = sum_over_block(sum, shared);                                                                             \
        if (thread_x() == 0) dst[block_x()] = down<T>(sum);                                                            \
    }

// A thread for each result, where few elements make one.
#define FAST_SUM_SMALL(T)                                                                                              \
    KERNEL(THREADS) fast_sum_small_##T(usize n, usize each, usize n_dims, const usize *info, const T *src, T *dst) {   \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = is_contiguous(n_dims, info, strides);                                                        \
        EACH(i, n) {                                                                                                   \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 j = 0; j < (u32)each; ++j) {                                                                      \
                const u32 at = i * (u32)each + j;                                                                      \
                sum += up(src[flat ? at : strided(at, n_dims, info, strides)]);                                        \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// The host starts with the first element and takes another where it is strictly better: so the first of equals wins, and a
// NaN counts only as the first element, which nothing then beats.
template <class W>
struct Best {
    W value;
    u32 index;
};
template <bool least, class W>
DEVICE bool is_better(W a, W b) {
    return least ? a < b : a > b;
}
template <bool least, class T>
DEVICE Best<typename Number<T>::wide> best_of(usize each, usize n_dims, const usize *info, const T *src) {
    typedef typename Number<T>::wide W;
    __shared__ Best<W> shared[THREADS];
    const usize *strides = info + n_dims;
    const bool flat = is_contiguous(n_dims, info, strides);
    const u32 start = block_x() * (u32)each;
    const W first = up(src[flat ? start : strided(start, n_dims, info, strides)]);
    Best<W> best = {first, 0};
    for (u32 i = thread_x(); i < (u32)each; i += block_size()) {
        const W x = up(src[flat ? start + i : strided(start + i, n_dims, info, strides)]);
        if (is_better<least>(x, best.value)) best = {x, i};
    }
    return over_block(best, shared, [](Best<W> a, Best<W> b) {
        const bool second = is_better<least>(b.value, a.value) || (a.value == b.value && b.index < a.index);
        return second ? b : a;
    });
}

#define FAST_BEST(name, least, T, R, field)                                                                            \
    KERNEL(THREADS) name##_##T(usize n, usize each, usize n_dims, const usize *info, const T *src, R *dst) {           \
        const Best<WIDE(T)> best = best_of<least, T>(each, n_dims, info, src);                                         \
        if (thread_x() == 0) dst[block_x()] = down<R>(best.field);                                                     \
    }

// exp(x - most), with what the difference loses to rounding: the power is as many steps off as its exponent is large.
template <class W>
DEVICE W power_below(W x, W most) {
    const W difference = x - most, part = difference - x, lost = (x - (difference - part)) - (most + part);
    const W power = exp_of(difference);
    return lost == lost ? power + power * lost : power;  // infinities lose a NaN
}

// A block for each row, of whatever shape.
#define SOFTMAX(T)                                                                                                     \
    KERNEL(THREADS) softmax_##T(const T *src, T *dst, i32 n_columns) {                                                 \
        typedef WIDE(T) W;                                                                                             \
        __shared__ W shared[THREADS];                                                                                  \
        const u32 n = (u32)n_columns, first = thread_of_block(), step = block_threads();                               \
        src += (usize)block_x() * n;                                                                                   \
        dst += (usize)block_x() * n;                                                                                   \
        W most = up(src[0]);                                                                                           \
        for (u32 i = first; i < n; i += step) most = most < up(src[i]) ? up(src[i]) : most;                            \
        most = over_block(most, shared, [](W a, W b) { return a < b ? b : a; });                                       \
        W sum = 0;                                                                                                     \
        for (u32 i = first; i < n; i += step) sum += power_below(up(src[i]), most);                                        \
        sum = sum_over_block(sum, shared);                                                                             \
        for (u32 i = first; i < n; i += step) dst[i] = down<T>(power_below(up(src[i]), most) / sum);                       \
    }

// What sums of squares are made in, so that the result has no more than the last two roundings.
template <class T>
struct Exact {
    typedef typename Number<T>::wide wide;
};
template <>
struct Exact<f32> {
    typedef f64 wide;
};

#define RMSNORM(T)                                                                                                     \
    KERNEL(THREADS)                                                                                                    \
    rmsnorm_##T(const T *src, T *dst, const T *alpha, i32 n_columns, i32 n_threads, f32 eps) {                         \
        typedef WIDE(T) W;                                                                                             \
        typedef Exact<T>::wide S;                                                                                      \
        __shared__ S shared[THREADS];                                                                                  \
        const u32 n = (u32)n_columns, first = thread_of_block(), step = block_threads();                               \
        src += (usize)block_x() * n;                                                                                   \
        dst += (usize)block_x() * n;                                                                                   \
        S sum = 0;                                                                                                     \
        for (u32 i = first; i < n; i += step) sum += (S)up(src[i]) * (S)up(src[i]);                                    \
        const W scale = (W)((S)1 / sqrt_of(sum_over_block(sum, shared) / (S)n + (S)eps));                              \
        for (u32 i = first; i < n; i += step) {                                                                        \
            const W x = up(src[i]) * scale;                                                                            \
            dst[i] = down<T>(alpha == nullptr ? x : x * up(alpha[i]));                                                 \
        }                                                                                                              \
    }

// In f64, so that what nearly cancels (the mean, beta) leaves more than rounding errors: a few operations for each number.
#define LAYERNORM(T)                                                                                                   \
    KERNEL(THREADS)                                                                                                    \
    layernorm_##T(const T *src, T *dst, const T *alpha, const T *beta, i32 n_columns, i32 n_threads, f32 eps) {        \
        __shared__ f64 shared[THREADS];                                                                                \
        const u32 n = (u32)n_columns, first = thread_of_block(), step = block_threads();                               \
        src += (usize)block_x() * n;                                                                                   \
        dst += (usize)block_x() * n;                                                                                   \
        f64 sum = 0, squares = 0;                                                                                      \
        for (u32 i = first; i < n; i += step) sum += (f64)up(src[i]);                                                  \
        const f64 mean = sum_over_block(sum, shared) / (f64)n;                                                         \
        for (u32 i = first; i < n; i += step) squares += ((f64)up(src[i]) - mean) * ((f64)up(src[i]) - mean);          \
        const f64 scale = (f64)1 / sqrt_of(sum_over_block(squares, shared) / (f64)n + (f64)eps);                       \
        for (u32 i = first; i < n; i += step) {                                                                        \
            f64 x = ((f64)up(src[i]) - mean) * scale;                                                                  \
            if (alpha != nullptr) x *= (f64)up(alpha[i]);                                                              \
            if (beta != nullptr) x += (f64)up(beta[i]);                                                                \
            dst[i] = down<T>(x);                                                                                       \
        }                                                                                                              \
    }

// Pairs (a, b) turned by an angle. Three layouts: pairs side by side (rope_i); halves of a head, heads before tokens (rope)
// or tokens before heads (rope_thd). A stride_b other than 0 means that every sequence has angles of its own.
template <class T>
DEVICE void turn(const T *src, T *dst, usize a, usize b, T cos, T sin) {
    const typename Number<T>::wide x = up(src[a]), y = up(src[b]), c = up(cos), s = up(sin);
    // As the host does: products are rounded before they are added, which leaves more where they nearly cancel.
    dst[a] = down<T>(add_exactly(mul_exactly(x, c), -mul_exactly(y, s)));
    dst[b] = down<T>(add_exactly(mul_exactly(x, s), mul_exactly(y, c)));
}
#define ROPE_I(T)                                                                                                      \
    KERNEL(THREADS)                                                                                                    \
    rope_i_##T(const T *src, const T *cos, const T *sin, T *dst, u32 bh, u32 td, u32 stride_b) {                       \
        EACH(i, (usize)bh * td / 2) {                                                                                  \
            u32 angle = i % (td / 2);                                                                                  \
            if (stride_b > 0) angle += 2 * i / stride_b * (td / 2);                                                    \
            turn(src, dst, 2 * (usize)i, 2 * (usize)i + 1, cos[angle], sin[angle]);                                    \
        }                                                                                                              \
    }
#define ROPE(T)                                                                                                        \
    KERNEL(THREADS)                                                                                                    \
    rope_##T(const T *src, const T *cos, const T *sin, T *dst, u32 bh, u32 td, u32 d, u32 stride_b) {                  \
        EACH(i, (usize)bh * td / 2) {                                                                                  \
            const u32 head = i / (td / 2), in_head = i % (td / 2), token = in_head / (d / 2), j = in_head % (d / 2);   \
            u32 angle = in_head;                                                                                       \
            if (stride_b > 0) angle += 2 * i / stride_b * (td / 2);                                                    \
            const usize a = (usize)head * td + token * d + j;                                                          \
            turn(src, dst, a, a + d / 2, cos[angle], sin[angle]);                                                      \
        }                                                                                                              \
    }
#define ROPE_THD(T)                                                                                                    \
    KERNEL(THREADS)                                                                                                    \
    rope_thd_##T(const T *src, const T *cos, const T *sin, T *dst, u32 b, u32 t, u32 h, u32 d, u32 stride_b) {         \
        EACH(i, (usize)b * t * h * d / 2) {                                                                            \
            const u32 row = i / (d / 2), j = i % (d / 2), token = row / h % t;                                         \
            u32 angle = token * (d / 2) + j;                                                                           \
            if (stride_b > 0) angle += 2 * i / stride_b * (t * d / 2);                                                 \
            const usize a = (usize)row * d + j;                                                                        \
            turn(src, dst, a, a + d / 2, cos[angle], sin[angle]);                                                      \
        }                                                                                                              \
    }

//@ fast_sum_$T = FAST_SUM($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ fast_sum_small_$T = FAST_SUM_SMALL($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ fast_min_$T = FAST_BEST(fast_min, true, $T, $T, value) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ fast_max_$T = FAST_BEST(fast_max, false, $T, $T, value) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ fast_argmin_$T = FAST_BEST(fast_argmin, true, $T, u32, index) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ fast_argmax_$T = FAST_BEST(fast_argmax, false, $T, u32, index) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ softmax_$T = SOFTMAX($T) ; T: bf16 f16 f32 f64 f8e4m3
//@ rmsnorm_$T = RMSNORM($T) ; T: bf16 f16 f32 f64 f8e4m3
//@ layernorm_$T = LAYERNORM($T) ; T: bf16 f16 f32 f64 f8e4m3
//@ rope_i_$T = ROPE_I($T) ; T: bf16 f16 f32 f64 f8e4m3
//@ rope_$T = ROPE($T) ; T: bf16 f16 f32 f64 f8e4m3
//@ rope_thd_$T = ROPE_THD($T) ; T: bf16 f16 f32 f64 f8e4m3
