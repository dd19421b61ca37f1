// matmul_few: matmul_mma.hip for AMD's matrix units (WMMA, MFMA): out[r, o] (+)= sum_k x[r, k] * w[o, k] for some rows, on
// packed weights. Weights are read once and become halves in registers; activations are halves already (halves.hip), divided
// by X_DIVISOR.
//
// A block takes 128 weight rows (32 a wave), ROWS rows of x, and a part of the columns, in steps of 128. A lane loads whole
// groups of 32 weights of one row: where several lanes share a row of a tile (prelude.h), each takes a group of its own. The
// units sum over columns in any order, as long as weights and activations agree. Parts of the columns are added up by
// matmul_few_sum. block_x counts blocks of x rows, block_y parts, block_z tiles of weight rows.
#include "mma_weights.h"
#include "mma_products.h"

#define WAVES 4
#define THREADS (WAVES * GPU_WAVE)
#define X_DIVISOR 16.0f
#define STEP_GROUPS 4
// Words of one row of x in a quarter of a step.
#define QUARTER_WORDS 16
// Tiles of sixteen weight rows of a wave.
#define OUT_TILES (BLOCK_OUTS / WAVES / 16)

#if defined(HAS_MMA_WEIGHTS) && defined(MMA_SHARES)

// Quarters of a group that fill a factor, or one.
#define QUARTERS (MMA_WORDS > 4 ? MMA_WORDS / 4 : 1)
// How often a lane takes a group in a step.
#define TURNS (STEP_GROUPS / MMA_SHARES)

// Past the end any row serves: what it gives is not written. Nor do groups past the end count: x is zero there.
DEVICE void load_groups(Raw (&raw)[OUT_TILES], const Job &job, u32 n_groups, u32 row0, u32 g) {
#pragma unroll
    for (u32 i = 0; i < OUT_TILES; ++i) {
        const u32 row = row0 + 16 * i < job.n_out ? row0 + 16 * i : job.n_out - 1;
        raw[i] = load_group(job.w, job.n_out, n_groups, row, g < n_groups ? g : n_groups - 1);
    }
}

// A step of x in shared memory: [quarter, row, four words of each group]. The groups of neighbouring rows change places, so
// that lanes which read one group of many rows meet different banks.
DEVICE u32 place_of(u32 quarter, u32 rows, u32 row, u32 group) { return (quarter * rows + row) * 4 + (group ^ (row / 2 % 4)); }

// What a thread brings of a step.
template <u32 ROWS>
struct Copies {
    static constexpr u32 N = ROWS * 16 / THREADS;
    Pack<u32, 4> at[N];

    // Rows past the end are the last one again.
    DEVICE_MEMBER void fetch(const u32 *x, u32 step, u32 n_x_rows, u32 row0, u32 n_rows) {
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            const u32 i = k * THREADS + thread_x(), wanted = row0 + i / 4 % ROWS, row = wanted < n_rows ? wanted : n_rows - 1;
            at[k] = load<4>(x + (((u64)step * 4 + i / (ROWS * 4)) * n_x_rows + row) * QUARTER_WORDS + i % 4 * 4);
        }
    }
    DEVICE_MEMBER void put(Pack<u32, 4> *to) const {
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            const u32 i = k * THREADS + thread_x();
            to[place_of(i / (ROWS * 4), ROWS, i / 4 % ROWS, i % 4)] = at[k];
        }
    }
};

// One group of each of the lane's weight rows, with the rows of x.
template <u32 ROWS>
DEVICE void use_groups(MmaSum (&sum)[OUT_TILES][ROWS / 16], const Raw (&raw)[OUT_TILES], const Pack<u32, 4> *x, u32 g, u32 within) {
    Scale scale[OUT_TILES];
#pragma unroll
    for (u32 o = 0; o < OUT_TILES; ++o) scale[o] = scale_of(raw[o], g);
#pragma unroll
    for (u32 first = 0; first < 4; first += QUARTERS) {
        u32 w[OUT_TILES][QUARTERS][4];
#pragma unroll
        for (u32 o = 0; o < OUT_TILES; ++o)
#pragma unroll
            for (u32 q = 0; q < QUARTERS; ++q) halves_of(w[o][q], raw[o], scale[o], first + q);
#pragma unroll
        for (u32 r = 0; r < ROWS / 16; ++r) {
            Pack<u32, 4> rows[QUARTERS];
#pragma unroll
            for (u32 q = 0; q < QUARTERS; ++q) rows[q] = x[place_of(first + q, ROWS, r * 16 + lane() % 16, within)];
#pragma unroll
            for (u32 k = 0; k < QUARTERS * 4; k += MMA_WORDS) {
                MmaWords a;
#pragma unroll
                for (u32 i = 0; i < MMA_WORDS; ++i) a.at[i] = rows[(k + i) / 4].at[(k + i) % 4];
#pragma unroll
                for (u32 o = 0; o < OUT_TILES; ++o) {
                    MmaWords b;
#pragma unroll
                    for (u32 i = 0; i < MMA_WORDS; ++i) b.at[i] = w[o][(k + i) / 4][(k + i) % 4];
                    mma(sum[o][r], mma_factor(a), mma_factor(b));
                }
            }
        }
    }
}

// x: [step, quarter, n_x_rows, 16 words]; parts: [part, n_rows, weight rows of all products] where there are parts.
template <u32 ROWS>
DEVICE void multiply(const u32 *x, const Job &job, float *parts, u32 n_all, u32 n_groups, u32 n_rows, u32 n_x_rows,
                     u32 n_parts, u32 adds, Pack<u32, 4> *shared) {
    constexpr u32 STAGE = ROWS * 16;
    const u32 n_steps = (n_groups + STEP_GROUPS - 1) / STEP_GROUPS;
    const u32 per_part = (n_steps + n_parts - 1) / n_parts, begin = block_y() * per_part;
    const u32 end = begin + per_part < n_steps ? begin + per_part : n_steps;
    const u32 row0 = block_x() * ROWS, out0 = job.first + thread_x() / GPU_WAVE * (16 * OUT_TILES) + lane() % 16;
    MmaSum sum[OUT_TILES][ROWS / 16];
#pragma unroll
    for (u32 o = 0; o < OUT_TILES; ++o)
#pragma unroll
        for (u32 r = 0; r < ROWS / 16; ++r) mma_clear(sum[o][r]);
    Raw next[OUT_TILES];
    Copies<ROWS> copies;
    if (begin < end) {
        load_groups(next, job, n_groups, out0, begin * STEP_GROUPS + mma_share());
        copies.fetch(x, begin, n_x_rows, row0, n_rows);
    }
    for (u32 step = begin; step < end; ++step) {
        // Two stages: who still reads the other one has not met the next barrier.
        Pack<u32, 4> *stage = shared + (step - begin) % 2 * STAGE;
        copies.put(stage);
        barrier();
        if (step + 1 < end) copies.fetch(x, step + 1, n_x_rows, row0, n_rows);
// Not unrolled: reads of shared memory would be brought forward until registers run out.
#pragma unroll 1
        for (u32 turn = 0; turn < TURNS; ++turn) {
            const u32 within = turn * MMA_SHARES + mma_share(), g = step * STEP_GROUPS + within;
            Raw raw[OUT_TILES];
#pragma unroll
            for (u32 o = 0; o < OUT_TILES; ++o) raw[o] = next[o];
            if (turn + 1 < TURNS || step + 1 < end) load_groups(next, job, n_groups, out0, g + MMA_SHARES);
            use_groups<ROWS>(sum, raw, stage, g, within);
        }
    }
#pragma unroll
    for (u32 o = 0; o < OUT_TILES; ++o) {
#pragma unroll
        for (u32 r = 0; r < ROWS / 16; ++r) {
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                const u32 out = out0 + o * 16 + mma_column(i) - lane() % 16, row = row0 + r * 16 + mma_row(i);
                if (out >= job.n_out || row >= n_rows) continue;
                const float value = mma_sum(sum[o][r], i) * X_DIVISOR;
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

#define MATMUL_FEW(ROWS)                                                                                              \
    KERNEL(THREADS)                                                                                                   \
    matmul_few_##ROWS(const u32 *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1,                    \
                      const u8 *__restrict__ w2, float *o0, float *o1, float *o2, float *parts, u32 n0, u32 n1,       \
                      u32 n2, u32 n_groups, u32 n_rows, u32 n_x_rows, u32 n_parts, u32 adds) {                        \
        __shared__ Pack<u32, 4> shared[2 * ROWS * 16];                                                                \
        const Job job = find_job(w0, w1, w2, o0, o1, o2, n0, n1, n2);                                                 \
        multiply<ROWS>(x, job, parts, n0 + n1 + n2, n_groups, n_rows, n_x_rows, n_parts, adds, shared);               \
    }

MATMUL_FEW(16)
MATMUL_FEW(32)
MATMUL_FEW(64)

MATMUL_PARTS_SUM(matmul_few_sum)

#endif
