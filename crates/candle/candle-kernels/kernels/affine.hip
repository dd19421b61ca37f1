// out = inp * mul + add.
#define AFFINE(T)                                                                                                      \
    KERNEL(THREADS)                                                                                                    \
    affine_##T(usize n, usize n_dims, const usize *info, const T *inp, T *out, T mul, T add) {                         \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = info == nullptr || is_contiguous(n_dims, info, strides);                                     \
        if (flat) {                                                                                                    \
            map_flat(n, inp, out, [=](T x) { return affine_of(x, mul, add); });                                        \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) out[i] = affine_of(inp[strided(i, n_dims, info, strides)], mul, add);                               \
    }
template <class T>
DEVICE T affine_of(T x, T mul, T add) {
    if constexpr (Number<T>::is_float) {
        // Rounded after the product, as the host does.
        const T product = down<T>(mul_exactly(up(x), up(mul)));
        return down<T>(add_exactly(up(product), up(add)));
    } else {
        return (T)(x * mul + add);
    }
}

//@ any-grid
//@ affine_$T = AFFINE($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
