//! Transforms of real numbers and of the half of their spectrum that is not redundant: the last length n becomes
//! n / 2 + 1.

use std::cell::OnceCell;
use std::marker::PhantomData;

use gpu::foreign::{Address, Binding};
use gpu::{Queue, Slice, SliceMut};

use super::plan::{FftPlan, Side};
use super::{FftLayout, Placement, RealDirection, no_sharing};
use crate::error::{Result, ensure};
use crate::scalar::Real;

/// How real numbers and half their spectrum lie in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RealFftLayout {
    lengths: Vec<usize>,
    batch: usize,
    real: Side,
    half: Side,
}

impl RealFftLayout {
    /// `batch` dense transforms of one to three dimensions, one after the other.
    #[track_caller]
    pub fn dense(lengths: &[usize], batch: usize) -> Result<Self> {
        ensure("fft", batch > 0, || "a batch of no transforms".into())?;
        let total = FftLayout::dense(lengths)?.total();
        let halves = halved(lengths);
        let half = Side { distance: halves.iter().product(), extent: halves, stride: 1 };
        let real = Side { extent: lengths.to_vec(), stride: 1, distance: total };
        Ok(Self { lengths: lengths.to_vec(), batch, real, half })
    }

    /// Elements that lie apart, as (from one element to the next, from one transform to the next) of the real numbers
    /// and of the half spectrum.
    #[track_caller]
    pub fn strided(mut self, real: (usize, usize), half: (usize, usize)) -> Result<Self> {
        for (side, (stride, distance)) in [(&mut self.real, real), (&mut self.half, half)] {
            no_sharing(side.extent.iter().product(), self.batch, stride, distance)?;
            (side.stride, side.distance) = (stride, distance);
        }
        Ok(self)
    }

    /// The layout in which half a spectrum takes the place of its real numbers: each line of the last dimension has room
    /// for its n / 2 + 1 complex numbers.
    fn in_place(&self) -> Self {
        let extent = halved(&self.lengths);
        let mut padded = extent.clone();
        if let Some(last) = padded.last_mut() {
            *last *= 2;
        }
        let real = Side { distance: padded.iter().product(), extent: padded, stride: 1 };
        let half = Side { distance: extent.iter().product(), extent, stride: 1 };
        Self { lengths: self.lengths.clone(), batch: self.batch, real, half }
    }

    /// Elements of one transform.
    pub fn total(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Elements from the first to the last of a side.
    fn span(&self, side: &Side) -> usize {
        let total: usize = side.extent.iter().product();
        let last = |count: usize, step: usize| count.saturating_sub(1).saturating_mul(step);
        last(self.batch, side.distance).saturating_add(last(total, side.stride)).saturating_add(1)
    }
}

fn halved(lengths: &[usize]) -> Vec<usize> {
    let mut lengths = lengths.to_vec();
    if let Some(last) = lengths.last_mut() {
        *last = *last / 2 + 1;
    }
    lengths
}

/// Both directions. Plans in place and between buffers differ; each is made when it is first needed.
struct Both<T: Real> {
    binding: Binding,
    direction: RealDirection,
    layout: RealFftLayout,
    apart: OnceCell<FftPlan>,
    in_place: OnceCell<FftPlan>,
    number: PhantomData<T>,
}

impl<T: Real> Both<T> {
    #[track_caller]
    fn new(queue: &Queue, direction: RealDirection, layout: RealFftLayout) -> Result<Self> {
        let binding = Binding::new(queue)?;
        super::Calls::get(binding.vendor())?;
        let (apart, in_place) = (OnceCell::new(), OnceCell::new());
        Ok(Self { binding, direction, layout, apart, in_place, number: PhantomData })
    }

    #[track_caller]
    fn plan<'a>(
        &self,
        cell: &'a OnceCell<FftPlan>,
        placement: Placement,
        layout: &RealFftLayout,
    ) -> Result<&'a FftPlan> {
        if cell.get().is_none() {
            let sides = [layout.real.clone(), layout.half.clone()];
            let (lengths, batch) = (&layout.lengths, layout.batch);
            let plan = FftPlan::real(&self.binding, T::KIND, self.direction, placement, lengths, batch, sides)?;
            let _ = cell.set(plan);
        }
        Ok(cell.get().expect("just set"))
    }

    #[track_caller]
    fn run(&self, [real, half]: [usize; 2], from: Address, to: Address) -> Result<()> {
        let layout = &self.layout;
        let (reals, halves) = (layout.span(&layout.real), layout.span(&layout.half));
        ensure("fft", real >= reals && half >= halves, || {
            format!("{reals} real and {halves} complex elements wanted, the buffers have {real} and {half}")
        })?;
        self.plan(&self.apart, Placement::Apart, layout)?.run(&self.binding, from, to)
    }

    #[track_caller]
    fn run_in_place(&self, data: &SliceMut<'_, T>) -> Result<()> {
        let layout = self.layout.in_place();
        let (due, len) = (layout.span(&layout.real), data.len());
        ensure("fft", len >= due, || format!("{due} real elements wanted in place, the buffer has {len}"))?;
        let at = self.binding.output(data)?;
        self.plan(&self.in_place, Placement::InPlace, &layout)?.run(&self.binding, at, at)
    }
}

/// A transform of real numbers into half their spectrum.
pub struct RealFft<T: Real> {
    both: Both<T>,
}

/// The transform of half a spectrum into real numbers.
pub struct InverseRealFft<T: Real> {
    both: Both<T>,
}

impl<T: Real> RealFft<T> {
    /// `batch` dense transforms, one after the other.
    #[track_caller]
    pub fn new(queue: &Queue, lengths: &[usize], batch: usize) -> Result<Self> {
        Self::with_layout(queue, RealFftLayout::dense(lengths, batch)?)
    }

    #[track_caller]
    pub fn with_layout(queue: &Queue, layout: RealFftLayout) -> Result<Self> {
        Ok(Self { both: Both::new(queue, RealDirection::Forward, layout)? })
    }

    /// Transforms `from` into `to`.
    #[track_caller]
    pub fn run(&self, from: Slice<'_, T>, to: SliceMut<'_, T::Complex>) -> Result<()> {
        let (at, target) = (self.both.binding.input(&from)?, self.both.binding.output(&to)?);
        self.both.run([from.len(), to.len()], at, target)
    }

    /// Transforms dense real numbers into themselves: each line of n has 2 (n / 2 + 1) elements, of which the last ones
    /// are not read, and becomes n / 2 + 1 complex numbers, real and imaginary part after each other. The strides of a
    /// layout do not count here.
    #[track_caller]
    pub fn run_in_place(&self, data: SliceMut<'_, T>) -> Result<()> {
        self.both.run_in_place(&data)
    }
}

impl<T: Real> InverseRealFft<T> {
    /// `batch` dense transforms, one after the other.
    #[track_caller]
    pub fn new(queue: &Queue, lengths: &[usize], batch: usize) -> Result<Self> {
        Self::with_layout(queue, RealFftLayout::dense(lengths, batch)?)
    }

    #[track_caller]
    pub fn with_layout(queue: &Queue, layout: RealFftLayout) -> Result<Self> {
        Ok(Self { both: Both::new(queue, RealDirection::Inverse, layout)? })
    }

    /// Transforms `from` into `to`. What `from` holds afterwards is anything.
    #[track_caller]
    pub fn run(&self, from: SliceMut<'_, T::Complex>, to: SliceMut<'_, T>) -> Result<()> {
        let (at, target) = (self.both.binding.output(&from)?, self.both.binding.output(&to)?);
        self.both.run([to.len(), from.len()], at, target)
    }

    /// The way back of [`RealFft::run_in_place`], with the same lines.
    #[track_caller]
    pub fn run_in_place(&self, data: SliceMut<'_, T>) -> Result<()> {
        self.both.run_in_place(&data)
    }
}
