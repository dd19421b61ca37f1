//! A tensor with its descriptor and address, checked to be this queue's: what a call takes.

use gpu::foreign::Address;

use super::descriptor::Descriptor;
use super::{Dnn, Handle, NetworkNumber, Tensor, TensorMut, TensorShape};
use crate::error::{Result, ensure};

pub(super) struct Operand {
    pub descriptor: Descriptor,
    pub shape: TensorShape,
    pub at: Address,
}

impl Operand {
    pub fn handle(&self) -> Handle {
        self.descriptor.handle()
    }
}

#[track_caller]
fn same(call: &'static str, found: &TensorShape, lengths: &[usize]) -> Result<()> {
    ensure(call, found.lengths() == lengths, || format!("a tensor of {:?} where {lengths:?} is due", found.lengths()))
}

impl Dnn {
    #[track_caller]
    pub(super) fn read<T: NetworkNumber>(&self, call: &'static str, tensor: &Tensor<'_, T>) -> Result<Operand> {
        let at = self.binding().input(&tensor.data)?;
        let descriptor = Descriptor::tensor(self, call, T::TYPE, &tensor.shape)?;
        Ok(Operand { descriptor, shape: tensor.shape.clone(), at })
    }

    #[track_caller]
    pub(super) fn write<T: NetworkNumber>(&self, call: &'static str, tensor: &TensorMut<'_, T>) -> Result<Operand> {
        let at = self.binding().output(&tensor.data)?;
        let descriptor = Descriptor::tensor(self, call, T::TYPE, &tensor.shape)?;
        Ok(Operand { descriptor, shape: tensor.shape.clone(), at })
    }

    /// One of the lengths given.
    #[track_caller]
    pub(super) fn read_like<T: NetworkNumber>(
        &self,
        call: &'static str,
        tensor: &Tensor<'_, T>,
        lengths: &[usize],
    ) -> Result<Operand> {
        same(call, &tensor.shape, lengths)?;
        self.read(call, tensor)
    }

    /// One of the lengths given.
    #[track_caller]
    pub(super) fn write_like<T: NetworkNumber>(
        &self,
        call: &'static str,
        tensor: &TensorMut<'_, T>,
        lengths: &[usize],
    ) -> Result<Operand> {
        same(call, &tensor.shape, lengths)?;
        self.write(call, tensor)
    }
}
