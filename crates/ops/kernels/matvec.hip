// matvec: out[r, o] (+)= sum_k x[r, k] * w[o, k] for few rows r, on packed weights. Bound by reading the weights.
//
// A wave takes OUTS weight rows; each lane takes every GPU_WAVE-th group of 32 weights (or 8 plain numbers), and loads
// several groups before it works on the first. Up to three products of one x share a launch.
// Packed weights meet activations of 16 bits (round.hip) in integer dot products; plain numbers meet f32.
// Where x is to be normed first, x times the norm's weights goes in, and the sums are divided by the root of the mean
// square at the end: every wave sees the whole row anyway.
#include "quant.h"

#ifndef WAVES
#define WAVES 4
#endif
#ifndef OUTS
#define OUTS 2
#endif
#define THREADS (WAVES * GPU_WAVE)

// Groups that a lane loads before it works on them; with many rows the sums need the registers.
template <u32 ROWS>
struct Depth {
    static constexpr u32 value = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
};

struct Job {
    const u8 *w;
    float *out;
    u32 n_out, first;
    const u8 *w_up;  // the other matrix of a gated product
};

// Which product, and which of its rows, this wave takes.
DEVICE bool find_job(Job &job, const u8 *w0, const u8 *w1, const u8 *w2, float *o0, float *o1, float *o2, u32 n0, u32 n1,
                     u32 n2) {
    u32 unit = block_x() * WAVES + thread_x() / GPU_WAVE;
    const u32 u0 = (n0 + OUTS - 1) / OUTS, u1 = (n1 + OUTS - 1) / OUTS, u2 = (n2 + OUTS - 1) / OUTS;
    if (unit < u0) {
        job = {w0, o0, n0, unit * OUTS, nullptr};
    } else if (unit < u0 + u1) {
        job = {w1, o1, n1, (unit - u0) * OUTS, nullptr};
    } else if (unit < u0 + u1 + u2) {
        job = {w2, o2, n2, (unit - u0 - u1) * OUTS, nullptr};
    } else {
        return false;
    }
    return true;
}

// `squares` are sums over the lane's columns; `eps` < 0 where nothing is normed.
template <u32 N, u32 ROWS>
DEVICE void norm_sums(float (&sum)[N][ROWS], const float (&squares)[ROWS], u32 n_in, float eps) {
    if (eps < 0.0f) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
        const float scale = 1.0f / sqrt_f32(wave_sum(squares[r]) / (float)n_in + eps);
#pragma unroll
        for (u32 o = 0; o < N; ++o) sum[o][r] *= scale;
    }
}

template <u32 ROWS>
DEVICE void write_sums(const Job &job, float (&sum)[OUTS][ROWS], u32 n_rows, u32 adds) {
#pragma unroll
    for (u32 o = 0; o < OUTS; ++o) {
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const float total = wave_sum(sum[o][r]);
            if (lane() == 0 && job.first + o < job.n_out && r < n_rows) {
                float *out = job.out + (u64)r * job.n_out + job.first + o;
                *out = adds ? *out + total : total;
            }
        }
    }
}

#if IS_PLAIN

#define STEP 8

#define GATED 2  // gates of a wave

// Row `o` of the wave's; where it is gated, the gate's rows and then the same rows of what it lets through.
template <bool IS_GATED>
DEVICE const Number *row_of(const Job &job, u32 n_in, u32 o) {
    const u32 i = IS_GATED ? o % GATED : o, row = job.first + i < job.n_out ? job.first + i : job.n_out - 1;
    return (const Number *)(IS_GATED && o >= GATED ? job.w_up : job.w) + (u64)row * n_in;
}

DEVICE Pack<Number, STEP> load_numbers(const Number *from) {
    Pack<Number, STEP> numbers;
    if constexpr (sizeof(Number) == 2) {
        numbers = load_once<STEP>(from);
    } else {
        const Pack<Number, 4> a = load_once<4>(from), b = load_once<4>(from + 4);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) numbers.at[i] = a.at[i], numbers.at[4 + i] = b.at[i];
    }
    return numbers;
}

template <u32 N, u32 ROWS, bool IS_NORMED, bool IS_GATED>
DEVICE void multiply(const Job &job, const float *x, const float *norm, u32 n_in, u32 n_rows, u32 adds, float eps) {
    float sum[N][ROWS] = {}, squares[ROWS] = {};
    if (n_in % STEP == 0) {
        constexpr u32 depth = Depth<ROWS>::value, stride = GPU_WAVE * STEP;
        Pack<Number, STEP> now[depth][N];
        const auto fetch = [&](u32 k0) {
#pragma unroll
            for (u32 u = 0; u < depth; ++u) {
                if (k0 + u * stride < n_in) {
#pragma unroll
                    for (u32 o = 0; o < N; ++o) now[u][o] = load_numbers(row_of<IS_GATED>(job, n_in, o) + k0 + u * stride);
                }
            }
        };
        fetch(lane() * STEP);
        wait_for_inputs();
        for (u32 k0 = lane() * STEP; k0 < n_in; k0 += stride * depth) {
            if (k0 >= stride) fetch(k0);
#pragma unroll
            for (u32 u = 0; u < depth; ++u) {
                if (k0 + u * stride >= n_in) break;
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    const float *row = x + (u64)(r < n_rows ? r : 0) * n_in + k0 + u * stride;
                    Pack<float, 4> a = load<4>(row), b = load<4>(row + 4);
                    if constexpr (IS_NORMED) {
                        const Pack<float, 4> c = load<4>(norm + k0 + u * stride), d = load<4>(norm + k0 + u * stride + 4);
#pragma unroll
                        for (u32 i = 0; i < 4; ++i) {
                            squares[r] = fma_f32(a.at[i], a.at[i], fma_f32(b.at[i], b.at[i], squares[r]));
                            a.at[i] *= c.at[i];
                            b.at[i] *= d.at[i];
                        }
                    }
#pragma unroll
                    for (u32 o = 0; o < N; ++o) {
#pragma unroll
                        for (u32 i = 0; i < 4; ++i) {
                            sum[o][r] = fma_f32(to_f32(now[u][o].at[i]), a.at[i], sum[o][r]);
                            sum[o][r] = fma_f32(to_f32(now[u][o].at[4 + i]), b.at[i], sum[o][r]);
                        }
                    }
                }
            }
        }
    } else {
        wait_for_inputs();
        for (u32 k = lane(); k < n_in; k += GPU_WAVE) {
            const float weight = IS_NORMED ? norm[k] : 1.0f;
            float numbers[ROWS];
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                numbers[r] = x[(u64)(r < n_rows ? r : 0) * n_in + k];
                squares[r] = fma_f32(numbers[r], numbers[r], squares[r]);
                numbers[r] *= weight;
            }
#pragma unroll
            for (u32 o = 0; o < N; ++o) {
                const float w = to_f32(row_of<IS_GATED>(job, n_in, o)[k]);
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) sum[o][r] = fma_f32(w, numbers[r], sum[o][r]);
            }
        }
    }
    if constexpr (IS_NORMED) norm_sums<N, ROWS>(sum, squares, n_in, eps);
    if constexpr (IS_GATED) {
#pragma unroll
        for (u32 o = 0; o < GATED; ++o) {
            const float gate = wave_sum(sum[o][0]), up = wave_sum(sum[GATED + o][0]);
            if (lane() == 0 && job.first + o < job.n_out) job.out[job.first + o] = gate / (1.0f + fast_exp(-gate)) * up;
        }
    } else {
        write_sums<ROWS>(job, sum, n_rows, adds);
    }
}

#define MATVEC_PLAIN(NAME, ROWS, IS_NORMED)                                                                           \
    KERNEL(THREADS)                                                                                                   \
    NAME(const float *ARRIVING x, const float *__restrict__ norm, const u8 *__restrict__ w0,                          \
         const u8 *__restrict__ w1, const u8 *__restrict__ w2, float *__restrict__ o0, float *__restrict__ o1,        \
         float *__restrict__ o2, u32 n0, u32 n1, u32 n2, u32 n_in, u32 n_rows, u32 adds, float eps) {                 \
        let_next_start();                                                                                             \
        Job job;                                                                                                      \
        if (find_job(job, w0, w1, w2, o0, o1, o2, n0, n1, n2))                                                        \
            multiply<OUTS, ROWS, IS_NORMED, false>(job, x, norm, n_in, n_rows, adds, eps);                            \
    }
#define MATVEC(ROWS) MATVEC_PLAIN(matvec_##ROWS, ROWS, false)
MATVEC_PLAIN(matvec_norm_1, 1, true)

// o0 = silu(normed x * w0) * (normed x * w1), one row; the rest is not used.
KERNEL(THREADS)
matvec_gated_1(const float *ARRIVING x, const float *__restrict__ norm, const u8 *__restrict__ w0,
               const u8 *__restrict__ w1, const u8 *__restrict__, float *__restrict__ o0, float *__restrict__,
               float *__restrict__, u32 n0, u32, u32, u32 n_in, u32, u32, float eps) {
    let_next_start();
    const u32 row = (block_x() * WAVES + thread_x() / GPU_WAVE) * GATED;
    if (row < n0) multiply<2 * GATED, 1, true, true>({w0, o0, n0, row, w1}, x, norm, n_in, 1, 0, eps);
}

#else

DEVICE void load_groups(Raw (&raw)[OUTS], const Job &job, u32 n_groups, u32 g) {
#pragma unroll
    for (u32 o = 0; o < OUTS; ++o) {
        const u32 row = job.first + o < job.n_out ? job.first + o : job.n_out - 1;
        raw[o] = load_group(job.w, job.n_out, n_groups, row, g);
    }
}

template <u32 ROWS>
DEVICE void use_groups(float (&sum)[OUTS][ROWS], float (&squares)[ROWS], const Raw (&raw)[OUTS], const u8 *q, const float *scales, u32 n_groups,
                       u32 n_rows, u32 g) {
    Group group[OUTS];
#pragma unroll
    for (u32 o = 0; o < OUTS; ++o) group[o] = unpack(raw[o], g);
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
        const u32 row = r < n_rows ? r : 0;
        const u8 *at = q + (u64)row * n_groups * 64 + g * 16;
        const u64 plane = (u64)n_groups * 16;
        Words4 high[2], low[2];
        high[0] = load<4>((const u32 *)at);
        high[1] = load<4>((const u32 *)(at + plane));
        low[0] = load<4>((const u32 *)(at + 2 * plane));
        low[1] = load<4>((const u32 *)(at + 3 * plane));
        const Pack<float, 4> scale = load<4>(scales + ((u64)row * n_groups + g) * 4);
        squares[r] += scale.at[2];
#pragma unroll
        for (u32 o = 0; o < OUTS; ++o) {
            i32 h[2] = {0, 0}, l[2] = {0, 0};
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
#pragma unroll
                for (u32 part = 0; part < 2; ++part) {
                    h[part] = dot4_i8(group[o].q[part * 4 + i], (i32)high[part].at[i], h[part]);
                    l[part] = dot4_i8(group[o].q[part * 4 + i], (i32)low[part].at[i], l[part]);
                }
            }
#if FORMAT == FORMAT_Q6_K
            const float dot = fma_f32(group[o].d0, (float)(h[0] * 256 + l[0]), group[o].d1 * (float)(h[1] * 256 + l[1]));
#else
            const float dot = group[o].d0 * (float)((h[0] + h[1]) * 256 + l[0] + l[1]);
#endif
            sum[o][r] = fma_f32(dot, scale.at[0], sum[o][r]);
#if FORMAT != FORMAT_Q8_0 && FORMAT != FORMAT_Q6_K
            sum[o][r] = fma_f32(group[o].m, scale.at[1], sum[o][r]);
#endif
        }
    }
}

template <u32 ROWS>
DEVICE void multiply(const Job &job, const u8 *q, const float *scales, u32 n_groups, u32 n_rows, u32 adds, float eps) {
    float sum[OUTS][ROWS] = {}, squares[ROWS] = {};
    constexpr u32 depth = Depth<ROWS>::value;
    Raw raw[depth][OUTS];
    const auto fetch = [&](u32 g0) {
#pragma unroll
        for (u32 u = 0; u < depth; ++u)
            if (g0 + u * GPU_WAVE < n_groups) load_groups(raw[u], job, n_groups, g0 + u * GPU_WAVE);
    };
    // The weights are on their way before the activations are there.
    fetch(lane());
    wait_for_inputs();
    for (u32 g0 = lane(); g0 < n_groups; g0 += GPU_WAVE * depth) {
        if (g0 >= GPU_WAVE) fetch(g0);
#pragma unroll
        for (u32 u = 0; u < depth; ++u)
            if (g0 + u * GPU_WAVE < n_groups) use_groups<ROWS>(sum, squares, raw[u], q, scales, n_groups, n_rows, g0 + u * GPU_WAVE);
    }
    norm_sums<OUTS, ROWS>(sum, squares, n_groups * GROUP, eps);
    write_sums<ROWS>(job, sum, n_rows, adds);
}

#define MATVEC(ROWS)                                                                                                  \
    KERNEL(THREADS)                                                                                                   \
    matvec_##ROWS(const u8 *ARRIVING q, const float *ARRIVING scales, const u8 *__restrict__ w0,                      \
                  const u8 *__restrict__ w1, const u8 *__restrict__ w2, float *__restrict__ o0,                       \
                  float *__restrict__ o1, float *__restrict__ o2, u32 n0, u32 n1, u32 n2, u32 n_groups, u32 n_rows,   \
                  u32 adds, float eps) {                                                                              \
        let_next_start();                                                                                             \
        Job job;                                                                                                      \
        if (find_job(job, w0, w1, w2, o0, o1, o2, n0, n1, n2))                                                        \
            multiply<ROWS>(job, q, scales, n_groups, n_rows, adds, eps);                                              \
    }

#endif

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)
