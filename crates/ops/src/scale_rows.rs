//! Each row by a factor of its own: `x[r, c] *= factors[r]`.

use crate::view::SharedPtr;
use crate::{Error, Exec, View, ViewMut, numbers};

const OP: &str = "scale_rows";

/// `x` is `[n_rows, n_cols]`, `factors` `[n_rows, 1]`, both f32.
pub fn scale_rows(exec: Exec, x: &mut ViewMut, factors: View) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    factors.expect_shape(OP, "factors", [n_rows, 1])?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::scale_rows(gpu, OP, x, factors),
    };
    let factors = factors.f32s(OP, "factors")?;
    let x = SharedPtr::new(x.f32s(OP, "x")?);
    pool.run_ranges(n_rows, 16, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `x`.
            unsafe { x.slice(row * n_cols, n_cols) }.iter_mut().for_each(|x| *x *= factors[row]);
        }
    });
    Ok(())
}
