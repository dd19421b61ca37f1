// out = op(left, right), and comparisons, whose result is a byte. Where two numbers are not ordered (a NaN), minimum and
// maximum give the left one, as the host does.
template <class T>
DEVICE T badd_of(T a, T b) {
    return down<T>(up(a) + up(b));
}
template <class T>
DEVICE T bsub_of(T a, T b) {
    return down<T>(up(a) - up(b));
}
template <class T>
DEVICE T bmul_of(T a, T b) {
    return down<T>(up(a) * up(b));
}
template <class T>
DEVICE T bdiv_of(T a, T b) {
    if constexpr (Number<T>::is_float) {
        return down<T>(up(a) / up(b));
    } else {
        return b == 0 ? (T)0 : (T)(a / b);  // the host stops there; a GPU has no way to
    }
}
template <class T>
DEVICE T bminimum_of(T a, T b) {
    return up(a) > up(b) ? b : a;
}
template <class T>
DEVICE T bmaximum_of(T a, T b) {
    return up(a) < up(b) ? b : a;
}
#define COMPARE(name, sign)             \
    template <class T>                  \
    DEVICE u8 name##_of(T a, T b) {     \
        return up(a) sign up(b) ? 1 : 0; \
    }
COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

#define BINARY(op, T, R)                                                                                               \
    KERNEL(THREADS)                                                                                                    \
    op##_##T(usize n, usize n_dims, const usize *info, const T *left, const T *right, R *out) {                        \
        const usize *left_s = info + n_dims, *right_s = info + 2 * n_dims;                                             \
        const bool flat_left = info == nullptr || is_contiguous(n_dims, info, left_s);                                 \
        const bool flat_right = info == nullptr || is_contiguous(n_dims, info, right_s);                               \
        if (flat_left && flat_right) {                                                                                 \
            zip_flat(n, left, right, out, [](T a, T b) -> R { return op##_of(a, b); });                                \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) {                                                                                                   \
            const T a = left[flat_left ? i : strided(i, n_dims, info, left_s)];                                        \
            const T b = right[flat_right ? i : strided(i, n_dims, info, right_s)];                                     \
            out[i] = op##_of(a, b);                                                                                    \
        }                                                                                                              \
    }

//@ any-grid
//@ $O_$T = BINARY($O, $T, $T) ; O: badd bsub bmul bdiv bminimum bmaximum ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ $O_$T = BINARY($O, $T, u8) ; O: eq ne lt le gt ge ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
