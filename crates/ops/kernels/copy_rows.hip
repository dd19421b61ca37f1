// gather_rows: to[i] = from[rows[i]]; scatter_rows: to[rows[i]] = from[i]. Words of any meaning, one block a row.
#include "prelude.h"

#define THREADS 256

KERNEL(THREADS)
gather_rows(const u32 *__restrict__ from, const u32 *__restrict__ rows, u32 *__restrict__ to, u32 n_words) {
    const u32 *row = from + (u64)rows[block_x()] * n_words;
    u32 *out = to + (u64)block_x() * n_words;
    for (u32 i = thread_x(); i < n_words; i += THREADS) out[i] = row[i];
}

KERNEL(THREADS)
scatter_rows(const u32 *__restrict__ from, const u32 *__restrict__ rows, u32 *__restrict__ to, u32 n_words) {
    const u32 *row = from + (u64)block_x() * n_words;
    u32 *out = to + (u64)rows[block_x()] * n_words;
    for (u32 i = thread_x(); i < n_words; i += THREADS) out[i] = row[i];
}
