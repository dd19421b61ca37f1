//! How the lanes of a wave share 16 by 16 matrices, and what multiplies them, as the manuals of the instruction sets say.
//! `roci-kernel-build` names what a chip has by `--cfg matrix`.
//!
//! A lane holds `A`, `B` and `SUM` numbers; the `i`th of them is at the row and column that `a`, `b` and `sum` give.
//! `A_RUN` of A's follow one another in a row, `B_RUN` of B's in a column.

pub use chip::*;

/// RDNA 3: lanes 16 to 31 repeat what lanes 0 to 15 hold of the factors, and hold every second row of the sums.
#[cfg(matrix = "wmma")]
mod chip {
    use super::super::f16;

    pub const A: usize = 16;
    pub const B: usize = 16;
    pub const SUM: usize = 8;
    pub const A_RUN: usize = 16;
    pub const B_RUN: usize = 16;

    #[inline(always)]
    pub fn a(lane: u32, i: u32) -> (u32, u32) {
        (lane % 16, i)
    }

    #[inline(always)]
    pub fn b(lane: u32, i: u32) -> (u32, u32) {
        (i, lane % 16)
    }

    #[inline(always)]
    pub fn sum(lane: u32, i: u32) -> (u32, u32) {
        (2 * i + lane / 16, lane % 16)
    }

    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Factor([f16; 16]);
    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Sum([f32; 8]);

    #[allow(improper_ctypes)] // LLVM takes vectors by their layout
    unsafe extern "unadjusted" {
        #[link_name = "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16"]
        fn wmma(a: Factor, b: Factor, c: Sum) -> Sum;
    }

    #[inline(always)]
    pub fn multiply(a: [f16; A], b: [f16; B], c: [f32; SUM]) -> [f32; SUM] {
        // SAFETY: vectors and arrays of the same numbers; all lanes take part, as the caller promised.
        unsafe { core::mem::transmute(wmma(Factor(a), Factor(b), Sum(c))) }
    }
}

/// RDNA 4 and CDNA: each 16 lanes hold a part of every row of A and every column of B, and a part of the rows of the sums.
/// So do the lanes of chips without matrix units.
#[cfg(any(matrix = "wmma12", matrix = "mfma", matrix = "lanes"))]
mod chip {
    use super::super::f16;

    #[cfg(wave64)]
    const PART: usize = 4;
    #[cfg(not(wave64))]
    const PART: usize = 8;

    pub const A: usize = PART;
    pub const B: usize = PART;
    pub const SUM: usize = PART;
    pub const A_RUN: usize = PART;
    pub const B_RUN: usize = PART;

    #[inline(always)]
    pub fn a(lane: u32, i: u32) -> (u32, u32) {
        (lane % 16, PART as u32 * (lane / 16) + i)
    }

    #[inline(always)]
    pub fn b(lane: u32, i: u32) -> (u32, u32) {
        (PART as u32 * (lane / 16) + i, lane % 16)
    }

    #[inline(always)]
    pub fn sum(lane: u32, i: u32) -> (u32, u32) {
        b(lane, i)
    }

    // Vectors want their lengths as numbers.
    #[cfg(matrix = "wmma12")]
    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Factor([f16; 8]);
    #[cfg(matrix = "wmma12")]
    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Sum([f32; 8]);
    #[cfg(matrix = "mfma")]
    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Factor([f16; 4]);
    #[cfg(matrix = "mfma")]
    #[repr(simd)]
    #[derive(Clone, Copy)]
    struct Sum([f32; 4]);

    #[cfg(matrix = "wmma12")]
    #[allow(improper_ctypes)] // LLVM takes vectors by their layout
    unsafe extern "unadjusted" {
        #[link_name = "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16"]
        fn wmma(a: Factor, b: Factor, c: Sum) -> Sum;
    }
    #[cfg(matrix = "mfma")]
    #[allow(improper_ctypes)] // LLVM takes vectors by their layout
    unsafe extern "unadjusted" {
        #[link_name = "llvm.amdgcn.mfma.f32.16x16x16f16"]
        fn mfma(a: Factor, b: Factor, c: Sum, broadcast: i32, from: i32, order: i32) -> Sum;
    }

    #[cfg(matrix = "wmma12")]
    #[inline(always)]
    pub fn multiply(a: [f16; A], b: [f16; B], c: [f32; SUM]) -> [f32; SUM] {
        // SAFETY: vectors and arrays of the same numbers; all lanes take part, as the caller promised.
        unsafe { core::mem::transmute(wmma(Factor(a), Factor(b), Sum(c))) }
    }

    #[cfg(matrix = "mfma")]
    #[inline(always)]
    pub fn multiply(a: [f16; A], b: [f16; B], c: [f32; SUM]) -> [f32; SUM] {
        // SAFETY: as above; nothing is broadcast or reordered.
        unsafe { core::mem::transmute(mfma(Factor(a), Factor(b), Sum(c), 0, 0, 0)) }
    }

    /// Each step fetches what another lane holds: a number of B's row for the lane's column, and one of each of A's rows.
    #[cfg(matrix = "lanes")]
    #[inline(always)]
    pub fn multiply(a: [f16; A], b: [f16; B], c: [f32; SUM]) -> [f32; SUM] {
        use super::super::{fma, lane, shuffle};
        let from = |value: f16, lane: u32| f32::from_bits(shuffle((value as f32).to_bits(), lane));
        let (column, first) = (lane() % 16, lane() / 16 * PART as u32);
        let mut c = c;
        for k in 0..16 {
            let group = 16 * (k / PART) as u32;
            let of_b = from(b[k % PART], group + column);
            for (row, sum) in c.iter_mut().enumerate() {
                *sum = fma(from(a[k % PART], group + first + row as u32), of_b, *sum);
            }
        }
        c
    }
}

/// NVIDIA's `mma.m16n8k16`, twice: a lane has four neighbours in a row, and pairs of numbers.
#[cfg(matrix = "mma")]
mod chip {
    use core::arch::asm;

    use super::super::f16;

    pub const A: usize = 8;
    pub const B: usize = 8;
    pub const SUM: usize = 8;
    pub const A_RUN: usize = 2;
    pub const B_RUN: usize = 2;

    #[inline(always)]
    pub fn a(lane: u32, i: u32) -> (u32, u32) {
        (lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8)
    }

    /// The first half of the numbers is of columns 0 to 7.
    #[inline(always)]
    pub fn b(lane: u32, i: u32) -> (u32, u32) {
        (lane % 4 * 2 + i % 2 + i / 2 % 2 * 8, lane / 4 + i / 4 * 8)
    }

    #[inline(always)]
    pub fn sum(lane: u32, i: u32) -> (u32, u32) {
        (lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8)
    }

    #[inline(always)]
    pub fn multiply(a: [f16; A], b: [f16; B], c: [f32; SUM]) -> [f32; SUM] {
        let pair = |low: f16, high: f16| low.to_bits() as u32 | (high.to_bits() as u32) << 16;
        let rows = [pair(a[0], a[1]), pair(a[2], a[3]), pair(a[4], a[5]), pair(a[6], a[7])];
        let [low, high] = [0, 4].map(|i| [pair(b[i], b[i + 1]), pair(b[i + 2], b[i + 3])]);
        let left = half_of(rows, low, [c[0], c[1], c[2], c[3]]);
        let right = half_of(rows, high, [c[4], c[5], c[6], c[7]]);
        [left[0], left[1], left[2], left[3], right[0], right[1], right[2], right[3]]
    }

    /// Eight columns of the product.
    #[inline(always)]
    fn half_of(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        let mut d = c;
        let [d0, d1, d2, d3] = &mut d;
        // SAFETY: all lanes take part, as the caller promised. Not `pure`: the answer depends on the other lanes.
        unsafe {
            asm!(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, \
                 {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};",
                d0 = inout(reg32) *d0,
                d1 = inout(reg32) *d1,
                d2 = inout(reg32) *d2,
                d3 = inout(reg32) *d3,
                a0 = in(reg32) a[0],
                a1 = in(reg32) a[1],
                a2 = in(reg32) a[2],
                a3 = in(reg32) a[3],
                b0 = in(reg32) b[0],
                b1 = in(reg32) b[1],
                options(nomem, nostack),
            )
        };
        d
    }
}

/// The host only checks types.
#[cfg(not(gpu))]
mod chip {
    use super::super::f16;

    pub const A: usize = 2;
    pub const B: usize = 2;
    pub const SUM: usize = 2;
    pub const A_RUN: usize = 2;
    pub const B_RUN: usize = 2;

    pub fn a(_: u32, _: u32) -> (u32, u32) {
        unreachable!("a kernel was called on the host")
    }

    pub use a as b;
    pub use a as sum;

    pub fn multiply(_: [f16; A], _: [f16; B], _: [f32; SUM]) -> [f32; SUM] {
        unreachable!("a kernel was called on the host")
    }
}
