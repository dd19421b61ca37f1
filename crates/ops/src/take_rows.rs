//! Picks rows: after the last attention, only the rows that somebody wants go on.

use crate::{Error, Exec, View, ViewMut};

const OP: &str = "take_rows";

/// `out[i] = x[rows[i]]`, f32.
pub fn take_rows(exec: Exec, x: View, rows: &[u32], out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    out.expect_shape(OP, "out", [rows.len(), n_cols])?;
    if let Some(row) = rows.iter().find(|row| **row as usize >= n_rows) {
        return Err(Error::Argument { op: OP, what: format!("row {row} of {n_rows}") });
    }
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    let Exec::Cpu(_) = exec;
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(n_cols.max(1))) {
        out.copy_from_slice(&x[row as usize * n_cols..][..n_cols]);
    }
    Ok(())
}
