// out = condition ? yes : no. Shapes are always given.
#define WHERE(I, T)                                                                                                    \
    KERNEL(THREADS)                                                                                                    \
    where_##I##_##T(usize n, usize n_dims, const usize *info, const I *condition, const T *yes, const T *no, T *out) { \
        const usize *s = info + n_dims, *yes_s = info + 2 * n_dims, *no_s = info + 3 * n_dims;                         \
        const bool flat = is_contiguous(n_dims, info, s) && is_contiguous(n_dims, info, yes_s) &&                      \
                          is_contiguous(n_dims, info, no_s);                                                           \
        EACH(i, n) {                                                                                                   \
            if (flat) {                                                                                                \
                out[i] = condition[i] ? yes[i] : no[i];                                                                \
            } else if (condition[strided(i, n_dims, info, s)]) {                                                       \
                out[i] = yes[strided(i, n_dims, info, yes_s)];                                                         \
            } else {                                                                                                   \
                out[i] = no[strided(i, n_dims, info, no_s)];                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }

//@ where_$I_$T = WHERE($I, $T) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
