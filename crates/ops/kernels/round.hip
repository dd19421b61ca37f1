// round: activations for the integer products (round.h says what they become). A lane a number.
#include "gate.h"
#include "round.h"

#define THREADS 256

KERNEL(THREADS)
round_rows(const float *ARRIVING x, u8 *__restrict__ q, float *__restrict__ scales, u32 n_groups, u32 n_all) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    const float value = i < n_all ? x[(u64)i * 32 + k] : 0.0f;
    round_number(value, 0.0f, i, k, n_groups, i < n_all, q, scales);
}

// gate = silu(gate) * up, rounded; nothing else reads it.
KERNEL(THREADS)
swiglu_round(const float *ARRIVING gate, const float *ARRIVING up, u8 *__restrict__ q,
             float *__restrict__ scales, u32 n_groups, u32 n_all) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    float value = 0.0f;
    if (i < n_all) {
        const float g = gate[(u64)i * 32 + k];
        value = g / (1.0f + fast_exp(-g)) * up[(u64)i * 32 + k];
    }
    round_number(value, 0.0f, i, k, n_groups, i < n_all, q, scales);
}

// The same with any gate.
KERNEL(THREADS)
gated_round(const float *ARRIVING gate, const float *ARRIVING up, u8 *__restrict__ q, float *__restrict__ scales, u32 n_groups,
            u32 n_all, u32 kind, float alpha, float limit) {
    let_next_start();
    wait_for_inputs();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    const u64 at = (u64)i * 32 + k;
    const float value = i < n_all ? gated({kind, alpha, limit}, gate[at], up[at]) : 0.0f;
    round_number(value, 0.0f, i, k, n_groups, i < n_all, q, scales);
}

// x * w, rounded, with the sums of squares of x: the product divides by their mean's root at its end (matvec.hip), so that
// no block waits for a whole row.
KERNEL(THREADS)
norm_round(const float *ARRIVING x, const float *__restrict__ w, u8 *__restrict__ q, float *__restrict__ scales, u32 n_groups,
           u32 n_all) {
    let_next_start();
    const u32 i = block_x() * (THREADS / 32) + thread_x() / 32, k = thread_x() % 32;
    const float weight = i < n_all ? w[(u64)(i % n_groups) * 32 + k] : 0.0f;
    wait_for_inputs();
    const float value = i < n_all ? x[(u64)i * 32 + k] : 0.0f;
    const float squares = wave_sum<32>(value * value);
    round_number(value * weight, squares, i, k, n_groups, i < n_all, q, scales);
}
