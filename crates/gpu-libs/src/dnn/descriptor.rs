//! The libraries' descriptors, owned.

use super::calls::{Calls, DataType, FilterLayout, Handle, Int};
use super::{Dnn, TensorLayout, TensorShape};
use crate::error::{Result, ensure, report_late};

type Create = unsafe fn(&Calls, *mut Handle) -> Result<()>;
type Destroy = unsafe fn(&Calls, Handle) -> Result<()>;

/// An object of the library that is destroyed with this.
pub(super) struct Descriptor {
    dnn: Dnn,
    handle: Handle,
    destroy: Destroy,
}

impl Descriptor {
    /// `create` and `destroy` belong together in the library.
    #[track_caller]
    pub fn make(dnn: &Dnn, create: Create, destroy: Destroy) -> Result<Self> {
        dnn.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a valid out pointer.
        unsafe { create(dnn.calls(), &mut handle) }?;
        Ok(Self { dnn: dnn.clone(), handle, destroy })
    }

    /// Takes over an object that the library has made.
    pub fn own(dnn: &Dnn, handle: Handle, destroy: Destroy) -> Self {
        Self { dnn: dnn.clone(), handle, destroy }
    }

    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// A tensor's. cuDNN knows no tensors of fewer than four dimensions: the others are ones.
    #[track_caller]
    pub fn tensor(dnn: &Dnn, call: &'static str, number: DataType, shape: &TensorShape) -> Result<Self> {
        Self::tensor_as_is(dnn, call, number, &shape.padded(shape.lengths().len(), 4))
    }

    /// A tensor's, of as many dimensions as it has.
    #[track_caller]
    pub fn tensor_as_is(dnn: &Dnn, call: &'static str, number: DataType, shape: &TensorShape) -> Result<Self> {
        let (lengths, strides) = shape.ints(call)?;
        let made = Self::make(dnn, Calls::tensor_create, Calls::tensor_destroy)?;
        let number = number.number(dnn.vendor());
        // SAFETY: a live descriptor; two arrays of as many numbers as said, which the library copies.
        unsafe {
            let n = lengths.len() as Int;
            dnn.calls().tensor_set(made.handle, number, n, lengths.as_ptr(), strides.as_ptr())
        }?;
        Ok(made)
    }

    /// A filter's, which is a tensor to MIOpen and something of its own to cuDNN.
    #[track_caller]
    pub fn filter(dnn: &Dnn, call: &'static str, number: DataType, shape: &TensorShape) -> Result<Self> {
        let layout = match shape.layout() {
            TensorLayout::ChannelsFirst => FilterLayout::ChannelsFirst,
            TensorLayout::ChannelsLast => FilterLayout::ChannelsLast,
            TensorLayout::Other => {
                let (lengths, strides) = (shape.lengths(), shape.strides());
                ensure(call, false, || format!("a filter of {lengths:?} with strides {strides:?} is not dense"))?;
                unreachable!()
            }
        };
        if dnn.vendor() == gpu::Vendor::Amd {
            return Self::tensor(dnn, call, number, shape);
        }
        let (lengths, _) = shape.padded(shape.lengths().len(), 4).ints(call)?;
        let made = Self::make(dnn, Calls::filter_create, Calls::filter_destroy)?;
        let (number, layout) = (number.number(dnn.vendor()), layout.number(dnn.vendor()));
        // SAFETY: a live descriptor; an array of as many numbers as said, which the library copies.
        unsafe { dnn.calls().filter_set(made.handle, number, layout, lengths.len() as Int, lengths.as_ptr()) }?;
        Ok(made)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made or taken over once and destroyed once. The libraries read descriptors while a function is
        // called, not afterwards.
        report_late(self.dnn.binding(), unsafe { (self.destroy)(self.dnn.calls(), self.handle) });
    }
}
