// out = op(inp), and two that take a number as well. Halves are computed in f32.
#define MATH(name, expression)  \
    template <class W>          \
    DEVICE W u##name##_of(W x) { \
        return expression;      \
    }
MATH(neg, -x)
MATH(recip, (W)1 / x)
MATH(exp, exp_of(x))
MATH(log, log_of(x))
MATH(sin, sin_of(x))
MATH(cos, cos_of(x))
MATH(tanh, tanh_of(x))
MATH(erf, erf_of(x))
MATH(ceil, ceil_of(x))
MATH(floor, floor_of(x))
MATH(round, round_of(x))
MATH(normcdf, normcdf_of(x))
MATH(abs, fabs_of(x))
MATH(sqr, x *x)
MATH(sqrt, sqrt_of(x))
MATH(gelu_erf, x *unormcdf_of(x))
MATH(relu, x > (W)0 ? x : (W)0)
MATH(silu, x / ((W)1 + exp_of(-x)))
MATH(sigmoid, (W)1 / ((W)1 + exp_of(-x)))
MATH(sign, (W)(x > (W)0) - (W)(x < (W)0))

// 0.5 x (1 + tanh(u)) is x / (1 + exp(-2u)), where nothing cancels. The exponent is as many steps off as it is large, so
// its low part is kept; the few operations in f64 hide behind the memory even where they are slow.
DEVICE f64 gelu_exponent(f64 x) { return -1.59576912160573071176 * x * (1.0 + 0.044715 * x * x); }
DEVICE f32 ugelu_of(f32 x) {
    const f64 exponent = gelu_exponent((f64)x);
    const f32 high = (f32)exponent, low = fabs_of(high) < 100.0f ? (f32)(exponent - (f64)high) : 0.0f;
    const f32 power = exp_of(high);
    return x / (1.0f + (power + power * low));
}
DEVICE f64 ugelu_of(f64 x) { return x / (1.0 + exp_of(gelu_exponent(x))); }

// For integers: what is defined on them.
template <class T>
DEVICE T integer_abs(T x) {
    return x < 0 ? (T)-x : x;
}

#define UNARY(name, T, expression)                                                                                     \
    KERNEL(THREADS) name##_##T(usize n, usize n_dims, const usize *info, const T *inp, T *out) {                       \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = info == nullptr || is_contiguous(n_dims, info, strides);                                     \
        if (flat) {                                                                                                    \
            map_flat(n, inp, out, [](T x) -> T { return (expression); });                                              \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) {                                                                                                   \
            const T x = inp[strided(i, n_dims, info, strides)];                                                        \
            out[i] = (expression);                                                                                     \
        }                                                                                                              \
    }
#define FLOAT_UNARY(name, T) UNARY(name, T, down<T>(name##_of(up(x))))

#define WITH_NUMBER(name, T, expression)                                                                               \
    KERNEL(THREADS) name##_##T(usize n, usize n_dims, const usize *info, T number, const T *inp, T *out) {             \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = info == nullptr || is_contiguous(n_dims, info, strides);                                     \
        const WIDE(T) p = up(number);                                                                                  \
        const auto apply = [=](T element) -> T {                                                                       \
            const WIDE(T) x = up(element);                                                                             \
            return down<T>(expression);                                                                                \
        };                                                                                                             \
        if (flat) {                                                                                                    \
            map_flat(n, inp, out, apply);                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) out[i] = apply(inp[strided(i, n_dims, info, strides)]);                                             \
    }

//@ any-grid
//@ ucopy_$T = UNARY(ucopy, $T, x) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ $O_$T = FLOAT_UNARY($O, $T) ; O: uneg urecip uexp ulog usin ucos utanh uerf uceil ufloor uround unormcdf uabs usqr usqrt ugelu ugelu_erf urelu usilu usigmoid usign ; T: bf16 f16 f32 f64 f8e4m3
//@ uneg_$T = UNARY(uneg, $T, ($T)-x) ; T: i16 i32 i64
//@ uabs_$T = UNARY(uabs, $T, integer_abs(x)) ; T: u8 u32 i16 i32 i64
//@ usqr_$T = UNARY(usqr, $T, ($T)(x * x)) ; T: u8 u32 i16 i32 i64
//@ urelu_$T = UNARY(urelu, $T, x > 0 ? x : ($T)0) ; T: u8 u32 i16 i32 i64
//@ usign_$T = UNARY(usign, $T, ($T)((x > 0) - (x < 0))) ; T: u8 u32 i16 i32 i64
//@ $O_$T = UNARY($O, $T, x) ; O: uceil ufloor uround ; T: u8 u32 i16 i32 i64
//@ uelu_$T = WITH_NUMBER(uelu, $T, x > 0 ? x : p * expm1_of(x)) ; T: bf16 f16 f32 f64 f8e4m3
//@ upowf_$T = WITH_NUMBER(upowf, $T, pow_of(x, p)) ; T: bf16 f16 f32 f64 f8e4m3
