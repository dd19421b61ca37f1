// low_rank: out[r] = gain * (out[r] + scale * B (A x[r])), each row with the matrices of the adapter that it belongs to, or
// none. An entry of the table is {rank, where A starts, where B starts, where the gains start, scale, whether A and B
// are f16}; places count floats. With EXPERTS, rows are pairs of a row and an expert, and the table has the slots of one expert
// after another.
#include "prelude.h"

#define THREADS 256
#define NONE 0xffffffffu

struct Entry {
    u32 rank, a, b, gain;
    float scale;
    u32 is_half;
};

DEVICE Entry entry_of(const u32 *entries, u32 slot) {
    const u32 *words = entries + 6 * slot;
    return {words[0], words[1], words[2], words[3], bits_as<float>(words[4]), words[5]};
}

// The number at a place of a matrix that starts at `start`.
DEVICE float number(const float *numbers, const Entry &entry, u32 start, u64 at) {
    const float *matrix = numbers + start;
    return entry.is_half ? to_f32(((const f16 *)matrix)[at]) : matrix[at];
}

// The place in the table of what changes a row, or NONE.
DEVICE u32 place_of(const u32 *slots, const u32 *chosen, u32 row, u32 n_used, u32 n_slots) {
#ifdef EXPERTS
    const u32 slot = slots[row / n_used];
    return slot == NONE ? NONE : chosen[row] * n_slots + slot;
#else
    return slots[row];
#endif
}

// hidden[r, k] = scale * sum_i A[k, i] * x[r, i]: a block a row, a wave a number.
KERNEL(THREADS)
low_rank_in(const float *ARRIVING x, const float *__restrict__ numbers, const u32 *__restrict__ entries,
            const u32 *ARRIVING slots, const u32 *ARRIVING chosen, float *__restrict__ hidden, u32 n_in, u32 max_rank,
            u32 share, u32 n_used, u32 n_slots) {
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x(), slot = place_of(slots, chosen, row, n_used, n_slots);
    if (slot == NONE) return;
    const Entry entry = entry_of(entries, slot);
    const float *from = x + (u64)(row / share) * n_in;
    for (u32 k = thread_x() / GPU_WAVE; k < entry.rank; k += THREADS / GPU_WAVE) {
        float sum = 0.0f;
        for (u32 i = lane(); i < n_in; i += GPU_WAVE)
            sum = fma_f32(number(numbers, entry, entry.a, (u64)k * n_in + i), from[i], sum);
        sum = wave_sum(sum);
        if (lane() == 0) hidden[(u64)row * max_rank + k] = entry.scale * sum;
    }
}

// out[r, o] = gain[o] * (out[r, o] + sum_k B[k, o] * hidden[r, k]): a thread a number.
KERNEL(THREADS)
low_rank_out(const float *ARRIVING hidden, const float *__restrict__ numbers, const u32 *__restrict__ entries,
             const u32 *ARRIVING slots, const u32 *ARRIVING chosen, float *__restrict__ out, u32 n_out, u32 max_rank,
             u32 n_used, u32 n_slots) {
    let_next_start();
    wait_for_inputs();
    const u32 row = block_y(), slot = place_of(slots, chosen, row, n_used, n_slots), o = block_x() * THREADS + thread_x();
    if (slot == NONE || o >= n_out) return;
    const Entry entry = entry_of(entries, slot);
    if (entry.rank == 0) return;
    const float *from = hidden + (u64)row * max_rank;
    float sum = out[(u64)row * n_out + o];
    for (u32 k = 0; k < entry.rank; ++k) sum = fma_f32(number(numbers, entry, entry.b, (u64)k * n_out + o), from[k], sum);
    out[(u64)row * n_out + o] = entry.gain == NONE ? sum : sum * numbers[entry.gain + o];
}
