//! Reductions along any dimensions.

use gpu::SliceMut;
use gpu::foreign::Address;

use super::calls::{Calls, Nan, Reduction, ReductionIndex, ReductionIndices};
use super::descriptor::Descriptor;
use super::operand::Operand;
use super::{DataType, Dnn, NetworkNumber, Tensor, TensorMut, host};
use crate::error::{Result, ensure};

const CALL: &str = "reduce";

impl Dnn {
    /// y = x reduced along the dimensions in which y has one element.
    #[track_caller]
    pub fn reduce<T: NetworkNumber>(&self, reduction: Reduction, x: Tensor<'_, T>, y: TensorMut<'_, T>) -> Result<()> {
        let (x, y) = (self.read(CALL, &x)?, self.write(CALL, &y)?);
        self.run_reduction(reduction, ReductionIndices::None, &x, &y, 0, 0)
    }

    /// `reduce` by the smallest, largest, or largest absolute value, and where it was found: the index counts the
    /// elements that were reduced, the last dimension fastest.
    #[track_caller]
    pub fn reduce_with_indices<T: NetworkNumber>(
        &self,
        reduction: Reduction,
        x: Tensor<'_, T>,
        y: TensorMut<'_, T>,
        indices: SliceMut<'_, u32>,
    ) -> Result<()> {
        let has_place = matches!(reduction, Reduction::Min | Reduction::Max | Reduction::MaxAbs);
        ensure(CALL, has_place, || format!("{reduction:?} is found in no single place"))?;
        let n = y.shape.elements();
        ensure(CALL, indices.len() == n, || format!("{} indices of {n} results", indices.len()))?;
        let (x, y, at) = (self.read(CALL, &x)?, self.write(CALL, &y)?, self.binding().output(&indices)?);
        self.run_reduction(reduction, ReductionIndices::Flat, &x, &y, at, indices.bytes())
    }

    #[track_caller]
    fn run_reduction(
        &self,
        reduction: Reduction,
        indices: ReductionIndices,
        x: &Operand,
        y: &Operand,
        at_indices: Address,
        index_bytes: usize,
    ) -> Result<()> {
        let (from, to) = (x.shape.lengths(), y.shape.lengths());
        let is_part = from.len() == to.len() && from.iter().zip(to).all(|(a, b)| a == b || *b == 1);
        ensure(CALL, is_part, || format!("{from:?} cannot become {to:?}"))?;
        let by = Descriptor::make(self, Calls::reduce_create, Calls::reduce_destroy)?;
        let (calls, vendor, handle) = (self.calls(), self.vendor(), self.handle());
        let (nan, index) = (Nan::Propagate.number(vendor), ReductionIndex::U32.number(vendor));
        let (sum, op) = (DataType::F32.number(vendor), reduction.number(vendor));
        let (mut bytes, mut needed) = (0, 0);
        // SAFETY: live descriptors and valid out pointers.
        unsafe {
            calls.reduce_set(by.handle(), op, sum, nan, indices.number(vendor), index)?;
            calls.reduce_bytes(handle, by.handle(), x.handle(), y.handle(), &mut bytes)?;
            calls.reduce_index_bytes(handle, by.handle(), x.handle(), y.handle(), &mut needed)?;
        }
        ensure(CALL, at_indices == 0 || needed <= index_bytes, || {
            format!("{needed} bytes of indices, {index_bytes} were given")
        })?;
        let work = self.workspace(CALL, bytes)?;
        let (one, zero) = (host(&1.0), host(&0.0));
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say and as the library asked for; scale factors
        // that outlive the call.
        unsafe {
            calls.reduce(
                handle,
                by.handle(),
                at_indices,
                index_bytes,
                work,
                bytes,
                one,
                x.handle(),
                x.at,
                zero,
                y.handle(),
                y.at,
            )
        }
    }
}
