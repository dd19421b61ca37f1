// left_f16: the left side of the vendor's products as f16, times `scale`: rows as they are, rows that are gated, rows that
// are normed. One pass over what they are made of.
#include "rmsnorm.h"

#define THREADS 256
#define AT_ONCE 8

// out[i] = f16(value(i) * scale) for this thread's numbers; `eight` loads as many at once, where all of them are inside.
template <class Value, class Values>
DEVICE void write_halves(f16 *out, u64 n, float scale, Value value, Values eight) {
    const u64 at = ((u64)block_x() * THREADS + thread_x()) * AT_ONCE;
    if (at + AT_ONCE <= n) {
        float v[AT_ONCE];
        eight(v, at);
        Pack<u32, 4> words;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words.at[i] = pack_halves(v[2 * i] * scale, v[2 * i + 1] * scale);
        store<4>((u32 *)(out + at), words);
        return;
    }
    for (u64 i = at; i < n; ++i) out[i] = to_f16(value(i) * scale);
}

DEVICE void load_eight(float (&to)[AT_ONCE], const float *from) {
    const Pack<float, 4> a = load<4>(from), b = load<4>(from + 4);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) to[i] = a.at[i], to[4 + i] = b.at[i];
}

KERNEL(THREADS)
rows_f16(const float *ARRIVING x, f16 *__restrict__ out, u64 n, float scale) {
    let_next_start();
    wait_for_inputs();
    write_halves(out, n, scale, [&](u64 i) { return x[i]; }, [&](float(&v)[AT_ONCE], u64 at) { load_eight(v, x + at); });
}

DEVICE float gated(float gate, float up) { return gate / (1.0f + fast_exp(-gate)) * up; }

KERNEL(THREADS)
swiglu_f16(const float *ARRIVING gate, const float *ARRIVING up, f16 *__restrict__ out, u64 n, float scale) {
    let_next_start();
    wait_for_inputs();
    write_halves(out, n, scale, [&](u64 i) { return gated(gate[i], up[i]); },
                 [&](float(&v)[AT_ONCE], u64 at) {
                     float u[AT_ONCE];
                     load_eight(v, gate + at);
                     load_eight(u, up + at);
#pragma unroll
                     for (u32 i = 0; i < AT_ONCE; ++i) v[i] = gated(v[i], u[i]);
                 });
}

// A block a row.
KERNEL(NORM_THREADS)
rmsnorm_f16(const float *ARRIVING x, const float *__restrict__ w, f16 *__restrict__ y, u32 n_cols, float eps, float scale) {
    let_next_start();
    const float *row = x + (u64)block_x() * n_cols;
    f16 *out = y + (u64)block_x() * n_cols;
    norm_row(row, w, n_cols, eps, scale,
             [&](u32 c, const Pack<float, 4> &v) {
                 const Pack<u32, 2> words = {{pack_halves(v.at[0], v.at[1]), pack_halves(v.at[2], v.at[3])}};
                 store<2>((u32 *)(out + c), words);
             },
             [&](u32 c, float v) { out[c] = to_f16(v); });
}
