// Runs every word of prelude.h once, so that a test can compare each with the host's arithmetic.
// One block of two waves; results land at fixed places of `out` and `ints`.
#include "prelude.h"

#define THREADS (2 * GPU_WAVE)

KERNEL(THREADS)
prelude_check(const float *__restrict__ x, const u32 *__restrict__ words, f16 *__restrict__ halves,
              bf16 *__restrict__ brains, float *__restrict__ out, i32 *__restrict__ ints) {
    __shared__ float scratch[THREADS / GPU_WAVE];
    const u32 t = thread_x();
    const float v = x[t];
    set(halves[t], v);
    set(brains[t], v);
    float *o = out + t * 16;  // [THREADS, 16]
    o[0] = to_f32(halves[t]);
    o[1] = to_f32(brains[t]);
    o[2] = wave_sum(v);
    o[3] = wave_max(v);
    o[4] = block_sum<THREADS>(v, scratch);
    o[5] = block_max<THREADS>(v, scratch);
    o[6] = across(v, 1u);
    o[7] = from_lane(v, GPU_WAVE - 1 - lane());
    o[8] = fast_exp(v * 0.01f);
    o[9] = fast_rsqrt(abs_f32(v) + 1.0f);
    o[10] = fast_rcp(abs_f32(v) + 1.0f);
    o[11] = dot2_f16(words[t * 2], words[t * 2 + 1], 1.0f);
    o[12] = wave_sum<8>(v);
    o[13] = fast_log(abs_f32(v) + 1.0f);
    o[14] = sqrt_f32(abs_f32(v));
    o[15] = round_f32(v) + min_f32(v, 0.5f);
    i32 *n = ints + t * 4;  // [THREADS, 4]
    n[0] = dot4_i8((i32)words[t * 2], (i32)words[t * 2 + 1], (i32)t);
    n[1] = dot4_u8_i8(words[t * 2], (i32)words[t * 2 + 1], (i32)t);
    n[2] = wave_sum((i32)t);
    n[3] = (i32)(lane() + thread_y() + block_x() + block_y() + block_z());
}
