//! A named array as it lies in the file: type, shape and packed bytes.

use crate::{Bytes, Dtype, Error, Result};

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Unique in its checkpoint.
    pub name: String,
    /// How its weights are stored.
    pub dtype: Dtype,
    /// Outermost first: `[n_rows, n_cols]`. The last dimension lies contiguous in memory, in whole blocks.
    pub shape: Vec<usize>,
    /// As many as type and shape ask for.
    pub bytes: Bytes,
}

impl Tensor {
    /// A tensor whose bytes are exactly what type and shape ask for.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Result<Self> {
        let name = name.into();
        let needs = packed_bytes(&name, dtype, &shape)?;
        if bytes.len() != needs {
            return Err(Error::TensorBytes { tensor: name, needs: needs as u64, has: bytes.len() as u64 });
        }
        Ok(Self { name, dtype, shape, bytes })
    }

    /// All dimensions, multiplied.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The length of the last dimension; 1 for a scalar.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// All dimensions but the last, multiplied.
    pub fn n_rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }
}

/// The bytes a tensor of this type and shape takes.
pub(crate) fn packed_bytes(name: &str, dtype: Dtype, shape: &[usize]) -> Result<usize> {
    layout_bytes(name, dtype.name(), dtype.block_len(), dtype.block_bytes(), shape)
}

pub(crate) fn layout_bytes(
    name: &str,
    type_name: &str,
    block_len: usize,
    block_bytes: usize,
    shape: &[usize],
) -> Result<usize> {
    let n_cols = shape.last().copied().unwrap_or(1);
    if !n_cols.is_multiple_of(block_len) {
        let reason = format!("rows of {n_cols} are not a whole number of {type_name} blocks of {block_len}");
        return Err(Error::invalid(format_args!("tensor `{name}`"), reason));
    }
    // Elements are counted too, not only bytes, so that `n_elements` cannot overflow later. A zero dimension hides an
    // overflow of the others from a product taken in order, hence `max(1)`.
    let overflow = || Error::invalid(format_args!("tensor `{name}`"), format!("shape {shape:?} overflows"));
    let n_padded = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1))).ok_or_else(overflow)?;
    n_padded.checked_mul(block_bytes).ok_or_else(overflow)?;
    let n_elements: usize = shape.iter().product();
    Ok(n_elements / block_len * block_bytes)
}
