// Products of quantised weights (quantized.h) with many columns: a block of 128 threads makes a tile of 64 rows by 64 columns,
// and takes two groups of 32 weights at a time through shared memory.
//
// The integers of weights and activations are exact as halves, and so are f32 sums of their products: the matrix units give
// the same sums as integer products would. Chips without these units take four bytes at a time. Sums of groups are added in
// order, so a column's result does not depend on its neighbours.

#define TILE 64
#define TILE_GROUPS 2

#if defined(GPU_HAS_TILES) && !defined(WITHOUT_TILES)
// Of a row of halves in shared memory: two groups, and 16 bytes more so that rows begin in different banks.
#define TILE_ROW (TILE_GROUPS * 32 + 8)
typedef f16 TileNumber;
// Eight words of signed bytes as 32 halves. With 0x64 above it, a byte is a half of 1024 and more.
DEVICE void put_group(f16 *to, const i32 (&q)[8]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        Pack<u32, 4> words;
#pragma unroll
        for (u32 j = 0; j < 2; ++j) {
            const u32 bytes = (u32)q[2 * i + j] ^ 0x80808080u;
            words.at[2 * j] = sub_halves(pick_bytes(bytes, 0x64646464u, 0x04010400u), 0x64806480u);
            words.at[2 * j + 1] = sub_halves(pick_bytes(bytes, 0x64646464u, 0x04030402u), 0x64806480u);
        }
        store<4>((u32 *)to + 4 * i, words);
    }
}
#define PUT_AT(row, group) ((row) * TILE_ROW + (group) * 32)
#else
#define TILE_ROW (TILE_GROUPS * 8 + 1)
typedef i32 TileNumber;
DEVICE void put_group(i32 *to, const i32 (&q)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) to[i] = q[i];
}
#define PUT_AT(row, group) ((row) * TILE_ROW + (group) * 8)
#endif

// What a block shares: integers of its rows and columns, then for each group, or each half of one, scales and minimums of
// rows, scales of columns, and what zero points and minimums are multiplied with.
template <u32 n_scales>
struct alignas(16) Tile {
    TileNumber a[TILE * TILE_ROW], b[TILE * TILE_ROW];
    f32 scale[TILE_GROUPS * n_scales][TILE], minimum[TILE_GROUPS * n_scales][TILE];
    f32 d[TILE_GROUPS][TILE], s[TILE_GROUPS * n_scales][TILE];
};

// A thread's share of the next step: one group of a row and one of a column.
struct TileStep {
    Group g;
    Column y;
};
template <class Q>
DEVICE TileStep tile_step(const u8 *row, bool has_row, const u8 *column, bool has_column, u32 at) {
    TileStep step;
    if (has_row) {
        Q::group(row + (usize)(at / (Q::size / 32)) * Q::bytes, at % (Q::size / 32), step.g);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) step.g.q[i] = 0;
        step.g.d[0] = step.g.d[1] = step.g.m[0] = step.g.m[1] = 0.0f;
    }
    if (has_column) {
        step.y = column_at(column + (usize)at * Q8_1_BYTES);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) step.y.q[i] = 0;
        step.y.d = step.y.s = 0.0f;
    }
    return step;
}
template <class Q>
DEVICE void put_step(Tile<Q::scales> &tile, const TileStep &step, u32 i, u32 group) {
    put_group(tile.a + PUT_AT(i, group), step.g.q);
    put_group(tile.b + PUT_AT(i, group), step.y.q);
    tile.d[group][i] = step.y.d;
#pragma unroll
    for (u32 h = 0; h < Q::scales; ++h) {
        const u32 at = group * Q::scales + h;
        tile.scale[at][i] = step.g.d[h], tile.minimum[at][i] = step.g.m[h];
        if (Q::with_sums) tile.s[at][i] = step.y.s;
        if (!Q::has_minimum) continue;
        i32 ones = 0;
#pragma unroll
        for (u32 j = 0; j < 8 / Q::scales; ++j) ones = dot4_i8(0x01010101, step.y.q[h * (8 / Q::scales) + j], ones);
        tile.s[at][i] = (f32)ones;
    }
}
// A group's share of one result: `worth` (quantized.h) of a sum of products.
template <class Q>
DEVICE f32 tile_worth(f32 products, f32 scale, f32 minimum, f32 d, f32 s) {
    if (!Q::with_sums) return d * (Q::has_minimum ? scale * products - minimum * s : scale * products);
    return scale * (products * d - (f32)Q::zero * s);
}

#if defined(GPU_HAS_TILES) && !defined(WITHOUT_TILES)
#define TILE_WAVES (128 / GPU_WAVE)
// 16-row strips of a wave, and its sums: strips by four tiles of columns.
#define TILE_STRIPS (TILE / 16 / TILE_WAVES)
struct TileSums {
    f32 at[TILE_STRIPS][TILE / 16][MMA_SUMS];
};
DEVICE u32 strip_row(u32 thread, u32 strip) { return (thread / GPU_WAVE * TILE_STRIPS + strip) * 16; }
template <class Q>
DEVICE void add_tile(TileSums &sums, const Tile<Q::scales> &tile, u32 thread, u32 n_columns) {
    constexpr u32 n_steps = 2 / Q::scales;
#pragma unroll
    for (u32 at = 0; at < TILE_GROUPS * Q::scales; ++at) {
        const u32 group = at / Q::scales, start = group * 32 + at % Q::scales * 16;
#pragma unroll
        for (u32 strip = 0; strip < TILE_STRIPS; ++strip) {
            const u32 row = strip_row(thread, strip);
            MmaFactor a[n_steps];
            f32 scale[MMA_SUMS], minimum[MMA_SUMS];
#pragma unroll
            for (u32 i = 0; i < n_steps; ++i) a[i] = mma_load(tile.a + row * TILE_ROW + start + 16 * i, TILE_ROW);
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                scale[i] = tile.scale[at][row + mma_row(i)], minimum[i] = tile.minimum[at][row + mma_row(i)];
            }
#pragma unroll
            for (u32 c = 0; c < TILE / 16; ++c) {
                if (c * 16 >= n_columns) break;
                MmaSum products;
                mma_clear(products);
#pragma unroll
                for (u32 i = 0; i < n_steps; ++i) {
                    mma(products, a[i], mma_load(tile.b + c * 16 * TILE_ROW + start + 16 * i, TILE_ROW));
                }
#pragma unroll
                for (u32 i = 0; i < MMA_SUMS; ++i) {
                    const u32 column = c * 16 + mma_column(i);
                    sums.at[strip][c][i] +=
                        tile_worth<Q>(mma_sum(products, i), scale[i], minimum[i], tile.d[group][column], tile.s[at][column]);
                }
            }
        }
    }
}
DEVICE void clear(TileSums &sums) {
#pragma unroll
    for (u32 strip = 0; strip < TILE_STRIPS; ++strip) {
#pragma unroll
        for (u32 i = 0; i < TILE / 16 * MMA_SUMS; ++i) sums.at[strip][i / MMA_SUMS][i % MMA_SUMS] = 0.0f;
    }
}
// Each sum with its row and column in the tile.
template <class Each>
DEVICE void each_sum(const TileSums &sums, u32 thread, Each each) {
#pragma unroll
    for (u32 strip = 0; strip < TILE_STRIPS; ++strip) {
#pragma unroll
        for (u32 c = 0; c < TILE / 16; ++c) {
#pragma unroll
            for (u32 i = 0; i < MMA_SUMS; ++i) {
                each(strip_row(thread, strip) + mma_row(i), c * 16 + mma_column(i), sums.at[strip][c][i]);
            }
        }
    }
}
#else
// A thread's rows are `thread % 8` and every eighth after it, its columns `thread / 8` and every sixteenth.
struct TileSums {
    f32 at[8][4];
};
template <class Q>
DEVICE void add_tile(TileSums &sums, const Tile<Q::scales> &tile, u32 thread, u32 n_columns) {
    constexpr u32 n_words = 8 / Q::scales;
#pragma unroll
    for (u32 at = 0; at < TILE_GROUPS * Q::scales; ++at) {
        const u32 group = at / Q::scales, start = group * 8 + at % Q::scales * n_words;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 column = thread / 8 + 16 * j;
            if (column >= n_columns) break;
            i32 b[n_words];
#pragma unroll
            for (u32 i = 0; i < n_words; ++i) b[i] = tile.b[column * TILE_ROW + start + i];
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const u32 row = thread % 8 + 8 * i;
                i32 products = 0;
#pragma unroll
                for (u32 k = 0; k < n_words; ++k) products = dot4_i8(tile.a[row * TILE_ROW + start + k], b[k], products);
                sums.at[i][j] += tile_worth<Q>((f32)products, tile.scale[at][row], tile.minimum[at][row],
                                               tile.d[group][column], tile.s[at][column]);
            }
        }
    }
}
DEVICE void clear(TileSums &sums) {
#pragma unroll
    for (u32 i = 0; i < 32; ++i) sums.at[i / 4][i % 4] = 0.0f;
}
template <class Each>
DEVICE void each_sum(const TileSums &sums, u32 thread, Each each) {
#pragma unroll
    for (u32 i = 0; i < 32; ++i) each(thread % 8 + i / 4 * 8, thread / 8 + i % 4 * 16, sums.at[i / 4][i % 4]);
}
#endif

// `step_x` and `step_y` count blocks from row to row and from column to column.
template <class Q>
DEVICE void product_tile(const u8 *x, const u8 *y, f32 *dst, u32 n_weights, u32 n_rows, u32 n_columns, u32 step_x, u32 step_y,
                         u32 step_dst) {
    __shared__ Tile<Q::scales> tile;
    const u32 thread = thread_y() * 32 + thread_x(), i = thread / TILE_GROUPS, group = thread % TILE_GROUPS;
    const u32 first_row = block_x() * TILE, first_column = block_y() * TILE;
    const u32 rows = n_rows - first_row, columns = n_columns - first_column;
    const u8 *row = x + (usize)(first_row + i) * step_x * Q::bytes;
    const u8 *column = y + (usize)(first_column + i) * step_y * Q8_1_BYTES;
    const u32 n_groups = n_weights / 32;
    TileSums sums;
    clear(sums);
    TileStep next = tile_step<Q>(row, i < rows && group < n_groups, column, i < columns && group < n_groups, group);
    for (u32 at = group; at - group < n_groups; at += TILE_GROUPS) {
        barrier();
        put_step<Q>(tile, next, i, group);
        barrier();
        // On its way while this step is computed.
        const bool more = at + TILE_GROUPS < n_groups;
        next = tile_step<Q>(row, i < rows && more, column, i < columns && more, at + TILE_GROUPS);
        add_tile<Q>(sums, tile, thread, columns);
    }
    each_sum(sums, thread, [&](u32 r, u32 c, f32 sum) {
        if (r < rows && c < columns) dst[(usize)(first_column + c) * step_dst + first_row + r] = sum;
    });
}
#define MMQ(Q)                                                                                                         \
    KERNEL(128)                                                                                                        \
    mmq_##Q(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_columns, i32 step_x, i32 step_y,      \
            i32 step_dst) {                                                                                            \
        product_tile<Q>(x, y, dst, (u32)n_weights, (u32)n_rows, (u32)n_columns, (u32)step_x, (u32)step_y,              \
                        (u32)step_dst);                                                                                \
    }

//@ mmq_$Q = MMQ($Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
