// Half a group of a weight row as it lies in memory, and as halves in shared memory: what matmul_units.hip and
// experts_units.hip read their weights with.
#pragma once
#include "quant.h"

#if defined(GPU_HAS_TILES) && (FORMAT == FORMAT_F16 || !IS_PLAIN)
#define HAS_UNIT_WEIGHTS 1

#if FORMAT == FORMAT_F16
struct Part {
    Pack<u32, 4> at[2];
};
DEVICE Part load_part(const u8 *w, u32, u32 n_groups, u32 row, u32 g, u32 half) {
    const u32 *from = (const u32 *)(w + ((u64)row * n_groups + g) * 64 + half * 32);
    return {{load<4>(from), load<4>(from + 4)}};
}
DEVICE void store_part(f16 *to, const Part &part, u32, u32) {
    store<4>((u32 *)to, part.at[0]);
    store<4>((u32 *)(to + 8), part.at[1]);
}
#else
typedef Raw Part;
DEVICE Part load_part(const u8 *w, u32 n_out, u32 n_groups, u32 row, u32 g, u32) {
    return load_group(w, n_out, n_groups, row, g);
}
DEVICE void store_part(f16 *to, const Part &part, u32 g, u32 half) {
    const Group group = unpack(part, g);
    u32 words[16];
#pragma unroll
    for (u32 i = 0; i < 16; ++i) words[i] = pack_halves(weight_of(group, 2 * i), weight_of(group, 2 * i + 1));
    // Both halves are made and one is kept: an index that is not constant would put the words into scratch memory.
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        Pack<u32, 4> four;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) four.at[k] = half ? words[8 + 4 * i + k] : words[4 * i + k];
        store<4>((u32 *)(to + 8 * i), four);
    }
}
#endif

#endif
