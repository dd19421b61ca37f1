//! Random numbers on the device: rocRAND | cuRAND.
//!
//! The same method, seed and offset give the same numbers on one vendor's library; the two vendors order
//! the numbers of their threads differently. Discrete distributions other than Poisson exist in both libraries
//! for kernels only, so they are not here.

mod calls;

use gpu::foreign::{Address, Binding};
use gpu::{Queue, SliceMut};

use calls::Handle;
pub use calls::{Calls, Method};

use crate::error::{Result, ensure, report_late};
use crate::scalar::{Real, ScalarKind};

/// The numbers of every enum, for the check against the headers.
#[doc(hidden)]
pub const NUMBERS: &[&[crate::table::VendorNumbers]] = &[Method::NUMBERS];

/// A generator of one queue.
pub struct Generator {
    calls: &'static Calls,
    generator: Handle,
    binding: Binding,
    method: Method,
}

impl Method {
    /// Whether its numbers fill space evenly instead of looking random.
    pub fn is_quasi(self) -> bool {
        matches!(self, Method::Sobol32 | Method::ScrambledSobol32 | Method::Sobol64 | Method::ScrambledSobol64)
    }
}

impl Generator {
    #[track_caller]
    pub fn new(queue: &Queue, method: Method) -> Result<Self> {
        let binding = Binding::new(queue)?;
        let calls = Calls::get(binding.vendor())?;
        let mut generator: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer; the current device is the queue's.
        unsafe { calls.create(&mut generator, method.number(binding.vendor())) }?;
        let made = Self { calls, generator, binding, method };
        // SAFETY: a live generator and a stream that the binding keeps alive.
        unsafe { calls.set_stream(generator, made.binding.stream()) }?;
        Ok(made)
    }

    /// Where pseudo-random numbers start from.
    #[track_caller]
    pub fn set_seed(&mut self, seed: u64) -> Result<()> {
        ensure("set_seed", !self.method.is_quasi(), || format!("{:?} has no seed", self.method))?;
        self.binding.enter()?;
        // SAFETY: a live generator.
        unsafe { self.calls.set_seed(self.generator, seed) }
    }

    /// How many numbers to skip.
    #[track_caller]
    pub fn set_offset(&mut self, offset: u64) -> Result<()> {
        self.binding.enter()?;
        // SAFETY: a live generator.
        unsafe { self.calls.set_offset(self.generator, offset) }
    }

    /// The dimensions of quasi-random points. A buffer then holds all first coordinates, then all second ones.
    #[track_caller]
    pub fn set_dimensions(&mut self, n: u32) -> Result<()> {
        ensure("set_dimensions", self.method.is_quasi(), || format!("{:?} has no dimensions", self.method))?;
        self.binding.enter()?;
        // SAFETY: a live generator.
        unsafe { self.calls.set_dimensions(self.generator, n) }
    }

    /// Random bits.
    #[track_caller]
    pub fn bits(&mut self, to: SliceMut<'_, u32>) -> Result<()> {
        let (at, n) = self.target(&to)?;
        // SAFETY: as many numbers as the slice has, in memory of this queue.
        unsafe { self.calls.bits32(self.generator, at, n) }
    }

    /// Random bits of the 64-bit Sobol methods; on AMD of any method with 64-bit numbers.
    #[track_caller]
    pub fn bits64(&mut self, to: SliceMut<'_, u64>) -> Result<()> {
        let (at, n) = self.target(&to)?;
        // SAFETY: as for `bits`.
        unsafe { self.calls.bits64(self.generator, at, n) }
    }

    /// Uniform above 0 and up to 1.
    #[track_caller]
    pub fn uniform<T: Real>(&mut self, to: SliceMut<'_, T>) -> Result<()> {
        let (at, n) = self.target(&to)?;
        // SAFETY: as for `bits`.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => self.calls.uniform32(self.generator, at, n),
                _ => self.calls.uniform64(self.generator, at, n),
            }
        }
    }

    /// Normal. Pseudo-random ones come in pairs: an odd length is refused.
    #[track_caller]
    pub fn normal<T: Real + Into<f64>>(&mut self, mean: T, deviation: T, to: SliceMut<'_, T>) -> Result<()> {
        let (at, n) = self.pairs("normal", &to)?;
        let (mean, deviation): (f64, f64) = (mean.into(), deviation.into());
        // SAFETY: as for `bits`.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => self.calls.normal32(self.generator, at, n, mean as f32, deviation as f32),
                _ => self.calls.normal64(self.generator, at, n, mean, deviation),
            }
        }
    }

    /// Numbers whose logarithms are normal. Pseudo-random ones come in pairs: an odd length is refused.
    #[track_caller]
    pub fn log_normal<T: Real + Into<f64>>(&mut self, mean: T, deviation: T, to: SliceMut<'_, T>) -> Result<()> {
        let (at, n) = self.pairs("log_normal", &to)?;
        let (mean, deviation): (f64, f64) = (mean.into(), deviation.into());
        // SAFETY: as for `bits`.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => self.calls.log_normal32(self.generator, at, n, mean as f32, deviation as f32),
                _ => self.calls.log_normal64(self.generator, at, n, mean, deviation),
            }
        }
    }

    /// Counts of events of which `mean` are expected.
    #[track_caller]
    pub fn poisson(&mut self, mean: f64, to: SliceMut<'_, u32>) -> Result<()> {
        ensure("poisson", mean > 0.0, || format!("a mean of {mean}"))?;
        let (at, n) = self.target(&to)?;
        // SAFETY: as for `bits`.
        unsafe { self.calls.poisson(self.generator, at, n, mean) }
    }

    #[track_caller]
    fn pairs<T: Real>(&self, call: &'static str, to: &SliceMut<'_, T>) -> Result<(Address, usize)> {
        ensure(call, self.method.is_quasi() || to.len().is_multiple_of(2), || {
            format!("{} numbers; pseudo-random ones come in pairs", to.len())
        })?;
        self.target(to)
    }

    #[track_caller]
    fn target<T: gpu::Element>(&self, to: &SliceMut<'_, T>) -> Result<(Address, usize)> {
        let at = self.binding.output(to)?;
        self.binding.enter()?;
        Ok((at, to.len()))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // Numbers under way come from the generator's state.
        if self.binding.wait().is_err() {
            return;
        }
        // SAFETY: made by this type and destroyed once; nothing of it is under way.
        report_late(&self.binding, unsafe { self.calls.destroy(self.generator) });
    }
}
