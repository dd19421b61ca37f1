// GGUF's block formats: decoding, rows by index, and products with activations that are f32 or rounded to 8 bits (q8_1).
//
// A format says how 32 of its weights decode (`group`); `value` and `dot` follow from that: a sum of integer products,
// scaled, minus what the format's zero point or minimum takes away. A row of weights is made by 32 threads, each taking
// every 32nd group, so that a result does not depend on how many columns are made with it, nor on the width of a wave.

DEVICE u32 half_at(const u8 *at) { return *(const u16 *)at; }
DEVICE f32 f16_at(const u8 *at) { return to_f32(f16_from_bits(*(const u16 *)at)); }
// Blocks lie on two bytes, not on four.
DEVICE u32 word_at(const u8 *at) { return half_at(at) | (half_at(at + 2) << 16); }
// Four bytes a - b, for bytes below 128.
DEVICE i32 sub_bytes(u32 a, u32 b) { return (i32)(((a | 0x80808080u) - b) ^ 0x80808080u); }
// Bit i of `bits` as bit 4 of byte i.
DEVICE u32 fifth_bits(u32 bits) {
    return ((bits & 1u) << 4) | ((bits & 2u) << 11) | ((bits & 4u) << 18) | ((bits & 8u) << 25);
}

// Activations: f16 scale, f16 sum of the numbers before rounding, 32 signed bytes.
#define Q8_1_BYTES 36
struct Column {
    i32 q[8];
    f32 d, s;
};
DEVICE Column column_at(const u8 *block) {
    Column y;
    y.d = f16_at(block);
    y.s = f16_at(block + 2);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) y.q[i] = *(const i32 *)(block + 4 + 4 * i);
    return y;
}

// 32 weights as eight words of four bytes: w = d * (q - zero) - m, with a scale and a minimum for each half. Formats
// `with_sums` take the zero point and the minimum times the activations' own sum, the others times the rounded ones'.
struct Group {
    i32 q[8];
    f32 d[2], m[2];
};

struct q4_0 {
    static constexpr u32 size = 32, bytes = 18;
    static constexpr bool with_sums = true;
    static constexpr u32 zero = 8;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = word_at(b + 2 + 4 * i);
            g.q[i] = (i32)(w & 0x0f0f0f0fu), g.q[i + 4] = (i32)((w >> 4) & 0x0f0f0f0fu);
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = 0.0f;
    }
};
struct q4_1 {
    static constexpr u32 size = 32, bytes = 20;
    static constexpr bool with_sums = true;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = word_at(b + 4 + 4 * i);
            g.q[i] = (i32)(w & 0x0f0f0f0fu), g.q[i + 4] = (i32)((w >> 4) & 0x0f0f0f0fu);
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = -f16_at(b + 2);
    }
};
struct q5_0 {
    static constexpr u32 size = 32, bytes = 22;
    static constexpr bool with_sums = true;
    static constexpr u32 zero = 16;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
        const u32 high = word_at(b + 2);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = word_at(b + 6 + 4 * i);
            g.q[i] = (i32)((w & 0x0f0f0f0fu) | fifth_bits(high >> (4 * i)));
            g.q[i + 4] = (i32)(((w >> 4) & 0x0f0f0f0fu) | fifth_bits(high >> (16 + 4 * i)));
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = 0.0f;
    }
};
struct q5_1 {
    static constexpr u32 size = 32, bytes = 24;
    static constexpr bool with_sums = true;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
        const u32 high = word_at(b + 4);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = word_at(b + 8 + 4 * i);
            g.q[i] = (i32)((w & 0x0f0f0f0fu) | fifth_bits(high >> (4 * i)));
            g.q[i + 4] = (i32)(((w >> 4) & 0x0f0f0f0fu) | fifth_bits(high >> (16 + 4 * i)));
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = -f16_at(b + 2);
    }
};
struct q8_0 {
    static constexpr u32 size = 32, bytes = 34;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)word_at(b + 2 + 4 * i);
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = 0.0f;
    }
};
// Scales of 16 weights, 4 bits each for scale and minimum; two bits a weight, 32 weights to a shift of 32 bytes.
struct q2_K {
    static constexpr u32 size = 256, bytes = 84;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 16 + i32th / 4 * 32;
        const u32 shift = i32th % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)((word_at(qs + 4 * i) >> shift) & 0x03030303u);
        const f32 d = f16_at(b + 80), m = f16_at(b + 82);
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u32 s = b[i32th * 2 + h];
            g.d[h] = d * (f32)(s & 15u), g.m[h] = m * (f32)(s >> 4);
        }
    }
};
// Scales of 16 weights, 6 bits; a third bit that, where it is missing, takes 4 away.
struct q3_K {
    static constexpr u32 size = 256, bytes = 110;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 32 + i32th / 4 * 32, *scales = b + 96;
        const u32 shift = i32th % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 low = (word_at(qs + 4 * i) >> shift) & 0x03030303u;
            const u32 missing = (~(word_at(b + 4 * i) >> i32th) & 0x01010101u) << 2;
            g.q[i] = sub_bytes(low, missing);
        }
        const f32 d = f16_at(b + 108);
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u32 at = i32th * 2 + h;
            const u32 low = at < 8 ? scales[at] & 15u : scales[at - 8] >> 4;
            const u32 high = (scales[8 + at % 4] >> (2 * (at / 4))) & 3u;
            g.d[h] = d * (f32)((i32)(low | (high << 4)) - 32), g.m[h] = 0.0f;
        }
    }
};
// Scale and minimum of 32 weights, 6 bits each, eight of both in 12 bytes.
DEVICE void scale_and_min(const u8 *s, u32 j, u32 &scale, u32 &minimum) {
    if (j < 4) {
        scale = s[j] & 63u, minimum = s[j + 4] & 63u;
    } else {
        scale = (s[j + 4] & 15u) | ((u32)(s[j - 4] >> 6) << 4), minimum = (u32)(s[j + 4] >> 4) | ((u32)(s[j] >> 6) << 4);
    }
}
struct q4_K {
    static constexpr u32 size = 256, bytes = 144;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 16 + i32th / 2 * 32;
        const u32 shift = i32th % 2 * 4;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)((word_at(qs + 4 * i) >> shift) & 0x0f0f0f0fu);
        u32 scale, minimum;
        scale_and_min(b + 4, i32th, scale, minimum);
        g.d[0] = g.d[1] = f16_at(b) * (f32)scale, g.m[0] = g.m[1] = f16_at(b + 2) * (f32)minimum;
    }
};
struct q5_K {
    static constexpr u32 size = 256, bytes = 176;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 48 + i32th / 2 * 32, *high = b + 16;
        const u32 shift = i32th % 2 * 4;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 bit = (word_at(high + 4 * i) >> i32th) & 0x01010101u;
            g.q[i] = (i32)(((word_at(qs + 4 * i) >> shift) & 0x0f0f0f0fu) | (bit << 4));
        }
        u32 scale, minimum;
        scale_and_min(b + 4, i32th, scale, minimum);
        g.d[0] = g.d[1] = f16_at(b) * (f32)scale, g.m[0] = g.m[1] = f16_at(b + 2) * (f32)minimum;
    }
};
struct q6_K {
    static constexpr u32 size = 256, bytes = 210;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u32 half = i32th / 4, j = i32th % 4;
        const u8 *low = b + half * 64 + j % 2 * 32, *high = b + 128 + half * 32;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 l = (word_at(low + 4 * i) >> (j / 2 * 4)) & 0x0f0f0f0fu;
            const u32 h = (word_at(high + 4 * i) >> (j * 2)) & 0x03030303u;
            g.q[i] = sub_bytes(l | (h << 4), 0x20202020u);
        }
        const f32 d = f16_at(b + 208);
#pragma unroll
        for (u32 h = 0; h < 2; ++h) g.d[h] = d * (f32)(i8)b[192 + i32th * 2 + h], g.m[h] = 0.0f;
    }
};
struct q8_K {
    static constexpr u32 size = 256, bytes = 292;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)word_at(b + 4 + i32th * 32 + 4 * i);
        g.d[0] = g.d[1] = bits_as<f32>(word_at(b)), g.m[0] = g.m[1] = 0.0f;
    }
};

// Weight `i` of a row that starts at `row`.
template <class Q>
DEVICE f32 value(const u8 *row, u32 i) {
    Group g;
    Q::group(row + (usize)(i / Q::size) * Q::bytes, i % Q::size / 32, g);
    const u32 in_group = i % 32, h = in_group / 16;
    i32 q = g.q[0];
#pragma unroll
    for (u32 j = 1; j < 8; ++j) q = in_group / 4 == j ? g.q[j] : q;
    // Bytes are signed only where the format's are; the others stay below 128.
    const i32 byte = (i8)(q >> (8 * (in_group % 4)));
    return mul_exactly(g.d[h], (f32)(byte - (i32)Q::zero)) - g.m[h];
}

// What sums of integer products are worth: of all 32, or of half a group, whose share of the sum of activations is half.
template <class Q>
DEVICE f32 worth(const Group &g, u32 h, const Column &y, i32 sum, i32 ones, f32 share) {
    if (Q::with_sums) return g.d[h] * ((f32)sum * y.d - (share * (f32)Q::zero) * y.s) - g.m[h] * (share * y.s);
    return y.d * (g.d[h] * (f32)sum - g.m[h] * (f32)ones);
}
// 32 weights times 32 activations, as two halves: of formats with one scale the words of a block's first and second 8
// bytes, of the others the first and the second 16 weights.
template <class Q>
DEVICE void dot_halves(const Group &g, const Column &y, f32 (&to)[2]) {
    i32 sum[2] = {0, 0}, ones[2] = {0, 0};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 h = Q::size == 32 ? i / 2 % 2 : i / 4;
        sum[h] = dot4_i8(g.q[i], y.q[i], sum[h]);
        if (!Q::with_sums) ones[h] = dot4_i8(0x01010101, y.q[i], ones[h]);
    }
#pragma unroll
    for (u32 h = 0; h < 2; ++h) to[h] = worth<Q>(g, h, y, sum[h], ones[h], 0.5f);
}
template <class Q>
DEVICE f32 dot(const Group &g, const Column &y) {
    if (Q::size == 32) {
        i32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sum = dot4_i8(g.q[i], y.q[i], sum);
        return worth<Q>(g, 0, y, sum, 0, 1.0f);
    }
    f32 halves[2];
    dot_halves<Q>(g, y, halves);
    return halves[0] + halves[1];
}

// `sum` and a group's share, rounded once where formats have one scale: Candle's own unit test of this path asks for every
// bit that NVIDIA's compiler makes of `sum += d * (...)`.
template <class Q>
DEVICE f32 dot_onto(f32 sum, const Group &g, const Column &y) {
    if (Q::size != 32 || !Q::with_sums) return sum + dot<Q>(g, y);
    i32 products = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) products = dot4_i8(g.q[i], y.q[i], products);
    return fma_f32(g.d[0], (f32)products * y.d - (f32)Q::zero * y.s, sum) - g.m[0] * y.s;
}

DEVICE f32 sum_of_32(f32 x) { return wave_sum<32>(x); }

// One row of weights by up to N columns, by 32 threads: the sums in every one of them. A column is `column_bytes` long.
// Halves may be summed apart and added last: a little closer, and twice the exchanges at the end.
template <class Q, u32 N, bool apart>
DEVICE void row_by_columns(const u8 *row, const u8 *columns, usize column_bytes, u32 n_columns, u32 n_weights,
                           f32 (&sum)[N]) {
    f32 halves[N][2];
#pragma unroll
    for (u32 c = 0; c < N; ++c) halves[c][0] = halves[c][1] = 0.0f;
    for (u32 at = thread_x(); at < n_weights / 32; at += 32) {
        Group g;
        Q::group(row + (usize)(at / (Q::size / 32)) * Q::bytes, at % (Q::size / 32), g);
#pragma unroll
        for (u32 c = 0; c < N; ++c) {
            if (c >= n_columns) break;
            const Column y = column_at(columns + c * column_bytes + (usize)at * Q8_1_BYTES);
            if (apart) {
                f32 more[2];
                dot_halves<Q>(g, y, more);
                halves[c][0] += more[0], halves[c][1] += more[1];
            } else {
                halves[c][0] += dot<Q>(g, y);
            }
        }
    }
#pragma unroll
    for (u32 c = 0; c < N; ++c) sum[c] = apart ? sum_of_32(halves[c][0]) + sum_of_32(halves[c][1]) : sum_of_32(halves[c][0]);
}

// Rows of up to eight columns: 32 by 4 threads make four rows. `step_y` counts blocks from column to column.
#define MMVQ(Q, T, N)                                                                                                  \
    KERNEL(128)                                                                                                        \
    mmvq_##Q##_##T##_##N(const u8 *x, const u8 *y, T *dst, i32 n_weights, i32 n_rows, i32 step_y, i32 step_dst) {      \
        const u32 row = block_x() * 4 + thread_y();                                                                    \
        if (row >= (u32)n_rows) return;                                                                                \
        f32 sum[N];                                                                                                    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        row_by_columns<Q, N, false>(x + row * row_bytes, y, (usize)step_y * Q8_1_BYTES, N, (u32)n_weights, sum);       \
        if (thread_x() == 0) {                                                                                         \
            for (u32 c = 0; c < N; ++c) dst[(usize)c * step_dst + row] = down<T>(sum[c]);                              \
        }                                                                                                              \
    }

// Any number of columns, eight at a time.
#define MMQ(Q)                                                                                                         \
    KERNEL(128)                                                                                                        \
    mmq_##Q(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_columns, i32 step_x, i32 step_y,      \
            i32 step_dst) {                                                                                            \
        const u32 row = block_x() * 4 + thread_y(), column = block_y() * 8;                                            \
        if (row >= (u32)n_rows) return;                                                                                \
        f32 sum[8];                                                                                                    \
        const u32 n = (u32)n_columns - column < 8 ? (u32)n_columns - column : 8;                                       \
        const usize column_bytes = (usize)step_y * Q8_1_BYTES, row_bytes = (usize)step_x * Q::bytes;                   \
        row_by_columns<Q, 8, true>(x + row * row_bytes, y + column * column_bytes, column_bytes, n, (u32)n_weights,    \
                                   sum);                                                                               \
        if (thread_x() != 0) return;                                                                                   \
        _Pragma("unroll") for (u32 c = 0; c < 8; ++c) {                                                                \
            if (c < n) dst[(usize)(column + c) * step_dst + row] = sum[c];                                             \
        }                                                                                                              \
    }

// The same by the names and shapes of Candle's older path: `n_y` is a column's padded length, a block makes one row of one
// column or two rows of several, or a tile of ROWS by COLUMNS, of which a thread makes whole sums.
#define MUL_MAT_VEC(Q, N, ROWS)                                                                                        \
    KERNEL(128)                                                                                                        \
    mul_mat_vec_##Q##_q8_1_cuda##N(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_y, i32 n_dst) { \
        const u32 row = block_x() * ROWS + thread_y();                                                                 \
        if (thread_y() >= ROWS || row >= (u32)n_rows) return;                                                          \
        f32 sum[N];                                                                                                    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        row_by_columns<Q, N, true>(x + row * row_bytes, y, (usize)(n_y / 32) * Q8_1_BYTES, N, (u32)n_weights, sum);    \
        if (thread_x() == 0) {                                                                                         \
            for (u32 c = 0; c < N; ++c) dst[(usize)c * n_dst + row] = sum[c];                                          \
        }                                                                                                              \
    }
#define MUL_MAT(Q, COLUMNS, ROWS)                                                                                      \
    KERNEL(128)                                                                                                        \
    mul_mat_##Q(const u8 *x, const u8 *y, f32 *dst, i32 n_weights, i32 n_rows, i32 n_columns, i32 n_y, i32 n_dst) {    \
        const usize row_bytes = (usize)((u32)n_weights / Q::size) * Q::bytes;                                          \
        for (u32 i = thread_y() * 32 + thread_x(); i < ROWS * COLUMNS; i += 128) {                                     \
            const u32 row = block_x() * ROWS + i % ROWS, column = block_y() * COLUMNS + i / ROWS;                      \
            if (row >= (u32)n_rows || column >= (u32)n_columns) continue;                                              \
            f32 sum = 0.0f;                                                                                            \
            for (u32 at = 0; at < (u32)n_weights / Q::size * (Q::size / 32); ++at) {                                   \
                Group g;                                                                                               \
                Q::group(x + row * row_bytes + at / (Q::size / 32) * Q::bytes, at % (Q::size / 32), g);                \
                sum = dot_onto<Q>(sum, g, column_at(y + ((usize)column * ((u32)n_y / 32) + at) * Q8_1_BYTES));        \
            }                                                                                                          \
            dst[(usize)column * n_dst + row] = sum;                                                                    \
        }                                                                                                              \
    }

// A mixture's rows: the expert of (token, place) is read from `ids`.
#define INDEXED_MOE(name, Q)                                                                                           \
    KERNEL(128)                                                                                                        \
    indexed_moe_forward_##name##_q8_1(const u8 *x, const u8 *y, const u32 *ids, f32 *dst, i32 n, i32 k, i32 n_tokens,  \
                                      i32 n_places, i32 k_padded, i32 y_places) {                                      \
        if (thread_y() != 0) return;                                                                                   \
        const u32 row = block_x(), token = block_y(), place = block_z(), pair = token * (u32)n_places + place;         \
        const usize row_bytes = (usize)((u32)k / Q::size) * Q::bytes, y_bytes = (usize)(k_padded / 32) * Q8_1_BYTES;   \
        const u32 column = token * (u32)y_places + (y_places == 1 ? 0 : place);                                        \
        f32 sum[1];                                                                                                    \
        row_by_columns<Q, 1, false>(x + ((usize)ids[pair] * n + row) * row_bytes,                                      \
                                    y + column * y_bytes, 0, 1, (u32)k, sum);                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = sum[0];                                                      \
    }

// A mixture's rows, sorted by expert: position p is pair ids[p] with expert experts[p]; with weights, the input has a row
// for each pair, else a row for each token.
#define MOE_QUANTIZED(Q)                                                                                               \
    KERNEL(128)                                                                                                        \
    moe_gguf_##Q(const u8 *x, const u8 *y, const i32 *ids, const i32 *experts, const f32 *weights, f32 *dst,           \
                 i32 n_experts, i32 n_places, i32 n_pairs, i32 n, i32 k, i32 k_padded) {                               \
        const u32 row = block_x() * 4 + thread_y(), pair = (u32)ids[block_y()];                                        \
        const i32 expert = experts[block_y()];                                                                         \
        if (row >= (u32)n || pair >= (u32)n_pairs || expert < 0 || expert >= n_experts) return;                        \
        const usize row_bytes = (usize)((u32)k / Q::size) * Q::bytes, y_bytes = (usize)(k_padded / 32) * Q8_1_BYTES;   \
        const u32 column = weights != nullptr ? pair : pair / (u32)n_places;                                           \
        f32 sum[1];                                                                                                    \
        row_by_columns<Q, 1, false>(x + ((usize)expert * n + row) * row_bytes,                                         \
                                    y + column * y_bytes, 0, 1, (u32)k, sum);                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = weights != nullptr ? sum[0] * weights[pair] : sum[0];        \
    }
#define MOE_HALVES(T)                                                                                                  \
    KERNEL(128)                                                                                                        \
    moe_##T(const T *x, const T *y, const i32 *ids, const i32 *experts, const f32 *weights, T *dst, i32 n_experts,     \
            i32 n_places, i32 n_pairs, i32 n, i32 k) {                                                                 \
        const u32 row = block_x() * 4 + thread_y(), pair = (u32)ids[block_y()];                                        \
        const i32 expert = experts[block_y()];                                                                         \
        if (row >= (u32)n || pair >= (u32)n_pairs || expert < 0 || expert >= n_experts) return;                        \
        const T *left = x + ((usize)expert * n + row) * k;                                                             \
        const T *right = y + (usize)(weights != nullptr ? pair : pair / (u32)n_places) * k;                            \
        f32 sum = 0.0f;                                                                                                \
        for (u32 i = thread_x(); i < (u32)k; i += 32) sum += up(left[i]) * up(right[i]);                               \
        sum = sum_of_32(sum);                                                                                          \
        if (thread_x() == 0) dst[(usize)pair * n + row] = down<T>(weights != nullptr ? sum * weights[pair] : sum);     \
    }

// Activations rounded to q8_1, 256 a block, rows along y. Past the end of a row they are zero.
#define QUANTIZE(name, T)                                                                                              \
    KERNEL(256) name(const T *x, u8 *y, i32 n, i32 n_padded) {                                                         \
        const u32 at = block_x() * 256 + thread_x(), row = block_y();                                                  \
        if (at >= (u32)n_padded) return;                                                                               \
        const f32 value = at < (u32)n ? up(x[(usize)row * (u32)n + at]) : 0.0f;                                        \
        f32 most = fabs_of(value), sum = value;                                                                        \
        for (u32 mask = 16; mask > 0; mask /= 2) {                                                                     \
            most = max_f32(most, across(most, mask));                                                                  \
            sum += across(sum, mask);                                                                                  \
        }                                                                                                              \
        const f32 d = most / 127.0f;                                                                                   \
        u8 *block = y + ((usize)row * ((u32)n_padded / 32) + at / 32) * Q8_1_BYTES;                                    \
        block[4 + at % 32] = (u8)(i8)(most == 0.0f ? 0.0f : round_of(value / d));                                      \
        if (at % 32 == 0) *(u32 *)block = pack_halves(d, sum);                                                         \
    }

// 256 weights a block, 512 in the formats whose count is in weights.
#define DEQUANTIZE(Q, T)                                                                                               \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y, i32 n_blocks) {                                          \
        for (u32 i = block_x() * 256 + thread_x(); i < (block_x() + 1) * 256; i += block_size()) {                     \
            if (i < (u32)n_blocks * 32) y[i] = down<T>(value<Q>(x, i));                                                \
        }                                                                                                              \
    }
#define DEQUANTIZE_COUNTED(Q, T)                                                                                       \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y, i32 n) {                                                 \
        for (u32 i = block_x() * 512 + thread_x(); i < (block_x() + 1) * 512; i += block_size()) {                     \
            if (i < (u32)n) y[i] = down<T>(value<Q>(x, i));                                                            \
        }                                                                                                              \
    }
#define DEQUANTIZE_K(Q, T)                                                                                             \
    KERNEL(256) dequantize_block_##Q##_##T(const u8 *x, T *y) {                                                        \
        for (u32 i = thread_x(); i < 256; i += block_size()) {                                                         \
            y[(usize)block_x() * 256 + i] = down<T>(value<Q>(x, block_x() * 256 + i));                                 \
        }                                                                                                              \
    }

// Rows by index, as f32. The grid is (ids, any).
#define EACH_OF_ROW(i, n) for (u32 i = block_y() * block_size() + thread_x(); i < (u32)(n); i += block_size() * grid_blocks_y())
#define GET_ROWS(Q)                                                                                                    \
    KERNEL(256) get_rows_##Q(const u8 *x, const u32 *ids, f32 *dst, i64 n, usize row_bytes) {                          \
        const u8 *row = x + (usize)ids[block_x()] * row_bytes;                                                         \
        EACH_OF_ROW(i, n) dst[(usize)block_x() * n + i] = value<Q>(row, i);                                            \
    }
#define GET_ROWS_PLAIN(T)                                                                                              \
    KERNEL(256) get_rows_##T(const T *x, const u32 *ids, f32 *dst, i64 n, usize row_bytes) {                           \
        const T *row = x + (usize)ids[block_x()] * n;                                                                  \
        EACH_OF_ROW(i, n) dst[(usize)block_x() * n + i] = up(row[i]);                                                  \
    }

// A row of weights times f32 activations, by 32 threads.
#define DMMV(name, Q)                                                                                                  \
    KERNEL(128) dequantize_mul_mat_vec_##name(const u8 *x, const f32 *y, f32 *dst, i32 n_weights, i32 n_rows) {        \
        const u32 row = block_x();                                                                                     \
        if (row >= (u32)n_rows || thread_y() != 0) return;                                                             \
        const u8 *from = x + (usize)row * ((u32)n_weights / Q::size) * Q::bytes;                                       \
        f32 sum = 0.0f;                                                                                                \
        for (u32 i = thread_x(); i < (u32)n_weights; i += 32) sum += value<Q>(from, i) * y[i];                         \
        sum = sum_of_32(sum);                                                                                          \
        if (thread_x() == 0) dst[row] = sum;                                                                           \
    }

//@ quantize_q8_1 = QUANTIZE(quantize_q8_1, f32)
//@ quantize_q8_1_$T = QUANTIZE(quantize_q8_1_$T, $T) ; T: bf16 f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE($Q, $T) ; Q: q4_0 q4_1 q8_0 ; T: f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE_COUNTED($Q, $T) ; Q: q5_0 q5_1 ; T: f16 f32
//@ dequantize_block_$Q_$T = DEQUANTIZE_K($Q, $T) ; Q: q2_K q3_K q4_K q5_K q6_K q8_K ; T: f16 f32
//@ get_rows_$Q = GET_ROWS($Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ get_rows_$T = GET_ROWS_PLAIN($T) ; T: f32 f16 bf16
//@ dequantize_mul_mat_vec_$Q_cuda = DMMV($Q_cuda, $Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0
//@ dequantize_mul_mat_vec_$N_k = DMMV($N_k, $N_K) ; N: q2 q3 q4 q5 q6
//@ mul_mat_vec_$Q_q8_1_cuda1 = MUL_MAT_VEC($Q, 1, 1) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ mul_mat_vec_$Q_q8_1_cuda$N = MUL_MAT_VEC($Q, $N, 2) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K ; N: 2 3 4 5 6 7 8
//@ mul_mat_$Q = MUL_MAT($Q, 64, 128) ; Q: q4_0 q4_1 q2_K q4_K q5_K
//@ mul_mat_$Q = MUL_MAT($Q, 128, 64) ; Q: q5_0 q5_1 q8_0
//@ mul_mat_q3_K = MUL_MAT(q3_K, 128, 128)
//@ mul_mat_q6_K = MUL_MAT(q6_K, 64, 64)
//@ mmvq_$Q_$T_$N = MMVQ($Q, $T, $N) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K ; T: bf16 f16 f32 ; N: 1 2 3 4 5 6 7 8
//@ mmq_$Q = MMQ($Q) ; Q: q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K
//@ indexed_moe_forward_$Nk_q8_1 = INDEXED_MOE($Nk, $N_K) ; N: q2 q3 q4 q5 q6
//@ indexed_moe_forward_q8_0_q8_1 = INDEXED_MOE(q8_0, q8_0)
//@ moe_gguf_$Q = MOE_QUANTIZED($Q) ; Q: q8_0 q2_K q3_K q4_K q5_K q6_K
//@ moe_$T = MOE_HALVES($T) ; T: f16 bf16
