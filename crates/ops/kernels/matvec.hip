// matvec: out[r, o] (+)= sum_k x[r, k] * w[o, k] for few rows r, on packed weights. Bound by reading the weights.
//
// A wave takes OUTS weight rows; each lane takes every GPU_WAVE-th group of 32 weights (or 8 plain numbers), and loads
// several groups before it works on the first, the next ones while it does. Up to three products of one x share a launch.
// Packed weights meet activations of 16 bits (round.hip) in integer dot products; plain numbers meet f32.
// Where x is to be normed first and weights are packed, x times the norm's weights goes in, and the sums are divided by
// the root of the mean square at the end: every wave sees the whole row anyway.
#define LOAD_WEIGHTS load_once
#include "quant.h"

#ifndef WAVES
#define WAVES 4
#endif
#ifndef OUTS
#define OUTS 2
#endif
#define THREADS (WAVES * GPU_WAVE)
// Sixteen waves with 128 registers each on NVIDIA, or twice as many: loads in flight count for more than waves.
#define BLOCKS ((OUTS == 1 && IS_PLAIN ? 32 : 16) / WAVES)

// Groups that a lane loads before it works on them; with many rows the sums need the registers, and on chips without dot
// products the bytes that are taken apart.
#if defined(GPU_AMD) && !defined(GPU_FDOT2)
#define MOST_DEPTH 2
// Before each row: bytes that were taken apart once for all rows would need more registers than there are.
DEVICE i32 as_if_new(i32 word) {
    asm volatile("" : "+v"(word));
    return word;
}
// A place that the compiler cannot know before `done` is: what is loaded there is not loaded long ahead.
DEVICE u32 after(u32 place, float &done) {
    asm volatile("" : "+v"(place), "+v"(done));
    return place;
}
#else
#define MOST_DEPTH 4
DEVICE i32 as_if_new(i32 word) { return word; }
DEVICE u32 after(u32 place, float &) { return place; }
#endif
template <u32 ROWS>
struct Depth {
    static constexpr u32 value = (ROWS == 1 ? MOST_DEPTH : ROWS == 2 ? 2 : 1) / (ROWS <= 2 && FORMAT == FORMAT_F32 ? 2 : 1);
};

struct Job {
    const u8 *w;
    float *out;
    u32 n_out, first;
};

// Which product, and which of its rows, this wave takes.
DEVICE bool find_job(Job &job, const u8 *w0, const u8 *w1, const u8 *w2, float *o0, float *o1, float *o2, u32 n0, u32 n1,
                     u32 n2) {
    const u32 unit = block_x() * WAVES + thread_x() / GPU_WAVE;
    const u32 u0 = (n0 + OUTS - 1) / OUTS, u1 = (n1 + OUTS - 1) / OUTS, u2 = (n2 + OUTS - 1) / OUTS;
    if (unit < u0) {
        job = {w0, o0, n0, unit * OUTS};
    } else if (unit < u0 + u1) {
        job = {w1, o1, n1, (unit - u0) * OUTS};
    } else if (unit < u0 + u1 + u2) {
        job = {w2, o2, n2, (unit - u0 - u1) * OUTS};
    } else {
        return false;
    }
    return true;
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

// Eight numbers as they lie in memory.
struct Eight {
    Pack<u32, 4> words[sizeof(Number) / 2];
};

DEVICE Eight load_eight(const Number *from) {
    Eight eight;
#pragma unroll
    for (u32 i = 0; i < sizeof(Number) / 2; ++i) eight.words[i] = load_once<4>((const u32 *)from + 4 * i);
    return eight;
}

DEVICE void widen(float (&to)[STEP], const Eight &eight) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#if FORMAT == FORMAT_F32
        to[i] = bits_as<float>(eight.words[0].at[i]);
        to[4 + i] = bits_as<float>(eight.words[1].at[i]);
#elif FORMAT == FORMAT_F16
        unpack_halves(eight.words[0].at[i], to[2 * i], to[2 * i + 1]);
#else
        to[2 * i] = bits_as<float>(eight.words[0].at[i] << 16);
        to[2 * i + 1] = bits_as<float>(eight.words[0].at[i] & 0xffff0000u);
#endif
    }
}

// The rows of a unit; past the end the last one serves again.
struct Rows {
    const Number *at[OUTS];
};
DEVICE Rows rows_of(const Job &job, u32 n_in) {
    Rows rows;
#pragma unroll
    for (u32 o = 0; o < OUTS; ++o) {
        const u32 row = job.first + o < job.n_out ? job.first + o : job.n_out - 1;
        rows.at[o] = (const Number *)job.w + (u64)row * n_in;
    }
    return rows;
}

// A lane's share of a chunk of columns: DEPTH times eight of each row. With WHOLE, every chunk is full.
template <u32 DEPTH, bool WHOLE>
DEVICE void load_chunk(Eight (&to)[DEPTH][OUTS], const Rows &rows, u32 n_in, u32 k0) {
#pragma unroll
    for (u32 u = 0; u < DEPTH; ++u) {
        const u32 k = k0 + u * GPU_WAVE * STEP;
#pragma unroll
        for (u32 o = 0; o < OUTS; ++o)
            if (WHOLE || k < n_in) to[u][o] = load_eight(rows.at[o] + k);
    }
}

template <u32 ROWS, u32 DEPTH, bool WHOLE>
DEVICE void use_chunk(float (&sum)[OUTS][ROWS], const Eight (&chunk)[DEPTH][OUTS], const float *x, u32 n_in, u32 n_rows, u32 k0) {
#pragma unroll
    for (u32 u = 0; u < DEPTH; ++u) {
        const u32 k = k0 + u * GPU_WAVE * STEP;
        if (!WHOLE && k >= n_in) continue;
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const float *row = x + (u64)(r < n_rows ? r : 0) * n_in + k;
            const Pack<float, 4> a = load<4>(row), b = load<4>(row + 4);
#pragma unroll
            for (u32 o = 0; o < OUTS; ++o) {
                float w[STEP];
                widen(w, chunk[u][o]);
#pragma unroll
                for (u32 i = 0; i < 4; ++i) sum[o][r] = fma_f32(w[i], a.at[i], sum[o][r]);
#pragma unroll
                for (u32 i = 0; i < 4; ++i) sum[o][r] = fma_f32(w[4 + i], b.at[i], sum[o][r]);
            }
        }
    }
}

// The weights of the next chunk are on their way while this one's are used. H200, F16 llama-8b, all products of a step:
// 3.72 ms, against 4.35 without, and 3.51 for the bytes alone.
template <u32 ROWS, bool WHOLE>
DEVICE void stream(const Job &job, const float *x, u32 n_in, u32 n_rows, u32 adds) {
    constexpr u32 DEPTH = Depth<ROWS>::value, stride = GPU_WAVE * STEP * DEPTH;
    const u32 mine = lane() * STEP;
    const Rows rows = rows_of(job, n_in);
    float sum[OUTS][ROWS] = {};
    Eight next[DEPTH][OUTS];
    load_chunk<DEPTH, WHOLE>(next, rows, n_in, mine);
    wait_for_inputs();
    for (u32 k = 0; k < n_in; k += stride) {
        Eight now[DEPTH][OUTS];
#pragma unroll
        for (u32 u = 0; u < DEPTH; ++u)
#pragma unroll
            for (u32 o = 0; o < OUTS; ++o) now[u][o] = next[u][o];
        if (k + stride < n_in) load_chunk<DEPTH, WHOLE>(next, rows, n_in, k + stride + mine);
        use_chunk<ROWS, DEPTH, WHOLE>(sum, now, x, n_in, n_rows, k + mine);
    }
    write_sums<ROWS>(job, sum, n_rows, adds);
}

template <u32 ROWS>
DEVICE void multiply(const Job &job, const float *x, u32 n_in, u32 n_rows, u32 adds) {
    if (n_in % (GPU_WAVE * STEP * Depth<ROWS>::value) == 0) return stream<ROWS, true>(job, x, n_in, n_rows, adds);
    if (n_in % STEP == 0) return stream<ROWS, false>(job, x, n_in, n_rows, adds);
    float sum[OUTS][ROWS] = {};
    const Rows rows = rows_of(job, n_in);
    wait_for_inputs();
    for (u32 k = lane(); k < n_in; k += GPU_WAVE) {
#pragma unroll
        for (u32 o = 0; o < OUTS; ++o) {
            const float w = to_f32(rows.at[o][k]);
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) sum[o][r] = fma_f32(w, x[(u64)(r < n_rows ? r : 0) * n_in + k], sum[o][r]);
        }
    }
    write_sums<ROWS>(job, sum, n_rows, adds);
}

#define MATVEC(ROWS, SIZE)                                                                                            \
    SIZE                                                                                                              \
    matvec_##ROWS(const float *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1,                      \
                  const u8 *__restrict__ w2, float *__restrict__ o0, float *__restrict__ o1, float *__restrict__ o2,  \
                  u32 n0, u32 n1, u32 n2, u32 n_in, u32 n_rows, u32 adds) {                                           \
        let_next_start();                                                                                             \
        Job job;                                                                                                      \
        if (find_job(job, w0, w1, w2, o0, o1, o2, n0, n1, n2)) multiply<ROWS>(job, x, n_in, n_rows, adds);             \
    }

// out[p] = x[p / share] * the matrix of p's expert, for each pair p; matrices lie `step` bytes apart. block_y is the pair,
// block_z which of up to two matrices of an expert.
KERNEL(THREADS)
matvec_expert(const float *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1, float *__restrict__ o0,
              float *__restrict__ o1, const u32 *ARRIVING chosen, u64 step0, u64 step1, u32 n_out, u32 n_in, u32 share) {
    let_next_start();
    wait_for_inputs();
    const u64 pair = block_y();
    const u8 *w = block_z() == 0 ? w0 + chosen[pair] * step0 : w1 + chosen[pair] * step1;
    float *out = (block_z() == 0 ? o0 : o1) + pair * n_out;
    const Job job = {w, out, n_out, (block_x() * WAVES + thread_x() / GPU_WAVE) * OUTS};
    if (job.first < n_out) multiply<1>(job, x + pair / share * n_in, n_in, 1, 0);
}

#else

// `squares` are sums over the lane's columns; `eps` < 0 where nothing is normed.
template <u32 ROWS>
DEVICE void norm_sums(float (&sum)[OUTS][ROWS], const float (&squares)[ROWS], u32 n_in, float eps) {
    if (eps < 0.0f) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
        const float scale = 1.0f / sqrt_f32(wave_sum(squares[r]) / (float)n_in + eps);
#pragma unroll
        for (u32 o = 0; o < OUTS; ++o) sum[o][r] *= scale;
    }
}

// A lane's share of a chunk of groups: DEPTH of each row. With WHOLE, every chunk is full.
template <u32 DEPTH, bool WHOLE>
DEVICE void load_chunk(Raw (&to)[DEPTH][OUTS], const Job &job, u32 n_groups, u32 g0) {
#pragma unroll
    for (u32 u = 0; u < DEPTH; ++u) {
#pragma unroll
        for (u32 o = 0; o < OUTS; ++o) {
            const u32 row = job.first + o < job.n_out ? job.first + o : job.n_out - 1, g = g0 + u * GPU_WAVE;
            if (WHOLE || g < n_groups) to[u][o] = load_group(job.w, job.n_out, n_groups, row, g);
        }
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
        const u32 own = r < n_rows ? r : 0, row = r > 0 && FORMAT == FORMAT_Q8_0 ? after(own, sum[OUTS - 1][r - 1]) : own;
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
                    const i32 four = as_if_new(group[o].q[part * 4 + i]);
                    h[part] = dot4_i8(four, as_if_new((i32)high[part].at[i]), h[part]);
                    l[part] = dot4_i8(four, as_if_new((i32)low[part].at[i]), l[part]);
                }
            }
#if HAS_TWO_SCALES
            const float dot = fma_f32(group[o].d0, (float)(h[0] * 256 + l[0]), group[o].d1 * (float)(h[1] * 256 + l[1]));
#else
            const float dot = group[o].d0 * (float)((h[0] + h[1]) * 256 + l[0] + l[1]);
#endif
            sum[o][r] = fma_f32(dot, scale.at[0], sum[o][r]);
#if HAS_TWO_MINS
            sum[o][r] = fma_f32(group[o].m, scale.at[1] - scale.at[3], sum[o][r]);
            sum[o][r] = fma_f32(group[o].m1, scale.at[3], sum[o][r]);
#elif HAS_MIN
            sum[o][r] = fma_f32(group[o].m, scale.at[1], sum[o][r]);
#endif
        }
    }
}

// With IS_PIPED, the weights of the next chunk are on their way while this one's are used.
template <u32 ROWS, u32 DEPTH, bool IS_PIPED, bool WHOLE>
DEVICE void stream(const Job &job, const u8 *q, const float *scales, u32 n_groups, u32 n_rows, u32 adds, float eps) {
    constexpr u32 stride = GPU_WAVE * DEPTH;
    float sum[OUTS][ROWS] = {}, squares[ROWS] = {};
    Raw next[DEPTH][OUTS];
    // The weights are on their way before the activations are there.
    load_chunk<DEPTH, WHOLE>(next, job, n_groups, lane());
    wait_for_inputs();
    for (u32 g = 0; g < n_groups; g += stride) {
        if (!IS_PIPED && g > 0) load_chunk<DEPTH, WHOLE>(next, job, n_groups, g + lane());
        Raw now[DEPTH][OUTS];
#pragma unroll
        for (u32 u = 0; u < DEPTH; ++u)
#pragma unroll
            for (u32 o = 0; o < OUTS; ++o) now[u][o] = next[u][o];
        if (IS_PIPED && g + stride < n_groups) load_chunk<DEPTH, WHOLE>(next, job, n_groups, g + stride + lane());
#pragma unroll
        for (u32 u = 0; u < DEPTH; ++u) {
            const u32 at = g + u * GPU_WAVE + lane();
            if (WHOLE || at < n_groups) use_groups<ROWS>(sum, squares, now[u], q, scales, n_groups, n_rows, at);
        }
    }
    norm_sums<ROWS>(sum, squares, n_groups * GROUP, eps);
    write_sums<ROWS>(job, sum, n_rows, adds);
}

// A row that is one chunk is asked for at once; longer ones in halves of a chunk, one ahead. H200, all products of a step of
// llama-8b, ms: Q4_0 1.53, Q8_0 2.29, Q4_K 1.70, against 1.71, 2.40, 1.77 with whole chunks and none ahead.
template <u32 ROWS>
DEVICE void multiply(const Job &job, const u8 *q, const float *scales, u32 n_groups, u32 n_rows, u32 adds, float eps) {
    constexpr u32 DEPTH = Depth<ROWS>::value, HALF = DEPTH > 1 ? DEPTH / 2 : 1;
    if constexpr (ROWS == 1) {
        if (n_groups == GPU_WAVE * DEPTH)
            return stream<ROWS, DEPTH, false, true>(job, q, scales, n_groups, n_rows, adds, eps);
        if (n_groups % (GPU_WAVE * HALF) == 0)
            return stream<ROWS, HALF, true, true>(job, q, scales, n_groups, n_rows, adds, eps);
    }
    stream<ROWS, HALF, true, false>(job, q, scales, n_groups, n_rows, adds, eps);
}

#define MATVEC(ROWS, SIZE)                                                                                            \
    SIZE                                                                                                              \
    matvec_##ROWS(const u8 *ARRIVING q, const float *ARRIVING scales, const u8 *__restrict__ w0,                      \
                  const u8 *__restrict__ w1, const u8 *__restrict__ w2, float *__restrict__ o0,                       \
                  float *__restrict__ o1, float *__restrict__ o2, u32 n0, u32 n1, u32 n2, u32 n_groups, u32 n_rows,   \
                  u32 adds, float eps) {                                                                              \
        let_next_start();                                                                                             \
        Job job;                                                                                                      \
        if (find_job(job, w0, w1, w2, o0, o1, o2, n0, n1, n2))                                                        \
            multiply<ROWS>(job, q, scales, n_groups, n_rows, adds, eps);                                              \
    }

// As above, with rounded activations.
KERNEL(THREADS)
matvec_expert(const u8 *ARRIVING q, const float *ARRIVING scales, const u8 *__restrict__ w0, const u8 *__restrict__ w1,
              float *__restrict__ o0, float *__restrict__ o1, const u32 *ARRIVING chosen, u64 step0, u64 step1, u32 n_out,
              u32 n_groups, u32 share) {
    let_next_start();
    wait_for_inputs();
    const u64 pair = block_y(), row = pair / share;
    const u8 *w = block_z() == 0 ? w0 + chosen[pair] * step0 : w1 + chosen[pair] * step1;
    float *out = (block_z() == 0 ? o0 : o1) + pair * n_out;
    const Job job = {w, out, n_out, (block_x() * WAVES + thread_x() / GPU_WAVE) * OUTS};
    if (job.first < n_out) multiply<1>(job, q + row * n_groups * 64, scales + row * n_groups * 4, n_groups, 1, 0, -1.0f);
}

#endif

MATVEC(1, KERNEL_BLOCKS(THREADS, BLOCKS))
MATVEC(2, KERNEL(THREADS))
MATVEC(4, KERNEL(THREADS))
MATVEC(8, KERNEL(THREADS))
