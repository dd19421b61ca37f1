//! How a filter moves over its input, and what comes out.

use crate::error::{Result, ensure};

const CALL: &str = "convolution";

/// How a filter moves over its input; one number for each dimension of space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvolutionOptions {
    /// Zeros before and after the input.
    pub padding: Vec<usize>,
    /// From one place of the filter to the next.
    pub stride: Vec<usize>,
    /// From one element of the filter to the next.
    pub dilation: Vec<usize>,
    /// Parts of the channels that are convolved by themselves.
    pub groups: usize,
}

impl ConvolutionOptions {
    /// No padding, a stride and a dilation of one, one group.
    pub fn dimensions(n: usize) -> Self {
        Self { padding: vec![0; n], stride: vec![1; n], dilation: vec![1; n], groups: 1 }
    }

    /// The same padding in every dimension.
    pub fn padding(mut self, zeros: usize) -> Self {
        self.padding.fill(zeros);
        self
    }

    /// The same stride in every dimension.
    pub fn stride(mut self, step: usize) -> Self {
        self.stride.fill(step);
        self
    }

    /// The same dilation in every dimension.
    pub fn dilation(mut self, step: usize) -> Self {
        self.dilation.fill(step);
        self
    }

    pub fn groups(mut self, n: usize) -> Self {
        self.groups = n;
        self
    }

    /// What comes out of `x` under a filter of `w`'s lengths.
    #[track_caller]
    pub(super) fn output(&self, x: &[usize], w: &[usize]) -> Result<Vec<usize>> {
        let n = self.padding.len();
        ensure(CALL, (1..=3).contains(&n) && self.stride.len() == n && self.dilation.len() == n, || {
            format!("{self:?} is not about one, two or three dimensions")
        })?;
        ensure(CALL, x.len() == n + 2 && w.len() == n + 2, || {
            format!("an input of {x:?} and a filter of {w:?} in {n} dimensions of space")
        })?;
        let groups = self.groups;
        let is_grouped = groups > 0 && x[1] == w[1] * groups && w[0].is_multiple_of(groups);
        ensure(CALL, is_grouped, || format!("channels of {x:?} and {w:?} in {groups} groups"))?;
        let mut lengths = vec![x[0], w[0]];
        for i in 0..n {
            let (padding, stride, dilation) = (self.padding[i], self.stride[i], self.dilation[i]);
            ensure(CALL, stride > 0 && dilation > 0, || format!("a stride of {stride}, a dilation of {dilation}"))?;
            let reach = (w[i + 2] - 1).saturating_mul(dilation).saturating_add(1);
            let room = padding.saturating_mul(2).saturating_add(x[i + 2]);
            ensure(CALL, reach <= room, || {
                format!("a filter that reaches over {reach} in {room} elements, padding included")
            })?;
            lengths.push((room - reach) / stride + 1);
        }
        Ok(lengths)
    }
}
