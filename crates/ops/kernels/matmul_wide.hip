// matmul_wide: out[r, o] (+)= sum_k x[r, k] * w[o, k] for 33 to a thousand rows on Hopper, from packed weights. Weights
// become halves in registers and meet up to 128 rows of x, which Hopper's units read from shared memory.
//
// A block takes 256 weight rows (16 a wave), ROWS rows of x and a part of the columns, in steps of 128. A lane loads whole
// groups of 32 weights, as in matmul_mma.hip. halves.hip has laid x out as shared memory holds it, so one bulk copy brings
// a step of it; a slot is free again when every wave says so. block_x counts blocks of x rows, so that blocks with the same
// weights run side by side; block_y counts parts, block_z tiles of weight rows.
#define BLOCK_OUTS 256
#include "mma_products.h"
#include "mma_weights.h"
#include "wgmma.h"

#define THREADS 512
#define WAVES (THREADS / 32)
#define X_DIVISOR 16.0f
#define STEP_GROUPS 4
// Steps of x in shared memory, and steps ahead of which weights are asked for. H200, gate and up of llama-8b, Q4_K, 128 rows:
// 58 us; with half as many waves of 32 weight rows 61 us, with two smaller blocks on a multiprocessor 61 us, with weights
// asked for eight steps ahead 67 us. matmul_mma takes 144 us.
#define STAGES 4
#define NEAR_STEPS 4
#define STEP_BYTES (STEP_GROUPS * GROUP_BYTES)

#if defined(HAS_MMA_WEIGHTS) && defined(GPU_HAS_WGMMA) && !IS_PLAIN

// A lane's two rows. Past the end any row serves: what it gives is not written. Nor do groups past the end count: x is
// zero there.
DEVICE void load_groups(Raw (&raw)[2], const Job &job, u32 n_groups, u32 row0, u32 g) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 row = row0 + 8 * i < job.n_out ? row0 + 8 * i : job.n_out - 1;
        raw[i] = load_group(job.w, job.n_out, n_groups, row, g < n_groups ? g : n_groups - 1);
    }
}

// A step of x in shared memory times the lane's weights.
template <u32 ROWS>
DEVICE void use_step(float (&sum)[ROWS / 8][4], const Raw (&raw)[2], u32 g, u64 stage) {
    const Scale scale[2] = {scale_of(raw[0], g), scale_of(raw[1], g)};
    hold(sum);
#pragma unroll
    for (u32 quarter = 0; quarter < 4; ++quarter) {
        u32 a[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            u32 w[4];
            halves_of(w, raw[i], scale[i], quarter);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) a[k / 2][i + k % 2 * 2] = w[k];
        }
        hold(a);
        units_begin();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 piece = quarter * 2 + half;
            const u64 b = stage + piece / 4 * (ROWS * 8) + piece % 4 * 2;
            if (ROWS == 64) units_64<0>(sum, a[half], b);
            if (ROWS == 128) units_128<0>(sum, a[half], b);
        }
        units_end();
        if (quarter < 3) units_wait<1>();
    }
}

template <u32 ROWS>
DEVICE void write_sums(const float (&sum)[ROWS / 8][4], const Job &job, float *parts, u32 n_all, u32 n_rows, u32 n_parts,
                       u32 adds, u32 out0) {
    const u32 row0 = block_x() * ROWS + lane() % 4 * 2;
#pragma unroll
    for (u32 n = 0; n < ROWS / 8; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 out = out0 + i / 2 * 8, row = row0 + n * 8 + i % 2;
            if (out >= job.n_out || row >= n_rows) continue;
            const float value = sum[n][i] * X_DIVISOR;
            if (n_parts > 1) {
                parts[((u64)block_y() * n_rows + row) * n_all + job.before + out] = value;
            } else {
                float *at = job.out + (u64)row * job.n_out + out;
                *at = adds ? *at + value : value;
            }
        }
    }
}

// x: [block of rows, step, 2 sheets of ROWS rows]; parts: [part, n_rows, weight rows of all products] where there are parts.
template <u32 ROWS>
DEVICE void multiply(const u8 *x, const Job &job, float *parts, u32 n_all, u32 n_groups, u32 n_rows, u32 n_parts, u32 adds,
                     u8 *shared) {
    constexpr u32 stage_bytes = ROWS * 256;
    u64 *full = (u64 *)(shared + STAGES * stage_bytes), *empty = full + STAGES;
    const u32 t = thread_x(), out0 = job.first + t / 32 * 16 + lane() / 4;
    const u32 n_steps = (n_groups + STEP_GROUPS - 1) / STEP_GROUPS;
    const u32 per_part = (n_steps + n_parts - 1) / n_parts, first = block_y() * per_part;
    const u32 n_mine = first >= n_steps ? 0 : first + per_part < n_steps ? per_part : n_steps - first;
    const u8 *stages = x + ((u64)block_x() * n_steps + first) * stage_bytes;
    const auto bring = [&](u32 step) {
        const u32 slot = step % STAGES;
        expect_bytes(full + slot, stage_bytes);
        copy_bulk(shared + slot * stage_bytes, stages + (u64)step * stage_bytes, stage_bytes, full + slot);
    };
    // The first threads ask for a weight row each.
    const u32 near_out = job.first + t < job.n_out ? job.first + t : job.n_out - 1;
    const u8 *near = job.w + ((u64)near_out * n_groups + first * STEP_GROUPS) * GROUP_BYTES;
    const auto ask = [&](u32 step) {
        if (t >= BLOCK_OUTS || step >= n_mine) return;
#pragma unroll
        for (u32 i = 0; i < STEP_BYTES; i += 128) bring_near(near + (u64)step * STEP_BYTES + i);
    };
    Raw raw[2];
    u32 g = first * STEP_GROUPS + lane() % 4;
    if (n_mine > 0) load_groups(raw, job, n_groups, out0, g);
    for (u32 s = 1; s < NEAR_STEPS; ++s) ask(s);
    if (t == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            init_signal(full + s, 1);
            init_signal(empty + s, WAVES);
        }
        show_signals();
    }
    barrier();
    wait_for_inputs();
    for (u32 s = 0; s < STAGES - 1; ++s)
        if (t == 0 && s < n_mine) bring(s);
    float sum[ROWS / 8][4] = {};
    const u64 rows = units_factor(shared, 0);
    for (u32 step = 0; step < n_mine; ++step, g += STEP_GROUPS) {
        const u32 slot = step % STAGES;
        ask(step + NEAR_STEPS);
        wait_signal(full + slot, step / STAGES & 1);
        use_step<ROWS>(sum, raw, g, rows + slot * (stage_bytes >> 4));
        // Once the last weights have become halves; the second cache has them.
        if (step + 1 < n_mine) load_groups(raw, job, n_groups, out0, g + STEP_GROUPS);
        units_wait<0>();
        // The slot is free, and the one that the step before freed is filled. None of this while the units work: ptxas makes
        // them wait for each other where it meets a branch.
        if (lane() == 0) signal(empty + slot);
        const u32 ahead = step + STAGES - 1;
        if (t == 0 && ahead < n_mine) {
            if (ahead >= STAGES) wait_signal(empty + ahead % STAGES, (ahead / STAGES - 1) & 1);
            bring(ahead);
        }
        join_wave();
    }
    hold(sum);
    write_sums<ROWS>(sum, job, parts, n_all, n_rows, n_parts, adds, out0);
}

#define MATMUL_WIDE(ROWS)                                                                                             \
    KERNEL_BLOCKS(THREADS, 1)                                                                                         \
    matmul_wide_##ROWS(const u8 *ARRIVING x, const u8 *__restrict__ w0, const u8 *__restrict__ w1,                    \
                       const u8 *__restrict__ w2, float *o0, float *o1, float *o2, float *parts, u32 n0, u32 n1,      \
                       u32 n2, u32 n_groups, u32 n_rows, u32 n_parts, u32 adds) {                                     \
        extern __shared__ __align__(1024) u8 shared[];                                                                \
        let_next_start();                                                                                             \
        const Job job = find_job(w0, w1, w2, o0, o1, o2, n0, n1, n2);                                                 \
        multiply<ROWS>(x, job, parts, n0 + n1 + n2, n_groups, n_rows, n_parts, adds, shared);                         \
    }

MATMUL_WIDE(64)
MATMUL_WIDE(128)

#endif
