//! Brings what experts made back to the rows it belongs to, each part with its weight.

use crate::{Error, Exec, View, ViewMut};

const OP: &str = "add_rows";

/// `out[rows[i]] += weights[i] * y[i]`, f32; `y` is `[rows.len(), n_cols]`.
pub fn add_rows(exec: Exec, y: View, rows: &[u32], weights: &[f32], out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = out.shape;
    y.expect_shape(OP, "y", [rows.len(), n_cols])?;
    if weights.len() != rows.len() {
        return Err(Error::Argument { op: OP, what: format!("{} weights for {} rows", weights.len(), rows.len()) });
    }
    if let Some(row) = rows.iter().find(|row| **row as usize >= n_rows) {
        return Err(Error::Argument { op: OP, what: format!("row {row} of {n_rows}") });
    }
    exec.cpu_only(OP)?;
    let (y, out) = (y.f32s(OP, "y")?, out.f32s(OP, "out")?);
    for ((&row, weight), y) in rows.iter().zip(weights).zip(y.chunks_exact(n_cols.max(1))) {
        let out = &mut out[row as usize * n_cols..][..n_cols];
        out.iter_mut().zip(y).for_each(|(out, y)| *out += weight * y);
    }
    Ok(())
}
