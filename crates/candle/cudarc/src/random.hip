// Random numbers by Philox 4x32-10 (Salmon and others, 2011): a function of (seed, position), the same on every chip.
// A thread makes four 32-bit words and writes up to four numbers of them, or two of 64 bits.
#include "prelude.h"
typedef float f32;
typedef double f64;

DEVICE u32 high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

DEVICE void philox(u64 seed, u64 at, u32 (&x)[4]) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    x[0] = (u32)at, x[1] = (u32)(at >> 32), x[2] = 0, x[3] = 0;
    for (u32 round = 0; round < 10; ++round) {
        const u32 h0 = high(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
        const u32 h1 = high(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
        x[0] = h1 ^ x[1] ^ k0, x[1] = l1, x[2] = h0 ^ x[3] ^ k1, x[3] = l0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}

// In (0, 1), as curand has it: never 0, which a logarithm would not take.
DEVICE void unit(f32 &to, const u32 *x) { to = ((x[0] >> 8) + 0.5f) * (1.0f / 16777216.0f); }
DEVICE void unit(f64 &to, const u32 *x) {
    to = ((double)((((u64)x[1] << 32) | x[0]) >> 12) + 0.5) * (1.0 / 4503599627370496.0);
}

#if defined(GPU_AMD)
extern "C" __attribute__((device)) float __ocml_log_f32(float);
extern "C" __attribute__((device)) float __ocml_sqrt_f32(float);
extern "C" __attribute__((device)) float __ocml_cos_f32(float);
extern "C" __attribute__((device)) float __ocml_sin_f32(float);
extern "C" __attribute__((device)) double __ocml_log_f64(double);
extern "C" __attribute__((device)) double __ocml_sqrt_f64(double);
extern "C" __attribute__((device)) double __ocml_cos_f64(double);
extern "C" __attribute__((device)) double __ocml_sin_f64(double);
#define BOTH(name)                                                         \
    DEVICE f32 name##_of(f32 x) { return __ocml_##name##_f32(x); }         \
    DEVICE f64 name##_of(f64 x) { return __ocml_##name##_f64(x); }
#else
#define BOTH(name)                                                         \
    DEVICE f32 name##_of(f32 x) { return name##f(x); }                     \
    DEVICE f64 name##_of(f64 x) { return name(x); }
#endif
BOTH(log)
BOTH(sqrt)
BOTH(cos)
BOTH(sin)

#define UNIFORM(T)                                                                  \
    KERNEL(256) uniform_##T(T *to, u64 n, u64 seed, u64 start) {                    \
        const u32 per = 16 / sizeof(T);                                             \
        const u64 at = (u64)block_x() * 256 + thread_x();                           \
        if (at * per >= n) return;                                                  \
        u32 x[4];                                                                   \
        philox(seed, start + at, x);                                                \
        for (u32 i = 0; i < per && at * per + i < n; ++i) {                         \
            unit(to[at * per + i], x + i * (sizeof(T) / 4));                        \
        }                                                                           \
    }
// Box and Muller's pairs.
#define NORMAL(T)                                                                   \
    KERNEL(256) normal_##T(T *to, u64 n, u64 seed, u64 start, T mean, T deviation) { \
        const u32 per = 16 / sizeof(T);                                             \
        const u64 at = (u64)block_x() * 256 + thread_x();                           \
        if (at * per >= n) return;                                                  \
        u32 x[4];                                                                   \
        philox(seed, start + at, x);                                                \
        for (u32 i = 0; i < per; i += 2) {                                          \
            T u, v;                                                                 \
            unit(u, x + i * (sizeof(T) / 4));                                       \
            unit(v, x + (i + 1) * (sizeof(T) / 4));                                 \
            const T r = sqrt_of((T)-2 * log_of(u)) * deviation, a = (T)6.283185307179586 * v; \
            const u64 j = at * per + i;                                             \
            if (j < n) to[j] = mean + r * cos_of(a);                                \
            if (j + 1 < n) to[j + 1] = mean + r * sin_of(a);                        \
        }                                                                           \
    }

//@ uniform_$T = UNIFORM($T) ; T: f32 f64
//@ normal_$T = NORMAL($T) ; T: f32 f64
