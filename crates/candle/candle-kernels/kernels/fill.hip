// Constants, and copies of rows.
#define FILL(T) \
    KERNEL(THREADS) fill_##T(T *to, T value, usize n) { fill_flat(n, value, to); }

// d1 rows of d2 elements, so many elements apart on each side.
#define COPY2D(T)                                                                                           \
    KERNEL(THREADS) copy2d_##T(const T *from, T *to, u32 d1, u32 d2, u32 from_stride, u32 to_stride) {      \
        EACH(i, (usize)d1 * d2) {                                                                           \
            const u32 row = i / d2, column = i - row * d2;                                                  \
            to[(usize)row * to_stride + column] = from[(usize)row * from_stride + column];                  \
        }                                                                                                   \
    }

#define CONST_SET(name, T)                                                                                  \
    KERNEL(THREADS) const_set_##name(usize n, usize n_dims, const usize *info, T value, T *out) {           \
        const usize *strides = info + n_dims;                                                               \
        const bool flat = info == nullptr || is_contiguous(n_dims, info, strides);                          \
        if (flat) {                                                                                         \
            fill_flat(n, value, out);                                                                       \
            return;                                                                                         \
        }                                                                                                   \
        EACH(i, n) out[strided(i, n_dims, info, strides)] = value;                                          \
    }

//@ any-grid
//@ fill_$T = FILL($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ copy2d_$T = COPY2D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ const_set_$T = CONST_SET($T, $T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64
//@ const_set_f8_e4m3 = CONST_SET(f8_e4m3, f8e4m3)
