// Kernels of the kinds an LLM engine runs, for tests of the emulator. No header is included: clang -nogpuinc -nogpulib
// builds this for any target. WAVE is the wave width.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef _Float16 f16;
typedef f16 f16x4 __attribute__((ext_vector_type(4)));
typedef f16 f16x8 __attribute__((ext_vector_type(8)));
typedef f16 f16x16 __attribute__((ext_vector_type(16)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef short s16x16 __attribute__((ext_vector_type(16)));
typedef int i32x2 __attribute__((ext_vector_type(2)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x8 __attribute__((ext_vector_type(8)));
typedef float f32x16 __attribute__((ext_vector_type(16)));

#define BLOCK 256
#define N_WAVES (BLOCK / WAVE)
#define KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, BLOCK))) void
#define DEVICE static __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
#define TID ((int)__builtin_amdgcn_workitem_id_x())
#define GROUP ((int)__builtin_amdgcn_workgroup_id_x())
#define GROUP_Y ((int)__builtin_amdgcn_workgroup_id_y())

DEVICE int lane() {
#if WAVE == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
#else
    return __builtin_amdgcn_mbcnt_lo(~0u, 0u);
#endif
}
DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE int shuffle_xor(int v, int m) { return __builtin_amdgcn_ds_bpermute((lane() ^ m) << 2, v); }
DEVICE float shuffle_xor_f(float v, int m) {
    return __builtin_bit_cast(float, shuffle_xor(__builtin_bit_cast(int, v), m));
}
DEVICE float wave_sum(float v) {
    for (int m = WAVE / 2; m > 0; m >>= 1) v += shuffle_xor_f(v, m);
    return v;
}
DEVICE float block_sum(float v, float* part) {
    v = wave_sum(v);
    if (lane() == 0) part[TID / WAVE] = v;
    barrier();
    float s = 0.f;
    for (int i = 0; i < N_WAVES; i++) s += part[i];
    barrier();
    return s;
}
DEVICE float half_bits(u16 h) { return (float)__builtin_bit_cast(f16, h); }
DEVICE int dot4(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    return __builtin_amdgcn_sdot4(a, b, c, false);
#endif
}

KERNEL rmsnorm(const float* x, const float* w, float* y, int n, float eps) {
    SHARED float part[N_WAVES];
    const float* row = x + (u64)GROUP * n;
    float s = 0.f;
    for (int i = TID; i < n; i += BLOCK) s += row[i] * row[i];
    s = block_sum(s, part);
    float scale = __builtin_amdgcn_rsqf(s / (float)n + eps);
    for (int i = TID; i < n; i += BLOCK) y[(u64)GROUP * n + i] = row[i] * scale * w[i];
}

KERNEL softmax(float* x, int n, float scale) {
    SHARED float part[N_WAVES];
    float* row = x + (u64)GROUP * n;
    float m = -3.4e38f;
    for (int i = 0; i < n; i++) m = __builtin_fmaxf(m, row[i] * scale);
    barrier();
    float s = 0.f;
    for (int i = TID; i < n; i += BLOCK) {
        float e = __builtin_expf(row[i] * scale - m);
        row[i] = e;
        s += e;
    }
    s = block_sum(s, part);
    for (int i = TID; i < n; i += BLOCK) row[i] = row[i] / s;
}

KERNEL silu_mul(const float* g, const float* u, float* o, int n) {
    int i = GROUP * BLOCK + TID;
    if (i < n) o[i] = g[i] / (1.f + __builtin_expf(-g[i])) * u[i];
}

KERNEL argmax(const float* x, int* out, int n) {
    SHARED float best[BLOCK];
    SHARED int where[BLOCK];
    float b = -3.4e38f;
    int at = 0;
    for (int i = TID; i < n; i += BLOCK)
        if (x[i] > b) {
            b = x[i];
            at = i;
        }
    best[TID] = b;
    where[TID] = at;
    barrier();
    for (int step = BLOCK / 2; step > 0; step >>= 1) {
        if (TID < step) {
            int o = TID + step;
            if (best[o] > best[TID] || (best[o] == best[TID] && where[o] < where[TID])) {
                best[TID] = best[o];
                where[TID] = where[o];
            }
        }
        barrier();
    }
    if (TID == 0) out[0] = where[0];
}

struct q8_0 {
    u16 d;
    i8 q[32];
};
DEVICE int pair4(const i8* p) {
    const u16* s = (const u16*)p;
    return (int)((u32)s[0] | (u32)s[1] << 16);
}
// Rows of 8-bit blocks times an 8-bit vector: one wave a row.
KERNEL matvec_q8_0(const q8_0* w, const q8_0* x, float* y, int n_rows, int n_blocks) {
    int row = GROUP * N_WAVES + TID / WAVE;
    if (row >= n_rows) return;
    const q8_0* wr = w + (u64)row * n_blocks;
    float s = 0.f;
    for (int b = lane() / 4; b < n_blocks; b += WAVE / 4) {
        int o = (lane() % 4) * 8;
        int acc = dot4(pair4(wr[b].q + o), pair4(x[b].q + o), 0);
        acc = dot4(pair4(wr[b].q + o + 4), pair4(x[b].q + o + 4), acc);
        s += half_bits(wr[b].d) * half_bits(x[b].d) * (float)acc;
    }
    s = wave_sum(s);
    if (lane() == 0) y[row] = s;
}

struct q4_0 {
    u16 d;
    u8 q[16];
};
KERNEL matvec_q4_0(const q4_0* w, const q8_0* x, float* y, int n_rows, int n_blocks) {
    int row = GROUP * N_WAVES + TID / WAVE;
    if (row >= n_rows) return;
    const q4_0* wr = w + (u64)row * n_blocks;
    float s = 0.f;
    for (int b = lane(); b < n_blocks; b += WAVE) {
        int acc = 0, sum = 0;
        for (int k = 0; k < 16; k += 4) {
            int v = pair4((const i8*)wr[b].q + k);
            int lo = pair4(x[b].q + k), hi = pair4(x[b].q + 16 + k);
            acc = dot4(v & 0x0f0f0f0f, lo, acc);
            acc = dot4((v >> 4) & 0x0f0f0f0f, hi, acc);
            sum = dot4(0x01010101, lo, sum);
            sum = dot4(0x01010101, hi, sum);
        }
        s += half_bits(wr[b].d) * half_bits(x[b].d) * (float)(acc - 8 * sum);
    }
    s = wave_sum(s);
    if (lane() == 0) y[row] = s;
}

KERNEL matvec_f16(const f16* w, const float* x, float* y, int n_rows, int n) {
    int row = GROUP * N_WAVES + TID / WAVE;
    if (row >= n_rows) return;
    float s = 0.f;
    for (int i = lane() * 4; i < n; i += WAVE * 4) {
        f16x4 v = *(const f16x4*)(w + (u64)row * n + i);
        f32x4 a = *(const f32x4*)(x + i);
        for (int k = 0; k < 4; k++) s = __builtin_fmaf((float)v[k], a[k], s);
    }
    s = wave_sum(s);
    if (lane() == 0) y[row] = s;
}

// One block a head, halves in the cache, running softmax.
KERNEL attention(const float* q, const f16* k, const f16* v, float* o, int n_ctx, float scale) {
    SHARED float top[N_WAVES], total[N_WAVES], acc_s[N_WAVES][128];
    const int per = 128 / WAVE;
    int wid = TID / WAVE, l = lane();
    float qv[per], acc[per];
    for (int d = 0; d < per; d++) {
        qv[d] = q[GROUP * 128 + l * per + d] * scale;
        acc[d] = 0.f;
    }
    float m = -3.4e38f, sum = 0.f;
    for (int t = wid; t < n_ctx; t += N_WAVES) {
        const f16* kt = k + (u64)t * 128 + l * per;
        float s = 0.f;
        for (int d = 0; d < per; d++) s = __builtin_fmaf(qv[d], (float)kt[d], s);
        s = wave_sum(s);
        float next = __builtin_fmaxf(m, s), c = __builtin_expf(m - next), p = __builtin_expf(s - next);
        sum = sum * c + p;
        m = next;
        const f16* vt = v + (u64)t * 128 + l * per;
        for (int d = 0; d < per; d++) acc[d] = acc[d] * c + p * (float)vt[d];
    }
    if (l == 0) {
        top[wid] = m;
        total[wid] = sum;
    }
    for (int d = 0; d < per; d++) acc_s[wid][l * per + d] = acc[d];
    barrier();
    float all = -3.4e38f;
    for (int i = 0; i < N_WAVES; i++) all = __builtin_fmaxf(all, top[i]);
    float den = 0.f;
    for (int i = 0; i < N_WAVES; i++) den += total[i] * __builtin_expf(top[i] - all);
    if (TID < 128) {
        float r = 0.f;
        for (int i = 0; i < N_WAVES; i++) r += acc_s[i][TID] * __builtin_expf(top[i] - all);
        o[GROUP * 128 + TID] = r / den;
    }
}

// C = A * B^T on the matrix units, one 16 x 16 tile a wave. A: [m, k], B: [n, k].
KERNEL gemm_f16(const f16* a, const f16* b, float* c, int n, int k) {
    int l = lane(), r = l % 16;
    const f16* ar = a + (u64)(GROUP_Y * 16 + r) * k;
    const f16* br = b + (u64)(GROUP * 16 + r) * k;
#if defined(__GFX11__)
    f32x8 acc = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < k; i += 16)
        acc = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(*(const f16x16*)(ar + i), *(const f16x16*)(br + i), acc);
    for (int i = 0; i < 8; i++) c[(u64)(GROUP_Y * 16 + 2 * i + l / 16) * n + GROUP * 16 + r] = acc[i];
#elif defined(__GFX12__)
    f32x8 acc = {0, 0, 0, 0, 0, 0, 0, 0};
    int half = l / 16 * 8;
    for (int i = 0; i < k; i += 16)
        acc = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(*(const f16x8*)(ar + i + half), *(const f16x8*)(br + i + half), acc);
    for (int i = 0; i < 8; i++) c[(u64)(GROUP_Y * 16 + half + i) * n + GROUP * 16 + r] = acc[i];
#elif defined(__gfx942__) || defined(__gfx90a__) || defined(__gfx908__)
    f32x4 acc = {0, 0, 0, 0};
    for (int i = 0; i < k; i += 16)
        acc = __builtin_amdgcn_mfma_f32_16x16x16f16(*(const f16x4*)(ar + i + l / 16 * 4), *(const f16x4*)(br + i + l / 16 * 4), acc, 0, 0, 0);
    for (int i = 0; i < 4; i++) c[(u64)(GROUP_Y * 16 + l / 16 * 4 + i) * n + GROUP * 16 + r] = acc[i];
#endif
}

KERNEL gemm_i8(const i8* a, const i8* b, int* c, int n, int k) {
    int l = lane(), r = l % 16;
    const i8* ar = a + (u64)(GROUP_Y * 16 + r) * k;
    const i8* br = b + (u64)(GROUP * 16 + r) * k;
#if defined(__GFX11__)
    i32x8 acc = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < k; i += 16)
        acc = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, *(const i32x4*)(ar + i), true, *(const i32x4*)(br + i), acc, false);
    for (int i = 0; i < 8; i++) c[(u64)(GROUP_Y * 16 + 2 * i + l / 16) * n + GROUP * 16 + r] = acc[i];
#elif defined(__GFX12__)
    i32x8 acc = {0, 0, 0, 0, 0, 0, 0, 0};
    int half = l / 16 * 8;
    for (int i = 0; i < k; i += 16)
        acc = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, *(const i32x2*)(ar + i + half), true, *(const i32x2*)(br + i + half), acc, false);
    for (int i = 0; i < 8; i++) c[(u64)(GROUP_Y * 16 + half + i) * n + GROUP * 16 + r] = acc[i];
#elif defined(__gfx942__)
    i32x4 acc = {0, 0, 0, 0};
    for (int i = 0; i < k; i += 32)
        acc = __builtin_amdgcn_mfma_i32_16x16x32_i8(*(const long*)(ar + i + l / 16 * 8), *(const long*)(br + i + l / 16 * 8), acc, 0, 0, 0);
    for (int i = 0; i < 4; i++) c[(u64)(GROUP_Y * 16 + l / 16 * 4 + i) * n + GROUP * 16 + r] = acc[i];
#endif
}

// Spilled locals: an array indexed at run time lives in scratch.
KERNEL scratch_sum(const int* at, float* out, int n) {
    volatile float local[64];
    for (int i = 0; i < 64; i++) local[i] = (float)(i * TID);
    float s = 0.f;
    for (int i = 0; i < n; i++) s += local[at[i] & 63];
    out[TID] = s;
}

// Mixed integer work: 64-bit products, division, bit fields.
KERNEL integers(const u32* x, u64* out, int n) {
    int i = GROUP * BLOCK + TID;
    if (i >= n) return;
    u32 a = x[i], b = x[(i + 1) % n];
    u64 r = (u64)a * b;
    r ^= (u64)(a / (b | 1)) << 32 | a % (b | 1);
    r += (u64)__builtin_popcount(a) << 7;
    r ^= (u64)(int)(a << 3) >> (b & 31);
    r = r << (a & 31) | r >> 3;
    out[i] = r;
}

KERNEL doubles(const double* x, double* out, int n) {
    int i = GROUP * BLOCK + TID;
    if (i < n) out[i] = __builtin_sqrt(x[i]) / (x[i] + 1.0) - __builtin_floor(x[i]) * 0.25;
}

// Mistakes that a card would not report.
KERNEL race(float* out) {
    SHARED float s[BLOCK];
    s[TID] = (float)TID;
    out[TID] = s[BLOCK - 1 - TID];
}
KERNEL past_end(float* out, int n) { out[TID + n] = 1.f; }
KERNEL unwritten(const float* x, float* out) { out[TID] = x[TID]; }
KERNEL lds_unwritten(float* out) {
    SHARED float s[BLOCK];
    if (TID < 7) s[TID] = 1.f;
    barrier();
    out[TID] = s[TID];
}
KERNEL count_tickets(u32* counter, u32* last, int n_groups) {
    if (TID == 0) {
        u32 t = __atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED);
        if (t == (u32)n_groups - 1) *last = GROUP + 1;
    }
}

// Pairs of floats, one register of each pair picked by op_sel; plain code where the chip has no such instruction.
#if defined(__gfx942__)
#define PK_MOV(d, a, b, sel) asm volatile("v_pk_mov_b32 %0, %1, %2 op_sel:" sel : "=v"(d) : "v"(a), "v"(b))
#define PK_FMA(d, a, b, c) \
    asm volatile("v_pk_fma_f32 %0, %1, %2, %3 op_sel:[0,1,0] op_sel_hi:[0,0,1]" : "=v"(d) : "v"(a), "v"(b), "v"(c))
#else
#define PICK(x, n) ((n) == '1' ? (x) >> 32 : (x) & 0xffffffffull)
#define PK_MOV(d, a, b, sel) d = PICK(a, sel[1]) | PICK(b, sel[3]) << 32
DEVICE u64 pack_floats(float lo, float hi) { return (u64)__builtin_bit_cast(u32, hi) << 32 | __builtin_bit_cast(u32, lo); }
DEVICE float float_of(u64 x) { return __builtin_bit_cast(float, (u32)x); }
#define PK_FMA(d, a, b, c) \
    d = pack_floats(__builtin_fmaf(float_of(a), float_of((b) >> 32), float_of(c)), \
                    __builtin_fmaf(float_of(a), float_of(b), float_of((c) >> 32)))
#endif
KERNEL pairs(const u64* a, const u64* b, const u64* c, u64* out) {
    u64 x = a[TID], y = b[TID], z = c[TID], d;
    PK_MOV(d, x, y, "[0,0]");
    out[TID * 5] = d;
    PK_MOV(d, x, y, "[1,0]");
    out[TID * 5 + 1] = d;
    PK_MOV(d, x, y, "[0,1]");
    out[TID * 5 + 2] = d;
    PK_MOV(d, x, y, "[1,1]");
    out[TID * 5 + 3] = d;
    PK_FMA(d, x, y, z);
    out[TID * 5 + 4] = d;
}
