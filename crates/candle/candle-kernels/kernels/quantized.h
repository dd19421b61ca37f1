// GGUF's block formats, and activations rounded to 8 bits (q8_1).
//
// A format says how 32 of its weights decode (`group`); `value` and `dot` follow from that: a sum of integer products,
// scaled, minus what the format's zero point or minimum takes away. Kernels of these stand in quantized.hip, and in
// quantized_tiles.hip those for many columns.

DEVICE u32 half_at(const u8 *at) { return *(const u16 *)at; }
DEVICE f32 f16_at(const u8 *at) { return to_f32(f16_from_bits(*(const u16 *)at)); }
// Blocks lie on two bytes; where a format's size is a multiple of four or sixteen, on as many.
DEVICE u32 word_at(const u8 *at) { return half_at(at) | (half_at(at + 2) << 16); }
DEVICE u32 whole_word_at(const u8 *at) { return *(const u32 *)at; }
// Eight words, of which the first lies on 16 bytes.
struct Words {
    u32 at[8];
};
DEVICE Words words_at(const u8 *at) {
    Words words;
    const Pack<u32, 4> low = load<4>((const u32 *)at), high = load<4>((const u32 *)(at + 16));
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words.at[i] = low.at[i], words.at[i + 4] = high.at[i];
    return words;
}
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

// 32 weights as eight words of four bytes: w = d * (q - zero) - m, with a scale and a minimum for each half, which differ where
// a format has two `scales` for 32 weights. Formats `with_sums` take the zero point times the sum that the activations had before
// they were rounded, as Candle's tests of these demand. The others take the minimum times the rounded ones' sum: what rounding
// does to the two terms cancels, where a minimum is as large as the weights.
struct Group {
    i32 q[8];
    f32 d[2], m[2];
};

struct q4_0 {
    static constexpr u32 size = 32, bytes = 18;
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = false;
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
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = true;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = whole_word_at(b + 4 + 4 * i);
            g.q[i] = (i32)(w & 0x0f0f0f0fu), g.q[i + 4] = (i32)((w >> 4) & 0x0f0f0f0fu);
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = -f16_at(b + 2);
    }
};
struct q5_0 {
    static constexpr u32 size = 32, bytes = 22;
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = false;
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
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = true;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32, Group &g) {
        const u32 high = whole_word_at(b + 4);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 w = whole_word_at(b + 8 + 4 * i);
            g.q[i] = (i32)((w & 0x0f0f0f0fu) | fifth_bits(high >> (4 * i)));
            g.q[i + 4] = (i32)(((w >> 4) & 0x0f0f0f0fu) | fifth_bits(high >> (16 + 4 * i)));
        }
        g.d[0] = g.d[1] = f16_at(b), g.m[0] = g.m[1] = -f16_at(b + 2);
    }
};
struct q8_0 {
    static constexpr u32 size = 32, bytes = 34;
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = false;
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
    static constexpr u32 scales = 2;
    static constexpr bool has_minimum = true;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 16 + i32th / 4 * 32;
        const u32 shift = i32th % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)((whole_word_at(qs + 4 * i) >> shift) & 0x03030303u);
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
    static constexpr u32 scales = 2;
    static constexpr bool has_minimum = false;
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
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = true;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 16 + i32th / 2 * 32;
        const u32 shift = i32th % 2 * 4;
        const Words words = words_at(qs);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)((words.at[i] >> shift) & 0x0f0f0f0fu);
        u32 scale, minimum;
        scale_and_min(b + 4, i32th, scale, minimum);
        g.d[0] = g.d[1] = f16_at(b) * (f32)scale, g.m[0] = g.m[1] = f16_at(b + 2) * (f32)minimum;
    }
};
struct q5_K {
    static constexpr u32 size = 256, bytes = 176;
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = true;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
        const u8 *qs = b + 48 + i32th / 2 * 32, *high = b + 16;
        const u32 shift = i32th % 2 * 4;
        const Words words = words_at(qs), fifth = words_at(high);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 bit = (fifth.at[i] >> i32th) & 0x01010101u;
            g.q[i] = (i32)(((words.at[i] >> shift) & 0x0f0f0f0fu) | (bit << 4));
        }
        u32 scale, minimum;
        scale_and_min(b + 4, i32th, scale, minimum);
        g.d[0] = g.d[1] = f16_at(b) * (f32)scale, g.m[0] = g.m[1] = f16_at(b + 2) * (f32)minimum;
    }
};
struct q6_K {
    static constexpr u32 size = 256, bytes = 210;
    static constexpr u32 scales = 2;
    static constexpr bool has_minimum = false;
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
    static constexpr u32 scales = 1;
    static constexpr bool has_minimum = false;
    static constexpr bool with_sums = false;
    static constexpr u32 zero = 0;
    DEVICE_MEMBER static void group(const u8 *b, u32 i32th, Group &g) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) g.q[i] = (i32)whole_word_at(b + 4 + i32th * 32 + 4 * i);
        g.d[0] = g.d[1] = bits_as<f32>(whole_word_at(b)), g.m[0] = g.m[1] = 0.0f;
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
    if (Q::with_sums) return g.d[h] * ((f32)sum * y.d - (share * (f32)Q::zero) * y.s);
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
        if (Q::has_minimum) ones[h] = dot4_i8(0x01010101, y.q[i], ones[h]);
    }
#pragma unroll
    for (u32 h = 0; h < 2; ++h) to[h] = worth<Q>(g, h, y, sum[h], ones[h], 0.5f);
}
template <class Q>
DEVICE f32 dot(const Group &g, const Column &y) {
    if (Q::size == 32) {
        i32 sum = 0, ones = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            sum = dot4_i8(g.q[i], y.q[i], sum);
            if (Q::has_minimum) ones = dot4_i8(0x01010101, y.q[i], ones);
        }
        return worth<Q>(g, 0, y, sum, ones, 1.0f);
    }
    f32 halves[2];
    dot_halves<Q>(g, y, halves);
    return halves[0] + halves[1];
}

// `sum` and a group's share, rounded once in formats with sums: Candle's own unit test of this path asks for every
// bit that NVIDIA's compiler makes of `sum += d * (...)`.
template <class Q>
DEVICE f32 dot_onto(f32 sum, const Group &g, const Column &y) {
    if (Q::size != 32 || !Q::with_sums) return sum + dot<Q>(g, y);
    i32 products = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) products = dot4_i8(g.q[i], y.q[i], products);
    return fma_f32(g.d[0], (f32)products * y.d - (f32)Q::zero * y.s, sum);
}
