//! Dropout: elements are zeroed at random, the others grow, so that the sum is expected to stay.

use gpu::{Buffer, Vendor};

use super::calls::{Calls, DropoutMethod};
use super::descriptor::Descriptor;
use super::{Dnn, NetworkNumber, Tensor, TensorMut};
use crate::error::{Result, ensure};

const CALL: &str = "dropout";

/// Dropout with a generator of its own.
pub struct Dropout {
    dnn: Dnn,
    descriptor: Descriptor,
    /// The generators' states, which the library keeps here.
    states: Buffer<u8>,
    probability: f32,
    /// Of the next call.
    seed: u64,
}

/// Which elements of a tensor were kept, for the gradient.
pub struct DropoutMask {
    kept: Buffer<u8>,
    lengths: Vec<usize>,
}

impl Dropout {
    /// Zeroes an element with this probability, from 0 to less than 1. The same seed zeroes the same elements.
    #[track_caller]
    pub fn new(dnn: &Dnn, probability: f32, seed: u64) -> Result<Self> {
        ensure(CALL, (0.0..1.0).contains(&probability), || format!("a probability of {probability}"))?;
        let descriptor = Descriptor::make(dnn, Calls::dropout_create, Calls::dropout_destroy)?;
        let (calls, handle) = (dnn.calls(), dnn.handle());
        let mut bytes = 0;
        // SAFETY: a valid out pointer.
        unsafe { calls.dropout_state_bytes(handle, &mut bytes) }?;
        let states = dnn.binding().alloc::<u8>(bytes)?;
        let made = Self { dnn: dnn.clone(), descriptor, states, probability, seed };
        made.start()?;
        Ok(made)
    }

    /// Sets the generators to the seed.
    #[track_caller]
    fn start(&self) -> Result<()> {
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.descriptor.handle());
        let (at, bytes) = (self.dnn.binding().input(&self.states.all())?, self.states.len());
        let (vendor, probability, seed) = (self.dnn.vendor(), self.probability, self.seed);
        self.dnn.enter()?;
        // SAFETY: a live descriptor; memory of this queue that lives as long as it, as much as the library asked for.
        unsafe {
            match vendor {
                Vendor::Amd => {
                    let (given_mask, evolve, method) = (false, false, DropoutMethod::Xorwow.number(vendor));
                    calls.dropout_set_amd(by, handle, probability, at, bytes, seed, given_mask, evolve, method)
                }
                Vendor::Nvidia => calls.dropout_set_nvidia(by, handle, probability, at, bytes, seed),
            }
        }
    }

    /// y = x with some elements zeroed.
    #[track_caller]
    pub fn forward<T: NetworkNumber>(&mut self, x: Tensor<'_, T>, y: TensorMut<'_, T>) -> Result<DropoutMask> {
        let lengths = x.shape.lengths().to_vec();
        let (x, y) = (self.dnn.read(CALL, &x)?, self.dnn.write_like(CALL, &y, &lengths)?);
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.descriptor.handle());
        let mut bytes = 0;
        self.dnn.enter()?;
        // SAFETY: a live descriptor and a valid out pointer.
        unsafe { calls.dropout_mask_bytes(x.handle(), &mut bytes) }?;
        let mask = DropoutMask { kept: self.dnn.binding().alloc(bytes)?, lengths };
        let at = self.dnn.binding().input(&mask.kept.all())?;
        // SAFETY: memory of this queue, as large as the descriptors say and as the library asked for.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => {
                    let noise = x.handle();
                    calls.dropout_amd(handle, by, noise, x.handle(), x.at, y.handle(), y.at, at, bytes)?;
                }
                Vendor::Nvidia => calls.dropout_nvidia(handle, by, x.handle(), x.at, y.handle(), y.at, at, bytes)?,
            }
        }
        if self.dnn.vendor() == Vendor::Amd {
            // MIOpen's generators stay where they are: without a seed of its own, each call would zero the same elements.
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            self.start()?;
        }
        Ok(mask)
    }

    /// x's gradient from y's: zero where y was zeroed.
    #[track_caller]
    pub fn backward<T: NetworkNumber>(
        &self,
        mask: &DropoutMask,
        dy: Tensor<'_, T>,
        dx: TensorMut<'_, T>,
    ) -> Result<()> {
        let dy = self.dnn.read_like(CALL, &dy, &mask.lengths)?;
        let dx = self.dnn.write_like(CALL, &dx, &mask.lengths)?;
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.descriptor.handle());
        let (at, bytes) = (self.dnn.binding().input(&mask.kept.all())?, mask.kept.len());
        self.dnn.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; the mask is of tensors of these lengths.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => {
                    let noise = dy.handle();
                    calls.dropout_back_amd(handle, by, noise, dy.handle(), dy.at, dx.handle(), dx.at, at, bytes)
                }
                Vendor::Nvidia => {
                    calls.dropout_back_nvidia(handle, by, dy.handle(), dy.at, dx.handle(), dx.at, at, bytes)
                }
            }
        }
    }
}
