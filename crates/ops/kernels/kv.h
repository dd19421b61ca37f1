// Keys and values in the KV pool (crates/ops/src/kv_format.rs): a row of the pool is sixteen tokens of one head,
// [16, head_dim], and KV says as what. Quantized numbers come in groups of 32 of one token; behind a row's numbers lie its
// scales, [16, head_dim / 32].
#pragma once
#include "prelude.h"

#define KV_F32 0
#define KV_F16 1
#define KV_Q8_0 2
#define KV_Q4_0 3
#ifndef KV  // the host always says; a compiler run by hand may not
#define KV KV_F16
#endif
#define KV_IS_QUANTIZED (KV == KV_Q8_0 || KV == KV_Q4_0)
#define KV_BLOCK 16
#define KV_GROUP 32

#if KV == KV_F32
typedef float Kept;
#elif KV == KV_F16
typedef f16 Kept;
#else

// Bytes of so many numbers, without their scales.
DEVICE u32 kv_bytes(u32 n) { return KV == KV_Q8_0 ? n : n / 2; }
DEVICE u64 kv_row_bytes(u32 head_dim) { return KV_BLOCK * (kv_bytes(head_dim) + head_dim / KV_GROUP * 2); }
DEVICE f16 *kv_scales(u8 *row, u32 token, u32 head_dim) {
    return (f16 *)(row + kv_bytes(KV_BLOCK * head_dim)) + token * (head_dim / KV_GROUP);
}
#endif
