// out = condition ? yes : no. Shapes are always given.
template <class I, class T>
DEVICE void choose_flat(usize n, const I *condition, const T *yes, const T *no, T *out) {
    constexpr u32 size = Packed<I, T>::n;
    u32 done = 0;
    if (lies_on_packs<size>(condition) && lies_on_packs<size>(yes) && lies_on_packs<size>(no) && lies_on_packs<size>(out)) {
        const u32 n_packs = (u32)(n / size);
        EACH(pack, n_packs) {
            const usize at = (usize)pack * size;
            const Pack<I, size> chosen = load<size>(condition + at);
            const Pack<T, size> a = load<size>(yes + at), b = load<size>(no + at);
            Pack<T, size> y;
#pragma unroll
            for (u32 k = 0; k < size; ++k) y.at[k] = chosen.at[k] ? a.at[k] : b.at[k];
            store<size>(out + at, y);
        }
        done = n_packs * size;
    }
    EACH(i, (u32)n - done) out[done + i] = condition[done + i] ? yes[done + i] : no[done + i];
}

#define WHERE(I, T)                                                                                                    \
    KERNEL(THREADS)                                                                                                    \
    where_##I##_##T(usize n, usize n_dims, const usize *info, const I *condition, const T *yes, const T *no, T *out) { \
        const usize *s = info + n_dims, *yes_s = info + 2 * n_dims, *no_s = info + 3 * n_dims;                         \
        const bool flat = is_contiguous(n_dims, info, s) && is_contiguous(n_dims, info, yes_s) &&                      \
                          is_contiguous(n_dims, info, no_s);                                                           \
        if (flat) {                                                                                                    \
            choose_flat(n, condition, yes, no, out);                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
        EACH(i, n) {                                                                                                   \
            if (condition[strided(i, n_dims, info, s)]) {                                                       \
                out[i] = yes[strided(i, n_dims, info, yes_s)];                                                         \
            } else {                                                                                                   \
                out[i] = no[strided(i, n_dims, info, no_s)];                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }

//@ any-grid
//@ where_$I_$T = WHERE($I, $T) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
