// Hopper's matrix units: four waves together multiply 64 rows with factors in shared memory, while they do other things.
//
// A factor lies in shared memory in sheets of 128 bytes (64 halves) a row, eight pieces of 16 bytes each; piece `c` of row
// `r` stands at place c ^ (r % 8), so that neither copies nor the units meet a bank twice. Sheets begin at 1024 bytes. Sums: [n][i] of a lane stands at row
// lane / 4 + i / 2 * 8 of its wave's sixteen and at column 8 n + lane % 4 * 2 + i % 2, as in mma_16x8x16.
#pragma once
#include "prelude.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GPU_HAS_WGMMA 1

DEVICE u32 n_blocks_x() { return gridDim.x; }

// Before the first product, and after registers that products use were written.
DEVICE void units_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void units_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `still` of the groups that units_end closed are under way.
template <u32 still>
DEVICE void units_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(still) : "memory");
}
// What this thread wrote to shared memory is there for the units, after the next barrier.
DEVICE void show_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Keeps the compiler from using sums before a wait, and from making factors in registers after units_begin.
template <u32 N>
DEVICE void hold(float (&sum)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < N * 4; ++i) asm volatile("" : "+f"(sum[i / 4][i % 4])::"memory");
}

template <u32 N>
DEVICE void hold(u32 (&factor)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < N * 4; ++i) asm volatile("" : "+r"(factor[i / 4][i % 4])::"memory");
}

// Where a piece of a row lies in a sheet.
DEVICE u32 sheet_place(u32 row, u32 piece) { return row * 128 + ((piece ^ (row % 8)) * 16); }

// A factor in shared memory whose rows lie along the sheets' rows: 16 halves of depth on, the next begins 32 bytes behind.
// Turned (depth along the sheets' rows): `sheet_bytes` from one sheet to the next; 16 of depth on, 2048 bytes behind.
DEVICE u64 units_factor(const void *at, u32 sheet_bytes) {
    const u64 address = (u64)((u32)__cvta_generic_to_shared(at) & 0x3ffffu) >> 4;
    return address | (u64)(sheet_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// 16 bytes from global to shared memory, or zeros.
DEVICE void copy_16_or_zeros(void *to, const void *from, bool is_there) {
    const u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16u : 0u) : "memory");
}

// Signals in shared memory: one is given when as many threads as it was made for have said so and all bytes that were
// expected are there. They are given in turn; `turn` is the parity of the one that is waited for.
DEVICE void init_signal(u64 *at, u32 n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(at)), "r"(n) : "memory");
}
// After init_signal and before the barrier behind which the signals are used.
DEVICE void show_signals() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    show_units();
}
DEVICE void signal(u64 *at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(at)) : "memory");
}
DEVICE void wait_signal(u64 *at, u32 turn) {
    asm volatile("{.reg .pred is_given; again: mbarrier.try_wait.parity.shared::cta.b64 is_given, [%0], %1;"
                 "@!is_given bra again;}" ::"r"((u32)__cvta_generic_to_shared(at)), "r"(turn) : "memory");
}
// Says so for one thread, and that a copy will bring so many bytes.
DEVICE void expect_bytes(u64 *at, u32 n_bytes) {
    const u32 place = (u32)__cvta_generic_to_shared(at);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place), "r"(n_bytes) : "memory");
}
// A range of global memory into shared memory, both on 16 bytes, by the copy engine.
DEVICE void copy_bulk(void *to, const void *from, u32 n_bytes, u64 *signal) {
    const u32 at = (u32)__cvta_generic_to_shared(to), says = (u32)__cvta_generic_to_shared(signal);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at),
                 "l"(from), "r"(n_bytes), "r"(says) : "memory");
}
DEVICE void join_wave() { __syncwarp(); }

// sum [64, N] (+)= a [64, 16] b [N, 16]^T, both from shared memory.
DEVICE void units_64(float (*sum)[4], u64 a, u64 b, bool adds) {
    asm volatile("{.reg .pred is_added; setp.ne.b32 is_added, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, is_added, 1, 1, 0, 0;}"
                 : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),
                   "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]), "+f"(sum[2][2]), "+f"(sum[2][3]),
                   "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]), "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]),
                   "+f"(sum[4][2]), "+f"(sum[4][3]), "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]),
                   "+f"(sum[6][0]), "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
                   "+f"(sum[7][2]), "+f"(sum[7][3])
                 : "l"(a), "l"(b), "r"((u32)adds));
}
DEVICE void units_128(float (*sum)[4], u64 a, u64 b, bool adds) {
    asm volatile("{.reg .pred is_added; setp.ne.b32 is_added, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
                 "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
                 "%61, %62, %63}, %64, %65, is_added, 1, 1, 0, 0;}"
                 : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),
                   "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]), "+f"(sum[2][2]), "+f"(sum[2][3]),
                   "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]), "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]),
                   "+f"(sum[4][2]), "+f"(sum[4][3]), "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]),
                   "+f"(sum[6][0]), "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
                   "+f"(sum[7][2]), "+f"(sum[7][3]), "+f"(sum[8][0]), "+f"(sum[8][1]), "+f"(sum[8][2]), "+f"(sum[8][3]),
                   "+f"(sum[9][0]), "+f"(sum[9][1]), "+f"(sum[9][2]), "+f"(sum[9][3]), "+f"(sum[10][0]),
                   "+f"(sum[10][1]), "+f"(sum[10][2]), "+f"(sum[10][3]), "+f"(sum[11][0]), "+f"(sum[11][1]),
                   "+f"(sum[11][2]), "+f"(sum[11][3]), "+f"(sum[12][0]), "+f"(sum[12][1]), "+f"(sum[12][2]),
                   "+f"(sum[12][3]), "+f"(sum[13][0]), "+f"(sum[13][1]), "+f"(sum[13][2]), "+f"(sum[13][3]),
                   "+f"(sum[14][0]), "+f"(sum[14][1]), "+f"(sum[14][2]), "+f"(sum[14][3]), "+f"(sum[15][0]),
                   "+f"(sum[15][1]), "+f"(sum[15][2]), "+f"(sum[15][3])
                 : "l"(a), "l"(b), "r"((u32)adds));
}

// sum [64, N] += a [64, 16] b [N, 16]^T, a from registers, b from shared memory; IS_TURNED: b is [16, N] there.
template <u32 IS_TURNED>
DEVICE void units_64(float (*sum)[4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),
                   "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]), "+f"(sum[2][2]), "+f"(sum[2][3]),
                   "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]), "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]),
                   "+f"(sum[4][2]), "+f"(sum[4][3]), "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]),
                   "+f"(sum[6][0]), "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
                   "+f"(sum[7][2]), "+f"(sum[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(IS_TURNED));
}
template <u32 IS_TURNED>
DEVICE void units_128(float (*sum)[4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
                 "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
                 "%61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),
                   "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]), "+f"(sum[2][2]), "+f"(sum[2][3]),
                   "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]), "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]),
                   "+f"(sum[4][2]), "+f"(sum[4][3]), "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]),
                   "+f"(sum[6][0]), "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
                   "+f"(sum[7][2]), "+f"(sum[7][3]), "+f"(sum[8][0]), "+f"(sum[8][1]), "+f"(sum[8][2]), "+f"(sum[8][3]),
                   "+f"(sum[9][0]), "+f"(sum[9][1]), "+f"(sum[9][2]), "+f"(sum[9][3]), "+f"(sum[10][0]),
                   "+f"(sum[10][1]), "+f"(sum[10][2]), "+f"(sum[10][3]), "+f"(sum[11][0]), "+f"(sum[11][1]),
                   "+f"(sum[11][2]), "+f"(sum[11][3]), "+f"(sum[12][0]), "+f"(sum[12][1]), "+f"(sum[12][2]),
                   "+f"(sum[12][3]), "+f"(sum[13][0]), "+f"(sum[13][1]), "+f"(sum[13][2]), "+f"(sum[13][3]),
                   "+f"(sum[14][0]), "+f"(sum[14][1]), "+f"(sum[14][2]), "+f"(sum[14][3]), "+f"(sum[15][0]),
                   "+f"(sum[15][1]), "+f"(sum[15][2]), "+f"(sum[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(IS_TURNED));
}

#endif
