// The only place that knows which compiler reads the kernels: hiprtc, nvrtc, or clang -x hip. Long, because being the one
// place is the point: AMD's words, then NVIDIA's, then what both share.
// No vendor header is included on any path. A kernel never assumes 32 lanes: GPU_WAVE is a
// compile-time constant (32 on RDNA and NVIDIA, 64 on GCN and CDNA), given by the host.
#pragma once

#if defined(__HIPCC_RTC__) || defined(__HIP_DEVICE_COMPILE__) || defined(__AMDGCN__) || defined(__HIP__)
#define GPU_AMD 1
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__CUDA_ARCH__)
#define GPU_NVIDIA 1
#else
#error "this header is read by hiprtc, nvrtc or clang -x hip"
#endif

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

static_assert(sizeof(void *) == 8, "the host passes 64-bit addresses");

// Numbers that are part of the program.
#define DEVICE_TABLE static __device__ const

// A bfloat16 as stored. f16 is the compiler's own half on AMD and a stored half on NVIDIA; both
// convert with to_f32 and to_f16, and both are 2 bytes.
struct alignas(2) bf16 {
    u16 bits;
};

#if defined(GPU_AMD)

#if !defined(__HIPCC_RTC__)  // clang without AMD's wrappers: the words CUDA gives for free
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif

#ifndef GPU_WAVE
#if defined(__GFX8__) || defined(__GFX9__)
#define GPU_WAVE 64
#else
#define GPU_WAVE 32
#endif
#endif

typedef _Float16 f16;
#define DEVICE static __attribute__((device)) inline __attribute__((always_inline))
#define DEVICE_MEMBER __attribute__((device)) inline __attribute__((always_inline))

// Every kernel says how many threads it is launched with at most; without it one spilled 557 registers.
#define KERNEL(threads) extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void
// With so many blocks on a multiprocessor at once where registers would allow more: NVIDIA's compiler has to be told that
// they are better spent on loads.
#define KERNEL_BLOCKS(threads, blocks) KERNEL(threads)

// The same bits as another type.
template <class To, class From>
DEVICE To bits_as(From from) {
    return __builtin_bit_cast(To, from);
}

// What work before this kernel made, where the kernel may have started early (below): not restrict, or the compiler
// would read it ahead of the wait.
#define ARRIVING __restrict__
DEVICE void let_next_start() {}
DEVICE void wait_for_inputs() {}

// The same number, of which the compiler does not know where it came from: what is made of it is not kept from earlier.
DEVICE u32 hidden(u32 value) {
    asm volatile("" : "+v"(value));
    return value;
}
// And the same address, in registers of the lanes: for what is used before and after a long loop that is short of others.
DEVICE float *hidden(float *at) {
    asm volatile("" : "+v"(at));
    return at;
}
// The same of a number, and not before the other is known: so that loads do not fill all registers.
DEVICE u32 hidden_until(u32 value, float known) {
    asm volatile("" : "+v"(value) : "v"(known));
    return value;
}

DEVICE u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 thread_y() { return __builtin_amdgcn_workitem_id_y(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }

DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DEVICE u32 lane() {
#if GPU_WAVE == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
#else
    return __builtin_amdgcn_mbcnt_lo(~0u, 0u);
#endif
}

// The value of another lane; every lane of the wave must take part.
DEVICE i32 from_lane(i32 value, u32 source) { return __builtin_amdgcn_ds_bpermute((int)(source << 2), value); }
// The same among four lanes that begin at a multiple of four: of the one whose number differs by these bits, and of the one
// with this number. Part of the instruction that uses it, where a bpermute goes through shared memory's port.
template <u32 bits>
DEVICE float across_four(float value) {
    static_assert(bits == 1 || bits == 2, "of four lanes");
    return bits_as<float>(__builtin_amdgcn_mov_dpp(bits_as<i32>(value), bits == 1 ? 0xb1 : 0x4e, 0xf, 0xf, true));
}
template <u32 number>
DEVICE float of_four(float value) {
    return bits_as<float>(__builtin_amdgcn_mov_dpp(bits_as<i32>(value), 0x55 * number, 0xf, 0xf, true));
}

DEVICE float to_f32(f16 h) { return (float)h; }
DEVICE f16 to_f16(float f) { return (f16)f; }
DEVICE f16 f16_from_bits(u16 bits) { return bits_as<f16>(bits); }
DEVICE u16 f16_to_bits(f16 h) { return bits_as<u16>(h); }

DEVICE float fast_exp(float x) { return __builtin_expf(x); }
DEVICE float fast_log(float x) { return __builtin_logf(x); }
// 2^x, to 1 ulp.
#if __has_builtin(__builtin_amdgcn_exp2f)
DEVICE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
#else
DEVICE float fast_exp2(float x) { return __builtin_exp2f(x); }
#endif
// The hardware's approximations (1 ulp); write 1/sqrt(x) where the last bit matters.
DEVICE float fast_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
DEVICE float fast_rcp(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE float sqrt_f32(float x) { return __builtin_sqrtf(x); }
DEVICE float max_f32(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE float min_f32(float a, float b) { return __builtin_fminf(a, b); }
DEVICE float abs_f32(float a) { return __builtin_fabsf(a); }
DEVICE float round_f32(float a) { return __builtin_rintf(a); }
DEVICE float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// A sum and a product that are never fused into one operation: for numbers that must be the host's.
DEVICE float add_exact(float a, float b) {
#pragma clang fp contract(off)
    return a + b;
}
DEVICE float mul_exact(float a, float b) {
#pragma clang fp contract(off)
    return a * b;
}

// On shared memory, by any thread of the block.
DEVICE void shared_add(u64 *at, u64 value) {
    __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DEVICE void shared_add(u32 *at, u32 value) {
    __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DEVICE void shared_min(u32 *at, u32 value) {
    __hip_atomic_fetch_min(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__) || \
    defined(__gfx950__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) ||                    \
    defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) ||                   \
    defined(__gfx1035__) || defined(__gfx1036__)
#define GPU_SDOT4 1
#endif

// Four bytes out of the eight of `low` and `high`: each byte of `which`, 0 to 7, says which one.
DEVICE u32 pick_bytes(u32 low, u32 high, u32 which) { return __builtin_amdgcn_perm(high, low, which); }
// The low halves of two words as one word, and the high ones.
DEVICE u32 low_halves(u32 a, u32 b) { return pick_bytes(a, b, 0x05040100u); }
DEVICE u32 high_halves(u32 a, u32 b) { return pick_bytes(a, b, 0x07060302u); }

// c + sum of four signed 8-bit products.
DEVICE i32 dot4_i8(i32 a, i32 b, i32 c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(GPU_SDOT4)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    return c + (i8)a * (i8)b + (i8)(a >> 8) * (i8)(b >> 8) + (i8)(a >> 16) * (i8)(b >> 16) + (i8)(a >> 24) * (i8)(b >> 24);
#endif
}

// c + sum of four products of an unsigned and a signed 8-bit number.
DEVICE i32 dot4_u8_i8(u32 a, i32 b, i32 c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(false, (i32)a, true, b, c, false);
#else
    return c + (i32)(u8)a * (i8)b + (i32)(u8)(a >> 8) * (i8)(b >> 8) + (i32)(u8)(a >> 16) * (i8)(b >> 16) +
           (i32)(u8)(a >> 24) * (i8)(b >> 24);
#endif
}

#if defined(__GFX11__) || defined(__GFX12__) || defined(GPU_SDOT4)
#define GPU_FDOT2 1
#endif
typedef f16 gpu_f16x2 __attribute__((ext_vector_type(2)));

// c + a.lo * b.lo + a.hi * b.hi, halves packed in a word, accumulated in f32.
DEVICE float dot2_f16(u32 a, u32 b, float c) {
#if defined(GPU_FDOT2)
    return __builtin_amdgcn_fdot2(bits_as<gpu_f16x2>(a), bits_as<gpu_f16x2>(b), c, false);
#else
    c = fma_f32(to_f32(f16_from_bits((u16)a)), to_f32(f16_from_bits((u16)b)), c);
    return fma_f32(to_f32(f16_from_bits((u16)(a >> 16))), to_f32(f16_from_bits((u16)(b >> 16))), c);
#endif
}

// A tile of the matrix units, one interface for all of them: sum [16, 16] += a [16, 16] b [16, 16]^T, halves in, f32 sums, by
// one wave. Both factors are rows of 16 halves in shared memory, each row on 16 bytes. Which lane holds what differs from
// chip to chip; element i of a lane's sums stands at row mma_row(i) and column mma_column(i).
#if defined(__GFX11__)
#define GPU_HAS_TILES 1
#define MMA_SUMS 8
#define MMA_SHARES 1
typedef f16 gpu_f16x8 __attribute__((ext_vector_type(8)));
typedef f16 gpu_f16x16 __attribute__((ext_vector_type(16)));
typedef float gpu_f32xn __attribute__((ext_vector_type(8)));
typedef gpu_f16x16 MmaFactor;
// A lane holds a whole row; the second half of the wave holds the rows once more.
DEVICE MmaFactor mma_load(const f16 *rows, u32 stride) {
    const gpu_f16x8 *at = (const gpu_f16x8 *)(rows + lane() % 16 * stride);
    return __builtin_shufflevector(at[0], at[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
DEVICE void mma_add(gpu_f32xn &sum, const MmaFactor &a, const MmaFactor &b) {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, sum);
}
DEVICE u32 mma_row(u32 i) { return 2 * i + lane() / 16; }
DEVICE u32 mma_column(u32) { return lane() % 16; }
#elif defined(__GFX12__)
#define GPU_HAS_TILES 1
#define MMA_SUMS 8
#define MMA_SHARES 2
typedef f16 gpu_f16x8 __attribute__((ext_vector_type(8)));
typedef float gpu_f32xn __attribute__((ext_vector_type(8)));
typedef gpu_f16x8 MmaFactor;
DEVICE MmaFactor mma_load(const f16 *rows, u32 stride) {
    return *(const gpu_f16x8 *)(rows + lane() % 16 * stride + lane() / 16 * 8);
}
DEVICE void mma_add(gpu_f32xn &sum, const MmaFactor &a, const MmaFactor &b) {
    sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, sum);
}
DEVICE u32 mma_row(u32 i) { return i + lane() / 16 * 8; }
DEVICE u32 mma_column(u32) { return lane() % 16; }
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__) || defined(__gfx950__)
#define GPU_HAS_TILES 1
#define MMA_SUMS 4
#define MMA_SHARES 4
typedef f16 gpu_f16x4 __attribute__((ext_vector_type(4)));
typedef float gpu_f32xn __attribute__((ext_vector_type(4)));
typedef gpu_f16x4 MmaFactor;
DEVICE MmaFactor mma_load(const f16 *rows, u32 stride) {
    return *(const gpu_f16x4 *)(rows + lane() % 16 * stride + lane() / 16 * 4);
}
DEVICE void mma_add(gpu_f32xn &sum, const MmaFactor &a, const MmaFactor &b) {
    sum = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, sum, 0, 0, 0);
}
DEVICE u32 mma_row(u32 i) { return i + lane() / 16 * 4; }
DEVICE u32 mma_column(u32) { return lane() % 16; }
#endif
#if defined(GPU_HAS_TILES)
struct MmaSum {
    gpu_f32xn at;
};
DEVICE void mma_clear(MmaSum &sum) { sum.at = (gpu_f32xn)(0.0f); }
DEVICE void mma(MmaSum &sum, const MmaFactor &a, const MmaFactor &b) { mma_add(sum.at, a, b); }
DEVICE float mma_sum(const MmaSum &sum, u32 i) { return sum.at[i]; }

// Factors from registers: row lane() % 16 of a tile is shared by MMA_SHARES lanes with different columns, of which this lane
// has the share mma_share(). Which columns those are does not matter, as long as both factors agree.
#define MMA_WORDS (8 / MMA_SHARES)
DEVICE u32 mma_share() { return lane() / 16 % MMA_SHARES; }
struct MmaWords {
    u32 at[MMA_WORDS];
};
DEVICE MmaFactor mma_factor(const MmaWords &words) { return bits_as<MmaFactor>(words); }

// A factor from what a lane holds of a tile of sums: its rows are the tile's columns. Which row of the tile stands in half i
// of a lane's part of the factor is mma_turned_row(i).
#if defined(__GFX11__)
DEVICE u32 mma_turned_row(u32 i) { return i / 2 < 4 ? i / 2 * 4 + i % 2 * 2 : (i / 2 - 4) * 4 + i % 2 * 2 + 1; }
DEVICE MmaFactor mma_turned(const float (&sums)[MMA_SUMS]) {
    // A lane holds every other row; the rest are those of the lane half a wave away.
    const bool is_second = lane() / 16 != 0;
    MmaWords words;
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
        const u32 own = (u32)f16_to_bits(to_f16(sums[2 * w])) | (u32)f16_to_bits(to_f16(sums[2 * w + 1])) << 16;
        const u32 other = (u32)from_lane((i32)own, lane() ^ 16);
        words.at[w] = is_second ? other : own;
        words.at[4 + w] = is_second ? own : other;
    }
    return mma_factor(words);
}
#else
DEVICE u32 mma_turned_row(u32 i) { return mma_row(i); }
DEVICE MmaFactor mma_turned(const float (&sums)[MMA_SUMS]) {
    MmaFactor factor;
#pragma unroll
    for (u32 i = 0; i < MMA_SUMS; ++i) factor[i] = to_f16(sums[i]);
    return factor;
}
#endif

// Two halves at once.
DEVICE u32 sub_halves(u32 a, u32 b) { return bits_as<u32>(bits_as<gpu_f16x2>(a) - bits_as<gpu_f16x2>(b)); }
DEVICE u32 mul_halves(u32 a, u32 b) { return bits_as<u32>(bits_as<gpu_f16x2>(a) * bits_as<gpu_f16x2>(b)); }
// Rounded once, as the callers count on: the product is wider than a half.
DEVICE u32 fma_halves(u32 a, u32 b, u32 c) {
#pragma clang fp contract(fast)
    return bits_as<u32>(bits_as<gpu_f16x2>(a) * bits_as<gpu_f16x2>(b) + bits_as<gpu_f16x2>(c));
}
#endif

#else  // GPU_NVIDIA

#undef GPU_WAVE
#define GPU_WAVE 32

struct alignas(2) f16 {
    u16 bits;
};
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define KERNEL_BLOCKS(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

template <class To, class From>
DEVICE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// From sm_90 on a kernel may be launched while the one before it still runs (gpu's overlap.rs). Before wait_for_inputs it
// may only read what nothing in the step writes: weights, and what was uploaded with the step.
#define ARRIVING
#if __CUDA_ARCH__ >= 900
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void let_next_start() {}
DEVICE void wait_for_inputs() {}
#endif

DEVICE u32 hidden(u32 value) {
    asm volatile("" : "+r"(value));
    return value;
}
DEVICE float *hidden(float *at) {
    asm volatile("" : "+l"(at));
    return at;
}
DEVICE u32 hidden_until(u32 value, float known) {
    asm volatile("" : "+r"(value) : "f"(known));
    return value;
}

DEVICE u32 thread_x() { return threadIdx.x; }
DEVICE u32 thread_y() { return threadIdx.y; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }

DEVICE void barrier() { __syncthreads(); }

DEVICE u32 lane() {
    u32 id;
    asm("mov.u32 %0, %%laneid;" : "=r"(id));
    return id;
}

DEVICE i32 from_lane(i32 value, u32 source) { return __shfl_sync(0xffffffffu, value, (int)source); }
template <u32 bits>
DEVICE float across_four(float value) {
    return __shfl_xor_sync(0xffffffffu, value, (int)bits);
}
template <u32 number>
DEVICE float of_four(float value) {
    return __shfl_sync(0xffffffffu, value, (int)number, 4);
}

DEVICE float to_f32(f16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
DEVICE f16 to_f16(float f) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
DEVICE f16 f16_from_bits(u16 bits) {
    f16 h;
    h.bits = bits;
    return h;
}
DEVICE u16 f16_to_bits(f16 h) { return h.bits; }

DEVICE float fast_exp(float x) { return expf(x); }
// 2^x, to 2 ulp.
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float fast_log(float x) { return logf(x); }
DEVICE float fast_rsqrt(float x) { return rsqrtf(x); }
DEVICE float fast_rcp(float x) { return __frcp_rn(x); }
DEVICE float sqrt_f32(float x) { return sqrtf(x); }
DEVICE float max_f32(float a, float b) { return fmaxf(a, b); }
DEVICE float min_f32(float a, float b) { return fminf(a, b); }
DEVICE float abs_f32(float a) { return fabsf(a); }
DEVICE float round_f32(float a) { return rintf(a); }
DEVICE float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }

DEVICE float add_exact(float a, float b) { return __fadd_rn(a, b); }
DEVICE float mul_exact(float a, float b) { return __fmul_rn(a, b); }

DEVICE void shared_add(u64 *at, u64 value) { atomicAdd(at, value); }
DEVICE void shared_add(u32 *at, u32 value) { atomicAdd(at, value); }
DEVICE void shared_min(u32 *at, u32 value) { atomicMin(at, value); }

DEVICE u32 pick_bytes(u32 low, u32 high, u32 which) {
    const u32 nibbles = which | (which >> 4);
    return __byte_perm(low, high, __byte_perm(nibbles, 0, 0x4420));
}

DEVICE i32 dot4_i8(i32 a, i32 b, i32 c) {
    i32 d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE i32 dot4_u8_i8(u32 a, i32 b, i32 c) {
    i32 d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE float dot2_f16(u32 a, u32 b, float c) {
    c = fma_f32(to_f32(f16_from_bits((u16)a)), to_f32(f16_from_bits((u16)b)), c);
    return fma_f32(to_f32(f16_from_bits((u16)(a >> 16))), to_f32(f16_from_bits((u16)(b >> 16))), c);
}

#if __CUDA_ARCH__ >= 800
#define GPU_HAS_MMA 1
// c [16, 8] += a [16, 16] b [16, 8], halves in, f32 out. Lane l holds of a: rows l/4 and l/4 + 8, columns 2(l%4).. and
// 2(l%4) + 8..; of b: rows 2(l%4).. and 2(l%4) + 8.., column l/4; of c: rows l/4 and l/4 + 8, columns 2(l%4)..
DEVICE void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Eight rows of eight halves, two of a row in each lane, turned.
DEVICE u32 turn_8x8(u32 word) {
    u32 turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}
// 16 bytes from global to shared memory without registers in between; they have arrived after wait_copies.
DEVICE void copy_16(u32 *to, const u32 *from) {
    const u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `still` of the groups that end_copies closed are on their way.
template <u32 still>
DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(still) : "memory");
}
// Asks for the 128 bytes around an address: they come into the second cache.
DEVICE void bring_near(const u8 *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// Two halves at once.
DEVICE u32 sub_halves(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEVICE u32 mul_halves(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEVICE u32 fma_halves(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// The low halves of two words as one word, and the high ones.
DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
// 1 / x, to 1 ulp; zero for what is larger than 2^126.
DEVICE float quick_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Four 8x8 parts of shared memory, each turned; lanes 8i.. name the rows of part i.
DEVICE void load_turned(u32 (&out)[4], const f16 *row) {
    const u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}

// The same interface as AMD's matrix units above: a tile is two products of 16 by 8.
#define GPU_HAS_TILES 1
#define MMA_SUMS 8
struct MmaFactor {
    u32 at[4];
};
struct MmaSum {
    float at[2][4];
};
DEVICE MmaFactor mma_load(const f16 *rows, u32 stride) {
    MmaFactor factor;
    const u32 row = lane() / 4, column = lane() % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) factor.at[i] = *(const u32 *)(rows + (row + i % 2 * 8) * stride + column + i / 2 * 8);
    return factor;
}
DEVICE void mma_clear(MmaSum &sum) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) sum.at[i / 4][i % 4] = 0.0f;
}
DEVICE void mma(MmaSum &sum, const MmaFactor &a, const MmaFactor &b) {
    mma_16x8x16(sum.at[0], a.at, b.at[0], b.at[2]);
    mma_16x8x16(sum.at[1], a.at, b.at[1], b.at[3]);
}
DEVICE float mma_sum(const MmaSum &sum, u32 i) { return sum.at[i / 4][i % 4]; }
DEVICE u32 mma_row(u32 i) { return lane() / 4 + i % 4 / 2 * 8; }
DEVICE u32 mma_column(u32 i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }
#endif

#endif

// From here on the same words serve both.

static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2, "stored halves are 2 bytes");

// Reads and writes of memory stay on their side of it.
DEVICE void keep_order() { asm volatile("" ::: "memory"); }

DEVICE float to_f32(bf16 h) { return bits_as<float>((u32)h.bits << 16); }
// Round to nearest even; a NaN stays a NaN.
DEVICE bf16 to_bf16(float f) {
    u32 bits = bits_as<u32>(f);
    u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    bf16 h;
    h.bits = (u16)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded >> 16);
    return h;
}
DEVICE float to_f32(float f) { return f; }

// Round an f32 into whatever the target holds.
DEVICE void set(float &to, float f) { to = f; }
DEVICE void set(f16 &to, float f) { to = to_f16(f); }
DEVICE void set(bf16 &to, float f) { to = to_bf16(f); }

// Two numbers as halves in a word, the first one low.
DEVICE u32 pack_halves(float low, float high) {
#if defined(GPU_HAS_MMA)
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return (u32)f16_to_bits(to_f16(low)) | ((u32)f16_to_bits(to_f16(high)) << 16);
#endif
}
DEVICE void unpack_halves(u32 word, float &low, float &high) {
#if defined(GPU_NVIDIA)
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(word));
#else
    low = to_f32(f16_from_bits((u16)word));
    high = to_f32(f16_from_bits((u16)(word >> 16)));
#endif
}

DEVICE float from_lane(float value, u32 source) { return bits_as<float>(from_lane(bits_as<i32>(value), source)); }
DEVICE float across(float value, u32 mask) { return from_lane(value, lane() ^ mask); }
DEVICE i32 across(i32 value, u32 mask) { return from_lane(value, lane() ^ mask); }

// The result in every lane of the wave, or of each group of `width` lanes (a power of two).
template <u32 width = GPU_WAVE>
DEVICE float wave_sum(float value) {
#pragma unroll
    for (u32 mask = width / 2; mask > 0; mask >>= 1) value += across(value, mask);
    return value;
}
template <u32 width = GPU_WAVE>
DEVICE i32 wave_sum(i32 value) {
#pragma unroll
    for (u32 mask = width / 2; mask > 0; mask >>= 1) value += across(value, mask);
    return value;
}
template <u32 width = GPU_WAVE>
DEVICE float wave_max(float value) {
#pragma unroll
    for (u32 mask = width / 2; mask > 0; mask >>= 1) value = max_f32(value, across(value, mask));
    return value;
}

// The waves' values of a block of `threads` threads combined, in every thread. `scratch` holds a number per wave and may be
// used again after the call.
template <u32 threads, class Combine>
DEVICE float over_waves(float value, float *scratch, Combine combine) {
    static_assert(threads % GPU_WAVE == 0, "whole waves");
    constexpr u32 n_waves = threads / GPU_WAVE;
    if (n_waves == 1) return value;
    if (lane() == 0) scratch[thread_x() / GPU_WAVE] = value;
    barrier();
    float all = scratch[0];
#pragma unroll
    for (u32 i = 1; i < n_waves; ++i) all = combine(all, scratch[i]);
    barrier();
    return all;
}
template <u32 threads>
DEVICE float block_sum(float value, float *scratch) {
    return over_waves<threads>(wave_sum(value), scratch, [](float a, float b) { return a + b; });
}
template <u32 threads>
DEVICE float block_max(float value, float *scratch) {
    return over_waves<threads>(wave_max(value), scratch, [](float a, float b) { return max_f32(a, b); });
}

// N numbers moved with one instruction where the hardware has it (up to 16 bytes). The address must be a
// multiple of their size together.
template <class T, u32 N>
struct alignas(sizeof(T) * N) Pack {
    T at[N];
};
template <u32 N, class T>
DEVICE Pack<T, N> load(const T *from) {
    return *(const Pack<T, N> *)from;
}
// The same for what is read once: it does not push anything out of the first cache. Never moved across a wait.
template <u32 N, class T>
DEVICE Pack<T, N> load_once(const T *from) {
#if defined(GPU_NVIDIA)
    if constexpr (sizeof(T) * N == 16) {
        Pack<u32, 4> words;
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                     : "l"(from));
        return bits_as<Pack<T, N>>(words);
    }
#endif
    return load<N>(from);
}
template <u32 N, class T>
DEVICE void store(T *to, const Pack<T, N> &pack) {
    *(Pack<T, N> *)to = pack;
}
