// Rows and elements by index. The largest index of its type means "none": it reads zeros and writes nothing. So does one
// past the end, which the host refuses: a kernel has nobody to tell, and must not leave its memory.
template <class I>
DEVICE bool names(I index, usize size) {
    return index >= (I)0 && (usize)index < size;
}

// ids [n_ids] along one dimension: inp [left, size, right] -> out [left, n_ids, right]. `info` is the shape of ids.
#define INDEX_SELECT(I, T)                                                                                             \
    KERNEL(THREADS)                                                                                                    \
    is_##I##_##T(usize n, usize n_dims, const usize *info, const I *ids, const T *inp, T *out, usize left, usize size, \
                 usize n_ids, usize right) {                                                                           \
        const usize *strides = info + n_dims;                                                                          \
        const bool flat = is_contiguous(n_dims, info, strides);                                                        \
        EACH(i, n) {                                                                                                   \
            const u32 row = i / (u32)right, id = row % (u32)n_ids, before = row / (u32)n_ids;                          \
            const I index = ids[flat ? id : strided(id, n_dims, info, strides)];                                       \
            const usize from = ((usize)before * size + (usize)index) * right + i % (u32)right;                         \
            out[i] = names(index, size) ? inp[from] : zero_of<T>();                                                    \
        }                                                                                                              \
    }

// As many ids as results: inp [left, size, right], ids and out [left, n_ids, right].
#define GATHER(I, T)                                                                                                   \
    KERNEL(THREADS)                                                                                                    \
    gather_##I##_##T(usize n, const I *ids, const T *inp, T *out, usize left, usize size, usize n_ids, usize right) {  \
        EACH(i, n) {                                                                                                   \
            const I index = ids[i];                                                                                    \
            const u32 before = i / (u32)(right * n_ids);                                                               \
            const usize from = ((usize)before * size + (usize)index) * right + i % (u32)right;                         \
            out[i] = names(index, size) ? inp[from] : zero_of<T>();                                                    \
        }                                                                                                              \
    }

// A thread owns a column of the target, so sums come in the order of the source, as on the host.
#define INDEX_ADD(I, T)                                                                                                \
    KERNEL(THREADS)                                                                                                    \
    ia_##I##_##T(const I *ids, usize n_ids, const T *inp, T *out, usize left, usize size, usize to_size, usize right) { \
        EACH(i, left * right) {                                                                                        \
            const u32 before = i / (u32)right, after = i % (u32)right;                                                 \
            for (u32 j = 0; j < (u32)n_ids; ++j) {                                                                     \
                const I index = ids[j];                                                                                \
                if (!names(index, to_size)) continue;                                                                  \
                T &to = out[((usize)before * to_size + (usize)index) * right + after];                                 \
                to = down<T>(up(to) + up(inp[((usize)before * n_ids + j) * right + after]));                           \
            }                                                                                                          \
        }                                                                                                              \
    }

#define SCATTER(name, I, T, expression)                                                                                \
    KERNEL(THREADS)                                                                                                    \
    name##_##I##_##T(const I *ids, const T *inp, T *out, usize left, usize size, usize to_size, usize right) {         \
        EACH(i, left * right) {                                                                                        \
            const u32 before = i / (u32)right, after = i % (u32)right;                                                 \
            for (u32 j = 0; j < (u32)size; ++j) {                                                                      \
                const usize from = ((usize)before * size + j) * right + after;                                         \
                const I index = ids[from];                                                                             \
                if (!names(index, to_size)) continue;                                                                  \
                T &to = out[((usize)before * to_size + (usize)index) * right + after];                                 \
                to = (expression);                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }

//@ is_$I_$T = INDEX_SELECT($I, $T) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ gather_$I_$T = GATHER($I, $T) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ ia_$I_$T = INDEX_ADD($I, $T) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ s_$I_$T = SCATTER(s, $I, $T, inp[from]) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ sa_$I_$T = SCATTER(sa, $I, $T, down<$T>(up(to) + up(inp[from]))) ; I: u8 u32 i64 ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
