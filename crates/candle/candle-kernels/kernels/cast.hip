// From any type to any type, as Rust's `as`: floats saturate into integers, a NaN is 0, integers wrap.
template <class To>
struct Limits;
#define LIMITS(T, low, high)                     \
    template <>                                  \
    struct Limits<T> {                           \
        static constexpr T least = low, most = high; \
    };
LIMITS(u8, 0, 255)
LIMITS(u32, 0, 4294967295u)
LIMITS(i16, -32768, 32767)
LIMITS(i32, -2147483647 - 1, 2147483647)
LIMITS(i64, -9223372036854775807ll - 1, 9223372036854775807ll)

template <class To, class From>
DEVICE To cast_of(From from) {
    const auto x = up(from);
    if constexpr (Number<To>::is_float) {
        if constexpr (Number<From>::is_float) {
            return down<To>(x);
        } else if constexpr (sizeof(To) == 8) {
            return (To)x;
        } else {
            return down<To>((f32)x);
        }
    } else if constexpr (Number<From>::is_float) {
        if (x != x) return 0;
        // The bounds as floats round outwards, so what lies between them fits.
        if (x <= (decltype(x))Limits<To>::least) return Limits<To>::least;
        if (x >= (decltype(x))Limits<To>::most) return Limits<To>::most;
        return (To)x;
    } else {
        return (To)x;
    }
}

#define CAST(T, U)                                                                                                     \
    KERNEL(THREADS) cast_##T##_##U(usize n, usize n_dims, const usize *info, const T *inp, U *out) {                   \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = info == nullptr || is_contiguous(n_dims, info, strides);                                     \
        if (flat) {                                                                                                    \
            map_flat(n, inp, out, [](T x) { return cast_of<U, T>(x); });                                               \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) out[i] = cast_of<U, T>(inp[strided(i, n_dims, info, strides)]);                                     \
    }

//@ any-grid
//@ cast_$T_$U = CAST($T, $U) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3 ; U: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
