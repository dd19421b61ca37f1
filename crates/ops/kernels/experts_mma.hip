// experts_mma: the products of a mixture on the matrix units, from packed or f16 weights: every expert of a layer in one
// launch, each row with the experts that it goes to (experts_group.hip lists them). As matmul_mma.hip in all else.
//
// A block takes a tile of up to 8 * TILES positions of one expert and 32 weight rows a wave, in steps of 128 columns.
// experts_gated: sixteen rows of the gate and the same sixteen of its partner a wave, so that what comes out is gated at
// once and lies as the next product reads it. experts_down: a row for every pair. block_x counts tiles, so that blocks
// with the same weights run side by side; block_y counts weight rows.
#include "experts.h"
#include "gate.h"
#include "mma_weights.h"
#include "wgmma.h"

// Positions of a tile, in eights, and the activation: the host always says; a compiler run by hand may not.
#ifndef TILES
#define TILES 8
#endif
#ifndef ACT
#define ACT SILU
#endif
// With so many, Hopper's units take x straight from shared memory.
#define IS_WIDE (TILES > 8)
#define STAGES (TILES < 4 ? 4 : 3)
// Steps ahead of which weights are asked for.
#define NEAR_STEPS 4
#define WAVES 4
#define THREADS (WAVES * 32)
#define STEP_GROUPS 4
// Words of one row of x in a quarter of a step.
#define QUARTER_WORDS 16

#if defined(HAS_MMA_WEIGHTS) && defined(GPU_HAS_MMA) && (!IS_WIDE || defined(GPU_HAS_WGMMA))

// Two sets of sixteen weight rows, of one matrix or of two.
struct Factor {
    const u8 *w[2];
    // The first row of each for this wave.
    u32 row[2];
    u32 n_out;
    // The row whose weights this thread asks for ahead of time.
    const u8 *near;
};

DEVICE const u8 *near_row(const u8 *w, u32 row, u32 n_out, u32 n_groups) {
    return w + (u64)(row < n_out ? row : n_out - 1) * n_groups * GROUP_BYTES;
}

// Past the end any row serves: what it gives is not written. Nor do groups past the end count: x is zero there.
DEVICE void load_groups(Raw (&raw)[4], const Factor &factor, u32 n_groups, u32 quad, u32 g) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 wanted = factor.row[i / 2] + i % 2 * 8 + quad, row = wanted < factor.n_out ? wanted : factor.n_out - 1;
        raw[i] = load_group(factor.w[i / 2], factor.n_out, n_groups, row, g < n_groups ? g : n_groups - 1);
    }
}

// The halves of a lane's four weight rows in a quarter of a step, as factors of two products for both sets.
DEVICE void factors_of(u32 (&a)[2][2][4], const Raw (&raw)[4], const Scale (&scale)[4], u32 quarter) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 w[4];
        halves_of(w, raw[i], scale[i], quarter);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) a[i / 2][k / 2][i % 2 + k % 2 * 2] = w[k];
    }
}

#if IS_WIDE

// Rows of x that a block works on, and what a thread copies of them: eight threads a row. In shared memory they lie in two
// sheets (wgmma.h).
struct Left {
    static constexpr u32 rows = TILES * 8, copies = rows * 8 / THREADS, stage_bytes = rows * 256;
    const u32 *x;
    u32 from[copies];

    template <class RowOf>
    DEVICE_MEMBER Left(const u32 *x, u32 row_words, const ExpertTile &tile, RowOf row_of) : x(x) {
#pragma unroll
        for (u32 k = 0; k < copies; ++k) {
            const u32 row = k * (THREADS / 8) + thread_x() / 8;
            const u32 position = tile.first + (row < tile.n ? row : tile.n - 1);
            from[k] = row_of(position) * row_words + thread_x() % 8 * 4;
        }
    }
    DEVICE_MEMBER void copy(u8 *stage, u32 step) const {
        u8 *mine = stage + sheet_place(thread_x() / 8, thread_x() % 8);
#pragma unroll
        for (u32 k = 0; k < copies; ++k)
#pragma unroll
            for (u32 c = 0; c < 2; ++c)
                copy_16((u32 *)(mine + c * (rows * 128) + k * (THREADS / 8 * 128)), x + from[k] + step * 64 + c * 32);
    }
};

// For the first ROWS of the rows.
template <u32 ROWS>
DEVICE void multiply_wide(float (&sum)[2][TILES][4], const Left &left, const Factor &factor, u32 n_groups, u32 *shared) {
    const u32 quad = lane() / 4, within = lane() % 4;
    const u32 n_steps = (n_groups + STEP_GROUPS - 1) / STEP_GROUPS;
    const u64 rows = units_factor(shared, 0);
    // Loaded when the last step's have become halves: the units still work on those, and the second cache has them.
    Raw raw[4];
    load_groups(raw, factor, n_groups, quad, within);
    left.copy((u8 *)shared, 0);
    end_copies();
    for (u32 step = 0; step < n_steps; ++step) {
        wait_copies<0>();
        show_units();
        barrier();
        // The stage that is filled now was last read two steps ago, and that has ended for every wave.
        if (step + 1 < n_steps) left.copy((u8 *)shared + (step + 1) % STAGES * Left::stage_bytes, step + 1);
        end_copies();
        Scale scale[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) scale[i] = scale_of(raw[i], step * STEP_GROUPS + within);
        if (step + NEAR_STEPS < n_steps) {
#pragma unroll
            for (u32 i = 0; i < STEP_GROUPS * GROUP_BYTES; i += 128)
                bring_near(factor.near + (step + NEAR_STEPS) * (STEP_GROUPS * GROUP_BYTES) + i);
        }
        const u64 stage = rows + step % STAGES * (Left::stage_bytes >> 4);
        hold(sum[0]);
        hold(sum[1]);
#pragma unroll
        for (u32 quarter = 0; quarter < 4; ++quarter) {
            u32 a[2][2][4];
            factors_of(a, raw, scale, quarter);
            hold(a[0]);
            hold(a[1]);
            units_begin();
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
#pragma unroll
                for (u32 m = 0; m < 2; ++m) {
                    const u32 piece = quarter * 2 + half;
                    const u64 b = stage + piece / 4 * (Left::rows * 8) + piece % 4 * 2;
                    if (ROWS == 64) units_64<0>(sum[m], a[m][half], b);
                    if (ROWS == 128) units_128<0>(sum[m], a[m][half], b);
                }
            units_end();
            // f16 weights go into the units as they were loaded: those that the units still read must not be overwritten.
            if (FORMAT == FORMAT_F16 && quarter == 3) units_wait<0>();
            if (quarter == 3 && step + 1 < n_steps)
                load_groups(raw, factor, n_groups, quad, (step + 1) * STEP_GROUPS + within);
            units_wait<1>();
        }
    }
    units_wait<0>();
    hold(sum[0]);
    hold(sum[1]);
}

DEVICE void multiply(float (&sum)[2][TILES][4], const Left &left, const Factor &factor, u32 n_groups, u32 n_live,
                     u32 *shared) {
    if (n_live > 64) {
        multiply_wide<128>(sum, left, factor, n_groups, shared);
    } else {
        multiply_wide<64>(sum, left, factor, n_groups, shared);
    }
}

#else

// Rows of x that a block works on, and what a thread copies of them: sixteen threads a row.
struct Left {
    static constexpr u32 rows = TILES * 8, copies = TILES * 4 / WAVES;
    // A quarter's rows, and 64 bytes so that the quarters of a row start in different banks.
    static constexpr u32 quarter_words = rows * QUARTER_WORDS + 16, stage_words = 4 * quarter_words;
    static_assert(TILES * 4 % WAVES == 0, "whole copies");
    const u32 *from[copies];

    template <class RowOf>
    DEVICE_MEMBER Left(const u32 *x, u32 row_words, const ExpertTile &tile, RowOf row_of) {
#pragma unroll
        for (u32 k = 0; k < copies; ++k) {
            const u32 row = k * WAVES * 2 + thread_x() / 16;
            const u32 position = tile.first + (row < tile.n ? row : tile.n - 1);
            from[k] = x + (u64)row_of(position) * row_words + thread_x() % 16 * 4;
        }
    }
    DEVICE_MEMBER void copy(u32 *stage, u32 step) const {
        const u32 chunk = thread_x() % 16;
#pragma unroll
        for (u32 k = 0; k < copies; ++k) {
            const u32 row = k * WAVES * 2 + thread_x() / 16;
            copy_16(stage + chunk / 4 * quarter_words + row * QUARTER_WORDS + chunk % 4 * 4, from[k] + (u64)step * 64);
        }
    }
};

DEVICE void multiply(float (&sum)[2][TILES][4], const Left &left, const Factor &factor, u32 n_groups,
                     u32 n_live, u32 *shared) {
    constexpr u32 PAIR = TILES < 2 ? 1 : 2;
    const u32 quad = lane() / 4, within = lane() % 4;
    const u32 n_steps = (n_groups + STEP_GROUPS - 1) / STEP_GROUPS;
    // Few rows give the units little to do while weights are on their way: more of them are.
    constexpr u32 AHEAD = TILES < 4 ? 2 : 1;
    Raw next[AHEAD][4];
#pragma unroll
    for (u32 s = 0; s < AHEAD; ++s) load_groups(next[s], factor, n_groups, quad, s * STEP_GROUPS + within);
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
        if (s < n_steps) left.copy(shared + s * Left::stage_words, s);
        end_copies();
    }
    for (u32 step = 0; step < n_steps; ++step) {
        wait_copies<STAGES - 2>();
        barrier();
        const u32 ahead = step + STAGES - 1;
        if (ahead < n_steps) left.copy(shared + ahead % STAGES * Left::stage_words, ahead);
        end_copies();
        Raw raw[4];
        Scale scale[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            raw[i] = next[0][i];
            if (AHEAD > 1) next[0][i] = next[AHEAD - 1][i];
            scale[i] = scale_of(raw[i], step * STEP_GROUPS + within);
        }
        if (step + AHEAD < n_steps)
            load_groups(next[AHEAD - 1], factor, n_groups, quad, (step + AHEAD) * STEP_GROUPS + within);
        const u32 *stage = shared + step % STAGES * Left::stage_words + (quad * 4 + within) * 4;
#pragma unroll
        for (u32 quarter = 0; quarter < 4; ++quarter) {
            u32 a[2][2][4];
            factors_of(a, raw, scale, quarter);
#pragma unroll
            for (u32 n0 = 0; n0 < TILES; n0 += PAIR) {
                if (n0 * 8 >= n_live) break;
                // Two tiles at a time, so that no product waits for the one before it.
                Pack<u32, 4> b[PAIR];
#pragma unroll
                for (u32 n = 0; n < PAIR; ++n)
                    b[n] = load<4>(stage + quarter * Left::quarter_words + (n0 + n) * 8 * QUARTER_WORDS);
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
}

#endif

// out: rows of halves by position, `out_words` each. Biases may be null and lie bias_step numbers apart.
KERNEL(THREADS)
experts_gated(const u32 *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1, const float *__restrict__ b0,
              const float *__restrict__ b1, const u32 *ARRIVING order, const u32 *ARRIVING tiles, f16 *__restrict__ out,
              u64 step0, u64 step1, u64 bias_step0, u64 bias_step1, u32 n_out, u32 n_groups, u32 row_words, u32 out_words,
              u32 share, u32 layout, float alpha, float limit) {
    extern __shared__ u32 shared[];
    let_next_start();
    wait_for_inputs();
    if (block_x() >= tiles[0]) return;
    const ExpertTile tile = tile_at(tiles, block_x());
    const Left left(x, row_words, tile, [&](u32 position) { return order[position] / share; });
    const u32 row = (block_y() * WAVES + thread_x() / 32) * 16;
    const u8 *gates = w0 + tile.expert * step0, *ups = w1 + tile.expert * step1;
    const u32 near = block_y() * (WAVES * 16) + thread_x() % 64;
    const Factor factor = {{gates, ups}, {row, row}, n_out, near_row(thread_x() < 64 ? gates : ups, near, n_out, n_groups)};
    float sum[2][TILES][4] = {};
    multiply(sum, left, factor, n_groups, tile.n, shared);
    const u32 quad = lane() / 4, within = lane() % 4;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 o = row + quad + half * 8;
        const bool is_there = o < n_out;
        const float gate_bias = is_there && b0 ? b0[tile.expert * bias_step0 + o] : 0.0f;
        const float up_bias = is_there && b1 ? b1[tile.expert * bias_step1 + o] : 0.0f;
        if (o >= out_words * 2) continue;
        f16 *to = out + place_of(layout, o);
#pragma unroll
        for (u32 n = 0; n < TILES * 2; ++n) {
            const u32 at = n / 2 * 8 + within * 2 + n % 2;
            const float gate = sum[0][n / 2][half * 2 + n % 2] * X_DIVISOR + gate_bias;
            const float up = sum[1][n / 2][half * 2 + n % 2] * X_DIVISOR + up_bias;
            const float value = is_there ? soon_rounded({ACT, alpha, limit}, gate, up) * (1.0f / X_DIVISOR) : 0.0f;
            if (at < tile.n) to[(u64)(tile.first + at) * out_words * 2] = to_f16(value);
        }
    }
}

// out: [pair, n_out] f32.
KERNEL(THREADS)
experts_down(const u32 *ARRIVING x, const u8 *__restrict__ w, const float *__restrict__ bias, const u32 *ARRIVING order,
             const u32 *ARRIVING tiles, float *__restrict__ out, u64 step, u64 bias_step, u32 n_out, u32 n_groups,
             u32 row_words) {
    extern __shared__ u32 shared[];
    let_next_start();
    wait_for_inputs();
    if (block_x() >= tiles[0]) return;
    const ExpertTile tile = tile_at(tiles, block_x());
    const Left left(x, row_words, tile, [&](u32 position) { return position; });
    const u32 row = (block_y() * WAVES + thread_x() / 32) * 32;
    const u8 *mine = w + tile.expert * step;
    const u32 near = block_y() * (WAVES * 32) + thread_x();
    const Factor factor = {{mine, mine}, {row, row + 16}, n_out, near_row(mine, near, n_out, n_groups)};
    float sum[2][TILES][4] = {};
    multiply(sum, left, factor, n_groups, tile.n, shared);
    const u32 quad = lane() / 4, within = lane() % 4;
    u32 pairs[TILES * 2];
#pragma unroll
    for (u32 n = 0; n < TILES * 2; ++n) {
        const u32 at = n / 2 * 8 + within * 2 + n % 2;
        pairs[n] = at < tile.n ? order[tile.first + at] : ~0u;
    }
#pragma unroll
    for (u32 part = 0; part < 4; ++part) {
        const u32 o = row + quad + part * 8;
        if (o >= n_out) continue;
        const float add = bias ? bias[tile.expert * bias_step + o] : 0.0f;
#pragma unroll
        for (u32 n = 0; n < TILES * 2; ++n) {
            const float value = sum[part / 2][n / 2][part % 2 * 2 + n % 2] * X_DIVISOR + add;
            if (pairs[n] != ~0u) out[(u64)pairs[n] * n_out + o] = value;
        }
    }
}

#endif
