//! The left side of a product: rows of numbers, or rows that are computed on the way into it.
//!
//! A row that is computed where it is rounded never leaves the cache of its thread, and a step has fewer parallel
//! regions.

use crate::{Isa, rmsnorm, swiglu};

#[derive(Copy, Clone)]
pub(crate) enum HostLeft<'a> {
    /// `[n_rows, n_in]`
    Rows(&'a [f32]),
    /// `rmsnorm(x, weight)`
    Norm { x: &'a [f32], weight: &'a [f32], eps: f32 },
    /// `silu(gate) * up`
    Gated { gate: &'a [f32], up: &'a [f32] },
}

impl<'a> HostLeft<'a> {
    /// The rows as given, for kernels that round nothing; none where the rows are computed.
    pub(crate) fn plain(&self) -> &'a [f32] {
        match *self {
            HostLeft::Rows(x) => x,
            _ => &[],
        }
    }

    /// Row `row`; `made` is room for one that has to be made.
    pub(crate) fn row<'b>(&self, isa: Isa, row: usize, n_in: usize, made: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let at = row * n_in;
        match *self {
            HostLeft::Rows(x) => &x[at..][..n_in],
            HostLeft::Norm { x, weight, eps } => {
                made.resize(n_in, 0.0);
                rmsnorm::norm_row(&x[at..][..n_in], weight, eps, made);
                made
            }
            HostLeft::Gated { gate, up } => {
                made.clear();
                made.extend_from_slice(&gate[at..][..n_in]);
                swiglu::gate_numbers(isa, made, &up[at..][..n_in]);
                made
            }
        }
    }
}
