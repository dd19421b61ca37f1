//! Puts rows together from two matrices, and takes a part of rows: compressed attention keeps what rope rotates
//! beside what is not.

use crate::{Error, Exec, View, ViewMut};

const OP: &str = "columns";

/// `out[r] = [a[r], b[r], 0...]`: `out` may be wider than both.
pub fn join_columns(exec: Exec, a: View, b: View, out: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_a], [_, n_b], n_out) = (a.shape, b.shape, out.shape[1]);
    b.expect_shape(OP, "b", [n_rows, n_b])?;
    out.expect_shape(OP, "out", [n_rows, n_out])?;
    if n_a + n_b > n_out || n_out == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_a} and {n_b} columns into {n_out}") });
    }
    exec.cpu_only(OP)?;
    // A matrix without columns has no bytes to look at.
    let b = if n_b == 0 { &[] } else { b.f32s(OP, "b")? };
    let (a, out) = (a.f32s(OP, "a")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n_out).enumerate() {
        let (left, rest) = out.split_at_mut(n_a);
        let (right, zeros) = rest.split_at_mut(n_b);
        left.copy_from_slice(&a[row * n_a..][..n_a]);
        right.copy_from_slice(&b[row * n_b..][..n_b]);
        zeros.fill(0.0);
    }
    Ok(())
}

/// The first columns: `out[r] = x[r][..n_out]`.
pub fn take_columns(exec: Exec, x: View, out: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_in], n_out) = (x.shape, out.shape[1]);
    out.expect_shape(OP, "out", [n_rows, n_out])?;
    if n_out > n_in || n_out == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_out} columns of {n_in}") });
    }
    exec.cpu_only(OP)?;
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n_out).enumerate() {
        out.copy_from_slice(&x[row * n_in..][..n_out]);
    }
    Ok(())
}
