// swiglu: gate = silu(gate) * up, element by element.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
swiglu(float *__restrict__ gate, const float *ARRIVING up, u64 n) {
    let_next_start();
    wait_for_inputs();
    const u64 i = (u64)block_x() * THREADS + thread_x();
    if (i >= n) return;
    const float g = gate[i];
    gate[i] = g / (1.0f + fast_exp(-g)) * up[i];
}
