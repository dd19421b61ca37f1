//! Tensors as views of device memory: lengths and strides, checked when they are made.

use gpu::{Element, Slice, SliceMut};

use crate::error::{Result, ensure, int};

/// The most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 5;

/// Where a tensor's channels lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorLayout {
    /// Dense in the order of the lengths (NCHW, NCDHW).
    ChannelsFirst,
    /// Dense with the second dimension fastest (NHWC, NDHWC).
    ChannelsLast,
    Other,
}

/// Lengths and strides of a tensor, the batch first and the channels second, whichever way they lie in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorShape {
    lengths: Vec<usize>,
    strides: Vec<usize>,
}

impl TensorShape {
    /// Dense, the last dimension fastest.
    #[track_caller]
    pub fn dense(lengths: &[usize]) -> Result<Self> {
        let order: Vec<usize> = (0..lengths.len()).collect();
        Self::packed(lengths, &order)
    }

    /// Dense, the second dimension (the channels) fastest.
    #[track_caller]
    pub fn channels_last(lengths: &[usize]) -> Result<Self> {
        ensure("tensor", lengths.len() >= 3, || format!("{lengths:?} has no space beside its channels"))?;
        let order: Vec<usize> = std::iter::once(0).chain(2..lengths.len()).chain([1]).collect();
        Self::packed(lengths, &order)
    }

    /// Any strides that give each element a place of its own.
    #[track_caller]
    pub fn strided(lengths: &[usize], strides: &[usize]) -> Result<Self> {
        ensure("tensor", lengths.len() == strides.len(), || format!("lengths {lengths:?}, strides {strides:?}"))?;
        let mut by_stride: Vec<(usize, usize)> = strides.iter().copied().zip(lengths.iter().copied()).collect();
        by_stride.sort_unstable();
        let mut reach = 0usize;
        for (stride, length) in by_stride.into_iter().filter(|(_, length)| *length > 1) {
            ensure("tensor", stride > reach, || {
                format!("elements of {lengths:?} with strides {strides:?} share memory")
            })?;
            reach = (length - 1).checked_mul(stride).and_then(|n| n.checked_add(reach)).unwrap_or(usize::MAX);
        }
        Self { lengths: lengths.to_vec(), strides: strides.to_vec() }.check()
    }

    /// Dense, `order` from the slowest dimension to the fastest.
    #[track_caller]
    fn packed(lengths: &[usize], order: &[usize]) -> Result<Self> {
        let mut strides = vec![1; lengths.len()];
        let mut step = 1usize;
        for &axis in order.iter().rev() {
            strides[axis] = step;
            step = step.saturating_mul(lengths[axis].max(1));
        }
        Self { lengths: lengths.to_vec(), strides }.check()
    }

    #[track_caller]
    fn check(self) -> Result<Self> {
        let n = self.lengths.len();
        ensure("tensor", (1..=MAX_DIMENSIONS).contains(&n), || format!("{n} dimensions, not 1 to {MAX_DIMENSIONS}"))?;
        ensure("tensor", self.lengths.iter().all(|length| *length > 0), || format!("{:?} is empty", self.lengths))?;
        let last = self.lengths.iter().zip(&self.strides).try_fold(0usize, |at, (length, stride)| {
            (length - 1).checked_mul(*stride).and_then(|step| at.checked_add(step))
        });
        ensure("tensor", last.is_some_and(|last| i32::try_from(last).is_ok()), || {
            format!("{:?} with strides {:?} reaches past 2^31-1", self.lengths, self.strides)
        })?;
        Ok(self)
    }

    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Elements from the first to the last in memory.
    pub fn span(&self) -> usize {
        1 + self.lengths.iter().zip(&self.strides).map(|(length, stride)| (length - 1) * stride).sum::<usize>()
    }

    /// Which way its channels lie.
    pub fn layout(&self) -> TensorLayout {
        // A dimension of one element lies any way.
        let same = |other: Result<Self>| {
            other.is_ok_and(|other| {
                let pairs = self.strides.iter().zip(&other.strides);
                self.lengths.iter().zip(pairs).all(|(length, (a, b))| *length == 1 || a == b)
            })
        };
        if same(Self::dense(&self.lengths)) {
            TensorLayout::ChannelsFirst
        } else if self.lengths.len() >= 3 && same(Self::channels_last(&self.lengths)) {
            TensorLayout::ChannelsLast
        } else {
            TensorLayout::Other
        }
    }

    /// Another tensor's lengths in this one's layout.
    #[track_caller]
    pub(super) fn like(&self, lengths: &[usize]) -> Result<Self> {
        if self.layout() == TensorLayout::ChannelsLast { Self::channels_last(lengths) } else { Self::dense(lengths) }
    }

    /// With dimensions of length one after position `at`, until there are `n`.
    pub(super) fn padded(&self, at: usize, n: usize) -> Self {
        let (mut lengths, mut strides) = (self.lengths.clone(), self.strides.clone());
        let stride = strides.get(at).map_or(1, |stride| stride * lengths[at]);
        while lengths.len() < n {
            lengths.insert(at.min(lengths.len()), 1);
            strides.insert(at.min(strides.len()), stride);
        }
        Self { lengths, strides }
    }

    /// Lengths and strides as the libraries take them.
    #[track_caller]
    pub(super) fn ints(&self, call: &'static str) -> Result<(Vec<i32>, Vec<i32>)> {
        let list = |values: &[usize]| -> Result<Vec<i32>> {
            values.iter().map(|value| int(call, "a length or stride", *value)).collect()
        };
        Ok((list(&self.lengths)?, list(&self.strides)?))
    }
}

/// A tensor that is read.
#[derive(Clone, Debug)]
pub struct Tensor<'a, T: Element> {
    pub(super) data: Slice<'a, T>,
    pub(super) shape: TensorShape,
}

/// A tensor that is written.
#[derive(Debug)]
pub struct TensorMut<'a, T: Element> {
    pub(super) data: SliceMut<'a, T>,
    pub(super) shape: TensorShape,
}

macro_rules! tensor_functions {
    ($tensor:ident, $slice:ident) => {
        impl<'a, T: Element> $tensor<'a, T> {
            /// Dense, the last dimension fastest.
            #[track_caller]
            pub fn dense(data: $slice<'a, T>, lengths: &[usize]) -> Result<Self> {
                Self::new(data, TensorShape::dense(lengths)?)
            }

            /// Dense, the second dimension (the channels) fastest.
            #[track_caller]
            pub fn channels_last(data: $slice<'a, T>, lengths: &[usize]) -> Result<Self> {
                Self::new(data, TensorShape::channels_last(lengths)?)
            }

            /// Of any shape that fits into the memory.
            #[track_caller]
            pub fn new(data: $slice<'a, T>, shape: TensorShape) -> Result<Self> {
                ensure("tensor", shape.span() <= data.len(), || {
                    let (lengths, strides) = (shape.lengths(), shape.strides());
                    format!("{lengths:?} with strides {strides:?} does not fit into {} elements", data.len())
                })?;
                Ok(Self { data, shape })
            }

            pub fn shape(&self) -> &TensorShape {
                &self.shape
            }
        }
    };
}

tensor_functions!(Tensor, Slice);
tensor_functions!(TensorMut, SliceMut);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_seen_in_strides() {
        let first = TensorShape::dense(&[2, 3, 4, 5]).unwrap();
        assert_eq!((first.strides(), first.layout()), (&[60, 20, 5, 1][..], TensorLayout::ChannelsFirst));
        let last = TensorShape::channels_last(&[2, 3, 4, 5]).unwrap();
        assert_eq!((last.strides(), last.layout()), (&[60, 1, 15, 3][..], TensorLayout::ChannelsLast));
        let apart = TensorShape::strided(&[2, 3, 4, 5], &[120, 40, 10, 2]).unwrap();
        assert_eq!((apart.layout(), apart.span()), (TensorLayout::Other, 239));
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (lengths, strides) in [
            (&[2, 3][..], &[3][..]),
            (&[2, 3], &[2, 1]),
            (&[2, 2], &[1, 1]),
            (&[2, 0], &[1, 1]),
            (&[], &[]),
            (&[1, 1, 1, 1, 1, 1], &[1, 1, 1, 1, 1, 1]),
            (&[1 << 20, 1 << 20], &[1 << 20, 1]),
            (&[2, usize::MAX], &[usize::MAX, 1]),
        ] {
            assert!(TensorShape::strided(lengths, strides).is_err(), "{lengths:?} {strides:?}");
        }
        assert!(TensorShape::dense(&[usize::MAX, usize::MAX]).is_err());
        assert!(TensorShape::channels_last(&[2, 3]).is_err());
    }

    #[test]
    fn a_dimension_is_put_between() {
        let line = TensorShape::dense(&[2, 3, 7]).unwrap().padded(2, 4);
        assert_eq!((line.lengths(), line.strides()), (&[2, 3, 1, 7][..], &[21, 7, 7, 1][..]));
        let flat = TensorShape::dense(&[2, 3]).unwrap().padded(2, 4);
        assert_eq!((flat.lengths(), flat.strides()), (&[2, 3, 1, 1][..], &[3, 1, 1, 1][..]));
    }
}
