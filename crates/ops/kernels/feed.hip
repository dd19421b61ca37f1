// feed: the token of each row, given by the host or taken from where the step before left it. One thread a row.
#include "prelude.h"

#define THREADS 256
#define GIVEN 0xffffffffu
#define NOT_NUMBERS 0xffffffffu

// sources: GIVEN, or an index of `chosen`. A choice that failed is replaced by token 0: nobody reads that row.
KERNEL(THREADS)
feed(const u32 *__restrict__ given, const u32 *__restrict__ sources, const u32 *__restrict__ chosen,
     u32 *__restrict__ out, u32 n_rows) {
    const u32 row = block_x() * THREADS + thread_x();
    if (row >= n_rows) return;
    const u32 source = sources[row];
    const u32 token = source == GIVEN ? given[row] : chosen[source];
    out[row] = token == NOT_NUMBERS ? 0 : token;
}
