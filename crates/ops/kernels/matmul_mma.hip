// matmul_mma: out[r, o] (+)= sum_k x[r, k] * w[o, k] for some to a few hundred rows, on packed weights and the matrix
// units. Weights become halves in registers; activations are halves already (halves.hip), divided by X_DIVISOR.
//
// A block takes 128 weight rows (32 a wave), 8 * TILES rows of x, and a part of the columns, in steps of 128. A lane loads
// whole groups of 32 weights: lane t of a quad takes group 4 * step + t. The units sum over columns in any order, as long
// as weights and activations agree, so the weights are used in the order in which they fall out of their words, and
// halves.hip lays x out to match. Parts of the columns are added up by matmul_mma_sum. block_x counts blocks of x rows, so
// that blocks with the same weights run side by side; block_y counts parts, block_z tiles of weight rows.
#include "quant.h"

#define THREADS 128
#define BLOCK_OUTS 128
#define X_DIVISOR 16.0f
#define STEP_GROUPS 4
// Words of one row of x in a quarter of a step.
#define QUARTER_WORDS 16

#if defined(GPU_HAS_MMA) && (FORMAT == FORMAT_F16 || !IS_PLAIN)

#if FORMAT == FORMAT_F16
typedef Pack<u32, 4> Words4;
struct Raw {
    Words4 q[4];
};
DEVICE Raw load_group(const u8 *w, u32, u32 n_groups, u32 row, u32 g) {
    Raw raw;
    const u32 *from = (const u32 *)(w + ((u64)row * n_groups + g) * 64);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) raw.q[i] = load<4>(from + 4 * i);
    return raw;
}
struct Scale {};
DEVICE Scale scale_of(const Raw &, u32) { return {}; }
// Eight weights of a quarter: pairs for two products of the units.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &, u32 quarter) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) out[i] = raw.q[quarter].at[i];
}
#else

DEVICE u32 twice(u32 half) { return half | (half << 16); }
DEVICE u32 half_word(float f) { return twice(f16_to_bits(to_f16(f))); }

#if IS_MORE
// d0 and d1 times 64, each number twice in a word; quants are divided by as much, so that no scale is too small for a half.
#define Q_DIVISOR 64.0f
struct Scale {
    u32 d0, g;
#if HAS_TWO_SCALES
    u32 d1;
#endif
#if HAS_MIN
    u32 m;
#endif
#if HAS_TWO_MINS
    u32 m1;
#endif
};

DEVICE Scale scale_of(const Raw &raw, u32 g) {
    Group group;
    scale_group(group, raw, g);
    Scale scale;
    scale.g = g;
    scale.d0 = half_word(group.d0 * Q_DIVISOR);
#if HAS_TWO_SCALES
    scale.d1 = half_word(group.d1 * Q_DIVISOR);
#endif
#if HAS_MIN
    scale.m = half_word(group.m);
#endif
#if HAS_TWO_MINS
    scale.m1 = half_word(group.m1);
#endif
    return scale;
}

// Two quants that stand in bytes 0 and 2 of a word, 128 more than they are. 0x6400 | q is the half 1024 + q; a 64th of that
// less 18 is exact.
DEVICE u32 weights_of(u32 quants, u32 d, u32 m) {
    const u32 parts = fma_halves((quants & 0x00ff00ffu) | 0x64006400u, 0x24002400u, 0xcc80cc80u);
    return HAS_MIN ? fma_halves(parts, d, m) : mul_halves(parts, d);
}

// Eight weights of a quarter: 4i, 4i + 2 | 4i + 1, 4i + 3 | the same behind 16.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &scale, u32 quarter) {
    const u32 first = quants(raw, scale.g, quarter) ^ 0x80808080u, second = quants(raw, scale.g, 4 + quarter) ^ 0x80808080u;
#if HAS_TWO_SCALES
    const u32 d1 = scale.d1;
#else
    const u32 d1 = scale.d0;
#endif
#if HAS_TWO_MINS
    const u32 m = scale.m, m1 = scale.m1;
#elif HAS_MIN
    const u32 m = scale.m, m1 = scale.m;
#else
    const u32 m = 0, m1 = 0;
#endif
    out[0] = weights_of(first, scale.d0, m);
    out[1] = weights_of(first >> 8, scale.d0, m);
    out[2] = weights_of(second, d1, m1);
    out[3] = weights_of(second >> 8, d1, m1);
}
#else

// What turns the quants of a group into weights, each number twice in a word.
struct Scale {
    u32 d;
#if FORMAT == FORMAT_Q4_1 || FORMAT == FORMAT_Q4_K
    u32 m;
#endif
#if FORMAT == FORMAT_Q4_K
    u32 s, minus_s_1024;
#elif FORMAT == FORMAT_Q6_K
    u32 s0, s1;
#endif
};

DEVICE Scale scale_of(const Raw &raw, u32 g) {
    Scale scale;
#if FORMAT == FORMAT_Q4_0 || FORMAT == FORMAT_Q8_0
    scale.d = twice(raw.d);
#elif FORMAT == FORMAT_Q4_1
    scale.d = twice(raw.d & 0xffffu);
    scale.m = twice(raw.d >> 16);
#elif FORMAT == FORMAT_Q4_K
    // As unpack() in quant.h.
    const u32 j = g % 8, shift = 8 * (j % 4);
    const u32 a = raw.head.at[1] >> shift, b = raw.head.at[2] >> shift, c = raw.head.at[3] >> shift;
    const u32 step = j < 4 ? a & 63u : (c & 15u) | (((a >> 6) & 3u) << 4);
    const u32 min = j < 4 ? b & 63u : ((c >> 4) & 15u) | (((b >> 6) & 3u) << 4);
    scale.d = twice(raw.head.at[0] & 0xffffu);
    scale.m = half_word(-(half_bits(raw.head.at[0] >> 16) * (float)min));
    scale.s = half_word((float)step);
    scale.minus_s_1024 = half_word(-1024.0f * (float)step);
#elif FORMAT == FORMAT_Q6_K
    scale.d = twice(raw.d);
    scale.s0 = half_word((float)(i8)(raw.scales & 0xffu));
    scale.s1 = half_word((float)(i8)(raw.scales >> 8));
#endif
    return scale;
}

// Two quants that stand in bytes 0 and 2 of a word, as weights. 0x6400 | q is the half 1024 + q.
DEVICE u32 weights_of(u32 quants, const Scale &scale, u32 part) {
#if FORMAT == FORMAT_Q4_0
    return mul_halves(sub_halves((quants & 0x000f000fu) | 0x64006400u, 0x64086408u), scale.d);
#elif FORMAT == FORMAT_Q4_1
    return fma_halves(sub_halves((quants & 0x000f000fu) | 0x64006400u, 0x64006400u), scale.d, scale.m);
#elif FORMAT == FORMAT_Q8_0
    // The host's bytes are signed; with the top bit turned they are q + 128.
    return mul_halves(sub_halves((quants & 0x00ff00ffu) | 0x64006400u, 0x64806480u), scale.d);
#elif FORMAT == FORMAT_Q4_K
    // Quant times step stays a whole number under 2048: exact. Only d and m round.
    const u32 steps = fma_halves((quants & 0x000f000fu) | 0x64006400u, scale.s, scale.minus_s_1024);
    return fma_halves(steps, scale.d, scale.m);
#else
    const u32 whole = sub_halves((quants & 0x003f003fu) | 0x64006400u, 0x64206420u);
    return mul_halves(mul_halves(whole, part == 0 ? scale.s0 : scale.s1), scale.d);
#endif
}

// Eight weights of a quarter: 4i, 4i + 2 | 4i + 1, 4i + 3 | the same behind 16.
DEVICE void halves_of(u32 (&out)[4], const Raw &raw, const Scale &scale, u32 quarter) {
    u32 first, second;
#if FORMAT == FORMAT_Q8_0
    first = raw.q.at[quarter] ^ 0x80808080u;
    second = raw.q2.at[quarter] ^ 0x80808080u;
#elif FORMAT == FORMAT_Q6_K
    const u32 nibbles = raw.q.at[quarter];
    first = (nibbles & 0x0f0f0f0fu) | (((raw.high.at[0] >> (2 * quarter)) & 0x03030303u) << 4);
    second = ((nibbles >> 4) & 0x0f0f0f0fu) | (((raw.high.at[1] >> (2 * quarter)) & 0x03030303u) << 4);
#else
    first = raw.q.at[quarter];
    second = first >> 4;
#endif
    out[0] = weights_of(first, scale, 0);
    out[1] = weights_of(first >> 8, scale, 0);
    out[2] = weights_of(second, scale, 1);
    out[3] = weights_of(second >> 8, scale, 1);
}
#endif
#endif

struct Job {
    const u8 *w;
    float *out;
    u32 n_out, first;
    // Weight rows of the products before this one.
    u32 before;
};

DEVICE Job find_job(const u8 *w0, const u8 *w1, const u8 *w2, float *o0, float *o1, float *o2, u32 n0, u32 n1, u32 n2) {
    const u32 tile = block_z();
    const u32 t0 = (n0 + BLOCK_OUTS - 1) / BLOCK_OUTS, t1 = (n1 + BLOCK_OUTS - 1) / BLOCK_OUTS;
    if (tile < t0) return {w0, o0, n0, tile * BLOCK_OUTS, 0};
    if (tile < t0 + t1) return {w1, o1, n1, (tile - t0) * BLOCK_OUTS, n0};
    return {w2, o2, n2, (tile - t0 - t1) * BLOCK_OUTS, n0 + n1};
}

// The four rows of a lane: quad, quad + 8, quad + 16, quad + 24 of the wave's 32. Past the end any row serves: what it
// gives is not written. Nor do groups past the end count: x is zero there.
DEVICE void load_groups(Raw (&raw)[4], const Job &job, u32 n_groups, u32 row0, u32 g) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = row0 + 8 * i < job.n_out ? row0 + 8 * i : job.n_out - 1;
        raw[i] = load_group(job.w, job.n_out, n_groups, row, g < n_groups ? g : n_groups - 1);
    }
}

template <u32 TILES>
DEVICE void copy_step(u32 *to, const u32 *x, u32 step, u32 n_x_rows, u32 row0) {
    constexpr u32 rows = TILES * 8;
    static_assert(4 * rows * 4 == TILES * THREADS, "TILES copies a thread");
#pragma unroll
    for (u32 k = 0; k < TILES; ++k) {
        const u32 i = k * THREADS + thread_x();
        const u32 quarter = i / (rows * 4), rest = i % (rows * 4);
        copy_16(to + (quarter * rows * 4 + rest) * 4,
                x + (((u64)step * 4 + quarter) * n_x_rows + row0) * QUARTER_WORDS + rest * 4);
    }
}

// x: [step, quarter, n_x_rows, 16 words]; parts: [part, n_rows, weight rows of all products] where there are parts.
template <u32 TILES, u32 STAGES>
DEVICE void multiply(const u32 *x, const Job &job, float *parts, u32 n_all, u32 n_groups, u32 n_rows, u32 n_x_rows,
                     u32 n_parts, u32 adds, u32 *shared) {
    constexpr u32 rows = TILES * 8, stage_words = 4 * rows * QUARTER_WORDS, PAIR = TILES < 2 ? 1 : 2;
    const u32 wave = thread_x() / 32, quad = lane() / 4, within = lane() % 4;
    const u32 n_steps = (n_groups + STEP_GROUPS - 1) / STEP_GROUPS;
    const u32 per_part = (n_steps + n_parts - 1) / n_parts, first = block_y() * per_part;
    const u32 last = first + per_part < n_steps ? first + per_part : n_steps;
    const u32 row0 = block_x() * rows, out0 = job.first + wave * 32 + quad;
    float sum[2][TILES][4] = {};
    Raw next[4];
    load_groups(next, job, n_groups, out0, first * STEP_GROUPS + within);
    wait_for_inputs();
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
        if (first + s < last) copy_step<TILES>(shared + s * stage_words, x, first + s, n_x_rows, row0);
        end_copies();
    }
    for (u32 step = first; step < last; ++step) {
        wait_copies<STAGES - 2>();
        barrier();
        const u32 ahead = step + STAGES - 1;
        if (ahead < last) copy_step<TILES>(shared + (ahead - first) % STAGES * stage_words, x, ahead, n_x_rows, row0);
        end_copies();
        Raw raw[4];
        Scale scale[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            raw[i] = next[i];
            scale[i] = scale_of(raw[i], step * STEP_GROUPS + within);
        }
        if (step + 1 < last) load_groups(next, job, n_groups, out0, (step + 1) * STEP_GROUPS + within);
        const u32 *stage = shared + (step - first) % STAGES * stage_words + (quad * 4 + within) * 4;
#pragma unroll
        for (u32 quarter = 0; quarter < 4; ++quarter) {
            u32 w[4][4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) halves_of(w[i], raw[i], scale[i], quarter);
            const u32 a[2][2][4] = {
                {{w[0][0], w[1][0], w[0][1], w[1][1]}, {w[0][2], w[1][2], w[0][3], w[1][3]}},
                {{w[2][0], w[3][0], w[2][1], w[3][1]}, {w[2][2], w[3][2], w[2][3], w[3][3]}},
            };
#pragma unroll
            for (u32 n0 = 0; n0 < TILES; n0 += PAIR) {
                // Two tiles at a time, so that no product waits for the one before it.
                Pack<u32, 4> b[PAIR];
#pragma unroll
                for (u32 n = 0; n < PAIR; ++n)
                    b[n] = load<4>(stage + (quarter * rows + (n0 + n) * 8) * QUARTER_WORDS);
#pragma unroll
                for (u32 half = 0; half < 2; ++half)
#pragma unroll
                    for (u32 n = 0; n < PAIR; ++n)
#pragma unroll
                        for (u32 m = 0; m < 2; ++m)
                            mma_16x8x16(sum[m][n0 + n], a[m][half], b[n].at[2 * half], b[n].at[2 * half + 1]);
            }
        }
    }
#pragma unroll
    for (u32 m = 0; m < 2; ++m) {
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 out = out0 + m * 16 + i / 2 * 8, row = row0 + n * 8 + within * 2 + i % 2;
                if (out >= job.n_out || row >= n_rows) continue;
                const float value = sum[m][n][i] * X_DIVISOR;
                if (n_parts > 1) {
                    parts[((u64)block_y() * n_rows + row) * n_all + job.before + out] = value;
                } else {
                    float *at = job.out + (u64)row * job.n_out + out;
                    *at = adds ? *at + value : value;
                }
            }
        }
    }
}

#define MATMUL_MMA(TILES, STAGES)                                                                                     \
    KERNEL(THREADS)                                                                                                   \
    matmul_mma_##TILES(const u32 *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1,                   \
                       const u8 *__restrict__ w2, float *o0, float *o1, float *o2, float *parts, u32 n0, u32 n1,      \
                       u32 n2, u32 n_groups, u32 n_rows, u32 n_x_rows, u32 n_parts, u32 adds) {                       \
        extern __shared__ u32 shared[];                                                                               \
        let_next_start();                                                                                             \
        const Job job = find_job(w0, w1, w2, o0, o1, o2, n0, n1, n2);                                                 \
        multiply<TILES, STAGES>(x, job, parts, n0 + n1 + n2, n_groups, n_rows, n_x_rows, n_parts, adds, shared);      \
    }

MATMUL_MMA(1, 4)
MATMUL_MMA(2, 4)
MATMUL_MMA(4, 3)
MATMUL_MMA(8, 3)

#define SUM_THREADS 256

// out[r, o] (+)= the parts' sum. block_y is the row.
KERNEL(SUM_THREADS)
matmul_mma_sum(const float *ARRIVING parts, float *o0, float *o1, float *o2, u32 n0, u32 n1, u32 n2, u32 n_rows,
               u32 n_parts, u32 adds) {
    let_next_start();
    wait_for_inputs();
    const u32 n_all = n0 + n1 + n2, i = block_x() * SUM_THREADS + thread_x(), row = block_y();
    if (i >= n_all) return;
    float total = 0.0f;
#pragma unroll 4
    for (u32 p = 0; p < n_parts; ++p) total += parts[((u64)p * n_rows + row) * n_all + i];
    float *at = i < n0 ? o0 + (u64)row * n0 + i
                       : i < n0 + n1 ? o1 + (u64)row * n1 + i - n0 : o2 + (u64)row * n2 + i - n0 - n1;
    *at = adds ? *at + total : total;
}

#endif
