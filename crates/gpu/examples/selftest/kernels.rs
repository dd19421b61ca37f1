//! The kernels the checks run, with their host sides. `rmsnorm` and `prelude_check` are the real
//! files of crate `ops`; the rest are a few lines each.

use gpu::{Kernel, Module, Program, Slice, SliceMut};
use half::{bf16, f16};

use super::Bench;

pub const PRELUDE: &str = include_str!("../../../ops/kernels/prelude.h");
pub const RMSNORM: &str = include_str!("../../../ops/kernels/rmsnorm.hip");
pub const NORM_ROW: &str = include_str!("../../../ops/kernels/rmsnorm.h");
/// Threads of a row.
pub const NORM_THREADS: u32 = 512;
pub const PRELUDE_CHECK: &str = include_str!("../../../ops/kernels/prelude_check.hip");

gpu::args! {
    pub struct Rmsnorm<'a> {
        pub x: Slice<'a, f32>,
        pub w: Slice<'a, f32>,
        pub y: SliceMut<'a, f32>,
        pub n_cols: u32,
        pub eps: f32,
    }
}

gpu::args! {
    pub struct PreludeCheck<'a> {
        pub x: Slice<'a, f32>,
        pub words: Slice<'a, u32>,
        pub halves: SliceMut<'a, f16>,
        pub brains: SliceMut<'a, bf16>,
        pub out: SliceMut<'a, f32>,
        pub ints: SliceMut<'a, i32>,
    }
}

gpu::args! {
    /// y += step, `n` numbers
    pub struct Add<'a> {
        pub y: SliceMut<'a, f32>,
        pub step: Slice<'a, f32>,
        pub n: u32,
    }
}

gpu::args! {
    /// A long chain of dependent integer work.
    pub struct Spin<'a> {
        pub y: SliceMut<'a, u32>,
        pub rounds: u64,
    }
}

gpu::args! {
    /// Turn a block's numbers round through dynamic shared memory, from its far end.
    pub struct Reverse<'a> {
        pub x: Slice<'a, f32>,
        pub y: SliceMut<'a, f32>,
        pub words: u32,
    }
}

gpu::args! {
    /// Write far outside any allocation.
    pub struct Stray<'a> {
        pub y: SliceMut<'a, u32>,
        pub offset: u64,
    }
}

gpu::args! {
    pub struct Bias<'a> {
        pub bias: Option<Slice<'a, f32>>,
        pub y: SliceMut<'a, f32>,
        pub n: u32,
    }
}

const SMALL: &str = r#"
#include "prelude.h"
KERNEL(256) add(float *__restrict__ y, const float *__restrict__ step, u32 n) {
    u32 i = block_x() * 256 + thread_x();
    if (i < n) y[i] += step[0];
}
KERNEL(64) spin(u32 *__restrict__ y, u64 rounds) {
    u32 v = y[0] + thread_x();
    for (u64 i = 0; i < rounds; ++i) v = v * 1664525u + 1013904223u;
    if (thread_x() == 0) y[0] = v;
}
#if defined(GPU_AMD)
#if defined(__HIPCC_RTC__)
extern __shared__ float dynamic[];
#else
extern __attribute__((shared)) float dynamic[];
#endif
#else
extern __shared__ float dynamic[];
#endif
KERNEL(64) reverse(const float *__restrict__ x, float *__restrict__ y, u32 words) {
    u32 t = thread_x(), base = words - 64;
    dynamic[base + t] = x[block_x() * 64 + t];
    barrier();
    y[block_x() * 64 + t] = dynamic[base + 63 - t];
}
KERNEL(64) stray(u32 *__restrict__ y, u64 offset) { y[offset + thread_x()] = 1u; }
KERNEL(256) bias(const float *__restrict__ b, float *__restrict__ y, u32 n) {
    u32 i = block_x() * 256 + thread_x();
    if (i < n) y[i] += b ? b[i] : 100.0f;
}
"#;

/// The small kernels, loaded.
pub struct Small {
    pub add: Kernel<Add<'static>>,
    pub spin: Kernel<Spin<'static>>,
    pub reverse: Kernel<Reverse<'static>>,
    pub stray: Kernel<Stray<'static>>,
    pub bias: Kernel<Bias<'static>>,
}

pub fn small_program() -> Program {
    Program::new("small", SMALL)
        .header("prelude.h", PRELUDE)
        .kernel::<Add>("add")
        .kernel::<Spin>("spin")
        .kernel::<Reverse>("reverse")
        .kernel::<Stray>("stray")
        .kernel::<Bias>("bias")
}

pub fn small(bench: &Bench) -> gpu::Result<Small> {
    let module = Module::load(&bench.device, &small_program(), &bench.cache)?;
    Ok(Small {
        add: module.kernel::<Add>("add")?,
        spin: module.kernel::<Spin>("spin")?,
        reverse: module.kernel::<Reverse>("reverse")?,
        stray: module.kernel::<Stray>("stray")?,
        bias: module.kernel::<Bias>("bias")?,
    })
}

pub fn rmsnorm_program() -> Program {
    Program::new("rmsnorm", RMSNORM)
        .header("prelude.h", PRELUDE)
        .header("rmsnorm.h", NORM_ROW)
        .kernel::<Rmsnorm>("rmsnorm_f32")
}

pub fn prelude_program() -> Program {
    Program::new("prelude_check", PRELUDE_CHECK).header("prelude.h", PRELUDE).kernel::<PreludeCheck>("prelude_check")
}
