// sample: a token for each row of logits: greedy, or drawn after top-k, top-p and min-p. One block a row. describe:
// how probable it was.
//
// The tokens that are kept are always the best ones up to some place in the order (logit, then lower token id). That
// place is found digit by digit, counting tokens (top-k) or adding up their weights (top-p) in 256 bins. Weights are
// integers, 2^40 for the best token, so that sums are exact and the same in any order. The exponential is the
// host's, operation for operation, with no fused ones.
#include "prelude.h"

#define THREADS 1024
#define N_WAVES (THREADS / GPU_WAVE)
#define NOT_NUMBERS 0xffffffffu
#define CHOICE_WORDS 8

// Ascending with the float, as the host's total_cmp orders numbers.
DEVICE u32 order_key(float x) {
    const u32 bits = bits_as<u32>(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// e^x for x <= 0 times 2^40; 0 below -86.6. Steps and constants are those of the host's sampler.
DEVICE u64 weight_of(float x) {
    const float lowest = -86.6f, round = 12582912.0f;
    if (x < lowest) return 0;
    const float shifted = add_exact(mul_exact(x, 1.44269504088896340736f), round);
    const float n = add_exact(shifted, -round);
    const float r = add_exact(add_exact(x, -mul_exact(n, 0.693359375f)), -mul_exact(n, -2.1219444e-4f));
    float p = 1.0f / 5040.0f;
    p = add_exact(mul_exact(p, r), 1.0f / 720.0f);
    p = add_exact(mul_exact(p, r), 1.0f / 120.0f);
    p = add_exact(mul_exact(p, r), 1.0f / 24.0f);
    p = add_exact(mul_exact(p, r), 1.0f / 6.0f);
    p = add_exact(mul_exact(p, r), 0.5f);
    p = add_exact(mul_exact(p, r), 1.0f);
    p = add_exact(mul_exact(p, r), 1.0f);
    const u32 exponent = (bits_as<u32>(shifted) - bits_as<u32>(round) + 127u) << 23;
    const u32 bits = bits_as<u32>(mul_exact(p, bits_as<float>(exponent)));
    // The value is mantissa * 2^(e - 150).
    const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
    const i32 shift = (i32)(bits >> 23) - 110;
    return shift >= 0 ? mantissa << shift : shift > -24 ? mantissa >> -shift : 0;
}

// The high half of a product: a fraction of 2^64 of b.
DEVICE u64 fraction_of(u64 a, u64 b) {
    const u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
    const u64 low = a0 * b0, m0 = a1 * b0 + (low >> 32), m1 = a0 * b1 + (u32)m0;
    return a1 * b1 + (m0 >> 32) + (m1 >> 32);
}

DEVICE u64 from_lane_u64(u64 value, u32 source) {
    const u32 low = (u32)from_lane((i32)(u32)value, source), high = (u32)from_lane((i32)(u32)(value >> 32), source);
    return (u64)high << 32 | low;
}

// The sum over this lane and those before it.
DEVICE u64 sum_so_far(u64 value) {
    const u32 l = lane();
#pragma unroll
    for (u32 step = 1; step < GPU_WAVE; step *= 2) {
        const u64 other = from_lane_u64(value, l >= step ? l - step : l);
        if (l >= step) value += other;
    }
    return value;
}

DEVICE u64 block_sum_u64(u64 value, u64 *scratch) {
#pragma unroll
    for (u32 mask = GPU_WAVE / 2; mask > 0; mask >>= 1) value += from_lane_u64(value, lane() ^ mask);
    if (lane() == 0) scratch[thread_x() / GPU_WAVE] = value;
    barrier();
    u64 total = 0;
#pragma unroll 8
    for (u32 i = 0; i < N_WAVES; ++i) total += scratch[i];
    barrier();
    return total;
}

// Tokens that are kept: those with a higher key, and those with this very key up to this token id.
struct Border {
    u32 key, last_id;
};

struct Row {
    const float *logits;
    u32 n;
    float max;
    // Only tokens from this logit on need be looked at.
    float lowest;
};

enum Measure { COUNT, MASS };

// use(logit, token) for every `step`-th token from `first` on. Many are asked for at once: one after the other, a block
// would wait hundreds of times for memory.
template <class Use>
DEVICE void each_logit(const float *logits, u32 first, u32 end, u32 step, Use use) {
    constexpr u32 AT_ONCE = 8;
    for (u32 i0 = first; i0 < end; i0 += step * AT_ONCE) {
        float x[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) x[j] = i0 + j * step < end ? logits[i0 + j * step] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j)
            if (i0 + j * step < end) use(x[j], i0 + j * step);
    }
}

// By one wave: from bin 255 down, the first bin at which the sum reaches `target`; what is missing before it, and what
// it holds.
DEVICE void find_bin(u64 target, const u64 *bins, u64 *found) {
    constexpr u32 EACH = 256 / GPU_WAVE;
    const u32 top = 255 - lane() * EACH;
    u64 bin[EACH], own = 0;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) own += bin[j] = bins[top - j];
    const u64 sum = sum_so_far(own), before = sum - own;
    if (!(before < target && (target <= sum || lane() == GPU_WAVE - 1))) return;
    u64 left = target - before, in_bin = bin[0];
    u32 at = 0;
#pragma unroll
    for (u32 j = 1; j < EACH; ++j) {
        if (at == j - 1 && in_bin < left) left -= in_bin, in_bin = bin[j], at = j;
    }
    found[0] = top - at;
    found[1] = left;
    found[2] = in_bin;
}

// The fewest best tokens that are `target` many, or weigh `target`; there is as much.
DEVICE Border find_border(const Row &row, Measure measure, u64 target, u64 *bins, u64 *found) {
    u32 key = 0, id = 0;
    // Four digits of the key; then, where only some of the tokens with that key belong, four of the id, inverted.
    for (u32 level = 0; level < 8; ++level) {
        const bool by_key = level < 4;
        const u32 shift = 24 - 8 * (level % 4);
        for (u32 b = thread_x(); b < 256; b += THREADS) bins[b] = 0;
        barrier();
        each_logit(row.logits, thread_x(), row.n, THREADS, [&](float x, u32 i) {
            if (!(x >= row.lowest)) return;
            const u32 own = by_key ? order_key(x) : ~i, so_far = by_key ? key : id;
            if (!by_key && order_key(x) != key) return;
            if (shift < 24 && own >> (shift + 8) != so_far >> (shift + 8)) return;
            const u64 amount = measure == COUNT || !by_key ? 1 : weight_of(add_exact(x, -row.max));
            if (amount) shared_add(&bins[own >> shift & 255], amount);
        });
        barrier();
        if (thread_x() < GPU_WAVE) find_bin(target, bins, found);
        barrier();
        target = found[1];
        const u32 digit = (u32)found[0] << shift;
        const u64 in_bin = found[2];
        barrier();
        if (by_key) key |= digit;
        else id |= digit;
        if (level == 3) {
            if (measure == MASS) {
                // Tokens of one key weigh the same: how many of them?
                const float x = bits_as<float>(key >> 31 ? key & 0x7fffffffu : ~key);
                const u64 weight = weight_of(add_exact(x, -row.max));
                target = weight ? (target + weight - 1) / weight : 0xffffffffull;
                if (weight == 0 || target * weight >= in_bin) return {key, 0xffffffffu};
            } else if (target >= in_bin) {
                return {key, 0xffffffffu};
            }
        }
    }
    return {key, ~id};
}

DEVICE bool is_kept(float x, u32 id, const Border &border, float lowest) {
    const u32 key = order_key(x);
    return x >= lowest && (key > border.key || (key == border.key && id <= border.last_id));
}

// The first token at which the sum of the weights of kept tokens, in the order of their ids, passes `u` of the whole.
DEVICE void pick(const Row &row, const Border &border, float scale, u64 u, u64 *scratch, u32 *out) {
    const u32 wave = thread_x() / GPU_WAVE, l = lane();
    const u32 per_wave = ((row.n + N_WAVES - 1) / N_WAVES + GPU_WAVE - 1) / GPU_WAVE * GPU_WAVE;
    const u32 first = wave * per_wave, end = first + per_wave < row.n ? first + per_wave : row.n;
    auto weight = [&](float x, u32 i) -> u64 {
        return is_kept(x, i, border, row.lowest) ? weight_of(mul_exact(add_exact(x, -row.max), scale)) : 0;
    };
    u64 own = 0;
    each_logit(row.logits, first + l, end, GPU_WAVE, [&](float x, u32 i) { own += weight(x, i); });
#pragma unroll
    for (u32 mask = GPU_WAVE / 2; mask > 0; mask >>= 1) own += from_lane_u64(own, l ^ mask);
    if (l == 0) scratch[wave] = own;
    barrier();
    u64 total = 0, before = 0;
#pragma unroll 8
    for (u32 i = 0; i < N_WAVES; ++i) {
        if (i == wave) before = total;
        total += scratch[i];
    }
    const u64 target = fraction_of(u, total);
    if (!(target >= before && target - before < own)) return;
    u64 left = target - before;
    for (u32 i0 = first; i0 < end; i0 += GPU_WAVE) {
        const u64 here = i0 + l < end ? weight(row.logits[i0 + l], i0 + l) : 0;
        const u64 sum = sum_so_far(here);
        if (here && left < sum && left + here >= sum) *out = i0 + l;
        const u64 all = from_lane_u64(sum, GPU_WAVE - 1);
        if (left < all) return;
        left -= all;
    }
}

// choices: scale (0: greedy), k (0: all), top-p as a fraction of 2^64 (low, high; 0: all), ln(min-p), the distance from
// the best logit beyond which all tokens together weigh less than 1 - top-p, the draw as a fraction of 2^64 (low, high).
KERNEL(THREADS)
sample(const float *__restrict__ logits, const u32 *__restrict__ choices, u32 *__restrict__ out, u32 n_vocab) {
    __shared__ u64 bins[256], scratch[N_WAVES], found[3];
    __shared__ float floats[THREADS];
    const u32 t = thread_x();
    const u32 *choice = choices + block_x() * CHOICE_WORDS;
    Row row = {logits + (u64)block_x() * n_vocab, n_vocab, 0.0f, 0.0f};
    const float least = bits_as<float>(0xff800000u);
    float own_max = least, is_bad = 0.0f;
    u32 own_best = 0;
    each_logit(row.logits, t, n_vocab, THREADS, [&](float x, u32 i) {
        if (x != x) is_bad = 1.0f;
        if (x > own_max) own_max = x, own_best = i;
    });
    row.max = block_max<THREADS>(own_max, floats);
    is_bad = block_max<THREADS>(is_bad, floats);
    if (is_bad != 0.0f || row.max == least || row.max == -least) {
        if (t == 0) out[block_x()] = NOT_NUMBERS;
        return;
    }
    const float scale = bits_as<float>(choice[0]);
    if (scale == 0.0f) {
        // The first of the best.
        if (t == 0) found[0] = n_vocab;
        barrier();
        if (own_max == row.max) shared_min((u32 *)&found[0], own_best);
        barrier();
        if (t == 0) out[block_x()] = *(u32 *)&found[0];
        return;
    }
    const u32 k = choice[1];
    const u64 top_p = (u64)choice[3] << 32 | choice[2], u = (u64)choice[7] << 32 | choice[6];
    const float min_logit = add_exact(row.max, bits_as<float>(choice[4]));
    Border border = {0, 0xffffffffu};
    row.lowest = least;
    const bool has_top_k = k > 0 && k < n_vocab;
    if (has_top_k) {
        // At least k tokens are as good as the k-th best of the threads' bests.
        if (k <= THREADS) {
            floats[t] = own_max;
            barrier();
            u32 n_before = 0;
#if defined(GPU_AMD)
            // Many at once, as the compiler would have it, take more scalar registers than there are.
#pragma clang loop vectorize(disable) interleave(disable) unroll_count(4)
#endif
            for (u32 i = 0; i < THREADS; ++i) n_before += (floats[i] > own_max) | ((floats[i] == own_max) & (i < t));
            barrier();
            if (n_before == k - 1) floats[0] = own_max;
            barrier();
            row.lowest = floats[0];
            barrier();
        }
        border = find_border(row, COUNT, k, bins, found);
    }
    if (top_p) {
        u64 own = 0;
        each_logit(row.logits, t, n_vocab, THREADS, [&](float x, u32 i) {
            if (is_kept(x, i, border, row.lowest)) own += weight_of(add_exact(x, -row.max));
        });
        const u64 total = block_sum_u64(own, scratch), target = fraction_of(top_p, total) + 1;
        if (!has_top_k) row.lowest = add_exact(row.max, bits_as<float>(choice[5]));
        border = find_border(row, MASS, target < total ? target : total, bins, found);
    }
    row.lowest = row.lowest > min_logit ? row.lowest : min_logit;
    pick(row, border, scale, u, scratch, out + block_x());
}

// The largest of all threads' numbers.
DEVICE u64 block_max_u64(u64 value, u64 *scratch) {
#pragma unroll
    for (u32 mask = GPU_WAVE / 2; mask > 0; mask >>= 1) {
        const u64 other = from_lane_u64(value, lane() ^ mask);
        if (other > value) value = other;
    }
    if (lane() == 0) scratch[thread_x() / GPU_WAVE] = value;
    barrier();
    u64 most = 0;
#pragma unroll 8
    for (u32 i = 0; i < N_WAVES; ++i) most = scratch[i] > most ? scratch[i] : most;
    barrier();
    return most;
}

#define MAX_TOP 20
#define NOT_ASKED 0xffffffffu

// describe: log-probabilities of the token that was chosen and of the best ones. One block a row.
// wanted: how many of the best, or NOT_ASKED. out, a row of 2 + 2 * MAX_TOP words: the log-probability of the chosen
// token, how many of the best follow, and (token, log-probability) pairs.
KERNEL(THREADS)
describe(const float *__restrict__ logits, const u32 *__restrict__ chosen, const u32 *__restrict__ wanted,
         u32 *__restrict__ out, u32 n_vocab) {
    __shared__ u64 scratch[N_WAVES];
    __shared__ float floats[N_WAVES];
    const u32 t = thread_x(), n_top = wanted[block_x()], token = chosen[block_x()];
    if (n_top == NOT_ASKED || token == NOT_NUMBERS) return;
    const float *row = logits + (u64)block_x() * n_vocab;
    u32 *to = out + (u64)block_x() * (2 + 2 * MAX_TOP);
    float own_max = bits_as<float>(0xff800000u);
    each_logit(row, t, n_vocab, THREADS, [&](float x, u32) { own_max = max_f32(own_max, x); });
    const float max = block_max<THREADS>(own_max, floats);
    u64 own = 0;
    each_logit(row, t, n_vocab, THREADS, [&](float x, u32) { own += weight_of(add_exact(x, -max)); });
    const float log_total = fast_log((float)block_sum_u64(own, scratch) * bits_as<float>(0x2b800000u));  // * 2^-40
    auto log_probability = [&](float x) { return add_exact(add_exact(x, -max), -log_total); };
    if (t == 0) to[0] = bits_as<u32>(log_probability(row[token]));
    // Best first: each pass finds the best of those after the last. Higher logits, then lower ids, are larger numbers.
    u64 last = ~0ull;
    u32 n_found = 0;
    for (; n_found < n_top && n_found < MAX_TOP; ++n_found) {
        u64 best = 0;
        each_logit(row, t, n_vocab, THREADS, [&](float x, u32 i) {
            const u64 place = (u64)order_key(x) << 32 | (u32)~i;
            if (x > bits_as<float>(0xff800000u) && place < last && place > best) best = place;
        });
        last = block_max_u64(best, scratch);
        if (last == 0) break;
        const u32 id = ~(u32)last;
        if (t == 0) {
            to[2 + 2 * n_found] = id;
            to[3 + 2 * n_found] = bits_as<u32>(log_probability(row[id]));
        }
    }
    if (t == 0) to[1] = n_found;
}
