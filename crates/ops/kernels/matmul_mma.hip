// matmul_mma: out[r, o] (+)= sum_k x[r, k] * w[o, k] for some to a few hundred rows, on packed weights and the matrix
// units. Weights become halves in registers; activations are halves already (halves.hip), divided by X_DIVISOR.
//
// A block takes 128 weight rows (32 a wave), 8 * TILES rows of x, and a part of the columns, in steps of 128. A lane loads
// whole groups of 32 weights: lane t of a quad takes group 4 * step + t. The units sum over columns in any order, as long
// as weights and activations agree, so the weights are used in the order in which they fall out of their words, and
// halves.hip lays x out to match. Parts of the columns are added up by matmul_mma_sum. block_x counts blocks of x rows, so
// that blocks with the same weights run side by side; block_y counts parts, block_z tiles of weight rows.
#include "mma_weights.h"
#include "mma_products.h"

#define THREADS 128
#define X_DIVISOR 16.0f
#define STEP_GROUPS 4
// Words of one row of x in a quarter of a step.
#define QUARTER_WORDS 16

#if defined(HAS_MMA_WEIGHTS) && defined(GPU_HAS_MMA)

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

MATMUL_PARTS_SUM(matmul_mma_sum)

#endif
