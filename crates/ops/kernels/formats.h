// Numbers and block sizes of the weight formats. Generated from crates/ops/src/gpu/formats.rs; see variants.txt.
#pragma once

#define FORMAT_F32 0
#define FORMAT_F16 1
#define FORMAT_BF16 2
#define FORMAT_Q4_0 3
#define FORMAT_Q4_1 4
#define FORMAT_Q8_0 5
#define FORMAT_Q4_K 6
#define FORMAT_Q6_K 7
#define FORMAT_Q5_0 8
#define FORMAT_Q5_1 9
#define FORMAT_Q5_K 10
#define FORMAT_Q3_K 11
#define FORMAT_Q2_K 12
#define FORMAT_IQ4_NL 13
#define FORMAT_IQ4_XS 14
#define FORMAT_MXFP4 15
#define FORMAT_NVFP4 16
#define FORMAT_IQ3_XXS 17
#define FORMAT_IQ3_S 18
#define FORMAT_IQ2_XXS 19
#define FORMAT_IQ2_XS 20
#define FORMAT_IQ2_S 21
#define FORMAT_IQ1_S 22
#define FORMAT_IQ1_M 23
#define FORMAT_TQ1_0 24
#define FORMAT_TQ2_0 25
#define FORMAT_Q1_0 26
#define FORMAT_Q2_0 27

// The host always says; a compiler run by hand may not.
#ifndef FORMAT
#define FORMAT FORMAT_Q4_K
#endif

// A block as it lies in a file: bytes, and groups of 32 weights.
#if FORMAT == FORMAT_Q4_0
#define BLOCK_BYTES 18
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_Q4_1
#define BLOCK_BYTES 20
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_Q8_0
#define BLOCK_BYTES 34
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_Q4_K
#define BLOCK_BYTES 144
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_Q6_K
#define BLOCK_BYTES 210
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_Q5_0
#define BLOCK_BYTES 22
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_Q5_1
#define BLOCK_BYTES 24
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_Q5_K
#define BLOCK_BYTES 176
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_Q3_K
#define BLOCK_BYTES 110
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_Q2_K
#define BLOCK_BYTES 84
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ4_NL
#define BLOCK_BYTES 18
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_IQ4_XS
#define BLOCK_BYTES 136
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_MXFP4
#define BLOCK_BYTES 17
#define BLOCK_GROUPS 1
#elif FORMAT == FORMAT_NVFP4
#define BLOCK_BYTES 36
#define BLOCK_GROUPS 2
#elif FORMAT == FORMAT_IQ3_XXS
#define BLOCK_BYTES 98
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ3_S
#define BLOCK_BYTES 110
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ2_XXS
#define BLOCK_BYTES 66
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ2_XS
#define BLOCK_BYTES 74
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ2_S
#define BLOCK_BYTES 82
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ1_S
#define BLOCK_BYTES 50
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_IQ1_M
#define BLOCK_BYTES 56
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_TQ1_0
#define BLOCK_BYTES 54
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_TQ2_0
#define BLOCK_BYTES 66
#define BLOCK_GROUPS 8
#elif FORMAT == FORMAT_Q1_0
#define BLOCK_BYTES 18
#define BLOCK_GROUPS 4
#elif FORMAT == FORMAT_Q2_0
#define BLOCK_BYTES 18
#define BLOCK_GROUPS 2
#endif
