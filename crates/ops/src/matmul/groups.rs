//! Products where each run of rows has a weight matrix of its own: the experts of a mixture, the heads of compressed
//! attention.

use std::ops::Range;

use super::{OP, Product, matmul};
use crate::{Error, Exec, Place, PlaceMut, View, ViewMut};

/// Some rows and the matrix they are multiplied with.
#[derive(Clone)]
pub struct Group<'w> {
    pub rows: Range<usize>,
    /// `[n_out, n_in]`
    pub weight: View<'w>,
}

/// `out[r] = x[r] * weight of r's group`; `x` is `[n_rows, n_in]`, `out` `[n_rows, n_out]`, both f32. Rows of no group
/// keep what they hold.
pub fn group_matmul(exec: Exec, x: View, groups: &[Group], out: &mut ViewMut) -> Result<(), Error> {
    exec.cpu_only("group_matmul")?;
    let ([n_rows, n_in], n_out) = (x.shape, out.shape[1]);
    out.expect_shape(OP, "out", [n_rows, n_out])?;
    for group in groups {
        group.weight.expect_shape(OP, "weight", [n_out, n_in])?;
        if group.rows.end > n_rows {
            return Err(Error::Argument { op: OP, what: format!("rows {:?} of {n_rows}", group.rows) });
        }
        let n = group.rows.len();
        let (x_bytes, out_bytes) = (x.host_bytes(OP, "x")?, out.host_bytes(OP, "out")?);
        let x = View {
            shape: [n, n_in],
            place: Place::Host(&x_bytes[group.rows.start * n_in * 4..group.rows.end * n_in * 4]),
            ..x
        };
        let out = ViewMut {
            dtype: weights::Dtype::F32,
            shape: [n, n_out],
            layout: crate::Layout::Rows,
            place: PlaceMut::Host(&mut out_bytes[group.rows.start * n_out * 4..group.rows.end * n_out * 4]),
        };
        matmul(exec, x, &mut [Product::write(group.weight, out)])?;
    }
    Ok(())
}
