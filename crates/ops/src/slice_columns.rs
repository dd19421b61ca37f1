//! A few neighbouring columns of a matrix: `out[r] = x[r][first..first + n]`. Families that have numbers for every layer
//! beside each other take one layer's part.

use crate::{Error, Exec, View, ViewMut, numbers};

const OP: &str = "slice_columns";

/// `x` is `[n_rows, n_in]`, `out` `[n_rows, n]` with `first + n <= n_in`, both f32.
pub fn slice_columns(exec: Exec, x: View, first: usize, out: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_in], n) = (x.shape, out.shape[1]);
    out.expect_shape(OP, "out", [n_rows, n])?;
    if n == 0 || first.checked_add(n).is_none_or(|end| end > n_in) {
        return Err(Error::Argument { op: OP, what: format!("columns {first}.. ({n}) of {n_in}") });
    }
    if let Exec::Gpu(gpu) = exec {
        return numbers::slice_columns(gpu, OP, x, first, out);
    }
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n).enumerate() {
        out.copy_from_slice(&x[row * n_in + first..][..n]);
    }
    Ok(())
}
