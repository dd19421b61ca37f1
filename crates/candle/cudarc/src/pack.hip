// A tensor of four dimensions that lies anyhow, copied to one that is dense, for libraries that take no strides.
#include "prelude.h"

#define PACK(T)                                                                                                        \
    KERNEL(256)                                                                                                        \
    pack_##T(const T *from, T *to, u32 n, u32 channels, u32 height, u32 width, u64 step_batch, u64 step_channel,       \
             u64 step_row, u64 step_column) {                                                                          \
        const u32 i = block_x() * 256 + thread_x();                                                                    \
        if (i >= n) return;                                                                                            \
        const u32 column = i % width, row = i / width % height, channel = i / width / height % channels;               \
        const u32 batch = i / width / height / channels;                                                               \
        to[i] = from[batch * step_batch + channel * step_channel + row * step_row + column * step_column];             \
    }

//@ pack_$T = PACK($T) ; T: u16 u32
