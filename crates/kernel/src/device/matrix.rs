//! Products of 16 by 16 matrices of halves by one wave, on the matrix units where a chip has them: WMMA on RDNA 3 and 4,
//! MFMA on CDNA, `mma.sync` on NVIDIA from sm_80 on. Other chips compute the same by exchanging numbers between lanes.
//!
//! How the lanes of a wave share a matrix differs from chip to chip: `units` knows it, and kernels need not.

use super::{View, ViewMut, f16, lane, units};

/// The left factor of a product: 16 rows of 16 numbers, shared by a wave.
#[derive(Clone, Copy)]
pub struct TileA([f16; units::A]);

/// The right factor.
#[derive(Clone, Copy)]
pub struct TileB([f16; units::B]);

/// Sums of products.
#[derive(Clone, Copy)]
pub struct TileSum([f32; units::SUM]);

impl TileA {
    /// The number at each row and column is `at(row, column)`. Some chips hold a number in several lanes.
    #[inline(always)]
    pub fn new(at: impl Fn(u32, u32) -> f16) -> Self {
        let lane = lane();
        Self(core::array::from_fn(|i| {
            let (row, column) = units::a(lane, i as u32);
            at(row, column)
        }))
    }

    /// Row `r` is the 16 values at `first + r * stride`, which must all be there.
    #[inline(always)]
    pub fn load(view: View<f16>, first: u32, stride: u32) -> Self {
        let lane = lane();
        let runs: [[f16; units::A_RUN]; units::A / units::A_RUN] = core::array::from_fn(|run| {
            let (row, column) = units::a(lane, (run * units::A_RUN) as u32);
            view.run(first + row * stride + column)
        });
        Self(core::array::from_fn(|i| runs[i / units::A_RUN][i % units::A_RUN]))
    }
}

impl TileB {
    /// As [`TileA::new`].
    #[inline(always)]
    pub fn new(at: impl Fn(u32, u32) -> f16) -> Self {
        let lane = lane();
        Self(core::array::from_fn(|i| {
            let (row, column) = units::b(lane, i as u32);
            at(row, column)
        }))
    }

    /// Column `c` is the 16 values at `first + c * stride`: of a matrix that lies column after column, or of the transpose
    /// of one that lies row after row. Chips load these several at a time.
    #[inline(always)]
    pub fn load_columns(view: View<f16>, first: u32, stride: u32) -> Self {
        let lane = lane();
        let runs: [[f16; units::B_RUN]; units::B / units::B_RUN] = core::array::from_fn(|run| {
            let (row, column) = units::b(lane, (run * units::B_RUN) as u32);
            view.run(first + column * stride + row)
        });
        Self(core::array::from_fn(|i| runs[i / units::B_RUN][i % units::B_RUN]))
    }

    /// Row `r` is the 16 values at `first + r * stride`.
    #[inline(always)]
    pub fn load_rows(view: View<f16>, first: u32, stride: u32) -> Self {
        Self::new(|row, column| view.get(first + row * stride + column))
    }
}

impl TileSum {
    #[inline(always)]
    pub fn zero() -> Self {
        Self([0.0; units::SUM])
    }

    /// This plus the product of `a` and `b`. All lanes of the wave take part.
    #[inline(always)]
    #[must_use]
    pub fn plus(self, a: TileA, b: TileB) -> Self {
        Self(units::multiply(a.0, b.0, self.0))
    }

    /// Gives `with(row, column, sum)` each of the sums: each to one lane of the wave.
    #[inline(always)]
    pub fn each(self, mut with: impl FnMut(u32, u32, f32)) {
        let lane = lane();
        for i in 0..units::SUM {
            let (row, column) = units::sum(lane, i as u32);
            with(row, column, self.0[i]);
        }
    }

    /// Writes row `r` to the 16 values at `first + r * stride`.
    #[inline(always)]
    pub fn store(self, view: ViewMut<f32>, first: u32, stride: u32) {
        self.each(|row, column, value| view.set(first + row * stride + column, value));
    }
}
