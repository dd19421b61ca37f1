//! Fourier transforms of one to three dimensions: rocFFT | cuFFT.
//!
//! A transform is planned once for one queue and shape and may then run any number of times. Its work
//! buffer belongs to it. Transforms work in place and between buffers, dense, strided and batched; those of
//! real numbers have the half of the spectrum that is not redundant. No transform divides: forward and back
//! again multiplies by the number of elements.

mod calls;
mod plan;
mod real;

use std::cell::OnceCell;
use std::marker::PhantomData;

use gpu::foreign::Binding;
use gpu::{Queue, Slice, SliceMut};

pub(crate) use calls::{ArrayType, Placement, PlanType, Precision, RealDirection};
pub use calls::{Calls, Direction};
use plan::FftPlan;
pub use real::{InverseRealFft, RealFft, RealFftLayout};

use crate::error::{Result, ensure};
use crate::scalar::Real;

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[
    Direction::NUMBERS,
    RealDirection::NUMBERS,
    Precision::NUMBERS,
    Placement::NUMBERS,
    ArrayType::NUMBERS,
    PlanType::NUMBERS,
];

/// How the elements of a complex transform lie in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FftLayout {
    /// One to three lengths, the last of which changes fastest.
    lengths: Vec<usize>,
    batch: usize,
    stride: usize,
    distance: usize,
}

impl FftLayout {
    /// Dense: every element beside the next.
    #[track_caller]
    pub fn dense(lengths: &[usize]) -> Result<Self> {
        ensure("fft", matches!(lengths.len(), 1..=3), || format!("{} dimensions, not one to three", lengths.len()))?;
        let total = lengths.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
        ensure("fft", total.is_some_and(|total| total > 0), || format!("lengths {lengths:?}"))?;
        let total = total.unwrap_or(1);
        Ok(Self { lengths: lengths.to_vec(), batch: 1, stride: 1, distance: total })
    }

    /// `n` transforms, one after the other.
    #[must_use]
    pub fn batched(mut self, n: usize) -> Self {
        self.batch = n;
        self.distance = self.total() * self.stride;
        self
    }

    /// `n` transforms whose elements are `stride` apart and which start `distance` apart. Columns of a row-major
    /// matrix of `n` columns are `stride: n, distance: 1`.
    #[track_caller]
    pub fn strided(mut self, n: usize, stride: usize, distance: usize) -> Result<Self> {
        no_sharing(self.total(), n, stride, distance)?;
        (self.batch, self.stride, self.distance) = (n, stride, distance);
        Ok(self)
    }

    /// Elements of one transform.
    pub fn total(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Elements from the first to the last.
    fn span(&self) -> usize {
        self.batch.saturating_sub(1) * self.distance + (self.total() - 1) * self.stride + 1
    }
}

/// Refuses strides by which two elements of a batch would lie in one place.
#[track_caller]
fn no_sharing(total: usize, n: usize, stride: usize, distance: usize) -> Result<()> {
    let last = |count: usize, step: usize| count.saturating_sub(1).saturating_mul(step);
    let is_apart = distance > last(total, stride);
    let is_woven = distance > 0 && stride > last(n, distance);
    ensure("fft", stride > 0 && (n <= 1 || is_apart || is_woven), || {
        format!("{n} transforms, elements {stride} and starts {distance} apart, share elements")
    })
}

/// A complex transform in one direction.
pub struct ComplexFft<T: Real> {
    binding: Binding,
    layout: FftLayout,
    direction: Direction,
    /// rocFFT plans differ for work in place and between buffers; each is made when it is first needed.
    in_place: OnceCell<FftPlan>,
    apart: OnceCell<FftPlan>,
    number: PhantomData<T>,
}

impl<T: Real> ComplexFft<T> {
    #[track_caller]
    pub fn new(queue: &Queue, direction: Direction, layout: FftLayout) -> Result<Self> {
        let binding = Binding::new(queue)?;
        Calls::get(binding.vendor())?;
        ensure("fft", layout.batch > 0, || "a batch of no transforms".into())?;
        Ok(Self { binding, layout, direction, in_place: OnceCell::new(), apart: OnceCell::new(), number: PhantomData })
    }

    /// Transforms `data` into itself.
    #[track_caller]
    pub fn run_in_place(&self, data: SliceMut<'_, T::Complex>) -> Result<()> {
        self.fits(data.len())?;
        let at = self.binding.output(&data)?;
        self.plan(&self.in_place, Placement::InPlace)?.run(&self.binding, at, at)
    }

    /// Transforms `from` into `to`.
    #[track_caller]
    pub fn run(&self, from: Slice<'_, T::Complex>, to: SliceMut<'_, T::Complex>) -> Result<()> {
        self.fits(from.len())?;
        self.fits(to.len())?;
        let (from, to) = (self.binding.input(&from)?, self.binding.output(&to)?);
        self.plan(&self.apart, Placement::Apart)?.run(&self.binding, from, to)
    }

    #[track_caller]
    fn fits(&self, len: usize) -> Result<()> {
        ensure("fft", len >= self.layout.span(), || {
            format!("{:?} takes {} elements, the buffer has {len}", self.layout, self.layout.span())
        })
    }

    #[track_caller]
    fn plan<'a>(&self, cell: &'a OnceCell<FftPlan>, placement: Placement) -> Result<&'a FftPlan> {
        if cell.get().is_none() {
            let plan = FftPlan::complex(&self.binding, T::KIND, self.direction, placement, &self.layout)?;
            let _ = cell.set(plan);
        }
        Ok(cell.get().expect("just set"))
    }
}
