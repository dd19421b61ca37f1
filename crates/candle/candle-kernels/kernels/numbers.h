// Candle's number types, how each is computed with, and how shapes come: shared by all families.
// `info` holds the dimensions and then one list of strides per operand; a null `info` means contiguous.
#include "prelude.h"
#if defined(GPU_AMD)
// Results are compared with the host's: a product and a sum stay two operations.
#pragma clang fp contract(off)
#endif

typedef float f32;
typedef double f64;
typedef u64 usize;
struct f8e4m3 {
    u8 bits;
};

#if defined(GPU_AMD)
#define OCML(name)                                                                       \
    extern "C" __attribute__((device)) float __ocml_##name##_f32(float);                 \
    extern "C" __attribute__((device)) double __ocml_##name##_f64(double);               \
    DEVICE f32 name##_of(f32 x) { return __ocml_##name##_f32(x); }                       \
    DEVICE f64 name##_of(f64 x) { return __ocml_##name##_f64(x); }
extern "C" __attribute__((device)) float __ocml_pow_f32(float, float);
extern "C" __attribute__((device)) double __ocml_pow_f64(double, double);
DEVICE f32 pow_of(f32 x, f32 y) { return __ocml_pow_f32(x, y); }
DEVICE f64 pow_of(f64 x, f64 y) { return __ocml_pow_f64(x, y); }
extern "C" __attribute__((device)) float __ocml_ncdf_f32(float);
extern "C" __attribute__((device)) double __ocml_ncdf_f64(double);
DEVICE f32 normcdf_of(f32 x) { return __ocml_ncdf_f32(x); }
DEVICE f64 normcdf_of(f64 x) { return __ocml_ncdf_f64(x); }
DEVICE u32 block_size() { return (u32)__builtin_amdgcn_workgroup_size_x(); }
DEVICE u32 grid_threads() { return __builtin_amdgcn_grid_size_x(); }
DEVICE u32 grid_blocks_y() { return __builtin_amdgcn_grid_size_y() / (u32)__builtin_amdgcn_workgroup_size_y(); }
DEVICE f32 add_exactly(f32 a, f32 b) { return add_exact(a, b); }
DEVICE f32 mul_exactly(f32 a, f32 b) { return mul_exact(a, b); }
DEVICE f64 add_exactly(f64 a, f64 b) { return a + b; }
DEVICE f64 mul_exactly(f64 a, f64 b) { return a * b; }
#else
#define OCML(name)                                                                       \
    DEVICE f32 name##_of(f32 x) { return name##f(x); }                                   \
    DEVICE f64 name##_of(f64 x) { return name(x); }
DEVICE f32 pow_of(f32 x, f32 y) { return powf(x, y); }
DEVICE f64 pow_of(f64 x, f64 y) { return pow(x, y); }
DEVICE f32 normcdf_of(f32 x) { return normcdff(x); }
DEVICE f64 normcdf_of(f64 x) { return normcdf(x); }
DEVICE u32 block_size() { return blockDim.x; }
DEVICE u32 grid_threads() { return blockDim.x * gridDim.x; }
DEVICE u32 grid_blocks_y() { return gridDim.y; }
DEVICE f32 add_exactly(f32 a, f32 b) { return __fadd_rn(a, b); }
DEVICE f32 mul_exactly(f32 a, f32 b) { return __fmul_rn(a, b); }
DEVICE f64 add_exactly(f64 a, f64 b) { return __dadd_rn(a, b); }
DEVICE f64 mul_exactly(f64 a, f64 b) { return __dmul_rn(a, b); }
#endif
OCML(exp)
OCML(expm1)
OCML(log)
OCML(sin)
OCML(cos)
OCML(tanh)
OCML(erf)
OCML(sqrt)
OCML(ceil)
OCML(floor)
OCML(round)
OCML(fabs)

// An f64 as the f32 that rounds on to any half as the f64 itself would: cut, with the last bit set where anything was lost.
DEVICE f32 to_odd(f64 x) {
    const f32 near = (f32)x;
    if ((f64)near == x || near != near) return near;
    u32 bits = bits_as<u32>(near);
    if (fabs_of((f64)near) > fabs_of(x)) bits -= 1;
    return bits_as<f32>(bits | 1u);
}

// OCP's 8 bits: 4 of exponent with bias 7, 3 of mantissa, no infinity. Values past the largest, 448, stay there.
DEVICE f32 to_f32(f8e4m3 x) {
    const u32 sign = (u32)(x.bits & 0x80u) << 24, exponent = (x.bits >> 3) & 15u, mantissa = x.bits & 7u;
    if ((x.bits & 0x7fu) == 0x7fu) return bits_as<f32>(sign | 0x7fc00000u);
    if (exponent == 0) return bits_as<f32>(sign | bits_as<u32>((f32)mantissa * (1.0f / 512.0f)));
    return bits_as<f32>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}
DEVICE f8e4m3 to_f8(f32 x) {
    const u32 bits = bits_as<u32>(x), size = bits & 0x7fffffffu;
    f8e4m3 to;
    to.bits = (u8)((bits >> 24) & 0x80u);
    if (size > 0x7f800000u) {
        to.bits |= 0x7f;
    } else if (size > 0x43e80000u) {  // 464, halfway to what would come after 448
        to.bits |= 0x7e;
    } else if (size < 0x3c800000u) {  // 2^-6: steps of 2^-9, ties to even
        to.bits |= (u8)round_f32(bits_as<f32>(size) * 512.0f);
    } else {
        const u32 rounded = size + 0x7ffffu + ((size >> 20) & 1u);
        to.bits |= (u8)((rounded >> 20) - (120u << 3));
    }
    return to;
}

// What a type is computed in, and the way there and back.
template <class T>
struct Number {
    typedef T wide;
    static constexpr bool is_float = false;
};
template <>
struct Number<f32> {
    typedef f32 wide;
    static constexpr bool is_float = true;
};
template <>
struct Number<f64> {
    typedef f64 wide;
    static constexpr bool is_float = true;
};
#define HALF(T)                                 \
    template <>                                 \
    struct Number<T> {                          \
        typedef f32 wide;                       \
        static constexpr bool is_float = true;  \
    };
HALF(f16)
HALF(bf16)
HALF(f8e4m3)

DEVICE u8 up(u8 x) { return x; }
DEVICE u32 up(u32 x) { return x; }
DEVICE i16 up(i16 x) { return x; }
DEVICE i32 up(i32 x) { return x; }
DEVICE i64 up(i64 x) { return x; }
DEVICE f32 up(f32 x) { return x; }
DEVICE f64 up(f64 x) { return x; }
DEVICE f32 up(f16 x) { return to_f32(x); }
DEVICE f32 up(bf16 x) { return to_f32(x); }
DEVICE f32 up(f8e4m3 x) { return to_f32(x); }

template <class T>
struct Down {
    template <class W>
    DEVICE_MEMBER static T of(W x) {
        return (T)x;
    }
};
template <>
struct Down<f16> {
    DEVICE_MEMBER static f16 of(f32 x) { return to_f16(x); }
    DEVICE_MEMBER static f16 of(f64 x) { return to_f16(to_odd(x)); }
};
template <>
struct Down<bf16> {
    DEVICE_MEMBER static bf16 of(f32 x) { return to_bf16(x); }
    DEVICE_MEMBER static bf16 of(f64 x) { return to_bf16(to_odd(x)); }
};
template <>
struct Down<f8e4m3> {
    DEVICE_MEMBER static f8e4m3 of(f32 x) { return to_f8(x); }
    DEVICE_MEMBER static f8e4m3 of(f64 x) { return to_f8(to_odd(x)); }
};
template <class T, class W>
DEVICE T down(W x) {
    return Down<T>::of(x);
}

// Sums of halves are made in f32, of 8-bit floats too; of everything else in the type itself.
#define WIDE(T) Number<T>::wide

template <class T>
DEVICE T zero_of() {
    return down<T>((typename Number<T>::wide)0);
}

DEVICE bool is_contiguous(usize n_dims, const usize *dims, const usize *strides) {
    usize run = 1;
    for (usize i = n_dims; i-- > 0;) {
        if (dims[i] > 1 && strides[i] != run) return false;
        run *= dims[i];
    }
    return true;
}

// Where element i of a shape lies.
DEVICE usize strided(u32 i, usize n_dims, const usize *dims, const usize *strides) {
    usize at = 0;
    for (usize d = n_dims; d-- > 0;) {
        const u32 size = (u32)dims[d];
        at += (i % size) * strides[d];
        i /= size;
    }
    return at;
}

// Every thread takes elements until there are no more, whatever the grid. Families of which all kernels that get a grid by
// their number of elements do that say `any-grid` in a line of their own: their large grids are made smaller.
#define EACH(i, n) for (u32 i = block_x() * block_size() + thread_x(); i < (n); i += grid_threads())
#define THREADS 1024

// Contiguous operands are moved 16 bytes at a time, if they lie on as many. H200: 4 bytes at a time reach 61 % of a copy.
#define PACK_BYTES 16
template <class A, class B>
struct Packed {
    static constexpr u32 widest = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
    // More than eight at a time, or two of an f64's long functions, would take too many registers.
    static constexpr u32 n = widest == 1 ? 8 : widest == 8 ? 1 : PACK_BYTES / widest;
};
template <u32 n, class T>
DEVICE bool lies_on_packs(const T *at) {
    return ((usize)at & (sizeof(T) * n - 1)) == 0;
}

// out[i] = f(inp[i])
template <class T, class R, class F>
DEVICE void map_flat(usize n, const T *inp, R *out, F f) {
    constexpr u32 size = Packed<T, R>::n;
    u32 done = 0;
    if (lies_on_packs<size>(inp) && lies_on_packs<size>(out)) {
        const u32 n_packs = (u32)(n / size);
        EACH(pack, n_packs) {
            const usize at = (usize)pack * size;
            const Pack<T, size> x = load<size>(inp + at);
            Pack<R, size> y;
#pragma unroll
            for (u32 k = 0; k < size; ++k) y.at[k] = f(x.at[k]);
            store<size>(out + at, y);
        }
        done = n_packs * size;
    }
    EACH(i, (u32)n - done) out[done + i] = f(inp[done + i]);
}

// out[i] = f(left[i], right[i])
template <class T, class R, class F>
DEVICE void zip_flat(usize n, const T *left, const T *right, R *out, F f) {
    constexpr u32 size = Packed<T, R>::n;
    u32 done = 0;
    if (lies_on_packs<size>(left) && lies_on_packs<size>(right) && lies_on_packs<size>(out)) {
        const u32 n_packs = (u32)(n / size);
        EACH(pack, n_packs) {
            const usize at = (usize)pack * size;
            const Pack<T, size> a = load<size>(left + at), b = load<size>(right + at);
            Pack<R, size> y;
#pragma unroll
            for (u32 k = 0; k < size; ++k) y.at[k] = f(a.at[k], b.at[k]);
            store<size>(out + at, y);
        }
        done = n_packs * size;
    }
    EACH(i, (u32)n - done) out[done + i] = f(left[done + i], right[done + i]);
}

// out[i] = value
template <class T>
DEVICE void fill_flat(usize n, T value, T *out) {
    constexpr u32 size = Packed<T, T>::n;
    u32 done = 0;
    if (lies_on_packs<size>(out)) {
        const u32 n_packs = (u32)(n / size);
        Pack<T, size> values;
#pragma unroll
        for (u32 k = 0; k < size; ++k) values.at[k] = value;
        EACH(pack, n_packs) store<size>(out + (usize)pack * size, values);
        done = n_packs * size;
    }
    EACH(i, (u32)n - done) out[done + i] = value;
}
