// Convolutions, straight and transposed, their matrices of patches, pooling and resizing. Shapes are always given.
// One thread for each result.

DEVICE u32 take(u32 &i, u32 size) {  // the fastest dimension of a flat index
    const u32 at = i % size;
    i /= size;
    return at;
}

// src [b, c_in, l], kernel [c_out, c_in, k] -> dst [b, c_out, l_out]
#define CONV1D(T)                                                                                                      \
    KERNEL(THREADS)                                                                                                    \
    conv1d_##T(usize n_src, usize l_out, usize stride, usize padding, usize dilation, const usize *info, const T *src, \
               const T *kernel, T *dst) {                                                                              \
        const usize *dims = info, *s = info + 3, *k_dims = info + 6, *k_s = info + 9;                                  \
        const u32 c_out = (u32)k_dims[0], c_in = (u32)dims[1], l_in = (u32)dims[2], k = (u32)k_dims[2];                \
        EACH(i, dims[0] * c_out * l_out) {                                                                             \
            u32 rest = i;                                                                                              \
            const u32 l = take(rest, (u32)l_out), c = take(rest, c_out), b = rest;                                     \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 j = 0; j < k; ++j) {                                                                              \
                const u32 at = l * (u32)stride + j * (u32)dilation;                                                    \
                if (at < padding || at >= l_in + padding) continue;                                                    \
                for (u32 ci = 0; ci < c_in; ++ci) {                                                                    \
                    sum += up(src[b * s[0] + ci * s[1] + (at - padding) * s[2]]) *                                     \
                           up(kernel[c * k_s[0] + ci * k_s[1] + j * k_s[2]]);                                          \
                }                                                                                                      \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// src [b, c_in, h, w], kernel [c_out, c_in, h_k, w_k] -> dst [b, c_out, h_out, w_out]
#define CONV2D(T)                                                                                                      \
    KERNEL(THREADS)                                                                                                    \
    conv2d_##T(usize n_src, usize w_out, usize h_out, usize stride, usize padding, usize dilation, const usize *info,  \
               const T *src, const T *kernel, T *dst) {                                                                \
        const usize *dims = info, *s = info + 4, *k_dims = info + 8, *k_s = info + 12;                                 \
        const u32 c_out = (u32)k_dims[0], c_in = (u32)dims[1], h_in = (u32)dims[2], w_in = (u32)dims[3];               \
        EACH(i, dims[0] * c_out * h_out * w_out) {                                                                     \
            u32 rest = i;                                                                                              \
            const u32 x = take(rest, (u32)w_out), y = take(rest, (u32)h_out), c = take(rest, c_out), b = rest;         \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 ky = 0; ky < (u32)k_dims[2]; ++ky) {                                                              \
                const u32 iy = y * (u32)stride + ky * (u32)dilation;                                                   \
                if (iy < padding || iy >= h_in + padding) continue;                                                    \
                for (u32 kx = 0; kx < (u32)k_dims[3]; ++kx) {                                                          \
                    const u32 ix = x * (u32)stride + kx * (u32)dilation;                                               \
                    if (ix < padding || ix >= w_in + padding) continue;                                                \
                    for (u32 ci = 0; ci < c_in; ++ci) {                                                                \
                        sum += up(src[b * s[0] + ci * s[1] + (iy - padding) * s[2] + (ix - padding) * s[3]]) *         \
                               up(kernel[c * k_s[0] + ci * k_s[1] + ky * k_s[2] + kx * k_s[3]]);                       \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// src [b, c, l] -> dst [b, l_out, c, k]; `n` counts without k.
#define IM2COL1D(T)                                                                                                    \
    KERNEL(THREADS)                                                                                                    \
    im2col1d_##T(usize n, usize l_out, usize l_k, usize stride, usize padding, usize dilation, const usize *info,      \
                 const T *src, T *dst) {                                                                               \
        const usize *dims = info, *s = info + 3;                                                                       \
        EACH(i, n) {                                                                                                   \
            u32 rest = i;                                                                                              \
            const u32 c = take(rest, (u32)dims[1]), l = take(rest, (u32)l_out), b = rest;                              \
            for (u32 j = 0; j < (u32)l_k; ++j) {                                                                       \
                const u32 at = l * (u32)stride + j * (u32)dilation;                                                    \
                const bool is_in = at >= padding && at < dims[2] + padding;                                            \
                dst[(usize)i * l_k + j] =                                                                              \
                    is_in ? src[b * s[0] + c * s[1] + (at - padding) * s[2]] : zero_of<T>();                           \
            }                                                                                                          \
        }                                                                                                              \
    }

// src [b, c, h, w] -> dst [b, h_out, w_out, c, h_k, w_k]
#define IM2COL(T)                                                                                                      \
    KERNEL(THREADS)                                                                                                    \
    im2col_##T(usize n, usize h_out, usize w_out, usize h_k, usize w_k, usize stride, usize padding, usize dilation,   \
               const usize *info, const T *src, T *dst) {                                                              \
        const usize *dims = info, *s = info + 4;                                                                       \
        EACH(i, n) {                                                                                                   \
            u32 rest = i;                                                                                              \
            const u32 kx = take(rest, (u32)w_k), ky = take(rest, (u32)h_k), c = take(rest, (u32)dims[1]);              \
            const u32 x = take(rest, (u32)w_out), y = take(rest, (u32)h_out), b = rest;                                \
            const u32 iy = y * (u32)stride + ky * (u32)dilation, ix = x * (u32)stride + kx * (u32)dilation;            \
            const bool is_in = iy >= padding && iy < dims[2] + padding && ix >= padding && ix < dims[3] + padding;     \
            dst[i] = is_in ? src[b * s[0] + c * s[1] + (iy - padding) * s[2] + (ix - padding) * s[3]] : zero_of<T>();  \
        }                                                                                                              \
    }

// src [b, l_in, c, k] -> dst [b, c, l_out]: what a transposed convolution adds up.
#define COL2IM1D(T)                                                                                                    \
    KERNEL(THREADS)                                                                                                    \
    col2im1d_##T(usize n, usize l_out, usize l_in, usize c_out, usize k, usize stride, const T *src, T *dst) {         \
        EACH(i, n) {                                                                                                   \
            u32 rest = i;                                                                                              \
            const u32 l = take(rest, (u32)l_out), c = take(rest, (u32)c_out), b = rest;                                \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 from = l / (u32)stride + 1; from-- > 0;) {                                                        \
                const u32 j = l - from * (u32)stride;                                                                  \
                if (j >= (u32)k) break;                                                                                \
                if (from < (u32)l_in) sum += up(src[(((usize)b * l_in + from) * c_out + c) * k + j]);                  \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// Where an output position came from through tap j, or a number past the end: out = in * stride + j * dilation - padding.
DEVICE u32 tap(u32 out, u32 j, u32 stride, u32 padding, u32 dilation, u32 size) {
    const i32 at = (i32)(out + padding) - (i32)(j * dilation);
    if (at < 0 || (u32)at % stride != 0) return size;
    return (u32)at / stride;
}

// src [b, c_in, l], kernel [c_in, c_out, k] -> dst [b, c_out, l_out]
#define CONV_TRANSPOSE1D(T)                                                                                            \
    KERNEL(THREADS)                                                                                                    \
    conv_transpose1d_##T(usize n_src, usize l_out, usize stride, usize padding, usize out_padding, usize dilation,     \
                         const usize *info, const T *src, const T *kernel, T *dst) {                                   \
        const usize *dims = info, *s = info + 3, *k_dims = info + 6, *k_s = info + 9;                                  \
        const u32 c_out = (u32)k_dims[1], c_in = (u32)dims[1], l_in = (u32)dims[2];                                    \
        EACH(i, dims[0] * c_out * l_out) {                                                                             \
            u32 rest = i;                                                                                              \
            const u32 l = take(rest, (u32)l_out), c = take(rest, c_out), b = rest;                                     \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 j = 0; j < (u32)k_dims[2]; ++j) {                                                                 \
                const u32 at = tap(l, j, (u32)stride, (u32)padding, (u32)dilation, l_in);                              \
                if (at >= l_in) continue;                                                                              \
                for (u32 ci = 0; ci < c_in; ++ci) {                                                                    \
                    sum += up(src[b * s[0] + ci * s[1] + at * s[2]]) *                                                 \
                           up(kernel[ci * k_s[0] + c * k_s[1] + j * k_s[2]]);                                          \
                }                                                                                                      \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// src [b, c_in, h, w], kernel [c_in, c_out, h_k, w_k] -> dst [b, c_out, h_out, w_out]
#define CONV_TRANSPOSE2D(T)                                                                                            \
    KERNEL(THREADS)                                                                                                    \
    conv_transpose2d_##T(usize n_src, usize w_out, usize h_out, usize stride, usize padding, usize out_padding,        \
                         usize dilation, const usize *info, const T *src, const T *kernel, T *dst) {                   \
        const usize *dims = info, *s = info + 4, *k_dims = info + 8, *k_s = info + 12;                                 \
        const u32 c_out = (u32)k_dims[1], c_in = (u32)dims[1], h_in = (u32)dims[2], w_in = (u32)dims[3];               \
        EACH(i, dims[0] * c_out * h_out * w_out) {                                                                     \
            u32 rest = i;                                                                                              \
            const u32 x = take(rest, (u32)w_out), y = take(rest, (u32)h_out), c = take(rest, c_out), b = rest;         \
            WIDE(T) sum = 0;                                                                                           \
            for (u32 kx = 0; kx < (u32)k_dims[3]; ++kx) {                                                              \
                const u32 ix = tap(x, kx, (u32)stride, (u32)padding, (u32)dilation, w_in);                             \
                if (ix >= w_in) continue;                                                                              \
                for (u32 ky = 0; ky < (u32)k_dims[2]; ++ky) {                                                          \
                    const u32 iy = tap(y, ky, (u32)stride, (u32)padding, (u32)dilation, h_in);                         \
                    if (iy >= h_in) continue;                                                                          \
                    for (u32 ci = 0; ci < c_in; ++ci) {                                                                \
                        sum += up(src[b * s[0] + ci * s[1] + iy * s[2] + ix * s[3]]) *                                 \
                               up(kernel[ci * k_s[0] + c * k_s[1] + ky * k_s[2] + kx * k_s[3]]);                       \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            dst[i] = down<T>(sum);                                                                                     \
        }                                                                                                              \
    }

// src [b, c, w, h] -> dst [b, c, w_out, h_out]. Candle calls the third dimension w here.
template <class T>
DEVICE T average(typename Number<T>::wide sum, u32 count) {
    if constexpr (Number<T>::is_float) {
        return down<T>(sum / (typename Number<T>::wide)count);
    } else {
        return (T)(sum / (typename Number<T>::wide)count);
    }
}
#define POOL2D(name, T, start, step, finish)                                                                           \
    KERNEL(THREADS)                                                                                                    \
    name##_##T(usize n_src, usize w_k, usize h_k, usize w_stride, usize h_stride, const usize *info, const T *src,     \
               T *dst) {                                                                                               \
        const usize *dims = info, *s = info + 4;                                                                       \
        const u32 w_out = (u32)((dims[2] - w_k) / w_stride + 1), h_out = (u32)((dims[3] - h_k) / h_stride + 1);        \
        EACH(i, dims[0] * dims[1] * w_out * h_out) {                                                                   \
            u32 rest = i;                                                                                              \
            const u32 y = take(rest, h_out), x = take(rest, w_out), c = take(rest, (u32)dims[1]), b = rest;            \
            const T *from = src + b * s[0] + c * s[1] + x * w_stride * s[2] + y * h_stride * s[3];                     \
            WIDE(T) all = (start);                                                                                     \
            for (u32 kx = 0; kx < (u32)w_k; ++kx) {                                                                    \
                for (u32 ky = 0; ky < (u32)h_k; ++ky) {                                                                \
                    const WIDE(T) value = up(from[kx * s[2] + ky * s[3]]);                                             \
                    all = (step);                                                                                      \
                }                                                                                                      \
            }                                                                                                          \
            dst[i] = (finish);                                                                                         \
        }                                                                                                              \
    }

#define UPSAMPLE_NEAREST2D(T)                                                                                          \
    KERNEL(THREADS)                                                                                                    \
    upsample_nearest2d_##T(usize w_out, usize h_out, f64 w_scale, f64 h_scale, const usize *info, const T *src,        \
                           T *dst) {                                                                                   \
        const usize *dims = info, *s = info + 4;                                                                       \
        EACH(i, dims[0] * dims[1] * w_out * h_out) {                                                                   \
            u32 rest = i;                                                                                              \
            const u32 y = take(rest, (u32)h_out), x = take(rest, (u32)w_out), c = take(rest, (u32)dims[1]), b = rest;  \
            u32 ix = (u32)((f64)x * w_scale), iy = (u32)((f64)y * h_scale);                                            \
            if (ix >= dims[2]) ix = (u32)dims[2] - 1;                                                                  \
            if (iy >= dims[3]) iy = (u32)dims[3] - 1;                                                                  \
            dst[i] = src[b * s[0] + c * s[1] + ix * s[2] + iy * s[3]];                                                 \
        }                                                                                                              \
    }

// A position between two source elements: the first of them, the second, and the second's share.
struct Between {
    u32 first, second;
    f64 share;
};
DEVICE Between between(u32 out, u32 size_in, u32 size_out, bool align_corners, bool has_factor, f64 factor) {
    f64 at;
    if (align_corners) {
        at = size_out > 1 ? (f64)(size_in - 1) / (f64)(size_out - 1) * (f64)out : 0.0;
    } else {
        const f64 scale = has_factor ? 1.0 / factor : (f64)size_in / (f64)size_out;
        at = scale * ((f64)out + 0.5) - 0.5;
    }
    if (at < 0.0) at = 0.0;
    Between b;
    b.first = (u32)at < size_in ? (u32)at : size_in - 1;
    b.second = b.first + 1 < size_in ? b.first + 1 : size_in - 1;
    const f64 share = at - (f64)b.first;
    b.share = share > 1.0 ? 1.0 : share;
    return b;
}
#define UPSAMPLE_BILINEAR2D(T)                                                                                         \
    KERNEL(THREADS)                                                                                                    \
    upsample_bilinear2d_##T(usize w_out, usize h_out, bool align_corners, bool has_h, f64 h_factor, bool has_w,        \
                            f64 w_factor, const usize *info, const T *src, T *dst) {                                   \
        const usize *dims = info, *s = info + 4;                                                                       \
        EACH(i, dims[0] * dims[1] * w_out * h_out) {                                                                   \
            u32 rest = i;                                                                                              \
            const u32 x = take(rest, (u32)w_out), y = take(rest, (u32)h_out), c = take(rest, (u32)dims[1]), b = rest;  \
            const Between v = between(y, (u32)dims[2], (u32)h_out, align_corners, has_h, h_factor);                    \
            const Between h = between(x, (u32)dims[3], (u32)w_out, align_corners, has_w, w_factor);                    \
            const T *from = src + b * s[0] + c * s[1];                                                                 \
            const T *above = from + v.first * s[2], *below = from + v.second * s[2];                                   \
            const f64 top = (f64)up(above[h.first * s[3]]) * (1.0 - h.share) +                                         \
                            (f64)up(above[h.second * s[3]]) * h.share;                                                 \
            const f64 bottom = (f64)up(below[h.first * s[3]]) * (1.0 - h.share) +                                      \
                               (f64)up(below[h.second * s[3]]) * h.share;                                              \
            dst[i] = down<T>(top * (1.0 - v.share) + bottom * v.share);                                                \
        }                                                                                                              \
    }

//@ conv1d_$T = CONV1D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ conv2d_$T = CONV2D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ im2col1d_$T = IM2COL1D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ im2col_$T = IM2COL($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ col2im1d_$T = COL2IM1D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ conv_transpose1d_$T = CONV_TRANSPOSE1D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ conv_transpose2d_$T = CONV_TRANSPOSE2D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ avg_pool2d_$T = POOL2D(avg_pool2d, $T, 0, all + value, average<$T>(all, (u32)(w_k * h_k))) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ max_pool2d_$T = POOL2D(max_pool2d, $T, up(from[0]), all < value ? value : all, down<$T>(all)) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ upsample_nearest2d_$T = UPSAMPLE_NEAREST2D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
//@ upsample_bilinear2d_$T = UPSAMPLE_BILINEAR2D($T) ; T: u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3
