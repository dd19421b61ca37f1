// embed: rows of the embedding table, and whole matrices for the vendor's products, decoded exactly.
#include "quant.h"

#define THREADS 256

template <class T>
DEVICE void decode_row(const u8 *table, u32 n_rows, u32 n_cols, u32 row, u32 first, u32 step, T *out) {
#if IS_PLAIN
    const Number *from = (const Number *)table + (u64)row * n_cols;
    for (u32 c = first; c < n_cols; c += step) set(out[c], to_f32(from[c]));
#else
    const u32 n_groups = n_cols / GROUP;
    for (u32 g = first; g < n_groups; g += step) {
        const Group group = unpack(load_group(table, n_rows, n_groups, row, g), g);
        if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (u32 i = 0; i < 32; i += 8) {
                Pack<T, 8> eight;
#pragma unroll
                for (u32 k = 0; k < 8; ++k) set(eight.at[k], weight_of(group, i + k));
                store<8>(out + g * GROUP + i, eight);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < 32; ++i) set(out[g * GROUP + i], weight_of(group, i));
        }
    }
#endif
}

// out[i] = table[tokens[i]], one block a token.
KERNEL(THREADS)
embed(const u8 *__restrict__ table, const u32 *ARRIVING tokens, float *__restrict__ out, u32 n_vocab, u32 n_cols) {
    let_next_start();
    wait_for_inputs();
    const u32 token = tokens[block_x()];
    decode_row(table, n_vocab, n_cols, token, thread_x(), THREADS, out + (u64)block_x() * n_cols);
}

// Rows first_row.. as f16: four rows a block, a quarter of the threads each.
KERNEL(THREADS)
decode_f16(const u8 *__restrict__ table, f16 *__restrict__ out, u32 n_rows, u32 n_cols, u32 first_row, u32 n_out_rows) {
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x() * 4 + thread_x() / 64;
    if (row < n_out_rows)
        decode_row(table, n_rows, n_cols, first_row + row, thread_x() % 64, 64, out + (u64)row * n_cols);
}

KERNEL(THREADS)
decode_f32(const u8 *__restrict__ table, float *__restrict__ out, u32 n_rows, u32 n_cols, u32 first_row, u32 n_out_rows) {
    let_next_start();
    wait_for_inputs();
    const u32 row = block_x() * 4 + thread_x() / 64;
    if (row < n_out_rows)
        decode_row(table, n_rows, n_cols, first_row + row, thread_x() % 64, 64, out + (u64)row * n_cols);
}
