// What the kernels of a mixture agree on: the list of tiles that experts_group.hip makes, and how activations lie.
//
// Rows are grouped by expert: `order` lists the pairs of row and expert, expert by expert; a position is a place in that
// list. A tile is some positions of one expert. tiles[0] counts them; tile i is four words from 4 + 4 i on.
#pragma once
#include "prelude.h"

#define X_DIVISOR 16.0f
// Activations are rows of halves, padded with zeros to steps of so many columns.
#define STEP_COLUMNS 128

// How the halves of a row lie: as they are; or, in steps of four groups of 32, as [quarter, group, 8 halves], the eight in
// order (f16 weights) or in the order in which packed weights fall out of their words (mma_weights.h).
// Hopper's units want the words of the four groups turned: [quarter, word, group, 2 halves].
#define IN_ORDER 0
#define IN_QUARTERS 1
#define AS_PACKED 2
#define IN_QUARTERS_TURNED 3
#define AS_PACKED_TURNED 4

struct ExpertTile {
    u32 expert, first, n;
};

DEVICE ExpertTile tile_at(const u32 *tiles, u32 i) {
    const Pack<u32, 4> words = load<4>(tiles + 4 + 4 * i);
    return {words.at[0], words.at[1], words.at[2]};
}

// Which of a group's 32 columns stands `i`-th of the eight of a quarter.
DEVICE u32 column_in(bool is_packed, u32 quarter, u32 i) {
    return is_packed ? 4 * quarter + (i & 4) * 4 + ((i & 1) << 1) + ((i >> 1) & 1) : 8 * quarter + i;
}

// Which column the half `i` of eight number `eight` of a row holds.
DEVICE u32 column_of(u32 layout, u32 eight, u32 i) {
    if (layout == IN_ORDER) return eight * 8 + i;
    const bool is_packed = layout == AS_PACKED || layout == AS_PACKED_TURNED;
    const u32 step = eight / 16 * 4, quarter = eight / 4 % 4, four = eight % 4;
    if (layout >= IN_QUARTERS_TURNED) return (step + i / 2) * 32 + column_in(is_packed, quarter, four * 2 + i % 2);
    return (step + four) * 32 + column_in(is_packed, quarter, i);
}

// Where the half of a column lies in its row: column_of the other way round.
DEVICE u32 place_of(u32 layout, u32 column) {
    if (layout == IN_ORDER) return column;
    const u32 group = column / 32, c = column % 32;
    const bool is_packed = layout == AS_PACKED || layout == AS_PACKED_TURNED;
    const u32 quarter = is_packed ? c % 16 / 4 : c / 8;
    const u32 i = is_packed ? c / 16 * 4 + ((c & 1) << 1) + ((c >> 1) & 1) : c % 8;
    const u32 at = layout >= IN_QUARTERS_TURNED ? i / 2 * 8 + group % 4 * 2 + i % 2 : group % 4 * 8 + i;
    return group / 4 * 128 + quarter * 32 + at;
}
