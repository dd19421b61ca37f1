// numbers: what families do to every number of a matrix by itself, in place.
#include "gate.h"

#define THREADS 256

DEVICE u64 place() { return (u64)block_x() * THREADS + thread_x(); }

KERNEL(THREADS)
scale(float *__restrict__ x, u64 n, float factor) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] = factor == 0.0f ? 0.0f : x[i] * factor;
}

KERNEL(THREADS)
add_scaled(float *__restrict__ x, const float *ARRIVING y, u64 n, float factor) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] = fma_f32(factor, y[i], x[i]);
}

KERNEL(THREADS)
add_bias(float *__restrict__ x, const float *__restrict__ bias, u64 n, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] += bias[i % n_cols];
}

// x[r, c] *= factors[r]
KERNEL(THREADS)
scale_rows(float *__restrict__ x, const float *__restrict__ factors, u64 n, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] *= factors[i / n_cols];
}

KERNEL(THREADS)
softcap(float *__restrict__ x, u64 n, float cap) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] = cap * tanh_f32(x[i] / cap);
}

KERNEL(THREADS)
clamp(float *__restrict__ x, u64 n, float limit) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] = max_f32(min_f32(x[i], limit), -limit);
}

KERNEL(THREADS)
activate(float *__restrict__ x, u64 n, u32 kind, float alpha_p, float alpha_n, float beta, float eps) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) x[i] = kind == XIELU ? xielu({alpha_p, alpha_n, beta, eps}, x[i]) : act(kind, x[i]);
}

// gate = act(gate) * up
KERNEL(THREADS)
glu(float *__restrict__ gate, const float *ARRIVING up, u64 n, u32 kind, float alpha, float limit) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) gate[i] = gated({kind, alpha, limit}, gate[i], up[i]);
}

// out[r] = x[r][first..first + n_out]; n numbers in all
KERNEL(THREADS)
slice_columns(const float *ARRIVING x, float *__restrict__ out, u64 n, u32 n_in, u32 n_out, u32 first) {
    let_next_start();
    wait_for_inputs();
    const u64 i = place();
    if (i < n) out[i] = x[i / n_out * n_in + first + i % n_out];
}
